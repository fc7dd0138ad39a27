"""Answers which tensor objects may be the same, where a loop decides what a name means.

The names that a loop carries become new roots in its body, each with the roots that it may be as
its *sources*.  Two of these roots are *apart*, although they have sources in common (two buffers
that are swapped have), if in every iteration they mean different objects: they form a *family*, and
those of a family that are not apart share a *token* among their sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stateful_pipeline.stages.rewrite.torchscript.values import Choice, Ref, Root, roots_of


@dataclass(eq=False)
class Family:
    """The roots of one loop's names, of which two are apart unless they share a token."""

    tokens: set[Root] = field(default_factory=set)


class Aliases:
    """The sources of roots, and what follows from them."""

    def __init__(self) -> None:
        self._named: dict[Root, set[Root]] = defaultdict(set)

    def note(self, root: Root, sources: Iterable[Root]) -> None:
        """Note that ``root`` may be, or hold, any of ``sources``."""
        for source in sources:
            if source is not root:
                self._named[source].add(root)

    def affected(self, root: Root) -> set[Root]:
        """Return the other roots that a write to ``root`` may change."""
        found: set[Root] = set()
        self._down(root, root, found)
        above, pending = {root}, [root]
        while pending:
            lower = pending.pop()
            for upper in lower.sources if lower is root else lower.sources | lower.parts:
                if upper not in above:
                    above.add(upper)
                    pending.append(upper)
                for other in self._named[upper]:
                    if other is not lower and not (_apart(lower, other) or _apart(root, other)):
                        found.add(other)
                        self._down(root, other, found)
        return (found | above) - {root}

    def _down(self, written: Root, root: Root, found: set[Root]) -> None:
        """Add what may be ``root``, but for what is apart from the root that is written to."""
        pending = [root]
        while pending:
            for lower in self._named[pending.pop()] - found:
                if not _apart(written, lower):
                    found.add(lower)
                    pending.append(lower)

    def may_be_same(self, a: Ref, b: Ref) -> bool:
        """Whether two references may mean parts of the same object."""
        one, other = a.base, b.base
        both = isinstance(one, Choice) and isinstance(other, Choice)
        if both and one.condition is other.condition:  # type: ignore[union-attr]  # both are choices
            sides = ((one.left, other.left), (one.right, other.right))  # type: ignore[union-attr]
            return any(self.may_be_same(x, y) for x, y in sides)
        ours, theirs = set(roots_of(one)), set(roots_of(other))
        return bool(ours & theirs) or any(self.affected(root) & theirs for root in ours)

    def above(self, root: Root, stop: Iterable[Root] = ()) -> Iterator[Root]:
        """Yield ``root`` and its sources and parts, up to those in ``stop``."""
        ends, seen, pending = set(stop), {root}, [root]
        while pending:
            current = pending.pop()
            yield current
            if current not in ends:
                more = (current.sources | current.parts) - seen
                seen |= more
                pending += more


def _apart(a: Root, b: Root) -> bool:
    family = a.family
    if family is None or family is not b.family:
        return False
    return not (a.sources & b.sources & family.tokens)
