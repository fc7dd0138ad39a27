"""The state contract: the one description of a model's explicit state that every part reads.

State ``cells.0.h`` is graph input ``cells.0.h_in`` and graph output ``cells.0.h_out``.  The
contract says so for each state, with dtype, shape, initial value and the attribute that it came
from, and it travels inside the ONNX file as JSON under :data:`METADATA_KEY` in ``metadata_props``.
Nobody parses names.

Shapes have named axes (see :mod:`.dimensions`).  Axes are bound by the inputs of a step; an axis
that only a *growing* state has (its ``out_shape`` differs from its ``shape``) is bound by the
current size of that state.

This module needs numpy alone, so that a deployment can read it.
"""

from __future__ import annotations

import base64
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stateful_pipeline.dimensions import Dim, Shape, axes_of, resolve
from stateful_pipeline.errors import ContractError
from stateful_pipeline.json_fields import read_json

METADATA_KEY = "stateful_pipeline.contract"
SCHEMA = 1

DAMAGED = (
    OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What reading a damaged ``.npz`` file raises: numpy, zipfile and zlib, each in its own way."""

DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
"""Names of the element types that a state, an input or an output can have."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype called ``name``; ``bfloat16`` comes from ``ml_dtypes``.

    Raises:
        ContractError: The name is none of :data:`DTYPES`, or ``ml_dtypes`` is not installed.
    """
    if name not in DTYPES:
        raise ContractError(f"unknown dtype '{name}'", hint=f"one of {', '.join(DTYPES)}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ContractError(
            "a bfloat16 array needs the package ml_dtypes", hint="pip install ml_dtypes"
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


@dataclass(frozen=True)
class Axis:
    """A dynamic axis and the sizes that it was built for; ``opt`` is the usual one.

    ``grows`` marks an axis that a state brings along and that changes from step to step.
    """

    name: str
    min: int = 1
    opt: int | None = None
    max: int | None = None
    grows: bool = False


@dataclass(frozen=True)
class Value:
    """An input or an output of the model, as the user sees it."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Initial:
    """The initial value of a state.

    ``shape`` is the shape that is stored: it equals the state's but for named axes, where a stored
    size of 1 is expanded to whatever the axis is bound to.  ``kind`` says where the elements are:
    ``zeros`` (nowhere), ``inline`` (``data``, base64 of little-endian bytes) or ``file`` (array
    ``key`` of the ``.npz`` file ``file``, whose path is relative to the model's folder).
    """

    kind: Literal["zeros", "inline", "file"]
    shape: tuple[int, ...]
    data: str | None = None
    file: str | None = None
    key: str | None = None

    @classmethod
    def inline(cls, array: np.ndarray[Any, Any]) -> Initial:
        """Hold ``array`` in the contract itself; all zero bytes become ``zeros``."""
        raw = np.ascontiguousarray(array).tobytes()
        if not any(raw):
            return cls("zeros", tuple(array.shape))
        return cls("inline", tuple(array.shape), data=base64.b64encode(raw).decode("ascii"))

    def load(self, dtype: str, folder: Path) -> np.ndarray[Any, Any]:
        """Return the stored array, not expanded.

        Args:
            dtype: The state's dtype.
            folder: The folder of the model, against which ``file`` is resolved.

        Raises:
            ContractError: The file is missing or holds another dtype or shape.
        """
        kind = numpy_dtype(dtype)
        if self.kind == "zeros":
            return np.zeros(self.shape, kind)
        if self.kind == "inline":
            raw = _bytes_of(self.data or "")
            if len(raw) != kind.itemsize * int(np.prod(self.shape, dtype=np.int64)):
                raise ContractError("an inline initial value has the wrong number of bytes")
            return np.frombuffer(raw, kind).reshape(self.shape).copy()
        path = folder / (self.file or "")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                array: np.ndarray[Any, Any] = arrays[self.key or ""]
        except (KeyError, *DAMAGED) as error:
            raise ContractError.in_file(
                path, f"the initial value '{self.key}' cannot be read: {error}",
                "keep this file beside the model",
            ) from error  # fmt: skip
        if kind.name == "bfloat16" and array.dtype == np.uint16:
            array = array.view(kind)
        if array.dtype != kind or array.shape != self.shape:
            raise ContractError.in_file(
                path,
                f"'{self.key}' is {array.dtype}{list(array.shape)}, "
                f"the contract says {dtype}{list(self.shape)}",
            )
        return array


@dataclass(frozen=True)
class State:
    """One tensor that survives between calls.

    Attributes:
        name: The fully qualified name, ``cells.0.h``.
        input: The graph input that takes the value before the step.
        output: The graph output that gives the value after it.
        dtype: One of :data:`DTYPES`.
        shape: Shape before the step.
        out_shape: Shape after the step, where it differs (a state that grows), otherwise None.
        init: The initial value.
        attribute: The attribute of the module that it came from; empty for the phase, which says
            which of the module's first calls is next.
        in_place: Whether input and output may share one buffer: proven from the graph.
        exercised: Whether its value was ever seen to change while the model was observed.
    """

    name: str
    input: str
    output: str
    dtype: str
    shape: Shape
    init: Initial
    attribute: str
    out_shape: Shape | None = None
    in_place: bool = False
    exercised: bool = True

    @property
    def grows(self) -> bool:
        """Whether the shape changes from step to step."""
        return self.out_shape is not None

    def initial(self, sizes: Mapping[str, int], folder: Path) -> np.ndarray[Any, Any]:
        """Return the initial value as a new array, expanded to the ``sizes`` of the named axes.

        Args:
            sizes: Axis name to size; axes that grow are not in it.
            folder: The folder of the model.

        Raises:
            ContractError: A stored size other than 1 differs from the axis's.
        """
        stored = self.init.load(self.dtype, folder)
        return expand_initial(self.name, stored, self.shape, sizes)


def expand_initial(
    name: str, stored: np.ndarray[Any, Any], shape: Shape, sizes: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    """Expand ``stored`` along its named axes of size 1; the result is a new array.

    Args:
        name: The state's name, for the message.
        stored: The initial value as it is stored.
        shape: The state's shape with named axes.
        sizes: Axis name to size; a named axis without a size keeps its stored one.

    Raises:
        ContractError: The ranks differ, or a stored size is neither 1 nor the one wanted.
    """
    return np.array(np.broadcast_to(stored, expanded_shape(name, stored.shape, shape, sizes)))


def expanded_shape(
    name: str, stored: tuple[int, ...], shape: Shape, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the shape that :func:`expand_initial` gives a value of shape ``stored``.

    Raises:
        ContractError: The ranks differ, or a stored size is neither 1 nor the one wanted.
    """
    if len(stored) != len(shape):
        raise ContractError(f"state '{name}' has {len(shape)} dimensions, its value {len(stored)}")
    wanted = []
    for dim, size in zip(shape, stored, strict=True):
        known = isinstance(dim, int) or axes_of(dim) <= sizes.keys()
        wanted.append(resolve(dim, sizes) if known else size)
        if size != wanted[-1] and (size != 1 or isinstance(dim, int)):
            raise ContractError(
                f"the initial value of state '{name}' has size {size} along '{dim}', "
                f"which is {wanted[-1]} now",
                hint="give it size 1 along that axis, or `init: zeros`",
            )
    return tuple(wanted)


@dataclass(frozen=True)
class Contract:
    """All that a builder, a runner or an emitter needs to know about a model.

    ``inputs`` and ``outputs`` are the user's, in order, states left out.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[State, ...]
    axes: tuple[Axis, ...] = ()
    schema: int = field(default=SCHEMA)

    def state(self, name: str) -> State:
        """Return the state called ``name``.

        Raises:
            ContractError: There is none; the message lists those there are.
        """
        for state in self.states:
            if state.name == name:
                return state
        names = ", ".join(state.name for state in self.states) or "none"
        raise ContractError(f"no state '{name}'", hint=f"the states are: {names}")

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each axis from the shapes of the user's inputs.

        Args:
            shapes: Input name to shape, for every input of the contract.

        Raises:
            ContractError: A rank or a fixed size is off, or two inputs disagree about an axis.
        """
        sizes: dict[str, int] = {}
        holder: dict[str, str] = {}
        for value in self.inputs:
            shape = shapes[value.name]
            if len(shape) != len(value.shape):
                raise ContractError(
                    f"input '{value.name}' has shape {list(shape)}, "
                    f"the model takes {_show(value.shape)}"
                )
            for dim, size in zip(value.shape, shape, strict=True):
                if isinstance(dim, str):
                    known = sizes.setdefault(dim, size)
                    holder.setdefault(dim, value.name)
                    if known != size:
                        raise ContractError(
                            f"axis '{dim}' is {known} in input '{holder[dim]}' "
                            f"and {size} in input '{value.name}'"
                        )
                elif dim != size:
                    raise ContractError(
                        f"input '{value.name}' has shape {list(shape)}, "
                        f"the model takes {_show(value.shape)}"
                    )
        return sizes

    def to_json(self) -> str:
        """Return the contract as compact, stable JSON."""
        return json.dumps(_plain(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Read :meth:`to_json`'s form.

        Raises:
            ContractError: The text is not a contract, or one of a newer schema; it says where.
        """
        # It needs the classes of this module.
        from stateful_pipeline.contract_json import contract_of

        return contract_of(read_json(text))


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ContractError(f"an inline initial value is not base64: {error}") from error


def _show(shape: Iterable[Dim]) -> str:
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def _plain(item: Any) -> Any:
    if hasattr(item, "__dataclass_fields__"):
        values = {name: getattr(item, name) for name in item.__dataclass_fields__}
        return {name: _plain(value) for name, value in values.items() if value is not None}
    if isinstance(item, tuple):
        return [_plain(element) for element in item]
    return item
