"""Targets: one model per runtime, told apart by ``runtime``."""

from __future__ import annotations

import jsonschema
import pytest

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import (
    LibtorchTarget,
    OnnxRuntimeTarget,
    OpenVinoTarget,
    json_schema,
    load_spec,
)

GOOD = (
    "name: a\nsource: {python: 'a:B'}\ninputs: {x: {shape: [n, time]}}\n"
    "dynamic_axes: {n: {opt: 2, max: 4}, time: {opt: 2, max: 4}}\n"
)


@pytest.fixture
def load(tmp_path):
    def load(target):
        path = tmp_path / "spec.yaml"
        path.write_text(f"{GOOD}targets:\n  t: {target}\n")
        return load_spec(path)

    return load


def test_each_runtime_has_its_own_model_and_artifact(load):
    native = load("{runtime: libtorch, threads: 2, optional: true, verify: {atol: 0.5}}")
    target = native.targets["t"]
    assert isinstance(target, LibtorchTarget)
    assert (target.needs, target.threads, target.optional) == ("scripted", 2, True)
    assert native.tolerances("t")[0] == 0.5
    onnx = load("{runtime: onnxruntime}").targets["t"]
    assert isinstance(onnx, OnnxRuntimeTarget)
    assert onnx.needs == "onnx"
    third = load("{runtime: openvino, inexact: [int64], precision: bf16}").targets["t"]
    assert isinstance(third, OpenVinoTarget)
    assert (third.needs, third.inexact, third.precision) == ("onnx", ("int64",), "bf16")
    assert load("{runtime: openvino}").targets["t"].precision == "fp32"
    assert "needs" not in native.content()["targets"]["t"]


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        (
            "{runtime: libtorhc}",
            "targets.t.runtime: expected one of onnxruntime, openvino, .*, libtorch",
            "libt",
        ),
        ("{runtime: 3}", "targets.t.runtime: .*found 3", None),
        ("{threads: 1}", "missing key `runtime`", None),
        ("{runtime: libtorch, provider: cpu}", "unknown key `targets.t.provider`", "the keys are"),
        ("{runtime: libtorch, thread: 1}", "unknown key `targets.t.thread`", "`threads`"),
        ("{runtime: libtorch, threads: 0}", "targets.t.threads: must be at least 1", None),
        ("{runtime: openvino, precision: int8}", "targets.t.precision: expected one of", None),
        ("{runtime: openvino, inexact: [int32]}", "targets.t.inexact", None),
        ("{runtime: openvino, provider: cpu}", "unknown key `targets.t.provider`", "the keys are"),
        ("{runtime: libtorch, precision: fp16}", "unknown key `targets.t.precision`", "the keys"),
        ("{runtime: onnxruntime, gpu: 1}", "`gpu` means nothing for the provider cpu", "cuda"),
        ("{runtime: onnxruntime, tf32: true}", "`tf32` means nothing for the provider cpu", "cuda"),
        (
            "{runtime: onnxruntime, provider: cuda, profiles: {a: {}}}",
            "`profiles` means nothing for the provider cuda",
            "tensorrt",
        ),
        ("{runtime: tensorrt, half_states: [h]}", "`half_states` means nothing", "fp16"),
        ("{runtime: tensorrt, profiles: {}}", "targets.t.profiles", None),
        (
            "{runtime: tensorrt, profiles: {a: {n: [3, 2, 1]}}}",
            r"expected min <= opt <= max, found \[3, 2, 1\]",
            "[1, 2, 3]",
        ),
        ("{runtime: tensorrt, profiles: {a: {n: [1, 2]}}}", "expected .min, opt, max.", "20"),
        ("{runtime: tensorrt, profiles: {a: {tmie: [1, 2, 3]}}}", "axis 'tmie' is not", "`time`"),
        ("{runtime: tensorrt, plugins: [a]}", "`plugins` is not supported yet", None),
        ("{runtime: tensorrt, flags: [fp16]}", "expected a builder flag of TensorRT", "STRIP"),
        ("{runtime: tensorrt_rtx, compute_capabilities: [8.9]}", "compute_capabilities", None),
        ("{runtime: tensorrt_rtx, timing_cache: a}", "unknown key", "the keys are"),
        ("3", "targets.t: expected a mapping, found 3", None),
    ],
)
def test_a_target_that_is_wrong_is_named_with_its_line(load, target, message, hint):
    with pytest.raises(SpecError, match=message) as caught:
        load(target)
    assert caught.value.line == 6
    assert not caught.value.others
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize(
    ("target", "good"),
    [
        ({"runtime": "libtorch", "threads": 1}, True),
        ({"runtime": "libtorch", "provider": "cpu"}, False),
        ({"runtime": "openvino", "precision": "bf16", "inexact": ["int64"]}, True),
        ({"runtime": "openvino", "inexact": ["float32"]}, False),
        ({"runtime": "libtorch", "precision": "bf16"}, False),
        ({"runtime": "onnxruntime", "provider": "cuda", "gpu": 1, "tf32": True}, True),
        ({"runtime": "tensorrt", "profiles": {"a": {"batch": [1, 2, 4]}}}, True),
        ({"runtime": "tensorrt", "profiles": {}}, False),
        ({"runtime": "tensorrt_rtx", "compute_capabilities": ["8.9"]}, True),
        ({"runtime": "tensorrt_rtx", "compute_capabilities": ["sm_89"]}, False),
        ({"runtime": "tensorrt_rtx", "timing_cache": "a"}, False),
        ({"threads": 1}, False),
    ],
)
def test_the_schema_knows_which_keys_go_with_which_runtime(target, good):
    spec = {"name": "a", "source": {"python": "a:B"}, "inputs": {"x": {"shape": [1]}}}
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid({**spec, "targets": {"t": target}}) is good
