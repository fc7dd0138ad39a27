"""Where a state lies: in host memory that numpy shares, or in memory of a device.

A *block* is one tensor at the front of a piece of memory that may be larger, so that a state which
grows seldom needs new memory.  Both kinds of block do the same for the code that takes steps; only
what they are made of differs:

- :class:`HostBlock`: a numpy array, bound as an ``OrtValue`` that shares its memory.
- :class:`DeviceBlock`: an ``OrtValue`` on the device, bound by its address.  It is copied to the
  host where someone asks to see it, never for a step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from stateful_pipeline.contract import numpy_dtype
from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime.ort_binding import ONNX_TYPES, Array, Binding, shared_value

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OrtDevice:
    """The memory of one device, as ``OrtValue`` reaches it; every copy to or from it is here.

    Attributes:
        ort_value: The class ``OrtValue``.
        kind: What it calls the device: ``cuda``, or ``cpu``, which serves to test this code.
        number: Which of them, from 0.
    """

    ort_value: Any
    kind: str
    number: int

    def allocate(self, count: int, dtype: str) -> Any:
        """Return memory for ``count`` elements, with anything in it.

        Raises:
            TargetError: The device has no room for it.
        """
        try:
            return self.ort_value.ortvalue_from_shape_and_type(
                (count,), ONNX_TYPES[dtype], self.kind, self.number
            )
        except Exception as error:
            raise TargetError(
                f"no room for a state of {count} {dtype} on {self.kind} device {self.number}: "
                f"{error}"
            ) from error

    def upload(self, array: Array, dtype: str, memory: Any) -> None:
        """Copy all of ``array`` to ``memory``, which has as many elements."""
        memory.update_inplace(shared_value(self.ort_value, array, dtype))

    def download(self, memory: Any, count: int, dtype: str) -> Array:
        """Return a copy of ``memory``, which has ``count`` elements."""
        array = np.empty(count, numpy_dtype(dtype))
        shared_value(self.ort_value, array, dtype).update_inplace(memory)
        return array

    def copy(self, source: Any, target: Any) -> None:
        """Let the device begin a copy; see :meth:`Binding.synchronize`."""
        target.update_inplace(source)


class Block(ABC):
    """One tensor, at the front of memory of its own.

    Args:
        dtype: Name of its dtype.
        grows: Whether memory that is enlarged is to have room for half as much again.
    """

    __slots__ = ("_dtype", "_grows", "shape")

    def __init__(self, dtype: str, grows: bool) -> None:
        self._dtype = dtype
        self._grows = grows
        self.shape: Shape | None = None
        """Its shape; None before :meth:`reshape`."""

    @abstractmethod
    def reshape(self, shape: Shape) -> None:
        """Take another shape; what the block holds is lost."""

    @abstractmethod
    def bind_input(self, binding: Binding, name: str) -> None:
        """Let a step read the block as graph input ``name``."""

    @abstractmethod
    def bind_output(self, binding: Binding, name: str) -> None:
        """Let a step write graph output ``name`` to the block."""

    @abstractmethod
    def bind_unknown(self, binding: Binding, name: str) -> None:
        """Let a step allocate graph output ``name``, whose shape only the run can tell."""

    @abstractmethod
    def take(self, binding: Binding, name: str) -> None:
        """Become the output that :meth:`bind_unknown` let the last run allocate."""

    @abstractmethod
    def read(self) -> Array:
        """Return the tensor: the memory itself if that is the host's, otherwise a copy."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Become ``array``, expanded to the block's shape."""

    @abstractmethod
    def copy(self, other: Block) -> bool:
        """Become ``other``, of the same shape; return whether the device is still at it."""

    def _room(self, needed: int, capacity: int) -> int:
        """Return how many elements new memory is to have."""
        return needed + (needed // 2 if self._grows and capacity else 0)


class HostBlock(Block):
    """A tensor in host memory.

    Args:
        ort_value: The class ``OrtValue``.
        dtype: Name of its dtype.
        grows: Whether memory that is enlarged is to have room for half as much again.
    """

    __slots__ = ("_array", "_memory", "_ort_value", "_value")

    def __init__(self, ort_value: Any, dtype: str, grows: bool) -> None:
        super().__init__(dtype, grows)
        self._ort_value = ort_value
        self._memory = np.empty(0, numpy_dtype(dtype))
        self._array = self._memory
        self._value: Any = None

    def reshape(self, shape: Shape) -> None:
        """Take another shape; what the block holds is lost."""
        needed = math.prod(shape)
        if needed > self._memory.size:
            self._memory = np.empty(self._room(needed, self._memory.size), self._memory.dtype)
        self._array = self._memory[:needed].reshape(shape)
        self._value = shared_value(self._ort_value, self._array, self._dtype)
        self.shape = shape

    def bind_input(self, binding: Binding, name: str) -> None:
        """Let a step read the block as graph input ``name``."""
        binding.bind_input(name, self._value)

    def bind_output(self, binding: Binding, name: str) -> None:
        """Let a step write graph output ``name`` to the block."""
        binding.bind_output(name, self._value)

    def bind_unknown(self, binding: Binding, name: str) -> None:
        """Let a step allocate graph output ``name``, whose shape only the run can tell."""
        binding.bind_output(name, None)

    def take(self, binding: Binding, name: str) -> None:
        """Become the output that :meth:`bind_unknown` let the last run allocate."""
        array = binding.copy_output(name, self._dtype)
        self.reshape(array.shape)
        self.write(array)

    def read(self) -> Array:
        """Return the memory itself."""
        return self._array

    def write(self, array: Array) -> None:
        """Become ``array``, expanded to the block's shape."""
        if array is not self._array:
            np.copyto(self._array, array, casting="no")

    def copy(self, other: Block) -> bool:
        """Become ``other``, of the same shape."""
        self.write(other.read())
        return False


