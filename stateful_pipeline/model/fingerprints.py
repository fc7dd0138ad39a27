"""Comparable pictures of values of any kind, so that a change of one is seen.

A fingerprint is a tuple that equals another one when nothing was seen to change between the two.
Values compare by type and value, containers by length or by their keys in order (what they hold
has fingerprints of its own), functions and classes by which one it is, and random generators,
iterators and buffers by their inner state, which is looked at without consuming anything.
"""

from __future__ import annotations

import array
import collections
import enum
import io
import pickle
import random
import types
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model.entries import PLAIN, entries
from stateful_pipeline.model.scripted import core

_BUFFERS = (bytearray, array.array, memoryview)
_GENERATORS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)


class Same:
    """Equals another one that is about the very same object."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"{type(self.value).__name__}@{id(self.value):x}"


def fingerprint(value: Any) -> tuple[Any, ...]:
    """Return a picture of ``value``, which is no tensor; two are equal if nothing changed."""
    if isinstance(value, PLAIN):
        return _plain(value)
    for types_, look in _LOOKS:
        if isinstance(value, types_):
            return (Same(type(value)), *look(value))
    if hasattr(type(value), "__next__") and type(value).__module__ in ("builtins", "itertools"):
        return (Same(type(value)), *_iterator(value))
    if _has_bytes(value):
        return (Same(type(value)), bytes(memoryview(value)))
    # What is walked is pictured by its parts; of the rest, which one it is is all there is to see.
    return (Same(type(value)),) if entries(value) is not None else (Same(value),)


def _plain(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.generic):
        return (value.dtype.str, value.tobytes())
    # The text of a number tells -0.0 from 0.0 and finds NaN equal to NaN.
    return (type(value), repr(value) if isinstance(value, float | complex) else value)


def _key(value: Any) -> Any:
    """Return what stands for a key of a dict or a member of a set."""
    if isinstance(value, PLAIN):
        return _plain(value)
    if isinstance(value, tuple | frozenset):
        return (type(value), *(_key(item) for item in value))
    return Same(value)


def _array(value: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    data = None if value.dtype == object else value.tobytes()
    return (value.dtype.str, value.shape, data)


def _module(value: nn.Module) -> tuple[Any, ...]:
    # A frozen ScriptModule has no mode; what a traced one holds is in another one inside it.
    return (getattr(value, "training", None), *core(value)._modules.keys())


def _iterator(value: Any) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pickling of itertools, from 3.12 on
        try:
            return _frozen(value.__reduce__())
        except (TypeError, AttributeError):
            return (Same(value),)


def _frozen(parts: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of an iterator gave, with iterators in it pictured as well."""
    return tuple(
        _frozen(part)
        if isinstance(part, tuple | list)
        else fingerprint(part)
        if hasattr(type(part), "__next__")
        else _key(part)
        for part in parts
    )


def _generator(value: types.GeneratorType[Any, Any, Any]) -> tuple[Any, ...]:
    frame = value.gi_frame
    return (Same(value.gi_code), None if frame is None else frame.f_lasti)


def random_state(value: Any) -> Any:
    """Return the inner state of a random generator, as it can be set again."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return (value.bit_generator if isinstance(value, np.random.Generator) else value).state


def _random(value: Any) -> tuple[Any, ...]:
    state = random_state(value)
    return (state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state),)


def _stream(value: Any) -> tuple[Any, ...]:
    if value.closed or not isinstance(value, io.BytesIO | io.StringIO):
        return (Same(value), value.closed)
    return (value.tell(), value.getvalue())


def _has_bytes(value: object) -> bool:
    """Whether ``value`` is a C structure or array of ``ctypes``."""
    return any(base.__module__ == "_ctypes" for base in type(value).__mro__)


# The order matters: a named tuple is a tuple, an enum member may be an int (and is plain then).
_LOOKS: tuple[tuple[Any, Any], ...] = (
    (enum.Enum | type | torch.dtype, lambda value: (Same(value),)),
    (torch.Size, tuple),
    (torch.device | range, lambda value: (str(value),)),
    (slice, lambda value: (_key(value.start), _key(value.stop), _key(value.step))),
    (collections.deque, lambda value: (len(value), value.maxlen)),
    (list | tuple, lambda value: (len(value),)),
    (dict | types.MappingProxyType, lambda value: tuple(_key(key) for key in value)),
    (set | frozenset, lambda value: (frozenset(_key(member) for member in value),)),
    (np.ndarray, _array),
    (_BUFFERS, lambda value: (bytes(value),)),
    (nn.Module, _module),
    # A function that is made anew has the same code; what it encloses is pictured apart.
    (types.FunctionType, lambda value: (Same(value.__code__),)),
    (types.MethodType, lambda value: (Same(value.__func__), Same(value.__self__))),
    (types.BuiltinFunctionType, lambda value: (value.__name__, Same(value.__self__))),
    (types.GeneratorType, _generator),
    ((random.Random, torch.Generator, *_GENERATORS), _random),
    (io.IOBase, _stream),
)
