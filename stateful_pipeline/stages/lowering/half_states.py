"""States that are stored in half precision: which, from what initial value, and what is said."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from stateful_pipeline.contract import Contract, Initial, State
from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec.faults import did_you_mean
from stateful_pipeline.stages.lowering.half_weights import Array, count_overflows, rounded

_SCATTERS = frozenset({"ScatterND", "ScatterElements", "TensorScatter"})


def chosen_states(contract: Contract, half_states: Sequence[str]) -> frozenset[str]:
    """Return the names of the float32 states that ``half_states``, names or patterns, means.

    Raises:
        SpecError: One of them means none.
    """
    dtypes = {state.name: state.dtype for state in contract.states}
    chosen: set[str] = set()
    for wish in half_states:
        found = [wish] if wish in dtypes else [n for n in dtypes if fnmatch.fnmatchcase(n, wish)]
        floats = {name for name in found if dtypes[name] == "float32"}
        if not found:
            raise SpecError(
                f"half_states: no state is called `{wish}`",
                key="half_states",
                hint=did_you_mean(wish, dtypes, "states"),
            )
        if not floats:
            raise SpecError(
                f"half_states: state `{found[0]}` is {dtypes[found[0]]}, not float32",
                key="half_states",
                hint="leave it out: it stays as it is",
            )
        chosen |= floats
    return frozenset(chosen)


def half_initial(state: State, half: ir.DataType, folder: Path) -> Array:
    """Return the initial value of ``state`` in half, each element rounded to the nearest.

    Raises:
        SpecError: An element is too large.
        ContractError: The initial value cannot be read.
    """
    array = state.init.load(state.dtype, folder)
    if count_overflows(array, half):
        largest = np.abs(array[np.isfinite(array)]).max()
        raise SpecError(
            f"half_states: the initial value of state `{state.name}` is too large for "
            f"{half.name.lower()}: {largest:.6g}",
            key="half_states",
            hint="leave this state out: it stays float32",
        )
    return rounded(array, half)


def describe(contract: Contract, initial: Mapping[str, Array], model: ir.Model) -> Contract:
    """Return the contract of ``model``, in which the states of ``initial`` are half."""
    states = []
    for state in contract.states:
        if state.name in initial:
            array = initial[state.name]
            init = state.init if state.init.kind == "file" else Initial.inline(array)
            state = replace(state, dtype=array.dtype.name, init=init)
        states.append(replace(state, in_place=state.in_place and _is_written(state, model)))
    return replace(contract, states=tuple(states))


def _is_written(state: State, model: ir.Model) -> bool:
    """Whether no cast has come between a state and the operator that writes into it.

    A scatter has one dtype, so that a cast before it means one behind it.  What reads the state
    otherwise was seen to run before, and a cast for that makes new elements.
    """
    (output,) = (value for value in model.graph.outputs if value.name == state.output)
    writer = output.producer()
    return writer is not None and writer.op_type in _SCATTERS


def write_initial(
    contract: Contract, initial: Mapping[str, Array], source: Path, folder: Path
) -> None:
    """Write the files with initial values that lie in ``source`` to ``folder``, some in half."""
    held = [state for state in contract.states if state.init.kind == "file"]
    for name in dict.fromkeys(state.init.file for state in held):
        assert name is not None
        changed = {
            state.init.key: initial[state.name]
            for state in held
            if state.init.file == name and state.name in initial
        }
        if changed:
            with np.load(source / name, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            arrays |= {str(key): _bits(array) for key, array in changed.items()}
            _write_arrays(folder / name, arrays)
        elif source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    os.replace(partial, path)


def _bits(array: Array) -> Array:
    """Return an array as ``.npz`` takes it: bfloat16 by its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
