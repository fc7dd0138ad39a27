"""Builds the state contract of a captured program: names, shapes, dtypes, initial values.

A dimension of an output that depends on values (``unique``, ``nonzero``, a boolean mask), or that
is no integer expression over axes, has a size that nobody can know beforehand.  The contract gives
it an axis of its own, such as ``output_0`` for dimension 0 of ``output``, which is in no input and
not among the contract's ``axes``; outputs that are sure to agree share one.  No state can have such
a size.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value, numpy_dtype
from stateful_pipeline.dimensions import Dim, Shape, axes_of, resolve
from stateful_pipeline.errors import ContractError, SpecError, StateError
from stateful_pipeline.model.arrays import dtype_name, to_numpy
from stateful_pipeline.model.phases import PHASE
from stateful_pipeline.model.program import Port, Program
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.sizes import fixed_sizes

INLINE_LIMIT = 64 * 1024
"""Initial values of more bytes than this go to a sidecar file."""


def build_contract(
    program: Program, states: Sequence[StateDef], axes: Sequence[Axis], sidecar: str
) -> tuple[Contract, dict[str, np.ndarray[Any, Any]]]:
    """Return the contract, and the arrays that belong into the sidecar file called ``sidecar``.

    Raises:
        SpecError: An input or an output has the name of a state's graph input or output.
        StateError: There is nothing to export; a state has a dtype that an ONNX model cannot
            carry, or a size that depends on values.
    """
    if not program.outputs and not states:
        raise StateError(
            "there is nothing to export: forward returns no tensor, and no state changes",
            hint="return what is computed, or keep it in a buffer",
        )
    given, made = program.given(), program.made()
    count = len(states)
    outside: dict[str, np.ndarray[Any, Any]] = {}
    described = []
    fixed = fixed_sizes(axes)
    axes = [axis for axis in axes if axis.name not in fixed]
    inputs = _values(program.inputs, given[count:])
    shapes = [value.shape for value in inputs] + [port.shape for port in given]
    known = frozenset(name for shape in shapes for dim in shape for name in axes_of(dim))
    for state, before, after in zip(states, given[:count], made[len(made) - count :], strict=True):
        shape, out_shape = before.shape, after.shape
        if not all(_is_known(dim, known) for dim in out_shape):
            raise StateError(
                "its size after a call is no formula of the sizes before it: it depends on values, "
                "or on a branch",
                attribute=state.name,
                place=after.place,
                hint="keep a buffer of the largest size, and count how much of it is used",
            )
        described.append(
            State(
                name=state.name,
                input=f"{state.name}_in",
                output=f"{state.name}_out",
                dtype=_checked_dtype(state),
                shape=shape,
                out_shape=out_shape if out_shape != shape else None,
                init=_initial(state, fixed, sidecar, outside),
                attribute="" if state.kind == PHASE else state.paths[0],
                exercised=state.exercised,
            )
        )
    contract = Contract(
        inputs=inputs,
        outputs=_name_unknown(_values(program.outputs, made[: len(made) - count]), known),
        states=tuple(described),
        axes=(*axes, *_growing_axes(described, axes)),
    )
    _refuse_clashes(contract)
    return contract, outside


def _values(names: Sequence[str], ports: Sequence[Port]) -> tuple[Value, ...]:
    return tuple(
        Value(name, dtype_name(port.dtype), port.shape)
        for name, port in zip(names, ports, strict=True)
    )


def _name_unknown(outputs: Sequence[Value], known: frozenset[str]) -> tuple[Value, ...]:
    """Name the dimensions that no axis in ``known`` determines; the same expression, one name."""
    names: dict[str, str] = {}
    taken = set(known)

    def named(output: str, index: int, dim: Dim) -> Dim:
        if isinstance(dim, int) or _is_known(dim, known):
            return dim
        if dim not in names:
            base = f"{re.sub(r'[^0-9A-Za-z_]', '_', output)}_{index}"
            base = base if base.isidentifier() else f"size_{base}"
            free = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
            names[dim] = next(name for name in free if name not in taken)
            taken.add(names[dim])
        return names[dim]

    return tuple(
        replace(v, shape=tuple(named(v.name, index, dim) for index, dim in enumerate(v.shape)))
        for v in outputs
    )


def _is_known(dim: Dim, known: frozenset[str]) -> bool:
    """Whether ``dim`` can be computed from the sizes of the axes in ``known``."""
    try:
        if not axes_of(dim) <= known:
            return False
        resolve(dim, {axis: 7 + 2 * i for i, axis in enumerate(sorted(known))})
    except ContractError:
        return False
    except ArithmeticError:  # no size at these sizes, but an expression
        pass
    return True


def _checked_dtype(state: StateDef) -> str:
    name = dtype_name(state.initial.dtype)
    try:
        numpy_dtype(name)
    except Exception as error:
        raise StateError(
            f"its dtype {name} has no ONNX form", attribute=state.name, hint="convert it"
        ) from error
    return name


def _initial(
    state: StateDef,
    fixed: Mapping[str, int],
    sidecar: str,
    outside: dict[str, np.ndarray[Any, Any]],
) -> Initial:
    array = to_numpy(state.initial_at(fixed))
    inline = Initial.inline(array)
    if inline.kind == "zeros" or array.nbytes <= INLINE_LIMIT:
        return inline
    outside[state.name] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return Initial("file", tuple(array.shape), file=sidecar, key=state.name)


def _growing_axes(states: Sequence[State], axes: Sequence[Axis]) -> list[Axis]:
    known = {axis.name for axis in axes}
    names = {name for s in states if s.grows for dim in s.shape for name in axes_of(dim)}
    return [Axis(name, min=0, grows=True) for name in sorted(names - known)]


def _refuse_clashes(contract: Contract) -> None:
    taken: Mapping[str, str] = {
        name: state.name for state in contract.states for name in (state.input, state.output)
    }
    for value in (*contract.inputs, *contract.outputs):
        if value.name in taken:
            raise SpecError(
                f"'{value.name}' is the name of an input or output and of a graph value of "
                f"state '{taken[value.name]}'",
                key=f"inputs.{value.name}",
                hint="rename the input or output (`input_names`, `output_names`)",
            )
    names = [value.name for value in (*contract.inputs, *contract.outputs)]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(
                f"'{name}' is the name of an output and of another output or an input",
                key=f"inputs.{name}",
                hint="return it under another key (or pass `output_names`)",
            )


def io_shapes(contract: Contract) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of graph inputs and outputs: the user's, then the states'."""
    return (
        [*(v.shape for v in contract.inputs), *(s.shape for s in contract.states)],
        [*(v.shape for v in contract.outputs), *(s.out_shape or s.shape for s in contract.states)],
    )
