"""Attributes that the user fixes to constants: after a call, each holds its constant again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateful_pipeline.model.fixed import other_value
from stateful_pipeline.stages.rewrite.torchscript.attributes import Attributes, joined
from stateful_pipeline.stages.rewrite.torchscript.values import Known
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer


def under_first_paths(
    constants: Mapping[str, Any], submodules: Mapping[str, str]
) -> dict[str, Any]:
    """Return ``constants`` by paths that lead through the first path of each submodule.

    Args:
        constants: The constants of fixed attributes, by path.
        submodules: The first path of each submodule, by each path that it has.
    """
    found = {}
    for path, value in constants.items():
        parts = path.split(".")
        count = max(n for n in range(len(parts)) if ".".join(parts[:n]) in submodules)
        module = submodules[".".join(parts[:count])]
        found[".".join(filter(None, (module, *parts[count:])))] = value
    return found


def refuse_other_constants(writer: Writer, attributes: Attributes) -> None:
    """Refuse a graph, written to its end, on one of whose paths a constant does not stay.

    Raises:
        StateError: A fixed attribute may hold something else after a call.
    """
    for slot, before in attributes.initial.items():
        whole = joined(slot)
        fixed = [path for path in attributes.constants if _is_below(path, whole)]
        if not fixed:
            continue
        after = dict(attributes.leaves(whole, writer.scope.pointer(slot)))
        for path in fixed:
            was, now = _part(before, path), _part(after, path)
            if was != now:
                error = other_value(path, attributes.constants[path], _words(now.get(path)))
                error.place = attributes.stored_at.get(slot)
                raise error


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above + ".")


def _part(leaves: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {name: what for name, what in leaves.items() if _is_below(name, path)}


def _words(what: Any) -> str:
    return repr(what.value) if isinstance(what, Known) else "something else"
