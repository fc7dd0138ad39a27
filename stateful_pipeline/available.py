"""What this machine can build and run, and why not, for ``pipeline targets``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from stateful_pipeline.errors import TargetError
from stateful_pipeline.libraries import missing_tools
from stateful_pipeline.libraries.toolchain import compiler
from stateful_pipeline.runtime.engine import PROVIDERS, import_onnxruntime
from stateful_pipeline.runtime.openvino_engine import openvino_core


@dataclass(frozen=True)
class TargetRow:
    """A runtime and provider: whether it builds and runs here, and otherwise why not."""

    runtime: str
    provider: str
    builds: bool
    runs: bool
    reason: str


_LATER = (("onnxruntime", "cuda"), ("onnxruntime", "tensorrt"), ("tensorrt", ""),
          ("tensorrt_rtx", ""))  # fmt: skip


def available_targets() -> list[TargetRow]:
    """Return a row for each runtime and provider that a spec can name."""
    rows = [*(_onnxruntime(name) for name in PROVIDERS), _openvino(), _libtorch()]
    later = "not supported yet by this version of stateful-pipeline"
    return rows + [
        TargetRow(runtime, provider, False, False, later) for runtime, provider in _LATER
    ]


def _onnxruntime(name: str) -> TargetRow:
    provider = PROVIDERS[name]
    try:
        ort = import_onnxruntime()
    except TargetError as error:
        return TargetRow("onnxruntime", name, False, False, str(error))
    if provider.ort_name not in ort.get_available_providers():
        reason = f"this ONNX Runtime has no {provider.ort_name}: pip install {provider.package}"
        return TargetRow("onnxruntime", name, True, False, reason)
    return TargetRow("onnxruntime", name, True, True, f"onnxruntime {ort.__version__}")


def _openvino() -> TargetRow:
    try:
        openvino_core()
    except TargetError as error:
        return TargetRow("openvino", "", False, False, str(error))
    return TargetRow("openvino", "", True, True, f"openvino {version('openvino')}")


def _libtorch() -> TargetRow:
    missing = missing_tools()
    if missing is not None:
        return TargetRow("libtorch", "", False, False, str(missing))
    first, *_ = compiler().version.splitlines() or ["C++"]
    return TargetRow("libtorch", "", True, True, f"torch {version('torch')}; {first}")
