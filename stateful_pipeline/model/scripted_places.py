"""Finds the line of source that stores to an attribute of a ScriptModule.

Nobody can trace the lines of TorchScript as they run, so the graphs of the methods are read:

* ``self.h = ...`` is a ``prim::SetAttr`` in the method that says so.  TorchScript does not record
  its line.  It does record that of the operator which made the stored value, and the assignment is
  in that line or comes after it, in the same function.
* ``self.h.add_(x)``, or any other operator that writes to its argument, does record its line.
  Which attribute it writes to is followed through views, lists and calls, in the inlined graph.

Files that were saved elsewhere carry the names and lines of their sources, and excerpts of them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from stateful_pipeline.errors import Place
from stateful_pipeline.model.jit import place_of, reads, schema_of, writes
from stateful_pipeline.model.scripted import graph_of, methods, submodules
from stateful_pipeline.model.user_code import is_user_file

_GOES_ON = ("(", "[", "{", ",", "=", "\\")
"""How a line ends whose statement goes on in the next."""
_FAR = 60
"""So many lines at most lie between the line that makes a value and the one that stores it."""


def place_of_store(module: nn.Module, path: str) -> Place | None:
    """Return the line of the user's code that first stores to ``path``, if one is recorded.

    Args:
        module: The ScriptModule.
        path: The path of an attribute below it, or of an item of one.
    """
    places = [*_assignments(module, path.split(".")), *_writes(module, path)]
    return next((place for place in places if _is_users(place)), None)


def place_of_code(module: nn.Module) -> Place | None:
    """Return the first line of the user's code in the methods of ``module``, ``forward`` first."""
    for method in methods(module):
        graph = graph_of(module, method)
        for node in _nodes(graph):
            place = place_of(node)
            if place is not None and _is_users(place):
                return place
    return None


def _is_users(place: Place) -> bool:
    return is_user_file(place.file) and not place.file.startswith("code/__torch__/torch/")


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


# Assignments


def _assignments(module: nn.Module, names: Sequence[str]) -> Iterator[Place]:
    """Yield the places of ``prim::SetAttr``: the owner's own methods first, then those around."""
    around = [module]
    for name in names[:-1]:
        inner = submodules(around[-1]).get(name)
        if inner is None:
            break
        around.append(inner)
    for depth in reversed(range(len(around))):
        for method in methods(around[depth]):
            graph = graph_of(around[depth], method)
            for node in graph.findAllNodes("prim::SetAttr"):
                stored = [*_chain(node.inputsAt(0)), node.s("name")]
                place = place_of_set(node)
                if place is not None and list(names[depth : depth + len(stored)]) == stored:
                    yield place


def _chain(value: Any) -> list[str]:
    """Return the names of the attributes that lead from ``self`` to ``value``."""
    names: list[str] = []
    while value.node().kind() == "prim::GetAttr":
        names.insert(0, value.node().s("name"))
        value = value.node().inputsAt(0)
    return names


def place_of_set(node: Any) -> Place | None:
    """Return the line of a ``prim::SetAttr``, which has none of its own."""
    owner = node.owningBlock().owningNode()
    # What comes last before is nearer than a value that was made long ago.
    before = node.inputsAt(1).node() if owner is None or place_of(owner) is None else owner
    for earlier in node.owningBlock().nodes():
        if not earlier.isBefore(node):
            break
        before = before if place_of(earlier) is None else earlier
    place = place_of(before)
    return None if place is None else _assignment_near(place, node.s("name"), before.sourceRange())


