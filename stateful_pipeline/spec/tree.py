"""Values with their positions: what a YAML file says, and where it says it.

A spec may come from several files (``extends``) and from the shell (``--set``).  The trees of all
of them are merged before anything is validated, and every node keeps the place that it came from,
so that an error about an inherited value names the file that holds it.

Merging follows one rule: mappings merge key by key, everything else is replaced, and null deletes
what is there.  Where nothing is there to delete, null stays, as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import Place
from stateful_pipeline.spec.scalars import Scalar

Part = str | int
Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Node:
    """A value of a YAML file.

    Attributes:
        value: A scalar, or the children of a mapping or a sequence.
        place: Where the value begins.
        folder: The folder against which a relative path in this value is resolved.
        key_place: Where its key is written, for a value of a mapping.
        size: The number of values in it, itself included, with aliases written out.
        depth: The number of levels in it; 1 for a scalar.
    """

    value: Scalar | dict[str, Node] | list[Node]
    place: Place
    folder: Path
    key_place: Place | None = None
    size: int = field(default=1, compare=False)
    depth: int = field(default=1, compare=False)

    @property
    def where(self) -> Place:
        """The place to blame: a scalar itself; for more than that, the key it stands under."""
        if isinstance(self.value, (dict, list)) and self.key_place is not None:
            return self.key_place
        return self.place

    def child(self, part: Part) -> Node | None:
        """Return the value under a key or an index, or None."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int):
            return self.value[part] if 0 <= part < len(self.value) else None
        return None

    def plain(self) -> Any:
        """Return the value as plain dicts, lists and scalars, new ones at every call."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, parts: Sequence[Part]) -> tuple[Node, int]:
        """Return the deepest node on the way along ``parts``, and how many parts led there."""
        node = self
        for count, part in enumerate(parts):
            inner = node.child(part)
            if inner is None:
                return node, count
            node = inner
        return node, len(parts)


def merge(base: Node, over: Node) -> Node:
    """Return ``base`` with ``over`` laid over it; a null in ``over`` deletes what ``base`` has."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        if key not in merged:
            merged[key] = node
        elif node.value is None:
            del merged[key]
        else:
            merged[key] = merge(merged[key], node)
    return replace(over, value=merged)


def assign(root: Node, parts: Parts, node: Node) -> Node:
    """Return ``root`` with ``node`` merged in at ``parts``; mappings on the way are made.

    Raises:
        LookupError: The way leads through a value that is no mapping, or to an index that is not
            there; the exception's argument is the number of parts that could be followed.
    """
    return _assign(root, parts, node, 0)


def _assign(root: Node, parts: Parts, node: Node, done: int) -> Node:
    if done == len(parts):
        return merge(root, node)
    part = parts[done]
    inner = root.child(part)
    if isinstance(root.value, dict) and isinstance(part, str):
        return _assign_key(root, parts, node, done)
    if isinstance(root.value, list) and inner is not None and isinstance(part, int):
        items = list(root.value)
        items[part] = _assign(inner, parts, node, done + 1)
        return replace(root, value=items)
    raise LookupError(done)


def _assign_key(root: Node, parts: Parts, node: Node, done: int) -> Node:
    assert isinstance(root.value, dict)
    key, children = str(parts[done]), dict(root.value)
    last = done + 1 == len(parts)
    inner = children.get(key)
    if last and node.value is None and inner is not None:
        del children[key]
    elif last and inner is None:
        children[key] = replace(node, key_place=node.place)
    else:
        empty = Node({}, node.place, node.folder, key_place=node.place)
        children[key] = _assign(inner or empty, parts, node, done + 1)
    return replace(root, value=children)


def walk(node: Node, pattern: Parts, done: Parts = ()) -> Iterator[tuple[Parts, Node]]:
    """Yield every node that ``pattern`` leads to, with its way; ``"*"`` stands for any key."""
    if not pattern:
        yield done, node
        return
    head, rest = pattern[0], pattern[1:]
    items = enumerate(node.value) if isinstance(node.value, list) else ()
    for key, inner in node.value.items() if isinstance(node.value, dict) else items:
        if head in ("*", key):
            yield from walk(inner, rest, (*done, key))
