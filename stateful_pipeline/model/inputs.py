"""Makes the inputs of rollouts: random within ranges, resampled from an example, or recorded.

The same seed, step and sizes always give the same values.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from stateful_pipeline.dimensions import Dim, Shape, resolve_shape
from stateful_pipeline.errors import ContractError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INT_LIMITS = {torch.uint8: 255, torch.int8: 127}


class Sampler(Protocol):
    """Gives the values of one input."""

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, step: int, generator: np.random.Generator
    ) -> torch.Tensor:
        """Return a tensor of ``shape`` and ``dtype`` for ``step``."""
        ...


@dataclass(frozen=True)
class Input:
    """An input of the model: its name, dtype, shape with named axes, and where values come from."""

    name: str
    dtype: torch.dtype
    shape: Shape
    sampler: Sampler


@dataclass(frozen=True)
class Uniform:
    """Random values: standard normal for floats without a range, else uniform in [low, high).

    Integers without a range are drawn from [0, 10), booleans are fair coins.  With one bound alone,
    the other is 0, or 1 (10 for integers), or as far from the given one.
    """

    low: float | None = None
    high: float | None = None

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, step: int, generator: np.random.Generator
    ) -> torch.Tensor:
        """Draw; ``step`` is in the generator's seed."""
        if dtype == torch.bool:
            return torch.from_numpy(np.asarray(generator.integers(0, 2, shape), dtype=bool))
        if dtype in _FLOATS:
            if self.low is None and self.high is None:
                values = generator.standard_normal(shape)
            else:
                values = generator.uniform(*self._bounds(1.0), shape)
            return torch.from_numpy(np.asarray(values)).to(dtype)
        low, high = (int(bound) for bound in self._bounds(10))
        if self.high is None:
            high = min(high, _INT_LIMITS.get(dtype, high))
        return torch.from_numpy(np.asarray(generator.integers(low, high, shape))).to(dtype)

    def _bounds(self, width: float) -> tuple[float, float]:
        """Return both bounds; a missing one is 0 or ``width``, or ``width`` from the other."""
        if self.low is None:
            high = width if self.high is None else self.high
            return (0 if high > 0 else high - width), high
        if self.high is None:
            return self.low, (width if self.low < width else self.low + width)
        return self.low, self.high


@dataclass(frozen=True)
class Resampled:
    """Values that look like an example: its elements in random order, floats scaled by 0.5 to 1.

    Integers and booleans stay within the example's own values (valid tokens stay valid).
    """

    example: torch.Tensor

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, step: int, generator: np.random.Generator
    ) -> torch.Tensor:
        """Draw elements of the example; step 0 at its own shape is the example itself."""
        if step == 0 and shape == tuple(self.example.shape):
            return self.example.clone()
        flat = self.example.detach().reshape(-1)
        count = int(np.prod(shape, dtype=np.int64))
        if flat.numel() == 0:
            return torch.zeros(shape, dtype=dtype)
        chosen = flat[torch.from_numpy(generator.integers(0, flat.numel(), count))].reshape(shape)
        if not chosen.is_floating_point():
            return chosen.clone()
        scale = torch.from_numpy(np.asarray(generator.uniform(0.5, 1.0, shape)))
        return (chosen.double() * scale).to(dtype)


