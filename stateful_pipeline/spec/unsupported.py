"""Keys and values of the spec whose capability does not exist yet.

They are refused with "not supported yet", never ignored, and the JSON Schema refuses them too.  To
add a capability, remove its line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stateful_pipeline.spec.tree import Node, Parts, walk

KEYS: tuple[Parts, ...] = (
    ("operators",),
    ("targets", "*", "precision"),
    ("targets", "*", "profiles"),
    ("targets", "*", "plugins"),
    ("mlflow", "register"),
    ("mlflow", "alias"),
)
"""Keys that are refused where they say anything; ``"*"`` stands for any key."""

HAVE: dict[Parts, tuple[str, ...]] = {("targets", "*", "precision"): ("openvino",)}
"""Runtimes that a key of ``KEYS`` is supported by, beside which it is not refused."""

VALUES: dict[Parts, tuple[str, ...]] = {
    ("targets", "*", "provider"): ("cuda", "tensorrt"),
}
"""Values that are refused, by the key that holds them."""

RUNTIMES = ("tensorrt", "tensorrt_rtx")
"""Runtimes that are refused; those that exist are the models of ``targets.py``."""


@dataclass(frozen=True)
class Unsupported:
    """A capability that was asked for and does not exist yet.

    ``parts`` is the key; ``covers`` the part of the spec about which nothing more can be said.
    """

    parts: Parts
    what: str
    covers: Parts


def unsupported(root: Node) -> Iterator[Unsupported]:
    """Yield what the tree ``root`` asks for and does not exist yet."""
    yield from _keys(root)
    yield from _values(root)
    for parts, node in walk(root, ("targets", "*", "runtime")):
        if _is_one_of(node.value, RUNTIMES):
            yield Unsupported(parts, f"`runtime: {node.value}`", parts[:-1])


def _keys(root: Node) -> Iterator[Unsupported]:
    for pattern in KEYS:
        for parts, node in walk(root, pattern):
            if node.value not in (None, {}, []) and not _is_had(root, pattern, parts):
                yield Unsupported(parts, f"`{parts[-1]}`", parts)


def _is_had(root: Node, pattern: Parts, parts: Parts) -> bool:
    """Whether the target with this key has a runtime that supports it."""
    runtime, count = root.find((*parts[:-1], "runtime"))
    return count == len(parts) and _is_one_of(runtime.value, HAVE.get(pattern, ()))


def _values(root: Node) -> Iterator[Unsupported]:
    for pattern, values in VALUES.items():
        for parts, node in walk(root, pattern):
            if _is_one_of(node.value, values):
                yield Unsupported(parts, f"`{parts[-1]}: {node.value}`", parts)


def _is_one_of(value: Any, words: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in words
