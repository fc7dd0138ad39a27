"""Engines of TensorRT for RTX, built here for GPUs that are elsewhere: what is taken, what not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import SpecError, StageError, StateError, TargetError
from stateful_pipeline.profiles import plan_profiles
from stateful_pipeline.runtime.tensorrt_sidecar import engine_sha256, read_sidecar
from stateful_pipeline.stages.build import tensorrt, tensorrt_process, tensorrt_worker
from stateful_pipeline.stages.build.tensorrt import EngineOptions, build_engine

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

ONNX = {"float32": "float", "float64": "double"}
AXES = (Axis("batch", 1, 2, 6), Axis("time", 1, 4, 8))


def state(shape, out_shape=None, *, name="h", dtype="float32"):
    stored = tuple(1 if isinstance(dim, str) else dim for dim in shape)
    if out_shape is not None:
        stored = tuple(0 if a != b else n for a, b, n in zip(shape, out_shape, stored, strict=True))
    init = Initial("zeros", stored)
    return State(name, f"{name}_in", f"{name}_out", dtype, shape, init, name, out_shape)


def contract(x, *states, y=None, axes=AXES, dtype="float32"):
    return Contract(
        (Value("x", dtype, x),), (Value("y", dtype, x if y is None else y),), states, axes
    )


@pytest.fixture
def build(tmp_path):
    """Return a function that builds an ONNX graph, given as text, and returns the folder."""

    def build(text, contract, declared=None, *, weights=None, library="tensorrt_rtx", **options):
        header = '<ir_version: 10, opset_import: ["" : 20]>\n'
        model = onnx.parser.parse_model(header + text)
        if weights is not None:
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        source = tmp_path / "model.onnx"
        onnx.save(
            model,
            source,
            save_as_external_data=weights is not None,
            location="model.onnx.data",
            size_threshold=0,
        )
        build.note = build_engine(
            source,
            contract,
            tmp_path / "out",
            library=library,
            profiles=plan_profiles(contract, declared),
            options=EngineOptions(**options),
        )
        return tmp_path / "out"

    return build


SUM = """
g (float[batch, 3] x, float[batch, 3] h_in) => (float[batch, 3] y, float[batch, 3] h_out) {
    h_out = Add(x, h_in)
    y = Mul(h_out, x)
}
"""
ROWS = contract(("batch", 3), state(("batch", 3)))


def test_an_engine_lies_beside_its_description(build):
    folder = build(SUM, ROWS, compute_capabilities=("8.9", "12.0"))
    assert sorted(path.name for path in folder.iterdir()) == ["model.engine", "model.engine.json"]
    found = read_sidecar(folder / "model.engine")
    assert (found.library, found.compute_capabilities) == ("tensorrt_rtx", ("8.9", "12.0"))
    assert found.sha256 == engine_sha256(folder / "model.engine")
    assert found.contract == ROWS
    (profile,) = found.profiles
    assert profile.ranges["h_in"] == ((1, 3), (2, 3), (6, 3))
    assert found.version == build.note["version"]
    assert build.note["warnings"] == []


def test_an_engine_has_the_profiles_that_were_declared(build):
    text = """
    g (float[batch, time] x, float[batch, 1] h_in)
        => (float[batch, time] y, float[batch, 1] h_out) {
        axes = Constant <value_ints = [1]> ()
        last = ReduceSum(x, axes)
        h_out = Add(last, h_in)
        y = Add(x, h_out)
    }
    """
    declared = {"prefill": {"time": (2, 4, 8)}, "decode": {"time": (1, 1, 1)}}
    folder = build(text, contract(("batch", "time"), state(("batch", 1))), declared)
    prefill, decode = read_sidecar(folder / "model.engine").profiles
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert decode.ranges["x"] == ((1, 1), (2, 1), (6, 1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "int64", "bool"])
def test_states_without_dimensions_of_every_dtype_that_it_has_are_taken(build, dtype):
    kind = ONNX.get(dtype, dtype)
    folder = build(
        f"g (float[2] x, {kind} h_in) => (float[2] y, {kind} h_out)"
        " { on = Cast <to = 9> (h_in)  h_out = Where(on, h_in, h_in)  y = Neg(x) }",
        contract((2,), state((), dtype=dtype)),
    )
    assert (folder / "model.engine").is_file()


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        ("float64", "in float32, without a word"),
        ("int8", "quantized"),
        ("uint8", "no arithmetic"),
        ("int16", "no int16"),
        ("uint64", "no uint64"),
    ],
)
def test_states_and_inputs_that_it_lacks_are_refused_with_the_reason(build, dtype, reason):
    kind = ONNX.get(dtype, dtype)
    text = (
        f"g (float[2] x, {kind} h_in) => (float[2] y, {kind} h_out)"
        " { y = Neg(x)  h_out = Identity(h_in) }"
    )
    with pytest.raises(StateError, match=reason) as caught:
        build(text, contract((2,), state((), dtype=dtype)))
    assert caught.value.attribute == "h"
    text = f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Identity(x) }}"
    with pytest.raises(StageError, match=f"input 'x' is {dtype}: .*{reason}"):
        build(text, contract((2,), dtype=dtype))


def test_float64_inside_a_model_is_noted(build):
    text = """
    g (float[2] x) => (float[2] y) {
        wide = Cast <to = 11> (x)
        twice = Add(wide, wide)
        y = Cast <to = 1> (twice)
    }
    """
    build(text, contract((2,)))
    assert build.note["inexact"] == ["Cast: float64 in float32", "Add: float64 in float32"]


CACHE = """
g (float[batch, time] x, float[batch, past] h_in)
    => (float[batch, 1] y, float[batch, total] h_out) {
    h_out = Concat <axis = 1> (h_in, x)
    axes = Constant <value_ints = [1]> ()
    y = ReduceSum(h_out, axes)
}
"""
GROWING = contract(
    ("batch", "time"),
    state(("batch", "past"), ("batch", "past + time")),
    y=("batch", 1),
    axes=(*AXES, Axis("past", 0, grows=True)),
)


@pytest.mark.parametrize("past", [(0, 8, 64), (0, 0, 64)])
def test_an_axis_may_begin_at_zero(build, past):
    folder = build(CACHE, GROWING, {"all": {"past": past}})
    assert read_sidecar(folder / "model.engine").profiles[0].ranges["h_in"][0] == (1, 0)


def test_weights_that_lie_beside_the_model_are_found(build):
    text = """
    g (float[batch, 3] x, float[batch, 3] h_in) => (float[batch, 3] y, float[batch, 3] h_out) {
        h_out = MatMul(h_in, w)
        y = Add(h_out, x)
    }
    """
    folder = build(text, ROWS, weights=np.ones((3, 3), np.float32))
    assert (folder / "model.engine").is_file()


def test_an_operator_that_it_lacks_is_named(build):
    text = "g (float[n, 3, 3] x) => (float[n] y) { [det_of_x] y = Det(x) }"
    with pytest.raises(StageError, match=r"has no operator Det \(node 'det_of_x'\)") as caught:
        build(text, contract(("batch", 3, 3), y=("batch",)))
    assert "ONNX Runtime" in caught.value.hint


def test_an_input_whose_values_decide_shapes_is_refused(build):
    text = """
    g (float[batch, 3] x, int64 h_in) => (float[n] y, int64 h_out) {
        axis = Constant <value_ints = [0]> ()
        shape = Unsqueeze(h_in, axis)
        y = ConstantOfShape(shape)
        h_out = Identity(h_in)
    }
    """
    with pytest.raises(StageError, match="the values of 'h_in' decide the shapes of others"):
        build(text, contract(("batch", 3), state((), dtype="int64"), y=("n",)))


def test_an_output_that_is_an_input_of_the_graph_is_refused(build):
    text = "g (float[batch, 3] x) => (float[batch, 3] x) { }"
    same = Contract(
        (Value("x", "float32", ("batch", 3)),), (Value("x", "float32", ("batch", 3)),), (), AXES
    )
    with pytest.raises(StageError, match="'x' is an input and an output of the graph at once"):
        build(text, same)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"flags": ("FP17",)}, "no builder flag FP17", "STRIP_PLAN"),
        ({"compute_capabilities": ("6.1",)}, "does not build for compute capability 6.1", "8.9"),
    ],
)
def test_options_that_the_library_lacks_are_named(build, options, message, hint):
    with pytest.raises(SpecError, match=message) as caught:
        build(SUM, ROWS, **options)
    assert hint in caught.value.hint


def test_options_are_given_to_the_builder(build):
    options = {"tf32": True, "workspace": 64, "optimization_level": 1, "flags": ("STRIP_PLAN",)}
    assert (build(SUM, ROWS, **options) / "model.engine").is_file()


def test_what_fails_leaves_nothing(build, tmp_path):
    with pytest.raises(SpecError):
        build(SUM, ROWS, flags=("FP17",))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_process_that_dies_is_an_error_that_says_how(build, tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text(
        "import os, sys\nsys.stderr.write('out of luck\\n')\nos.abort()\n"
    )
    monkeypatch.setattr(tensorrt_process, "_WORKER", "dies")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    with pytest.raises(StageError, match=r"ended by SIGABRT: .*out of luck"):
        build(SUM, ROWS)


@pytest.mark.parametrize("full", [["model.engine"], ["model.engine", "answer.json"]])
def test_a_full_disk_is_told_with_the_file(tmp_path, full):
    source = tmp_path / "source.onnx"
    header = '<ir_version: 10, opset_import: ["" : 20]>\n'
    onnx.save(onnx.parser.parse_model(header + SHARED), source)
    profiles = plan_profiles(SHARED_CONTRACT, {"all": {"past": (0, 2, 6)}})
    request = tensorrt.request_of(
        source, SHARED_CONTRACT, tmp_path, "tensorrt_rtx", profiles, EngineOptions()
    )
    for name in full:
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(StageError, match=r"cannot write .*No space left on device") as caught:
        tensorrt_process.ask_worker(request, tmp_path)
    assert full[-1] in str(caught.value)
    assert "operator" not in str(caught.value)


COUNTS = """g (float[2] x, int64 p_in, int64 n_in) => (float[2] y, int64 p_out, int64 n_out)
  <int64 zero = {0}, int64 one = {1}> {
  c = Equal (p_in, zero)
  y, p_out, n_out = If (c) <
    then_branch = first () => (float[2] y1, int64 p1, int64 n1) {
      y1 = Neg (x)  p1 = Identity (one)  n1 = Identity (one) },
    else_branch = later () => (float[2] y2, int64 p2, int64 n2) {
      y2 = Abs (x)  p2 = Identity (one)  n2 = Add (n_in, one) }> }"""

RING = """g (float[3, 1] x, float[3, 8] d_in, int64 p_in)
  => (float[3, 2] y, float[3, 8] d_out, int64 p_out)
  <int64 one = {1}, int64 two = {2}, int64 size = {8}, int64[1] flat = {-1}, int64[1] axis = {1}> {
  s = Reshape (p_in, flat)  q = Add (p_in, two)  e = Reshape (q, flat)
  y = Slice (d_in, s, e, axis)  d_out = Add (d_in, x)
  n = Add (p_in, one)  p_out = Mod (n, size) }"""


def test_a_module_that_counts_from_its_first_call_on_is_built(build):
    states = (state((), name="p", dtype="int64"), state((), name="n", dtype="int64"))
    folder = build(COUNTS, contract((2,), *states, axes=()))
    assert (folder / "model.engine").is_file()


def test_a_slice_at_a_moving_place_is_built(build):
    states = (state((3, 8), name="d"), state((), name="p", dtype="int64"))
    folder = build(RING, contract((3, 1), *states, y=(3, 2), axes=()))
    assert (folder / "model.engine").is_file()


def test_the_process_ends_with_the_one_that_waits_for_it(tmp_path):
    source = tmp_path / "model.onnx"
    header = '<ir_version: 10, opset_import: ["" : 20]>\n'
    onnx.save(onnx.parser.parse_model(header + SHARED), source)
    profiles = plan_profiles(SHARED_CONTRACT, {"all": {"past": (0, 2, 6)}})
    request = tensorrt.request_of(
        source, SHARED_CONTRACT, tmp_path, "tensorrt_rtx", profiles, EngineOptions()
    )
    (tmp_path / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", tensorrt_worker.__name__, str(tmp_path / "request.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(60) == 1
    assert not Path(request["engine"]).exists()


def test_without_the_library_the_extra_is_named(build):
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed")
    with pytest.raises(TargetError, match="tensorrt cannot be imported") as caught:
        build(SUM, ROWS, library="tensorrt")
    assert "stateful-pipeline[tensorrt]" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"compute_capabilities": ("7.5", "8.9")}, "GPUs of 7.5 lack products of float32"),
        ({"flags": ("VERSION_COMPATIBLE",)}, "leave out `flags`"),
    ],
)
def test_an_engine_that_cannot_be_built_says_what_to_try(build, options, advice):
    text = """
    g (float[batch, 3] x, float[batch, 3] h_in) => (float[batch, 3] y, float[batch, 3] h_out) {
        h_out = MatMul(h_in, w)
        y = Add(h_out, x)
    }
    """
    with pytest.raises(StageError, match="builds no engine") as caught:
        build(text, ROWS, weights=np.ones((3, 3), np.float32), **options)
    assert advice in caught.value.hint


def test_a_kind_of_gpu_counts_once(build):
    folder = build(SUM, ROWS, compute_capabilities=("8.9", "8.9"))
    assert read_sidecar(folder / "model.engine").compute_capabilities == ("8.9",)


RANGES = st.tuples(*[st.integers(1, 6)] * 3).map(sorted).map(tuple)
PROFILES = st.lists(
    st.fixed_dictionaries({}, optional={"batch": RANGES, "time": RANGES}), min_size=1, max_size=3
)
SHARED = """
g (float[batch, time] x, float[batch, 3] h_in, float[batch, past] k_in)
    => (float[batch, 1] y, float[batch, 3] h_out, float[batch, total] k_out) {
    axes = Constant <value_ints = [1]> ()
    y = ReduceSum(x, axes)
    h_out = Add(h_in, y)
    k_out = Concat <axis = 1> (k_in, x)
}
"""


SHARED_CONTRACT = contract(
    ("batch", "time"),
    state(("batch", 3)),
    state(("batch", "past"), ("batch", "past + time"), name="k"),
    y=("batch", 1),
    axes=(*AXES, Axis("past", 0, grows=True)),
)


@given(PROFILES, st.tuples(*[st.integers(0, 6)] * 3).map(sorted))
@settings(max_examples=25)
def test_every_profile_that_is_planned_is_accepted(declared, past):
    model = SHARED_CONTRACT
    names = {f"p{i}": {**given, "past": past} for i, given in enumerate(declared)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model.onnx")
        header = '<ir_version: 10, opset_import: ["" : 20]>\n'
        onnx.save(onnx.parser.parse_model(header + SHARED), source)
        request = tensorrt.request_of(
            source,
            model,
            Path(folder),
            "tensorrt_rtx",
            plan_profiles(model, names),
            EngineOptions(),
        )
        answer = tensorrt_worker.build(request)
        assert Path(request["engine"]).stat().st_size > 0
        assert answer["compute_capabilities"]