class Recorded:
    """Recorded steps; the first axis of ``array`` is the step.

    A recording serves any size of a named axis.  Along the *stream* axis (the one named ``time``,
    else the last named one that is not the first axis) the steps are joined to one stream, and a
    chunk of t samples takes the next t.  Along any other named axis, row r takes the recorded row
    r; where there are fewer, they are used again, each time a fixed fraction of the recording
    later, so that rows differ.  The recording wraps around; the seed chooses the step that it
    starts from.

    Args:
        array: The recording, ``[steps, *shape]``.
        shape: The shape of the input, with named axes.

    Raises:
        ContractError: The recording does not fit ``shape``.
    """

    def __init__(self, array: np.ndarray[Any, Any], shape: Shape) -> None:
        if array.ndim != len(shape) + 1:
            raise ContractError(
                f"the recording has {array.ndim} dimensions; with the step as its first "
                f"axis it needs {len(shape) + 1}"
            )
        for dim, size in zip(shape, array.shape[1:], strict=True):
            if isinstance(dim, int) and dim != size:
                raise ContractError(f"the recording has size {size} where the input has {dim}")
        if array.size == 0:
            raise ContractError("the recording is empty")
        named = [axis for axis, dim in enumerate(shape) if isinstance(dim, str)]
        self._time = _stream_axis(shape, named)
        self._rows = [axis for axis in named if axis != self._time]
        self._chunk = 1 if self._time is None else array.shape[self._time + 1]
        self._steps = len(array)
        if self._time is not None:
            # [steps, .., chunk, ..] -> [steps * chunk, .., 1, ..]
            array = np.moveaxis(array, self._time + 1, 1)
            array = array.reshape(-1, *array.shape[2:])
            array = np.expand_dims(array, self._time + 1)
        self._array = array

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, step: int, generator: np.random.Generator
    ) -> torch.Tensor:
        """Return the values of ``step`` for inputs of ``shape``."""
        length = 1 if self._time is None else shape[self._time]
        start = int(generator.integers(0, self._steps)) * self._chunk + step * length
        total, rank = len(self._array), len(shape)

        def along(axis: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return values.reshape([-1 if a == axis else 1 for a in range(rank)])

        sample = np.full((1,) * rank, start)
        inside = [along(axis, np.arange(shape[axis])) for axis in range(rank)]
        for axis in self._rows:
            recorded = self._array.shape[axis + 1]
            turns = -(-shape[axis] // recorded)
            row = np.arange(shape[axis])
            sample = sample + along(axis, row // recorded * max(1, total // turns))
            inside[axis] = along(axis, row % recorded)
        if self._time is not None:
            sample = sample + along(self._time, np.arange(length))
            inside[self._time] = along(self._time, np.zeros(1, int))
        picked: np.ndarray[Any, Any] = self._array[(sample % total, *inside)]
        return torch.from_numpy(np.array(np.broadcast_to(picked, shape))).to(dtype)


def _stream_axis(shape: Shape, named: Sequence[int]) -> int | None:
    if "time" in shape:
        return shape.index("time")
    return max((axis for axis in named if axis > 0), default=None)


class InputPlan:
    """All inputs of a model in order; makes the inputs of a step for given sizes."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = tuple(inputs)

    @property
    def axes(self) -> tuple[str, ...]:
        """The named axes of the inputs, in order of appearance."""
        named = (dim for value in self.inputs for dim in value.shape if isinstance(dim, str))
        return tuple(dict.fromkeys(named))

    def step(self, sizes: Mapping[str, int], seed: int, step: int) -> dict[str, torch.Tensor]:
        """Return the inputs of step number ``step``, by name."""
        return {value.name: self._sample(value, sizes, seed, step) for value in self.inputs}

    def steps(
        self, sizes: Mapping[str, int], seed: int, count: int
    ) -> list[dict[str, torch.Tensor]]:
        """Return the inputs of ``count`` steps."""
        return [self.step(sizes, seed, index) for index in range(count)]

    def _sample(self, value: Input, sizes: Mapping[str, int], seed: int, step: int) -> torch.Tensor:
        shape = resolve_shape(value.shape, sizes)
        recorded = isinstance(value.sampler, Recorded)
        key = [seed, zlib.crc32(value.name.encode()), *(() if recorded else (step,))]
        sample = value.sampler(shape, value.dtype, step, np.random.default_rng(key))
        if tuple(sample.shape) != shape:
            raise ContractError(
                f"input '{value.name}' got shape {list(sample.shape)} for {_text(value.shape)}"
            )
        return sample


def _text(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
