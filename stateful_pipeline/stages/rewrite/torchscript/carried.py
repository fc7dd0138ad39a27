"""What a loop carries, and which objects the names among it may mean.

A carried name gets the objects that it may mean as sources; two names that may mean the same object
in some iteration get a token in common (see :mod:`.aliases`).
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stateful_pipeline.errors import Place
from stateful_pipeline.stages.rewrite.torchscript.aliases import Family
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope, Slot
from stateful_pipeline.stages.rewrite.torchscript.values import Opaque, Ref, Root
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

Item = tuple[Root, int]
Name = int | Slot | Item
"""One of the loop's own variables, an attribute, or an item of a list whose length stays."""


@dataclass
class Carried:
    """What is carried, as far as it was found out.

    Attributes:
        names: Names that mean something new in each iteration, with the objects they may mean.
        contents: Objects that hold something new in each iteration.
        stale: Objects that are stale at the start of an iteration.
        fakes: What is known of a carried tensor, where it is less than at first.
        shapes: What is known of a carried tensor that is undefined at first.
        tokens: A stand-in for the object that several names mean, if it is made in the body.
    """

    names: dict[Name, frozenset[Root]] = field(default_factory=dict)
    contents: dict[Root, None] = field(default_factory=dict)
    stale: dict[Root, Place | None] = field(default_factory=dict)
    fakes: dict[Any, torch.Tensor | None] = field(default_factory=dict)
    tokens: dict[frozenset[Any], Root] = field(default_factory=dict)
    shapes: dict[Any, torch.Tensor | None] = field(default_factory=dict)

    def all(self) -> list[Name | Root]:
        """Return everything that is carried, in a fixed order."""
        return [*self.names, *self.contents]


def base_of(meant: Any) -> Any:
    """Return the base of what a name means: a root, or a choice."""
    return meant.root if isinstance(meant, List) else meant.base


class Meanings:
    """Finds out which objects the names that a loop carries may mean.

    Args:
        writer: The new graph.
        carried: What is carried; added to.
        before: Returns what a name means before the loop.

    Attributes:
        own: The roots that carried names have in the body.
        family: To which these roots belong.
    """

    def __init__(self, writer: Writer, carried: Carried, before: Callable[[Name], Any]) -> None:
        self._writer, self._carried, self._before = writer, carried, before
        self._outer = writer.scope
        self.own: dict[Name, Root] = {}
        self._meet_at_first()
        self.family = Family(set(carried.tokens.values()))

    def note(self, ends: dict[Name, Any], scope: Scope) -> bool:
        """Note what carried names may mean; return whether that was known.

        Args:
            ends: What names mean at the end of the body.
            scope: The body's.
        """
        users: dict[Any, set[Root]] = {}  # a name, or a list, to what it may mean, or hold
        for name in self._carried.names:
            end = ends.get(name)
            if isinstance(end, Ref | List):
                users[name] = self._climbed(self._writer.sources_of(base_of(end)))
        for root in self._carried.contents:
            if isinstance(scope.content(root), Opaque):
                users[root] = self._climbed(root.parts) - {root}
        done = True
        for user, roots in users.items():
            done = self._note_source(user, self._seen_outside(user, roots)) and done
        for one, other in self._pairs(users, ends):
            token = self._token(one, other)
            done = self._note_source(one, {token}) and done
            done = self._note_source(other, {token}) and done
        return done

    def _climbed(self, roots: Iterable[Root]) -> set[Root]:
        """Return ``roots`` and what they may be, up to what was there before the iteration."""
        stop = set(self.own.values())
        found: set[Root] = set()
        for root in roots:
            for above in self._writer.aliases.above(root, stop):
                found.add(above)
        return found

    def _seen_outside(self, user: Any, roots: set[Root]) -> set[Root]:
        """Return the objects from outside of the loop that are among ``roots``."""
        mine = self.own.get(user) if not isinstance(user, Root) else None
        seen: set[Root] = set()
        own = set(self.own.values())
        for root in roots:
            if root in own:
                if root is not mine:
                    seen |= root.sources
            elif self._outer.sees(root.scope) and root is not user:
                seen.add(root)
        return seen - self.family.tokens

    def _pairs(
        self, users: dict[Any, set[Root]], ends: dict[Name, Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of users that may mean the same object in the next iteration."""
        shared: dict[Root, list[Any]] = collections.defaultdict(list)
        for user, roots in users.items():
            keys = set(roots)
            for root in roots & set(self.own.values()):
                keys |= root.sources & self.family.tokens  # what may be the same as it
            for key in keys:
                shared[key].append(user)
        for root in self.own.values():  # what may be an object that another user means
            for source in root.sources & shared.keys():
                shared[source] += shared.get(root, [])
        seen: set[frozenset[Any]] = set()
        for together in shared.values():
            for one, other in itertools.combinations(dict.fromkeys(together), 2):
                pair = frozenset((one, other))
                if pair in seen:
                    continue
                seen.add(pair)
                if self._may_meet(ends.get(one), ends.get(other)):
                    yield one, other

    def _may_meet(self, one: Any, other: Any) -> bool:
        """Whether two meanings may be the same object; of a list nothing better is known."""
        if isinstance(one, Ref) and isinstance(other, Ref):
            return self._writer.aliases.may_be_same(one, other)
        return True

    def _note_source(self, user: Any, sources: set[Root]) -> bool:
        """Note that ``user`` may mean or hold ``sources``; return whether that was known."""
        if isinstance(user, Root):
            known = sources <= user.parts
            self._writer.add_parts(user, frozenset(sources))
            return known
        known = sources <= self._carried.names[user]
        self._carried.names[user] |= sources
        return known

    def _token(self, one: Any, other: Any) -> Root:
        pair = frozenset((one, other))
        return self._carried.tokens.setdefault(pair, Root("a tensor", self._outer))

    def _meet_at_first(self) -> None:
        """Give tokens to names that may mean the same object before the loop."""
        refs = {}
        shared: dict[Root, list[Name]] = collections.defaultdict(list)
        for name in self._carried.names:
            meant = self._before(name)
            if isinstance(meant, Ref):
                refs[name] = meant
                for base in self._writer.sources_of(meant.base):
                    for root in self._writer.aliases.above(base):
                        shared[root].append(name)
        for together in shared.values():
            for one, other in itertools.combinations(dict.fromkeys(together), 2):
                if self._writer.aliases.may_be_same(refs[one], refs[other]):
                    token = self._token(one, other)
                    for name in (one, other):
                        self._carried.names[name] |= {token}
