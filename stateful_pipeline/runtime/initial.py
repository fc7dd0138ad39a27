"""Values of states that a user gives: their names, dtypes and shapes, before any expansion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, State, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import cast_hint, did_you_mean, say_dtype
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.sizes import check_rank_and_numbers

_SUFFIX = ".init"


def contract_values(contract: Contract, folder: Path) -> dict[str, Array]:
    """Return the contract's initial values as they are stored, by state.

    Args:
        contract: The contract of the model.
        folder: The folder of the model.

    Raises:
        ContractError: A value cannot be read, or does not fit its state.
    """
    values = {}
    for state in contract.states:
        values[state.name] = state.init.load(state.dtype, folder)
        check_rank_and_numbers(state, values[state.name].shape)
    return values


def overlay(
    contract: Contract, base: Mapping[str, Array], init: Mapping[str, Any] | None
) -> dict[str, Array]:
    """Return ``base`` with the values of ``init`` in place of its own.

    Args:
        contract: The contract of the model.
        base: A value for every state.
        init: State name, or the textbook's ``"<name>.init"``, to value; None is none.

    Raises:
        ContractError: A name is unknown or given twice, or a value does not fit its state.
    """
    values = dict(base)
    seen: set[str] = set()
    for key, given in _items(init or {}):
        name = _state_name(key, values)
        if name in seen:
            raise ContractError(f"state '{name}' is given twice, as '{name}' and '{name}{_SUFFIX}'")
        seen.add(name)
        values[name] = state_value(contract.state(name), given, base[name].shape)
    phase = next((state.name for state in contract.states if not state.attribute), None)
    if seen and phase is not None and phase not in seen:
        raise ContractError(
            f"initial values without '{phase}', which says which states the next call reads",
            hint=f"give '{phase}' too: 0 for the model's first call, or what a state that was "
            "saved later has",
        )
    return values


def all_values(contract: Contract, given: Mapping[str, Any]) -> dict[str, Array]:
    """Return copies of the values of a snapshot, which must have each state.

    Raises:
        ContractError: A state is missing or unknown, or a value does not fit its state.
    """
    names = [state.name for state in contract.states]
    for key, _ in _items(given):
        if key not in names:
            raise ContractError(f"no state '{key}'", hint=did_you_mean(key, names))
    missing = [name for name in names if name not in given]
    if missing:
        raise ContractError(
            f"the snapshot lacks state '{missing[0]}'", hint=f"it must have: {', '.join(names)}"
        )
    return {s.name: state_value(s, given[s.name], given_shape=None) for s in contract.states}


def state_value(state: State, given: Any, given_shape: tuple[int, ...] | None) -> Array:
    """Return ``given`` as a new array of the state's dtype.

    An array must have exactly the state's dtype.  Python numbers and lists are converted, if the
    state's dtype can hold them: no float becomes an integer, no number a bool, none overflows.

    Args:
        state: The state.
        given: An array, a list of numbers, or one number.
        given_shape: The shape that a Python number fills; None: it stands for a 0-d array.

    Raises:
        ContractError: The dtype, rank or a fixed size is off, or a number cannot be held.
    """
    dtype = numpy_dtype(state.dtype)
    if isinstance(given, np.ndarray | np.generic):
        if given.dtype != dtype:
            raise ContractError(
                f"state '{state.name}' is {dtype.name}, "
                f"the value given is {say_dtype(given.dtype)}",
                hint=cast_hint("value", dtype),
            )
        array = np.array(given, order="C")
    else:
        array = _convert(state, given, dtype)
        if isinstance(given, bool | int | float) and given_shape is not None:
            array = np.full(given_shape, array)
    check_rank_and_numbers(state, array.shape)
    return array


def _convert(state: State, given: Any, dtype: np.dtype[Any]) -> Array:
    refusal = f"state '{state.name}' is {dtype.name} and cannot be {given!r}"
    if not isinstance(given, bool | int | float | list | tuple):
        raise ContractError(
            f"state '{state.name}' takes an array or numbers, not a {type(given).__name__}"
        )
    try:
        natural = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise ContractError(f"{refusal}: {error}") from error
    if natural.size == 0:
        return natural.astype(dtype)
    floating = dtype.name in ("bfloat16", "float16", "float32", "float64")
    if natural.dtype.kind not in ("biuf" if floating else "b" if dtype.kind == "b" else "biu"):
        raise ContractError(refusal)
    with np.errstate(over="ignore"):
        array = natural.astype(dtype)
    exact = array == natural
    rounded = np.isfinite(array) == np.isfinite(natural) if floating else exact
    if not rounded.all():
        raise ContractError(f"{refusal}: out of its range")
    return array


def _items(given: Any) -> list[tuple[str, Any]]:
    if not isinstance(given, Mapping):
        raise ContractError(f"states are given as a dict by name, not as {type(given).__name__}")
    return list(given.items())


def _state_name(key: str, names: Mapping[str, Any]) -> str:
    if key in names:
        return key
    if isinstance(key, str) and key.removesuffix(_SUFFIX) in names:
        return key.removesuffix(_SUFFIX)
    raise ContractError(f"no state '{key}'", hint=did_you_mean(key, names))
