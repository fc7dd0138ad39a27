"""Builds the state contract of a captured program: names, shapes, dtypes, initial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stateful_pipeline.contract import (
    Axis,
    Contract,
    Initial,
    Shape,
    State,
    Value,
    axes_of,
    numpy_dtype,
)
from stateful_pipeline.errors import SpecError, StateError
from stateful_pipeline.model.arrays import dtype_name, to_numpy
from stateful_pipeline.model.program import Program
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
        StateError: A state has a dtype that an ONNX model cannot carry.
    """
    given, made = program.user_nodes()
    count = len(states)
    outside: dict[str, np.ndarray[Any, Any]] = {}
    described = []
    fixed = fixed_sizes(axes)
    axes = [axis for axis in axes if axis.name not in fixed]
    for state, before, after in zip(states, given[:count], made[len(made) - count :], strict=True):
        shape = program.shape(before.meta["val"])
        out_shape = program.shape(after.meta["val"])
        described.append(
            State(
                name=state.name,
                input=f"{state.name}_in",
                output=f"{state.name}_out",
                dtype=_checked_dtype(state),
                shape=shape,
                out_shape=out_shape if out_shape != shape else None,
                init=_initial(state, fixed, sidecar, outside),
                attribute=state.paths[0],
                exercised=state.exercised,
            )
        )
    contract = Contract(
        inputs=_values(program, program.inputs, given[count:]),
        outputs=_values(program, program.outputs, made[: len(made) - count]),
        states=tuple(described),
        axes=(*axes, *_growing_axes(described, axes)),
    )
    _refuse_clashes(contract)
    return contract, outside


def _values(program: Program, names: Sequence[str], nodes: Sequence[Any]) -> tuple[Value, ...]:
    return tuple(
        Value(name, dtype_name(node.meta["val"].dtype), program.shape(node.meta["val"]))
        for name, node in zip(names, nodes, strict=True)
    )


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
