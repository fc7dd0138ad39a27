"""The execution providers of ONNX Runtime, and whether they can be had on this machine.

ONNX Runtime takes the CPU in place of a provider that it cannot start, and says so in its log only.
So each thing that a provider needs is asked for before a session is made: that the package has the
provider, that the provider's library finds CUDA, cuDNN and TensorRT, and that the GPU gives memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import TargetError


@dataclass(frozen=True)
class Provider:
    """An execution provider.

    Attributes:
        ort_name: What ONNX Runtime calls it.
        package: The package that brings it.
        device: Where states lie, as ``OrtValue`` names it; None for memory shared with numpy.
        libraries: What its files in ONNX Runtime's folder are called, in the order of loading.
        in_place: Whether a step may write a state over what it reads.
    """

    ort_name: str
    package: str
    device: str | None = None
    libraries: tuple[str, ...] = ()
    in_place: bool = True


CPU = Provider("CPUExecutionProvider", "onnxruntime")

PROVIDERS = {
    "cpu": CPU,
    "cuda": Provider("CUDAExecutionProvider", "onnxruntime-gpu", "cuda", ("shared", "cuda")),
    # A tensor of TensorRT's engine has an address of its own: inputs and outputs may not overlap.
    "tensorrt": Provider(
        "TensorrtExecutionProvider", "onnxruntime-gpu", "cuda", ("shared", "cuda", "tensorrt"),
        in_place=False,
    ),
}  # fmt: skip
"""Provider name, as in a spec's ``provider``, to the provider."""


def import_onnxruntime() -> Any:
    """Return the module ``onnxruntime``, imported on the first call.

    Raises:
        TargetError: It is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise TargetError(
            f"ONNX Runtime cannot be imported: {error}", hint="pip install onnxruntime"
        ) from error


def find_provider(name: str) -> Provider:
    """Return the provider that specs call ``name``.

    Raises:
        TargetError: There is none.
    """
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise TargetError(f"unknown provider '{name}'", target="onnxruntime", hint=f"use {known}")
    return PROVIDERS[name]


def require_provider(name: str, gpu: int = 0) -> Any:
    """Return the module ``onnxruntime``, if it can start the provider ``name`` here.

    Raises:
        TargetError: It cannot; the message says what is missing, and what brings it.
    """
    provider = find_provider(name)
    ort = import_onnxruntime()
    if provider.ort_name not in ort.get_available_providers():
        raise TargetError(
            f"this ONNX Runtime has no {provider.ort_name}",
            target=name,
            hint=_package_hint(provider),
        )
    if provider.device is not None:
        _require_recent(ort, name, provider)
        _require_libraries(ort, name, provider)
        _require_device(ort, name, provider, gpu)
    return ort


def why_unavailable(name: str) -> str | None:
    """Return why the provider ``name`` cannot be had here, or None if it can."""
    try:
        require_provider(name)
    except TargetError as error:
        return str(error)
    return None


def why_unlisted(ort: Any) -> str | None:
    """Return why this ONNX Runtime cannot list its kernels, or None if it can.

    A package that brings a provider whose library cannot be loaded crashes the process where it is
    asked for the list, of the CPU's kernels too: seen with onnxruntime-gpu 1.31.1.
    """
    available = ort.get_available_providers()
    for provider in PROVIDERS.values():
        if provider.libraries and provider.ort_name in available:
            missing = _missing_library(ort, provider.libraries)
            if missing is not None:
                return f"{provider.ort_name} cannot be loaded: {missing[1]}"
    return None


def _require_recent(ort: Any, name: str, provider: Provider) -> None:
    if not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        raise TargetError(
            f"ONNX Runtime {ort.__version__} does not tell which provider runs a node",
            target=name,
            hint=f"pip install --upgrade {provider.package}",
        )


def _require_libraries(ort: Any, name: str, provider: Provider) -> None:
    """Load the provider's libraries, as ONNX Runtime is about to.

    Raises:
        TargetError: The loader does not find what one of them needs.
    """
    missing = _missing_library(ort, provider.libraries)
    if missing is not None:
        part, error = missing
        raise TargetError(
            f"{provider.ort_name} cannot be loaded: {error}",
            target=name,
            hint=_library_hint(ort, part),
        ) from error


def _missing_library(ort: Any, parts: tuple[str, ...]) -> tuple[str, OSError] | None:
    """Return the first of a package's libraries that cannot be loaded, and why; None if all can."""
    # It finds what pip installed of CUDA, and prints what it does not find, which is told below.
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()
    folder = Path(ort.__file__).parent / "capi"
    for part in parts:
        library = folder / f"libonnxruntime_providers_{part}.so"
        if not library.is_file():  # elsewhere than on Linux they have other names
            continue
        try:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL if part == "shared" else ctypes.RTLD_LOCAL)
        except OSError as error:
            return part, error
    return None


def _require_device(ort: Any, name: str, provider: Provider, gpu: int) -> None:
    try:
        ort.OrtValue.ortvalue_from_shape_and_type((1,), 1, provider.device, gpu)
    except Exception as error:
        raise TargetError(
            f"{provider.device} device {gpu} gives no memory: {_what_cuda_says(error)}",
            target=name,
            hint="see the driver and the GPUs with `nvidia-smi`; `gpu` counts them from 0",
        ) from error


def _what_cuda_says(error: Exception) -> str:
    """Return the message of an error without the C++ signatures around it."""
    line = str(error).strip().partition("\n")[0]
    _, found, rest = line.partition("CUDA failure")
    return f"{found}{rest.partition(' ; ')[0]}" if found else line


def _package_hint(provider: Provider) -> str:
    if provider.device is None:
        return f"pip install {provider.package}"
    return (
        f"pip install {provider.package} in place of onnxruntime (pip uninstall onnxruntime first: "
        "both fill the same folder)"
    )


def _library_hint(ort: Any, part: str) -> str:
    if part == "tensorrt":
        return "install TensorRT, and let LD_LIBRARY_PATH name the folder of its libraries"
    return (
        f"CUDA {getattr(ort, 'cuda_version', '')} and cuDNN on LD_LIBRARY_PATH, or "
        "pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )
