"""Translates what a spec declares about states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stateful_pipeline.errors import Place, SpecError
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.spec import InitFile, InitValue, StateSpec


def wish(
    name: str,
    state: StateSpec,
    place: Callable[[str], Place | None],
) -> Wish:
    """Return what ``state`` declares, its file read.

    Args:
        name: The state's name.
        state: The declaration.
        place: Gives the place of a key, for messages.

    Raises:
        SpecError: The file of an initial value cannot be read.
    """
    value: Any = state.init
    if isinstance(value, InitValue):
        value = value.value
    elif isinstance(value, InitFile):
        key = f'states["{name}"].init'
        value = read_array(str(value.file), value.key, key, place(key))
    shape = None if state.shape is None else tuple(state.shape)
    out_shape = None if state.out_shape is None else tuple(state.out_shape)
    return Wish(shape, out_shape, state.dtype, value, state.ignore)


def read_array(path: str, name: str, key: str, place: Place | None) -> np.ndarray[Any, Any]:
    """Return the array ``name`` of the ``.npz`` file at ``path``.

    Raises:
        SpecError: It cannot be read; ``key`` and ``place`` say who asked for it.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            array: np.ndarray[Any, Any] = arrays[name]
            return array
    except (OSError, KeyError, ValueError) as error:
        raise SpecError(
            f"{key}: '{name}' cannot be read from {path}: {error}", place=place, key=key
        ) from error
