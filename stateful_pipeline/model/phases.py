"""Modules that hold other things in their first calls than later: None, a list that fills up.

What a module holds (which attributes are there, which are None, how long its lists are) is its
*structure*.  Where the first calls change the structure, and the values that they put there depend
on inputs, no initial values do the same.  But if the structure settles after a few calls, whatever
the inputs are, the module is a few modules without such changes, called one after the other.  So
there is one more state, ``phase``: an int64 that says which of them is next.  The graph takes the
path of that phase; a state that is not there yet has zeros, which nobody reads.

Which structure a call leaves is read from the trace of the call in that phase, which has no
branches; it is not taken from what was observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.model.holders import WRITABLE, Visit, is_number, read, walk
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call
from stateful_pipeline.model.snapshot import Snapshot

MOST_PHASES = 17
"""As many structures are told apart; each is a copy of the graph."""

PHASE = "phase"
"""The name, and the kind, of the state that says which structure the module has."""

_SYMBOLS = (torch.SymBool, torch.SymInt, torch.SymFloat)

_GOES_ROUND = (
    "after {} calls the module holds what it held before, and less than in between: collect in a "
    "tensor of fixed size, with a counter"
)
_NEVER_SETTLES = (
    f"after {MOST_PHASES} calls what the module holds still changes: keep the last frames in a "
    "tensor of fixed size (torch.roll, or a ring with an index)"
)

Structure = Mapping[str, Any]
"""What kind of thing is where: path to kind."""


def structure_of(module: nn.Module) -> dict[str, Any]:
    """Return the structure of ``module``: numbers and elements of tensors are left out."""
    return {
        leaf.path: _kind(leaf.value)
        for leaf in walk([Visit("", module, "module", module)], {})
        if leaf.kind in WRITABLE
    }


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        empty = any(type(size) is int and size == 0 for size in value.shape)
        return ("tensor", value.dtype, value.dim(), empty)
    if is_number(value) or isinstance(value, _SYMBOLS):
        return "number"
    if value is None or isinstance(value, str | bytes):
        return ("constant", value)
    return (type(value).__module__, type(value).__qualname__)


@dataclass(frozen=True)
class Phase:
    """The module before one of its first calls.

    Attributes:
        structure: What kind of thing is where.
        objects: Which object is where.
        numbers: The Python numbers that it holds, by path.
    """

    structure: Structure
    objects: Snapshot
    numbers: Mapping[str, Any]

    def holds(self, path: str, last: Structure) -> bool:
        """Whether what will be at ``path`` in the end is there."""
        return path in self.structure and self.structure[path] == last[path]


@dataclass(frozen=True)
class Phases:
    """The module before each of its first calls, until its structure settled.

    Attributes:
        each: The phases in order; empty if it did not settle.
        trouble: What to do if it did not.
    """

    each: tuple[Phase, ...]
    trouble: str | None = None


def find_phases(module: nn.Module, call: Call, plan: InputPlan, sizes: Mapping[str, int]) -> Phases:
    """Return the module as it is before each call, until its structure settles.

    The module is left as it was.

    Args:
        module: The module, as it was constructed.
        call: Calls its entry point.
        plan: The inputs.
        sizes: Sizes at which it runs.
    """
    phases: list[Phase] = []
    with Snapshot(module), torch.no_grad():
        for step in range(MOST_PHASES + 1):
            structure = structure_of(module)
            if phases and structure == phases[-1].structure:
                return Phases(tuple(phases))
            if structure in [phase.structure for phase in phases]:
                return Phases((), _GOES_ROUND.format(step))
            objects = Snapshot(module, bytes_too=False)
            phases.append(Phase(structure, objects, _numbers(module, structure)))
            try:
                call(module, plan.step(sizes, 0, step))
            except Exception:  # noqa: BLE001 - the caller has seen it run, and says what is wrong
                return Phases(())
    return Phases((), _NEVER_SETTLES)


def _numbers(module: nn.Module, structure: Structure) -> dict[str, Any]:
    return {path: read(module, path) for path, kind in structure.items() if kind == "number"}
