"""What this machine can build and run, and why not, for ``pipeline targets``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from stateful_pipeline.errors import TargetError
from stateful_pipeline.libraries import missing_tools
from stateful_pipeline.libraries.toolchain import compiler
from stateful_pipeline.runtime.cuda_device import CudaDevice
from stateful_pipeline.runtime.openvino_engine import openvino_core
from stateful_pipeline.runtime.ort_provider import (
    PROVIDERS,
    import_onnxruntime,
    why_unavailable,
)
from stateful_pipeline.runtime.tensorrt_library import import_library


@dataclass(frozen=True)
class TargetRow:
    """A runtime and provider: whether it builds and runs here, and otherwise why not."""

    runtime: str
    provider: str
    builds: bool
    runs: bool
    reason: str


def available_targets() -> list[TargetRow]:
    """Return a row for each runtime and provider that a spec can name."""
    return [
        *(_onnxruntime(name) for name in PROVIDERS),
        _openvino(),
        _tensorrt(),
        _tensorrt_rtx(),
        _libtorch(),
    ]


def _onnxruntime(name: str) -> TargetRow:
    try:
        ort = import_onnxruntime()
    except TargetError as error:
        return TargetRow("onnxruntime", name, False, False, str(error))
    reason = why_unavailable(name)
    found = f"onnxruntime {ort.__version__}"
    return TargetRow("onnxruntime", name, True, reason is None, reason or found)


def _openvino() -> TargetRow:
    try:
        openvino_core()
    except TargetError as error:
        return TargetRow("openvino", "", False, False, str(error))
    return TargetRow("openvino", "", True, True, f"openvino {version('openvino')}")


def _tensorrt() -> TargetRow:
    """Return the row of TensorRT, which builds on the GPU that it builds for."""
    try:
        library = import_library("tensorrt")
        device = CudaDevice()
    except TargetError as error:
        return TargetRow("tensorrt", "", False, False, str(error))
    capability = f"GPU of compute capability {device.capability}"
    return TargetRow("tensorrt", "", True, True, f"tensorrt {library.__version__}; {capability}")


def _tensorrt_rtx() -> TargetRow:
    """Return the row of TensorRT for RTX, which builds on any machine."""
    try:
        library = import_library("tensorrt_rtx")
    except TargetError as error:
        return TargetRow("tensorrt_rtx", "", False, False, str(error))
    version = f"tensorrt_rtx {library.__version__}"
    try:
        device = CudaDevice()
    except TargetError as error:
        return TargetRow("tensorrt_rtx", "", True, False, f"{version} builds; {error}")
    return TargetRow("tensorrt_rtx", "", True, True, f"{version}; GPU of {device.capability}")


def _libtorch() -> TargetRow:
    missing = missing_tools()
    if missing is not None:
        return TargetRow("libtorch", "", False, False, str(missing))
    first, *_ = compiler().version.splitlines() or ["C++"]
    return TargetRow("libtorch", "", True, True, f"torch {version('torch')}; {first}")
