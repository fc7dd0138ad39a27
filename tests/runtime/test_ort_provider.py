"""A provider that cannot be had is an error with a reason, never the CPU in its place."""

import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stateful_pipeline.errors import ContractError, TargetError
from stateful_pipeline.runtime import StatefulRunner, engine
from stateful_pipeline.runtime.ort_provider import (
    PROVIDERS,
    Provider,
    find_provider,
    require_provider,
    why_unavailable,
    why_unlisted,
)


class _OrtValue:
    """Gives memory on GPU 0 alone."""

    @staticmethod
    def ortvalue_from_shape_and_type(shape, element_type, device, number):
        if number:
            raise RuntimeError(
                "/src/cuda_call.cc:154 CudaCall [with bool THRW = true] CUDA failure 101: invalid "
                "device ordinal ; GPU=0 ; hostname=h ; expr=cudaSetDevice(1);\n\n"
            )


@pytest.fixture
def gpu_package(tmp_path, monkeypatch):
    """Stand in for an installed onnxruntime-gpu; return it."""

    def preload_dlls():
        print("Failed to load libcublasLt.so.13")

    (tmp_path / "capi").mkdir()
    package = SimpleNamespace(
        __version__="1.31.1",
        __file__=str(tmp_path / "__init__.py"),
        cuda_version="13.0",
        get_available_providers=lambda: [p.ort_name for p in PROVIDERS.values()],
        preload_dlls=preload_dlls,
        InferenceSession=type(
            "InferenceSession", (), {"get_provider_graph_assignment_info": lambda _: []}
        ),
        OrtValue=_OrtValue,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", package)
    return package


@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_package_without_the_provider_says_which_one_has_it(counter, name):
    import onnxruntime

    if PROVIDERS[name].ort_name in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has it")
    with pytest.raises(TargetError) as caught:
        StatefulRunner(counter, provider=name)
    assert str(caught.value) == (
        f"target '{name}': this ONNX Runtime has no {PROVIDERS[name].ort_name}\n"
        "  try: pip install onnxruntime-gpu in place of onnxruntime (pip uninstall onnxruntime "
        "first: both fill the same folder)"
    )
    assert why_unavailable(name) == str(caught.value)


def test_the_cpu_is_available():
    assert why_unavailable("cpu") is None


def test_what_is_all_there_is_available(gpu_package):
    assert why_unavailable("cuda") is None
    assert require_provider("tensorrt") is gpu_package


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries have other names elsewhere")
@pytest.mark.parametrize(
    ("name", "part", "hint"),
    [
        ("cuda", "cuda", r"CUDA 13\.0 and cuDNN on LD_LIBRARY_PATH, .*gpu\[cuda,cudnn\]"),
        ("tensorrt", "cuda", r"CUDA 13\.0 and cuDNN"),
        ("tensorrt", "tensorrt", "install TensorRT"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_named(gpu_package, tmp_path, capfd, name, part, hint):
    library = tmp_path / "capi" / f"libonnxruntime_providers_{part}.so"
    library.write_text("no library")
    with pytest.raises(TargetError) as caught:
        require_provider(name)
    assert f"{PROVIDERS[name].ort_name} cannot be loaded: " in caught.value.message
    assert library.name in caught.value.message
    assert caught.match(hint)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries have other names elsewhere")
def test_kernels_are_listed_where_each_provider_of_the_package_can_be_loaded(gpu_package, tmp_path):
    assert why_unlisted(gpu_package) is None
    (tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so").write_text("no library")
    assert "TensorrtExecutionProvider cannot be loaded" in why_unlisted(gpu_package)
    gpu_package.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert why_unlisted(gpu_package) is None


def test_tensorrts_library_is_nothing_to_cuda(gpu_package, tmp_path):
    (tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so").write_text("no library")
    assert why_unavailable("cuda") is None


def test_a_gpu_that_is_not_there_is_told_in_cudas_words(gpu_package):
    with pytest.raises(TargetError) as caught:
        require_provider("cuda", gpu=1)
    assert caught.value.message == (
        "target 'cuda': cuda device 1 gives no memory: CUDA failure 101: invalid device ordinal"
    )
    assert "nvidia-smi" in str(caught.value)


def test_an_onnxruntime_that_does_not_tell_who_runs_a_node_is_too_old(gpu_package):
    del gpu_package.InferenceSession.get_provider_graph_assignment_info
    with pytest.raises(TargetError, match=r"1\.31\.1 does not tell(.|\n)*--upgrade onnx"):
        require_provider("cuda")


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'")
def test_a_session_that_fell_back_to_the_cpu_is_refused(counter, monkeypatch):
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    # Whatever is found before, ONNX Runtime may still fall back, as it does here, without an error.
    monkeypatch.setattr(engine, "require_provider", lambda *_: onnxruntime)
    monkeypatch.setitem(PROVIDERS, "late", Provider("CUDAExecutionProvider", "p", "cpu"))
    with pytest.raises(TargetError, match="'late': ONNX Runtime fell back to CPUExecutionProvider"):
        StatefulRunner(counter, provider="late")


@pytest.fixture
def other(monkeypatch):
    """Name a provider with a device that ONNX Runtime can start here."""
    monkeypatch.setitem(PROVIDERS, "other", replace(PROVIDERS["cpu"], device="cpu"))
    return "other"


def test_a_provider_that_runs_no_node_is_refused(counter, other, monkeypatch):
    monkeypatch.setattr(engine, "_nodes", lambda _: {"SomeExecutionProvider": Counter(Add=3)})
    with pytest.raises(TargetError, match=r"CPUExecutionProvider runs no node .*to SomeExecution"):
        StatefulRunner(counter, provider=other)


def test_what_the_cpu_can_load_the_provider_failed_at(counter, other, monkeypatch):
    real, calls = engine._session, []

    def failing(*given):
        calls.append(given)
        if len(calls) == 1:
            raise RuntimeError("cuDNN failure 4\nmore")
        return real(*given)

    monkeypatch.setattr(engine, "_session", failing)
    with pytest.raises(TargetError, match=r"model, which the CPU can: cuDNN failure 4$"):
        StatefulRunner(counter, provider=other)


def test_what_the_cpu_cannot_load_either_is_the_models_fault(tmp_path, other, capfd):
    (tmp_path / "model.onnx").write_text("no model")
    with pytest.raises(ContractError, match=r"model\.onnx: ONNX Runtime cannot load the model"):
        StatefulRunner(tmp_path / "model.onnx", provider=other)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_provider_is_told_which_there_are():
    with pytest.raises(TargetError, match="unknown provider 'gpu'\n  try: use cpu, cuda, tensorrt"):
        find_provider("gpu")
