"""Checks of the arrays that a user hands in: inputs, and buffers for outputs.

Nothing is cast in silence: a float64 array where the model takes float32 is an error that says what
to write.  Arrays of any memory layout are taken; those that are not C-contiguous are copied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stateful_pipeline.contract import Contract, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import Array


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint: the closest of ``names``, or all of them."""
    known = list(names)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(known) or 'none'}"


def say_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype for a message; foreign byte order is told."""
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order ({dtype.str})"


def cast_hint(what: str, dtype: np.dtype[Any]) -> str:
    """Return the expression that casts ``what`` to ``dtype``."""
    module = "ml_dtypes" if dtype.name == "bfloat16" else "np"
    name = "bool_" if dtype.name == "bool" else dtype.name
    return f"{what}.astype({module}.{name})"


class InputCheck:
    """Turns the dict given to a step into contiguous arrays, in the contract's order."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._dtypes = {value.name: numpy_dtype(value.dtype) for value in contract.inputs}

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the arrays by name.

        Raises:
            ContractError: One is missing, unexpected, no array, or of another dtype.
        """
        if not isinstance(inputs, Mapping):
            raise ContractError(
                f"run() takes a dict of arrays by name, not {type(inputs).__name__}",
                hint=f"run({{{', '.join(f'{name!r}: ...' for name in self._dtypes)}}})",
            )
        if inputs.keys() != self._dtypes.keys():
            self._refuse_names(inputs)
        arrays = {}
        for name, dtype in self._dtypes.items():
            array = inputs[name]
            if type(array) is not np.ndarray:
                array = self._as_array(name, array, dtype)
            if array.dtype != dtype:
                raise ContractError(
                    f"input '{name}' is {say_dtype(array.dtype)}, the model takes {dtype.name}",
                    hint=cast_hint(name, dtype),
                )
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                array = np.require(array, requirements=["C", "A"])
            arrays[name] = array
        return arrays

    def _refuse_names(self, inputs: Mapping[str, Any]) -> None:
        for name in inputs:
            if name in self._dtypes:
                continue
            for state in self._contract.states:
                if name in (state.input, state.name):
                    raise ContractError(
                        f"'{name}' is state '{state.name}', which the runner keeps itself",
                        hint="leave it out; set a state by init=, reset(init) or load_state()",
                    )
            raise ContractError(f"no input '{name}'", hint=did_you_mean(name, self._dtypes))
        missing = [name for name in self._dtypes if name not in inputs]
        raise ContractError(
            f"input '{missing[0]}' is missing", hint=f"the inputs are: {', '.join(self._dtypes)}"
        )

    def _as_array(self, name: str, given: Any, dtype: np.dtype[Any]) -> Array:
        if isinstance(given, np.ndarray | np.generic):
            return np.asarray(given)
        module = "ml_dtypes" if dtype.name == "bfloat16" else "np"
        raise ContractError(
            f"input '{name}' is a {type(given).__name__}, not a numpy array",
            hint=f"np.asarray({name}, {module}.{dtype.name})",
        )


def check_buffers(
    out: Mapping[str, Any], contract: Contract, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Check the buffers that a caller gives for outputs; their shapes are checked later.

    Args:
        out: Output name to buffer, for any of the outputs.
        contract: The contract of the model.
        inputs: The arrays of the step's inputs.

    Raises:
        ContractError: A name is unknown; a buffer is no array, of another dtype, not contiguous,
            read-only, or shares memory with an input or another buffer.
    """
    dtypes = {value.name: numpy_dtype(value.dtype) for value in contract.outputs}
    others = {f"input '{name}'": array for name, array in inputs.items()}
    for name, buffer in out.items():
        if name not in dtypes:
            raise ContractError(f"out: no output '{name}'", hint=did_you_mean(name, dtypes))
        if not isinstance(buffer, np.ndarray):
            raise ContractError(f"out: '{name}' is a {type(buffer).__name__}, not a numpy array")
        if buffer.dtype != dtypes[name]:
            raise ContractError(
                f"out: '{name}' is {say_dtype(buffer.dtype)}, the model gives {dtypes[name].name}"
            )
        if not buffer.flags.carray:
            raise ContractError(f"out: '{name}' must be C-contiguous, aligned and writeable")
        for other, array in others.items():
            if np.may_share_memory(buffer, array):
                raise ContractError(f"out: '{name}' shares memory with {other}")
        others[f"out '{name}'"] = buffer
    return {name: np.asarray(buffer) for name, buffer in out.items()}