class DeviceBlock(Block):
    """A tensor in memory of a device; a copy to or from the host is of all of that memory.

    Args:
        device: The device.
        dtype: Name of its dtype.
        grows: Whether memory that is enlarged is to have room for half as much again.
    """

    __slots__ = ("_capacity", "_device", "_memory")

    def __init__(self, device: OrtDevice, dtype: str, grows: bool) -> None:
        super().__init__(dtype, grows)
        self._device = device
        self._capacity = 0
        self._memory: Any = None

    def reshape(self, shape: Shape) -> None:
        """Take another shape; what the block holds is lost."""
        needed = math.prod(shape)
        if self._memory is None or needed > self._capacity:
            # An empty tensor would have no address to bind.
            room = max(self._room(needed, self._capacity), 1)
            self._memory, self._capacity = self._device.allocate(room, self._dtype), room
        self.shape = shape

    def bind_input(self, binding: Binding, name: str) -> None:
        """Let a step read the block as graph input ``name``."""
        binding.bind_input_on(self._device, name, self._dtype, self._known_shape(), self._memory)

    def bind_output(self, binding: Binding, name: str) -> None:
        """Let a step write graph output ``name`` to the block."""
        binding.bind_output_on(self._device, name, self._dtype, self._known_shape(), self._memory)

    def bind_unknown(self, binding: Binding, name: str) -> None:
        """Let a step allocate graph output ``name`` on the device."""
        binding.bind_output_on(self._device, name)

    def take(self, binding: Binding, name: str) -> None:
        """Become the output that :meth:`bind_unknown` let the last run allocate, uncopied."""
        value = binding.output(name)
        shape = tuple(value.shape())
        if 0 in shape:
            self.reshape(shape)
        else:
            self._memory, self._capacity, self.shape = value, math.prod(shape), shape

    def read(self) -> Array:
        """Return a copy of the tensor."""
        array = self._device.download(self._memory, self._capacity, self._dtype)
        shape = self._known_shape()
        return array[: math.prod(shape)].reshape(shape)

    def write(self, array: Array) -> None:
        """Become ``array``, expanded to the block's shape."""
        shape = self._known_shape()
        whole = np.zeros(self._capacity, numpy_dtype(self._dtype))
        np.copyto(whole[: math.prod(shape)].reshape(shape), array, casting="no")
        self._device.upload(whole, self._dtype, self._memory)

    def copy(self, other: Block) -> bool:
        """Become ``other``, of the same shape; return whether the device is still at it."""
        if isinstance(other, DeviceBlock) and other._capacity == self._capacity:
            self._device.copy(other._memory, self._memory)
            return True
        self.write(other.read())
        return False

    def _known_shape(self) -> Shape:
        assert self.shape is not None
        return self.shape
