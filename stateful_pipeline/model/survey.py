"""Lists all that a call of a module could change: what it holds, and what its code refers to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stateful_pipeline.model.holders import Leaf, Visit, read, walk
from stateful_pipeline.model.surroundings import (
    Binding,
    Surroundings,
    is_open,
    random_generators,
)


@dataclass
class Survey:
    """What was found.

    Attributes:
        leaves: Every value, in the module first, each path once.
        holders: Every holder, each once.
        bindings: The names outside the module through which something was found.
        classes: The classes whose attributes were looked at.
    """

    leaves: list[Leaf] = field(default_factory=list)
    holders: list[Any] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    classes: list[type] = field(default_factory=list)


def survey(root: nn.Module) -> Survey:
    """Look at everything below ``root`` and at everything that its code refers to."""
    found = Survey()
    seen: dict[int, tuple[str, object]] = {}
    around = Surroundings()
    for leaf in walk([Visit("", root, "module", root)], seen):
        found.leaves.append(leaf)
        around.meet(leaf.value, outside=False)
    new = [*around.take(), *random_generators()]
    while new:
        for binding in new:
            found.bindings.append(binding)
            try:
                value = binding.read()
            except KeyError:
                continue  # a name that has no value yet
            for leaf in walk([Visit(binding.path, value, binding.kind, root)], seen, is_open):
                found.leaves.append(leaf)
                around.meet(leaf.value, outside=True)
        new = around.take()
    found.holders = [*(holder for _, holder in seen.values()), *around.namespaces]
    found.classes = around.classes
    return found


def reader(root: nn.Module, path: str) -> Callable[[], Any]:
    """Return a function that reads what is at the ``path`` of a leaf, or raises ``KeyError``."""
    if not path.startswith("<"):
        return lambda: read(root, path)
    for binding in survey(root).bindings:
        if path == binding.path or path.startswith(binding.path + "."):
            rest = path[len(binding.path) + 1 :]
            return lambda: read(binding.read(), rest)
    return lambda: read(root, path)
