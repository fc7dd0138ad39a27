"""Settles the states of a module in phases (see :mod:`.phases`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.first_calls import Run
from stateful_pipeline.model.holders import read, write
from stateful_pipeline.model.phases import PHASE, Phase
from stateful_pipeline.model.python_state import as_tensor
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.snapshot import Snapshot


def refuse_passing(phases: Sequence[Phase], changed: Sequence[str]) -> None:
    """Refuse tensors that are there in some of the first calls, and not later.

    Args:
        phases: The structures.
        changed: The tensors that were there from the start, and that the first calls change.

    Raises:
        StateError: There is one.
    """
    last = phases[-1].structure
    for index, phase in enumerate(phases[1:-1], 1):
        for path, kind in phase.structure.items():
            passes = kind[0] == "tensor" and not phase.holds(path, last)
            if passes and (path in changed or not phases[0].holds(path, phase.structure)):
                raise StateError(
                    f"holds another kind of thing in call {index + 1} than later",
                    attribute=path,
                    hint="let it stay there, of one dtype and rank",
                )


def created_tensors(phases: Sequence[Phase]) -> list[str]:
    """Return the paths of the tensors that are there in the end, and not from the start."""
    last = phases[-1].structure
    return [
        path
        for path, kind in last.items()
        if kind[0] == "tensor" and not phases[0].holds(path, last)
    ]


def settled_numbers(phases: Sequence[Phase], runs: Iterable[Run]) -> list[str]:
    """Return the paths of the Python numbers that depend on inputs once the structure settles."""
    held = [run.held[-1] for run in runs]
    return [
        path
        for path, kind in phases[-1].structure.items()
        if kind == "number" and len({(type(h[path]), h[path]) for h in held}) > 1
    ]


@contextmanager
def settled_structure(
    module: nn.Module,
    phases: Sequence[Phase],
    shapes: Mapping[str, Shape],
    axes: Sequence[Axis],
) -> Iterator[None]:
    """Lend the module with its last structure, from which it can be driven at any sizes.

    What was there from the start has its first value; what was created has size 1 along axes.
    """
    last, known = phases[-1], {axis.name for axis in axes}
    with Snapshot(module):
        kept = [p for p, kind in last.structure.items() if kind[0] == "tensor" and p not in shapes]
        first = {path: read(module, path) for path in kept if phases[0].holds(path, last.structure)}
        last.objects.restore()
        for path, value in first.items():
            write(module, path, value)
        made: dict[int, torch.Tensor] = {}
        for path, shape in shapes.items():
            held = read(module, path)
            made.setdefault(id(held), _thin(held.detach(), shape, known))
            write(module, path, made[id(held)])
        yield


def _thin(value: torch.Tensor, shape: Shape, known: set[str]) -> torch.Tensor:
    """Return a copy of ``value`` that has size 1 along the axes in ``known``."""
    for index, dim in enumerate(shape):
        if dim in known:
            value = value.narrow(index, 0, 1)
    return value.clone()


def with_phase(
    states: Sequence[StateDef],
    phases: Sequence[Phase],
    shapes: Mapping[str, Shape],
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
    taken_names: Sequence[str],
) -> list[StateDef]:
    """Return ``states`` with their values before the first call, the phase first.

    Args:
        states: The states, with the values that they have in the last structure.
        phases: The structures.
        shapes: The shapes of what was created.
        axes: The dynamic axes.
        wishes: What the user declared, by state name.
        taken_names: Names that the phase cannot have.
    """
    known = {axis.name for axis in axes}
    found = []
    for state in states:
        created = [path for path in state.places if path in shapes]
        own = state.name not in wishes or wishes[state.name].is_own
        if created:
            sizes = [d if isinstance(d, int) else 1 if d in known else 0 for d in state.shape]
            state = replace(state, initial=torch.zeros(sizes, dtype=state.initial.dtype))
        elif state.number and own:
            number = phases[0].numbers.get(state.name, 0)
            state = replace(state, initial=as_tensor(number, state.initial.dtype, state.name))
        found.append(state)
    used = {*taken_names, *(state.name for state in states), *phases[-1].structure}
    name = next(
        n
        for n in itertools.chain([PHASE], map(f"{PHASE}_{{}}".format, itertools.count(2)))
        if n not in used
    )
    phase = StateDef(name, (name,), (), torch.zeros((), dtype=torch.int64), kind=PHASE)
    return [phase, *found]