def _assignment_near(place: Place, name: str, excerpt: str) -> Place:
    """Return the line that assigns to ``name``, at ``place`` or after it, or ``place`` itself."""
    word = rf"\.{re.escape(name)}\b"
    store = re.compile(rf"{word}\s*(?:[-+*/@%&|^<>]|//|\*\*)*=(?!=)|{word}\s*[,)\]].*?=(?!=)")
    known = _lines_of(excerpt)

    def text_of(line: int) -> str:
        return (linecache.getline(place.file, line) or known.get(line, "")).rstrip()

    first = place.line or 1
    while text_of(first - 1).partition("#")[0].rstrip().endswith(_GOES_ON):
        first -= 1
    for line in range(first, first + _FAR):
        text = text_of(line)
        if store.search(text):
            return Place(place.file, line)
        if line > first and re.match(r"\s*(def|class) ", text):
            break
    return place


def _lines_of(excerpt: str) -> dict[int, str]:
    """Return the lines of an error excerpt by number: it marks the line that it names."""
    head, _, body = excerpt.partition("\n")
    number = re.search(r", line (\d+)", head)
    lines = body.split("\nSerialized")[0].splitlines()
    marks = [index for index, line in enumerate(lines) if re.fullmatch(r"\s*~+.*", line)]
    if number is None or not marks:
        return {}
    first = int(number[1]) - marks[0] + 1
    kept = [line for index, line in enumerate(lines) if index not in marks]
    return {first + index: line for index, line in enumerate(kept)}


# Operators that write


def _writes(module: nn.Module, path: str) -> Iterator[Place]:
    for method in methods(module):
        graph = graph_of(module, method, inlined=True)
        aliases = _Aliases(next(iter(graph.inputs())))
        for node in aliases.writers(graph, path):
            place = place_of(node)
            if place is not None:
                yield place


class _Aliases:
    """Which attributes each value of a graph may be, or share memory with, by their paths."""

    def __init__(self, module: Any) -> None:
        self._paths: dict[str, frozenset[str]] = {module.debugName(): frozenset([""])}

    def writers(self, block: Any, path: str) -> Iterator[Any]:
        """Yield the operators in ``block`` that may write to what is at ``path``, in order."""
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::GetAttr":
                held, name = self._of(node.inputsAt(0)), node.s("name")
                self._put(node.output(), frozenset(f"{p}.{name}" if p else name for p in held))
            elif kind in ("prim::If", "prim::Loop"):
                yield from self._inside(node, path)
            elif self._writes(node, path):
                yield node
            if kind not in ("prim::GetAttr", "prim::If", "prim::Loop"):
                self._results(node)

    def _inside(self, node: Any, path: str) -> Iterator[Any]:
        blocks, skipped = list(node.blocks()), int(node.kind() == "prim::Loop")
        carried = list(node.inputs())[2:] if skipped else []
        for block in blocks:
            for inner, outer in zip(list(block.inputs())[skipped:], carried, strict=True):
                self._put(inner, self._of(outer))
            yield from self.writers(block, path)
        for index, output in enumerate(node.outputs()):
            left = [self._of(list(block.outputs())[index + skipped]) for block in blocks]
            start = [self._of(carried[index])] if skipped else []
            self._put(output, frozenset().union(*left, *start))

    def _writes(self, node: Any, path: str) -> bool:
        schema = schema_of(node)
        return schema is not None and any(
            path == held or path.startswith(f"{held}.")
            for argument, value in zip(schema.arguments, node.inputs(), strict=False)
            if writes(argument)
            for held in self._of(value)
            if held
        )

    def _results(self, node: Any) -> None:
        """Let the results be what the arguments are that may be returned, or put into a result."""
        schema, inputs = schema_of(node), list(node.inputs())
        if schema is not None:
            pairs = zip(schema.arguments, inputs, strict=False)
            inputs = [value for argument, value in pairs if reads(argument)]
        held = frozenset().union(*(self._of(value) for value in inputs))
        for output in node.outputs():
            self._put(output, held)

    def _of(self, value: Any) -> frozenset[str]:
        return self._paths.get(value.debugName(), frozenset())

    def _put(self, value: Any, paths: frozenset[str]) -> None:
        if paths:
            self._paths[value.debugName()] = paths
