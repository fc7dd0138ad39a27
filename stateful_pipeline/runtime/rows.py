"""Resetting single rows: one of the streams that share a batch.

The rows lie along the axis ``batch`` if a state has it, otherwise along the first axis of the
model's first input, if a state has that.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State
from stateful_pipeline.dimensions import axes_of
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.sizes import is_axis


def rows_axis(contract: Contract) -> str:
    """Return the name of the axis along which the streams of a batch lie.

    Raises:
        ContractError: No state has such an axis.
    """
    dims = {dim for state in contract.states for dim in state.shape if is_axis(dim)}
    if "batch" in dims:
        return "batch"
    first = contract.inputs[0].shape[:1] if contract.inputs else ()
    if first and is_axis(first[0]) and first[0] in dims:
        return first[0]
    raise ContractError(
        "single rows cannot be reset: no state has an axis 'batch', or the first axis of the "
        "first input",
        hint="reset() resets the whole state",
    )


def states_with_rows(contract: Contract, axis: str, shared: str | None) -> tuple[State, ...]:
    """Return the states that have the axis, if a reset of single rows is well defined.

    Args:
        contract: The contract of the model.
        axis: What :func:`rows_axis` gave.
        shared: ``"keep"`` leaves the states without rows as they are.

    Raises:
        ContractError: A state is shared by all rows and ``shared`` is not ``"keep"``, or rows
            of a state cannot be told apart, or it grows.
    """
    if shared not in (None, "keep"):
        raise ContractError(f"shared is {shared!r}", hint='None or "keep"')
    for state in contract.states:
        if not state.attribute:
            raise ContractError(
                f"single rows cannot be reset: '{state.name}' says for all rows together which "
                "states are there yet",
                hint="reset(), or create these states in the constructor",
            )
        depends = any(axis in axes_of(dim) for dim in state.shape)
        if depends and (state.grows or state.shape.count(axis) != 1):
            raise ContractError(
                f"single rows cannot be reset: state '{state.name}' "
                + ("grows, all its rows together" if state.grows else f"has no rows along '{axis}'")
            )
    common = [state.name for state in contract.states if axis not in state.shape]
    if common and shared is None:
        raise ContractError(
            f"single rows cannot be reset: all rows share {_quoted(common)}, which would go on",
            hint='reset(rows=..., shared="keep") if that is meant; otherwise reset()',
        )
    return tuple(state for state in contract.states if axis in state.shape)


def check_rows(rows: Iterable[int], size: int) -> list[int]:
    """Return the row numbers as a list.

    Raises:
        ContractError: One is not a number from 0 to ``size - 1``.
    """
    try:
        given = list(rows)
        flags = [row for row in given if isinstance(row, bool | np.bool_)]
        numbers = [] if flags else [operator.index(row) for row in given]
    except TypeError as error:
        raise ContractError(f"rows is {rows!r}", hint="a list of row numbers, rows=[3]") from error
    if flags:
        raise ContractError("rows are numbers, not a mask", hint="np.flatnonzero(mask)")
    for row in numbers:
        if not 0 <= row < size:
            raise ContractError(f"there is no row {row}: the batch has {size}, counted from 0")
    return numbers


def set_rows(
    states: Iterable[State],
    axis: str,
    rows: list[int],
    current: Mapping[str, Array],
    initial: Mapping[str, Array],
) -> None:
    """Write ``initial``, already of the current shapes, into ``rows`` of ``current``."""
    for state in states:
        index: tuple[Any, ...] = (slice(None),) * state.shape.index(axis) + (rows,)
        current[state.name][index] = initial[state.name][index]


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
