# ruff: noqa: N802, N815 - names of CUDA
"""The door to CUDA: against a stand-in for NVIDIA's bindings, against the real ones, and a GPU."""

import ctypes
import enum
import sys
import types

import numpy as np
import pytest

from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime import cuda_device
from stateful_pipeline.runtime.cuda_device import CudaDevice, import_cuda

Status = enum.IntEnum("Status", {"ok": 0, "bad": 1, "full": 2, "none": 100})
Kind = enum.Enum("Kind", "cudaMemcpyHostToDevice cudaMemcpyDeviceToHost")
Attribute = enum.Enum(
    "Attribute", "cudaDevAttrComputeCapabilityMajor cudaDevAttrComputeCapabilityMinor"
)


class Bindings(types.ModuleType):
    """``cuda.bindings.runtime``: each call returns its status first; memory is the host's."""

    cudaMemcpyKind, cudaDeviceAttr = Kind, Attribute
    cudaStreamNonBlocking = 1

    def __init__(self, devices=2):
        super().__init__("cuda.bindings.runtime")
        self.devices, self.device, self.calls, self.memory = devices, 0, [], {}
        self.fails = None

    def _done(self, name, *values):
        self.calls.append(name)
        return (Status.full if self.fails == name else Status.ok, *values)

    def cudaGetDeviceCount(self):
        return (Status.ok, self.devices) if self.devices else (Status.none, None)

    def cudaGetErrorString(self, status):
        return Status.ok, f"that is {status.name}".encode()

    def cudaDeviceGetAttribute(self, attribute, device):
        return self._done("cudaDeviceGetAttribute", {"Major": 8, "Minor": 9}[attribute.name[-5:]])

    def cudaGetDevice(self):
        return self._done("cudaGetDevice", self.device)

    def cudaSetDevice(self, device):
        self.device = device
        return self._done("cudaSetDevice")

    def cudaStreamCreateWithFlags(self, flags):
        assert flags == 1
        return self._done("cudaStreamCreateWithFlags", 77)

    def cudaStreamDestroy(self, stream):
        assert stream == 77
        return self._done("cudaStreamDestroy")

    def cudaStreamSynchronize(self, stream):
        assert stream == 77
        return self._done("cudaStreamSynchronize")

    def cudaMalloc(self, size):
        block = np.zeros(size, np.uint8)
        self.memory[block.ctypes.data] = block
        return self._done("cudaMalloc", block.ctypes.data)

    cudaMallocHost = cudaMalloc

    def cudaFree(self, address):
        del self.memory[address]
        return self._done("cudaFree")

    cudaFreeHost = cudaFree

    def cudaMemcpyAsync(self, target, source, count, kind, stream):
        on_device = target if kind is Kind.cudaMemcpyHostToDevice else source
        assert on_device in self.memory
        assert stream == 77
        ctypes.memmove(target, source, count)
        return self._done("cudaMemcpyAsync")


@pytest.fixture
def bindings(monkeypatch):
    """Return a function that puts bindings with a number of devices in place, and gives them."""

    def put(devices=2, name="cuda.bindings.runtime"):
        made = Bindings(devices)
        for module in ("cuda.bindings.runtime", "cuda.cudart"):
            monkeypatch.setitem(sys.modules, module, made if module == name else None)
        return made

    return put


@pytest.mark.parametrize("name", ["cuda.bindings.runtime", "cuda.cudart"])
def test_the_bindings_are_found_under_their_new_and_their_old_name(bindings, name):
    bindings(name=name)
    assert CudaDevice(1).capability == "8.9"


def test_without_bindings_the_error_says_what_to_install(bindings):
    bindings(name="nowhere")
    with pytest.raises(TargetError, match="CUDA cannot be used from Python") as caught:
        CudaDevice()
    assert caught.value.hint == "pip install cuda-bindings"


def test_without_a_device_the_error_says_why_and_what_to_look_at(bindings):
    bindings(devices=0)
    with pytest.raises(TargetError, match="no CUDA device: that is none") as caught:
        CudaDevice()
    assert "nvidia-smi" in caught.value.hint


@pytest.mark.parametrize("number", [2, -1, True, "0"])
def test_a_number_that_no_device_has_is_refused(bindings, number):
    bindings()
    with pytest.raises(TargetError, match=r"no CUDA device .*there are 2"):
        CudaDevice(number)


