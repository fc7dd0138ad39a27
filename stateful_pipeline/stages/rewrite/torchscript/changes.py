"""What a call changes in a module, and what of it the next call could not carry on.

States are values that the graph takes and gives.  Two of them are apart, so a module whose
attributes become the same tensor, or share memory, is refused where a write in place to one of them
would have to reach the other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from stateful_pipeline.errors import Place, StateError
from stateful_pipeline.model.parts import overlap
from stateful_pipeline.stages.rewrite.torchscript.attributes import Attributes, is_number, joined
from stateful_pipeline.stages.rewrite.torchscript.scope import Slot
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Held,
    Plain,
    Ref,
    Root,
    Table,
    roots_of,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer


class Changes:
    """What the graph, written to its end, changes.

    Args:
        writer: The new graph.
        attributes: The module's attributes.
    """

    def __init__(self, writer: Writer, attributes: Attributes) -> None:
        self._writer, self._attributes = writer, attributes
        self._written = {
            root: None
            for root, first in attributes.first.items()
            if isinstance(first, Held) and writer.scope.content(root) is not first
        }

    def changed(self) -> list[str]:
        """Return the paths of tensors and numbers that the graph changes.

        Raises:
            StateError: A container does not keep its form, or tensors would not stay apart.
        """
        paths = [path for slot in self._attributes.initial for path in self._reassigned(slot)]
        paths += map(self._attributes.names.__getitem__, self._written)
        self._refuse_shared_memory()
        self._refuse_meetings()
        return list(dict.fromkeys(paths))

    def _reassigned(self, slot: Slot) -> Iterator[str]:
        """Yield the paths at which an attribute holds another tensor than before the call."""
        before = self._attributes.initial[slot]
        after = self._after(slot)
        appearing, vanishing = self._attributes.appearing, self._attributes.vanishing
        if after.keys() - before.keys() - appearing or before.keys() - after.keys() - vanishing:
            raise StateError(
                "a container's length or keys change from call to call",
                attribute=joined(slot),
                place=self._place(slot),
                hint="let it be as long after a call as before it",
            )
        for path in sorted(before.keys() & after.keys() & vanishing):
            if isinstance(after[path], Ref | Plain):
                raise StateError("is still there after the call", attribute=path)
        for path, first in before.items():
            if first == after.get(path) or path in appearing | vanishing:
                continue
            numbers = is_number(first) and is_number(after[path])
            if not numbers and not (isinstance(first, Ref) and isinstance(after[path], Ref)):
                raise StateError(
                    "forward stores a tensor where there was none, or none where there was one",
                    attribute=path,
                    place=self._attributes.stored_at.get(slot),
                    hint="give it its final type in the constructor",
                )
            yield path

    def _place(self, slot: Slot) -> Place | None:
        """Return the line that changes the form of an attribute."""
        stored = self._attributes.stored_at.get(slot)
        meant = self._writer.scope.pointer(slot)
        changed = isinstance(meant, List | Table)
        return stored or (self._writer.written_at.get(meant.root) if changed else None)

    def _refuse_shared_memory(self) -> None:
        """Refuse a write in place to a tensor of whose memory another one has a part."""
        names = self._attributes.names
        by_storage: dict[int, list[tuple[Root, torch.Tensor]]] = defaultdict(list)
        for root, tensor in self._attributes.tensors.items():
            by_storage[tensor.untyped_storage()._cdata].append((root, tensor))
        for together in by_storage.values():
            for (root, tensor), (other, another) in itertools.permutations(together, 2):
                if root in self._written and overlap(tensor, another):
                    raise StateError(
                        f"is written to in place and shares memory with '{names[other]}'",
                        attribute=names[root],
                        place=self._writer.written_at.get(root),
                        hint="keep one of the two, and take the view of it in forward",
                    )

    def _refuse_meetings(self) -> None:
        """Refuse two attributes that may be one tensor after the call, and are written in place.

        At the next call, a write to one of them would have to reach the other.
        """
        names, aliases = self._attributes.names, self._writer.aliases
        users: dict[Root, list[tuple[str, Any, Any]]] = defaultdict(list)
        for slot, before in self._attributes.initial.items():
            after = self._after(slot)
            for path, now in after.items():
                if isinstance(now, Ref):
                    first = before.get(path)
                    for root in {r for b in roots_of(after[path].base) for r in aliases.above(b)}:
                        users[root].append((path, getattr(first, "base", None), now))
        for together in users.values():
            for (a, one, x), (b, other, y) in itertools.combinations(together, 2):
                found = [r for r in (one, other) if r in self._written and one is not other]
                if found and aliases.may_be_same(x, y):
                    raise StateError(
                        f"may be the same tensor as '{b}' after a call, and a later call writes to "
                        "it in place",
                        attribute=a,
                        place=self._writer.written_at.get(min(found, key=names.__getitem__)),
                        hint=f"keep them apart: {in_python(a)} = {in_python(b)}.clone()",
                    )

    def _after(self, slot: Slot) -> dict[str, Any]:
        """Return what an attribute holds after the call, by path."""
        meant = self._writer.scope.pointer(slot)
        return dict(self._attributes.leaves(joined(slot), meant))


def in_python(path: str) -> str:
    """Return an attribute's path as Python has it: ``self.ring.frames[0]``."""
    names = path.split(".")
    return "self" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in names)
