"""What is known inside one block: what objects hold, what attributes mean, what is stale.

A block sees what the blocks around it know and keeps its own changes to itself, until the branch or
loop that it belongs to joins them.  So entering a block costs nothing, however many states there
are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from stateful_pipeline.errors import Place
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Held,
    Opaque,
    Root,
)

Slot = tuple[str, str]
"""An attribute: the path of the module that holds it, and its name."""
Content = Held | Elements | Opaque


class Scope:
    """One block's knowledge.

    Attributes:
        parent: The block around it.
        contents: What objects hold, for those that were written to or made here.
        pointers: What attributes mean, for those that were stored to here.
        stale: Whether the content of an object is not known any more, and since which line.
        cache: Views that were computed here, with what they were computed from.
        dead: Whether the block ends by raising.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.contents: dict[Root, Content] = {}
        self.pointers: dict[Slot, Any] = {}
        self.stale: dict[Root, tuple[bool, Place | None]] = {}
        self.cache: dict[Hashable, tuple[Any, Held]] = {}
        self.dead = False

    def outward(self) -> Iterator[Scope]:
        """Yield this block and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def sees(self, scope: Scope) -> bool:
        """Whether what was made in ``scope`` can be used here."""
        return any(outer is scope for outer in self.outward())

    def content(self, root: Root) -> Content:
        """Return what ``root`` holds here."""
        return next(s.contents[root] for s in self.outward() if root in s.contents)

    def pointer(self, slot: Slot) -> Any:
        """Return what an attribute means here, or None if nothing was stored or loaded yet."""
        return next((s.pointers[slot] for s in self.outward() if slot in s.pointers), None)

    def is_stale(self, root: Root) -> bool:
        """Whether the content of ``root`` is not known here."""
        return self._staleness(root)[0]

    def stale_since(self, root: Root) -> Place | None:
        """Return the line after which the content of ``root`` is not known."""
        return self._staleness(root)[1]

    def _staleness(self, root: Root) -> tuple[bool, Place | None]:
        return next((s.stale[root] for s in self.outward() if root in s.stale), (False, None))

    def spoil(self, root: Root, place: Place | None) -> None:
        """Note that the content of ``root`` is not known any more."""
        self.stale[root] = (True, place)

    def refresh(self, root: Root) -> None:
        """Note that the content of ``root`` is known again."""
        if self.is_stale(root):
            self.stale[root] = (False, None)

    def cached(self, key: Hashable) -> tuple[Any, Held] | None:
        """Return a view that was computed before, and what it was computed from."""
        return next((s.cache[key] for s in self.outward() if key in s.cache), None)