def test_arrays_go_to_the_device_and_come_back(bindings):
    made = bindings()
    device = CudaDevice()
    stream, address = device.open_stream(), device.allocate(64)
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7), np.zeros((0, 4))):
        device.upload(address, array, stream)
        back = np.full_like(array, 9)
        device.download(back, address, stream)
        device.synchronize(stream)
        np.testing.assert_array_equal(back, array)
    staged = device.allocate_host(16)
    staged[:] = 3
    device.upload(address, staged, stream)
    assert made.memory[address][:16].tolist() == [3] * 16
    assert staged.dtype == np.uint8
    device.free_host(staged)
    device.free(address)
    device.close_stream(stream)
    assert made.memory == {}
    assert made.calls.count("cudaMemcpyAsync") == 5


def test_the_device_that_was_current_is_current_again(bindings):
    made = bindings()
    device = CudaDevice(1)
    with device.current():
        assert made.device == 1
    assert made.device == 0
    with pytest.raises(ZeroDivisionError), device.current():
        raise ZeroDivisionError
    assert made.device == 0


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_a_call_that_fails_is_named_with_cudas_reason(bindings, name):
    made = bindings()
    device = CudaDevice()
    address = device.allocate(8)
    made.fails = name
    calls = {
        "cudaMalloc": lambda: device.allocate(8),
        "cudaMemcpyAsync": lambda: device.upload(address, np.zeros(2, np.float32), 77),
        "cudaStreamSynchronize": lambda: device.synchronize(77),
    }
    with pytest.raises(TargetError, match=rf"CUDA: {name} failed: that is full \(error 2\)"):
        calls[name]()


def test_every_call_is_one_of_the_real_bindings_and_takes_what_it_is_given():
    real = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    if int(real.cudaGetDeviceCount()[0]) == 0:
        pytest.skip("there is a GPU, which the calls below would harm")
    with pytest.raises(TargetError, match=r"no CUDA device: (CUDA driver|no CUDA-capable)"):
        CudaDevice()
    device = object.__new__(CudaDevice)
    device._cuda, device._number = real, 0
    array = np.zeros(4, np.float32)
    # Without a driver each call gives an error; a call with wrong arguments raises TypeError.
    for name, call in {
        "cudaGetDevice": lambda: device.current().__enter__(),
        "cudaStreamCreateWithFlags": device.open_stream,
        "cudaStreamDestroy": lambda: device.close_stream(77),
        "cudaStreamSynchronize": lambda: device.synchronize(77),
        "cudaMalloc": lambda: device.allocate(256),
        "cudaMallocHost": lambda: device.allocate_host(256),
        "cudaFree": lambda: device.free(256),
        "cudaFreeHost": lambda: device.free_host(array),
        "cudaMemcpyAsync": lambda: device.upload(256, array, 77),
    }.items():
        with pytest.raises(TargetError, match=f"CUDA: {name} failed: "):
            call()
    with pytest.raises(TargetError, match="cudaMemcpyAsync failed"):
        device.download(array, 256, 77)
    attribute = real.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor
    with pytest.raises(TargetError, match="cudaDeviceGetAttribute failed"):
        device._call("cudaDeviceGetAttribute", attribute, 0)
    with pytest.raises(TargetError, match="cudaSetDevice failed"):
        device._call("cudaSetDevice", 0)
    assert real.cudaMemcpyKind.cudaMemcpyDeviceToHost is not None


@pytest.mark.gpu
def test_arrays_go_to_a_real_gpu_and_come_back():
    try:
        device = CudaDevice()
    except TargetError as error:
        pytest.skip(error.message)
    array = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    with device.current():
        stream, address = device.open_stream(), device.allocate(array.nbytes)
        staged = device.allocate_host(array.nbytes)
        assert address % cuda_device.ALIGNMENT == 0
        assert staged.ctypes.data % cuda_device.ALIGNMENT == 0
        view = staged.view(np.float32).reshape(array.shape)
        device.upload(address, array, stream)
        device.download(view, address, stream)
        device.synchronize(stream)
        np.testing.assert_array_equal(view, array)
        device.free_host(staged)
        device.free(address)
        device.close_stream(stream)
    major, minor = device.capability.split(".")
    assert int(major) >= 5
    assert minor.isdecimal()
    assert import_cuda().cudaDeviceSynchronize()[0] == 0
