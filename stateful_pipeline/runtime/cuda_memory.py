"""Memory that a stream reads and writes, and that grows when it must.

:class:`DeviceMemory` lies on the GPU.  :class:`HostMemory` is page-locked, so that copies need no
detour and the host need not wait for them; TensorRT reads there what shapes depend on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stateful_pipeline.runtime.cuda_device import ALIGNMENT, Device
from stateful_pipeline.runtime.engine import Array


def size_in_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the number of bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


class DeviceMemory:
    """Memory of a device, which is enlarged on demand."""

    on_host = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._capacity = 0
        self.address = 0
        """Where it begins; 0 before :meth:`reserve`."""

    def reserve(self, size: int, spare: int = 0) -> int:
        """Return the address of at least ``size`` bytes; what was there is lost if that is more.

        Empty arrays have an address too.  Memory that is enlarged gets ``spare`` more bytes.
        """
        if size > self._capacity or not self.address:
            more = spare if self._capacity else 0
            self.close()
            wanted = max(size + more, ALIGNMENT)
            self.address = self._device.allocate(wanted)
            self._capacity = wanted
        return self.address

    def upload(self, array: Array, stream: int) -> None:
        """Let the stream copy an array here, where :meth:`reserve` made room."""
        self._device.upload(self.address, array, stream)

    def download(self, array: Array, stream: int) -> None:
        """Let the stream fill an array from here."""
        self._device.download(array, self.address, stream)

    def close(self) -> None:
        """Give the memory back; no stream may still use it."""
        address, self.address, self._capacity = self.address, 0, 0
        if address:
            self._device.free(address)


class HostMemory:
    """Page-locked memory of the host, which is enlarged on demand."""

    on_host = True

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: Array | None = None

    @property
    def address(self) -> int:
        """Where it begins; 0 before :meth:`reserve`."""
        return 0 if self._memory is None else self._memory.ctypes.data

    def reserve(self, size: int, spare: int = 0) -> int:
        """Return the address of at least ``size`` bytes; what was there is lost if that is more."""
        if self._memory is None or size > self._memory.size:
            more = 0 if self._memory is None else spare
            self.close()
            self._memory = self._device.allocate_host(max(size + more, ALIGNMENT))
        return self.address

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array that lies here, where :meth:`reserve` made room."""
        assert self._memory is not None
        array: Array = self._memory[: size_in_bytes(shape, dtype)].view(dtype).reshape(shape)
        return array

    def upload(self, array: Array, stream: int) -> None:
        """Copy an array here, at once."""
        np.copyto(self.view(array.shape, array.dtype), array, casting="no")

    def download(self, array: Array, stream: int) -> None:
        """Fill an array from here, at once."""
        np.copyto(array, self.view(array.shape, array.dtype), casting="no")

    def close(self) -> None:
        """Give the memory back; no stream may still use it."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._device.free_host(memory)


Memory = DeviceMemory | HostMemory


def new_memory(device: Device, on_host: bool) -> Memory:
    """Return memory of the host or of the device, with no room yet."""
    return HostMemory(device) if on_host else DeviceMemory(device)
