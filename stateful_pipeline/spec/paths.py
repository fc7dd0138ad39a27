"""Which values of a spec are paths, and how they are written.

Paths in a spec are relative to the file that holds them, and absolute once it is loaded.  For the
digest the relative ones are made relative again, so that it does not depend on where a checkout
lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from stateful_pipeline.spec.tree import Node, Parts, walk

Form = Literal["path", "path:Class", "uri"]

PATHS: tuple[tuple[Parts, Form], ...] = (
    (("source", "file"), "path:Class"),
    (("source", "torchscript"), "path"),
    (("source", "exported_program"), "path"),
    (("source", "onnx"), "path"),
    (("source", "libraries", "*"), "path"),
    (("source", "weights"), "path"),
    (("source", "weights", "file"), "path"),
    (("classes", "*", "file"), "path:Class"),
    (("inputs", "*", "data", "npz"), "path"),
    (("states", "*", "init", "file"), "path"),
    (("targets", "*", "timing_cache"), "path"),
    (("mlflow", "tracking_uri"), "uri"),
)
"""Every value that is, or holds, a path; ``"*"`` stands for any key."""

_SQLITE = "sqlite:///"


def rewrite(text: str, form: Form, change: Callable[[str], str]) -> str:
    """Return ``text`` with ``change`` applied to the path in it."""
    if form == "uri":
        is_file = text.startswith(_SQLITE) and len(text) > len(_SQLITE)
        return _SQLITE + change(text.removeprefix(_SQLITE)) if is_file else text
    if form == "path:Class":
        path, colon, name = text.rpartition(":")
        return change(path) + colon + name if path else text
    return change(text) if text else text


def _is_relative(text: str, form: Form) -> bool:
    seen: list[str] = []

    def look(path: str) -> str:
        seen.append(path)
        return path

    rewrite(text, form, look)
    return bool(seen) and not Path(seen[0]).is_absolute()


def resolve_paths(root: Node) -> tuple[Node, frozenset[Parts]]:
    """Return the tree with absolute paths, and the keys of those that were relative."""
    relative: set[Parts] = set()
    for pattern, form in PATHS:
        for parts, node in list(walk(root, pattern)):
            if isinstance(node.value, str) and _is_relative(node.value, form):
                relative.add(parts)
                root = _replace(root, parts, rewrite(node.value, form, _absolute(node.folder)))
    return root, frozenset(relative)


def _absolute(folder: Path) -> Callable[[str], str]:
    return lambda path: os.path.normpath(Path.cwd() / folder / path)


def _replace(root: Node, parts: Parts, value: str) -> Node:
    if not parts:
        return replace(root, value=value)
    if isinstance(root.value, list):
        at, items = parts[0], root.value
        assert isinstance(at, int)
        changed = _replace(items[at], parts[1:], value)
        return replace(root, value=[*items[:at], changed, *items[at + 1 :]])
    assert isinstance(root.value, dict)
    key = str(parts[0])
    return replace(root, value={**root.value, key: _replace(root.value[key], parts[1:], value)})


def relative_content(content: dict[str, Any], keys: frozenset[Parts], folder: Path) -> None:
    """Make the paths under ``keys`` of ``content`` relative to ``folder``, in place.

    Args:
        content: A spec as plain data.
        keys: Where the paths are that were relative in their file.
        folder: The folder of the spec.
    """

    def change(path: str) -> str:
        return Path(os.path.relpath(path, folder)).as_posix()

    for parts, form in _concrete(keys):
        holder: Any = content
        for part in parts[:-1]:
            holder = holder[part]
        key = parts[-1]
        if parts == ("source", "weights"):
            holder, key = holder["weights"], "file"
        holder[key] = rewrite(holder[key], form, change)


def _concrete(keys: frozenset[Parts]) -> Iterator[tuple[Parts, Form]]:
    for parts in sorted(keys, key=str):
        for pattern, form in PATHS:
            fits = len(pattern) == len(parts)
            if fits and all(p in ("*", q) for p, q in zip(pattern, parts, strict=True)):
                yield parts, form
