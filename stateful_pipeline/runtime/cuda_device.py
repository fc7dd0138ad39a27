"""The one door to CUDA: memory of a GPU, copies and streams.

A stream is work that the GPU does in order, while the host goes on.  Nothing that a stream reads
or writes may be touched, or freed, before :meth:`Device.synchronize` has come back.

NVIDIA's bindings are imported when the first device is opened: ``cuda.bindings.runtime``, from the
package ``cuda-bindings``, or ``cuda.cudart`` of older versions of ``cuda-python``.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime.engine import Array

ALIGNMENT = 256
"""Bytes: where the memory of a device begins, at least (CUDA C++ Programming Guide, "Device Memory
Accesses": addresses of ``cudaMalloc`` are aligned to at least 256 bytes)."""

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")


class Device(Protocol):
    """A GPU, as far as the runners need one.  Addresses and streams are numbers."""

    @property
    def capability(self) -> str:
        """The compute capability, as ``"8.9"``."""

    def current(self) -> AbstractContextManager[None]:
        """Make this the device that the thread uses, for the time of a ``with``."""

    def open_stream(self) -> int:
        """Return a new stream, which does not wait for the default one."""

    def close_stream(self, stream: int) -> None:
        """Give a stream back."""

    def synchronize(self, stream: int) -> None:
        """Wait until all work of the stream is done.

        Raises:
            TargetError: It failed.
        """

    def allocate(self, size: int) -> int:
        """Return the address of new memory of the device, aligned to :data:`ALIGNMENT`.

        Raises:
            TargetError: There is not enough.
        """

    def free(self, address: int) -> None:
        """Give memory of the device back; no stream may still use it."""

    def allocate_host(self, size: int) -> Array:
        """Return new page-locked memory of the host, as bytes, aligned to :data:`ALIGNMENT`."""

    def free_host(self, memory: Array) -> None:
        """Give page-locked memory back; no stream may still use it."""

    def upload(self, address: int, array: Array, stream: int) -> None:
        """Let the stream copy a contiguous array to the device.

        It must stay as it is until the stream is synchronized.
        """

    def download(self, array: Array, address: int, stream: int) -> None:
        """Let the stream fill a contiguous array from the device.

        What it holds before the stream is synchronized is not defined.
        """


class CudaDevice:
    """A :class:`Device` of this machine.

    Args:
        number: Its number, as CUDA counts the devices that it sees.

    Raises:
        TargetError: The bindings are not installed, or there is no such device.
    """

    def __init__(self, number: int = 0) -> None:
        self._cuda = import_cuda()
        count = _count(self._cuda)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise TargetError(
                f"no CUDA device {number!r}: there {'is' if count == 1 else 'are'} {count}",
                hint=f"a number from 0 to {count - 1}; CUDA_VISIBLE_DEVICES says which are seen",
            )
        self._number = number
        attributes = self._cuda.cudaDeviceAttr
        self.capability = ".".join(
            str(self._call("cudaDeviceGetAttribute", attribute, number))
            for attribute in (
                attributes.cudaDevAttrComputeCapabilityMajor,
                attributes.cudaDevAttrComputeCapabilityMinor,
            )
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the device that the thread uses, for the time of a ``with``."""
        before = self._call("cudaGetDevice")
        self._call("cudaSetDevice", self._number)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def open_stream(self) -> int:
        """Return a new stream, which does not wait for the default one."""
        return int(self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking))

    def close_stream(self, stream: int) -> None:
        """Give a stream back."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Wait until all work of the stream is done.

        Raises:
            TargetError: It failed.
        """
        self._call("cudaStreamSynchronize", stream)

    def allocate(self, size: int) -> int:
        """Return the address of new memory of the device.

        Raises:
            TargetError: There is not enough.
        """
        return int(self._call("cudaMalloc", size))

    def free(self, address: int) -> None:
        """Give memory of the device back; no stream may still use it."""
        self._call("cudaFree", address)

    def allocate_host(self, size: int) -> Array:
        """Return new page-locked memory of the host, as bytes.

        Raises:
            TargetError: There is not enough.
        """
        address = int(self._call("cudaMallocHost", size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_host(self, memory: Array) -> None:
        """Give page-locked memory back; no stream may still use it."""
        self._call("cudaFreeHost", memory.ctypes.data)

    def upload(self, address: int, array: Array, stream: int) -> None:
        """Let the stream copy a contiguous array to the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(address, array.ctypes.data, array.nbytes, kind, stream)

    def download(self, array: Array, address: int, stream: int) -> None:
        """Let the stream fill a contiguous array from the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(array.ctypes.data, address, array.nbytes, kind, stream)

    def _copy(self, target: int, source: int, size: int, kind: Any, stream: int) -> None:
        if size:
            self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        return _checked(self._cuda, name, getattr(self._cuda, name)(*arguments))


def import_cuda() -> Any:
    """Return the module that has CUDA's runtime API, imported on the first call.

    Raises:
        TargetError: It is not installed.
    """
    errors = []
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            errors.append(error)
    raise TargetError(
        f"CUDA cannot be used from Python: {errors[0]}", hint="pip install cuda-bindings"
    ) from errors[0]


def _count(cuda: Any) -> int:
    """Return how many devices there are.

    Raises:
        TargetError: There is none, or no driver.
    """
    status, count = cuda.cudaGetDeviceCount()
    if int(status) or not count:
        reason = _text(cuda, status) if int(status) else "the driver sees none"
        raise TargetError(
            f"no CUDA device: {reason}",
            hint="`nvidia-smi` must list a GPU, and CUDA_VISIBLE_DEVICES must not hide it",
        )
    return int(count)


def _checked(cuda: Any, name: str, result: tuple[Any, ...]) -> Any:
    """Return what a call gave beside its status: nothing, or one value.

    Raises:
        TargetError: The status is an error.
    """
    status, *values = result
    if int(status):
        raise TargetError(f"CUDA: {name} failed: {_text(cuda, status)} (error {int(status)})")
    return values[0] if values else None


def _text(cuda: Any, status: Any) -> str:
    _, text = cuda.cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)
