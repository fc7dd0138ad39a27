"""Half precision written into a model: what is computed and stored in it, and what is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import openvino
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_pipeline.contract import METADATA_KEY, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, SpecError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.lowering import lower_file
from stateful_pipeline.stages.lowering.half import half_file
from stateful_pipeline.stages.lowering.half_transposes import (
    cast_before_transposes,
)

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
NUMPY = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def zeros(*shape: int) -> Initial:
    return Initial("zeros", shape)


def write(folder: Path, text: str, opset: int = 20, **states: Initial) -> Path:
    """Write a model whose inputs and outputs called ``*_in`` and ``*_out`` are ``states``."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    described = []
    for name, init in states.items():
        port = next(v for v in model.graph.inputs if v.name == f"{name}_in")
        dtype = {"FLOAT": "float32"}.get(port.dtype.name, port.dtype.name.lower())
        shape = tuple(port.shape.numpy())
        described.append(State(name, f"{name}_in", f"{name}_out", dtype, shape, init, name))

    def values(ports, suffix):
        return tuple(
            Value(port.name, {"FLOAT": "float32"}.get(port.dtype.name, port.dtype.name.lower()),
                  tuple(port.shape.numpy()))
            for port in ports if port.name.removesuffix(suffix) not in states
        )  # fmt: skip

    contract = Contract(
        values(model.graph.inputs, "_in"), values(model.graph.outputs, "_out"), tuple(described)
    )
    model.metadata_props[METADATA_KEY] = contract.to_json()
    path = folder / "model.onnx"
    ir.save(model, path)
    return path


def halve(
    source: Path, precision: str = "fp16", half_states: tuple[str, ...] = ()
) -> tuple[ir.Model, tuple[str, ...]]:
    """Write the model in half beside ``source``; return it, checked, and what was said."""
    folder = source.parent / "half"
    folder.mkdir(exist_ok=True)
    said = half_file(source, folder / source.name, precision, half_states)
    onnx.checker.check_model(str(folder / source.name), full_check=True)
    model = ir.load(folder / source.name)
    check_casts(model)
    return model, said


def check_casts(model: ir.Model) -> None:
    """No cast undoes another or is there twice, and each is read."""
    for graph in model.graphs():
        casts = [node for node in graph if node.op_type == "Cast"]
        read = Counter((n.inputs[0], n.attributes["to"].as_int()) for n in casts)
        assert max(read.values(), default=1) == 1
        for node in casts:
            producer = node.inputs[0].producer()
            floats = {HALF, FLOAT, ir.DataType.BFLOAT16}
            both = producer is not None and producer.op_type == "Cast"
            assert not (both and producer.inputs[0].dtype in floats)
            assert tuple(node.outputs[0].uses()) or node.outputs[0].is_graph_output()


def lowered(source: Path) -> Path:
    path = source.parent / "half" / source.name
    lower_file(path, path)
    return path


def runner(source: Path) -> StatefulRunner:
    return StatefulRunner(lowered(source), threads=1)


def node(model: ir.Model, operator: str) -> ir.Node:
    (found,) = (n for graph in model.graphs() for n in graph if n.op_type == operator)
    return found


def operators(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for graph in model.graphs() for n in graph)


PLAIN = """g (float[2,3] x) => (float[2,2] y)
    <float[3,2] w = {1.1, 2.2, 3.3, 4.4, 5.5, 6.6}, float[2] b = {0.1, 0.2}> {
    m = MatMul(x, w) s = Add(m, b) y = Tanh(s) }"""


@pytest.mark.parametrize("precision", NUMPY)
def test_weights_are_stored_in_half_and_only_the_edges_are_cast(tmp_path, precision) -> None:
    model, said = halve(write(tmp_path, PLAIN), precision)
    assert operators(model) == {"Cast": 2, "MatMul": 1, "Add": 1, "Tanh": 1}
    half = ir.DataType.from_numpy(NUMPY[precision])
    assert {name: value.dtype for name, value in model.graph.initializers.items()} == {
        "w": half, "b": half,
    }  # fmt: skip
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [FLOAT, FLOAT]
    assert f"MatMul: float32 in {half.name.lower()}" in said


def test_openvino_takes_the_file(tmp_path) -> None:
    halve(write(tmp_path, PLAIN))
    read = openvino.Core().read_model(tmp_path / "half" / "model.onnx")
    x = np.ones((2, 3), np.float32)
    got = openvino.Core().compile_model(read, "CPU")(x)[0]
    expected = np.tanh(x @ np.array([[1.1, 2.2], [3.3, 4.4], [5.5, 6.6]]) + [0.1, 0.2])
    np.testing.assert_allclose(got, expected, atol=2e-3)


LEAKY = """g (float[4] x, float[4] h_in) => (float[4] y, float[4] h_out)
    <float step = {0.0001}> {
    scaled = Mul(x, step) h_out = Add(h_in, scaled) y = Tanh(h_out) }"""


def test_a_state_accumulates_in_float32_unless_it_is_named(tmp_path) -> None:
    source = write(tmp_path, LEAKY, h=Initial.inline(np.ones(4, np.float32)))
    x = {"x": np.ones(4, np.float32)}
    model, _ = halve(source)
    assert node(model, "Add").inputs[0].dtype == FLOAT
    wide = runner(source)
    for _ in range(1000):
        wide.run(x)
    np.testing.assert_allclose(wide.state["h"], 1.1, atol=1e-4)
    model, _ = halve(source, half_states=("h",))
    assert node(model, "Add").inputs[0].dtype == HALF
    stored = runner(source)
    for _ in range(1000):
        stored.run(x)
    assert (stored.state["h"] == 1).all()  # 1 + 1e-4 is 1 in float16
    assert stored.state["h"].dtype == np.float16


def test_what_a_ring_takes_is_not_rounded(tmp_path) -> None:
    text = """g (float[1] x, float[3] h_in) => (float[1] y, float[3] h_out)
        <int64[1] a = {1}, int64[1] b = {9}> {
        rest = Slice(h_in, a, b) h_out = Concat<axis=0>(rest, x) e = Exp(h_out)
        y = ReduceMax<keepdims=1>(e) }"""
    source = write(tmp_path, text, h=zeros(3))
    halve(source)
    ring = runner(source)
    value = np.array([0.1], np.float32)
    ring.run({"x": value})
    assert ring.state["h"][2] == value[0]


@pytest.mark.parametrize("precision", NUMPY)
@pytest.mark.parametrize("kind", ["inline", "file"])
def test_a_half_state_is_half_in_graph_contract_and_initial_value(
    tmp_path, precision, kind
) -> None:
    first = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    other = np.arange(4, dtype=np.float32) + 0.1
    init = Initial.inline(first)
    if kind == "file":
        np.savez(tmp_path / "model.onnx.states.npz", h=first, k=other)
        init = Initial("file", (4,), file="model.onnx.states.npz", key="h")
    text = """g (float[4] x, float[4] h_in, float[4] k_in) =>
        (float[4] y, float[4] h_out, float[4] k_out) {
        h_out = Add(h_in, x) k_out = Add(k_in, x) y = Mul(h_out, k_out) }"""
    kept = replace(init, key="k") if kind == "file" else Initial.inline(other)
    source = write(tmp_path, text, h=init, k=kept)
    model, _ = halve(source, precision, ("h",))
    contract = Contract.from_json(model.metadata_props[METADATA_KEY])
    assert [state.dtype for state in contract.states] == [NUMPY[precision].name, "float32"]
    run = runner(source)  # which holds graph and contract against each other
    run.run({"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(run.state["h"], first.astype(NUMPY[precision]))
    np.testing.assert_array_equal(run.state["k"], other)
    assert {value.dtype for value in model.graph.outputs if value.name != "h_out"} == {FLOAT}


def test_files_in_place_give_the_same_as_files_elsewhere(tmp_path) -> None:
    np.savez(tmp_path / "model.onnx.states.npz", h=np.full(4, 0.1, np.float32))
    init = Initial("file", (4,), file="model.onnx.states.npz", key="h")
    source = write(tmp_path, LEAKY, h=init)
    halve(source, half_states=("h",))
    half_file(source, source, "fp16", ("h",))
    elsewhere = tmp_path / "half"
    assert source.read_bytes() == (elsewhere / "model.onnx").read_bytes()
    with np.load(tmp_path / "model.onnx.states.npz") as file:
        assert file["h"].dtype == np.float16


def test_weights_beside_the_model_end_up_in_it(tmp_path) -> None:
    model = ir.load(write(tmp_path, PLAIN))
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data",
            size_threshold_bytes=0)  # fmt: skip
    assert (tmp_path / "model.onnx.data").exists()
    half_file(tmp_path / "model.onnx", tmp_path / "model.onnx", "fp16", ())
    assert not (tmp_path / "model.onnx.data").exists()
    assert ir.load(tmp_path / "model.onnx").graph.initializers["w"].const_value.shape == (3, 2)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("cells.g", "did you mean `cells.h`"),
        ("blocks.*", "the states are: cells.h, n"),
        ("n", "state `n` is int64, not float32"),
    ],
)
def test_a_name_that_means_no_float_state_is_refused(tmp_path, wish, said) -> None:
    text = """g (float[4] x, float[4] "cells.h_in", int64 n_in) =>
        (float[4] y, float[4] "cells.h_out", int64 n_out) <int64 one = {1}> {
        "cells.h_out" = Add("cells.h_in", x) n_out = Add(n_in, one) y = Tanh(x) }"""
    text = text.replace('"cells.h_in"', "a_in").replace('"cells.h_out"', "a_out")
    source = write(tmp_path, text, a=zeros(4), n=zeros())
    model = ir.load(source)
    renamed = model.metadata_props[METADATA_KEY].replace('"name":"a"', '"name":"cells.h"')
    model.metadata_props[METADATA_KEY] = renamed
    ir.save(model, source)
    with pytest.raises(SpecError) as caught:
        half_file(source, source, "fp16", (wish,))
    assert said in str(caught.value)
    assert half_file(source, source, "fp16", ("*",))


def test_an_initial_value_that_is_too_large_is_refused(tmp_path) -> None:
    source = write(tmp_path, LEAKY, h=Initial.inline(np.full(4, 7e4, np.float32)))
    with pytest.raises(SpecError, match=r"state `h` is too large for float16: 70000"):
        half_file(source, source, "fp16", ("h",))
    halve(source, "bf16", ("h",))


def test_a_model_without_a_contract_is_refused(tmp_path) -> None:
    source = write(tmp_path, PLAIN)
    model = ir.load(source)
    del model.metadata_props[METADATA_KEY]
    ir.save(model, source)
    with pytest.raises(ContractError, match="no state contract"):
        half_file(source, source, "fp16", ())


MASKED = """g (float[2,2] x, bool[2,2] mask) => (float[2,2] y)
    <float low = {-1000000000.0}, float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
    scores = MatMul(x, w) masked = Where(mask, low, scores) y = Softmax(masked) }"""


def test_a_constant_too_large_for_half_keeps_its_operator_in_float32(tmp_path) -> None:
    source = write(tmp_path, MASKED)
    model, said = halve(source)
    assert model.graph.initializers["low"].dtype == FLOAT
    assert any(text.startswith("low: 1 of 1 elements are too large for float16") for text in said)
    inputs = {"x": np.ones((2, 2), np.float32), "mask": np.ones((2, 2), bool)}
    np.testing.assert_array_equal(runner(source).run(inputs)["y"], 0.5)  # with -inf it is NaN
    model, said = halve(source, "bf16")
    assert node(model, "Where").outputs[0].dtype == ir.DataType.BFLOAT16
    assert not any("too large" in text for text in said)


def test_arithmetic_on_what_came_of_a_large_constant_stays_in_float32(tmp_path) -> None:
    text = """g (float[2,2] x, bool[2,2] mask) => (float[2,2] y)
        <float low = {-1000000000.0}, float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
        scores = MatMul(x, w) off = Cast<to=1>(mask) bias = Mul(off, low)
        masked = Add(scores, bias) y = Softmax(masked) }"""
    source = write(tmp_path, text)
    halve(source)
    inputs = {"x": np.ones((2, 2), np.float32), "mask": np.ones((2, 2), bool)}
    np.testing.assert_array_equal(runner(source).run(inputs)["y"], 0.5)


def both(source: Path, inputs: dict[str, np.ndarray], precision: str = "fp16"):
    """Return the outputs of one step, in float32 and in half."""
    halve(source, precision)
    return StatefulRunner(source, threads=1).run(inputs), runner(source).run(inputs)


def test_attention_whose_keys_are_all_masked_is_not_taken_for_masked_by_infinity(tmp_path) -> None:
    text = """g (float[2,3] x, bool[2,3] mask) => (float[2,2] y)
        <float low = {-1000000000.0}, float none = {0.0}, float[1] inf = {0.0},
         int64[1] last = {-1}, float[3,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
        bias = Where(mask, low, none) most = ReduceMax(bias, last) gone = Equal(most, inf)
        scores = Add(x, bias) weights = Softmax(scores) chosen = Where(gone, none, weights)
        y = MatMul(chosen, w) }"""
    source = write(tmp_path, text)
    model = ir.load(source)
    infinite = ir.tensor(np.array([-np.inf], np.float32), name="inf")
    model.graph.initializers["inf"].const_value = infinite
    ir.save(model, source)
    inputs = {"x": np.ones((2, 3), np.float32), "mask": np.array([[1, 1, 1], [0, 1, 0]], bool)}
    wide, half = both(source, inputs)
    np.testing.assert_allclose(wide["y"][0], [3, 4], rtol=1e-6)
    np.testing.assert_allclose(half["y"], wide["y"], atol=4e-3)
    halved, _ = halve(source)
    assert node(halved, "MatMul").inputs[0].dtype == HALF  # softmax has bounded it


LARGE = "float[2,2] big = {1000000000.0, -1000000000.0, 3.0, 200000.0}"


@pytest.mark.parametrize(
    "made",
    [
        "v = ReduceMax<keepdims=1>(m, axis)",
        "v, at = TopK(m, axis)",
        "v = Relu(m)",
        "v = MatMul(m, w)",
        "v = Gemm(m, w)",
        "v = LeakyRelu(m)",
        "v = Where(c, m, t)",
        "v = Max(t, m)",
        "v = Elu(m)",
        "p = Transpose(m) v = Concat<axis=0>(p, t)",
        "v = CumSum(m, zero)",
        "p = Shape(m) v = ConstantOfShape<value = float[1] {-200000.0}>(p)",
        "v = LeakyRelu<alpha = 300000.0>(t)",
        "v = Clip(m, low, high)",
        """v = If (yes) <then_branch = a () => (float[2,2] i) { i = Abs(m) },
                         else_branch = b () => (float[2,2] j) { j = Identity(t) }>""",
        """v = Loop (twice, yes, t) <body = b (int64 n, bool c2, float[2,2] u) =>
             (bool d, float[2,2] o) { d = Identity(c2) z = Relu(u) o = Add(z, m) }>""",
        "s = SplitToSequence<axis=0>(m) v = ConcatFromSequence<axis=0>(s)",
        "wide = Cast<to=11>(m) n = Abs(wide) v = Cast<to=1>(n)",
    ],
)  # fmt: skip
def test_whatever_reads_what_may_be_too_large_stays_in_float32_and_hands_it_on(
    tmp_path, made
) -> None:
    text = f"""g (float[2,2] x) => (float[SIZE] y, bool[SIZE] far)
        <{LARGE}, float[2,2] w = {{1.0, 2.0, 3.0, 4.0}}, int64[1] axis = {{1}},
         int64 zero = {{0}}, bool yes = {{1}}, int64 twice = {{2}}, bool[2,2] c = {{1, 0, 1, 0}},
         float limit = {{70000.0}}, float low = {{-1.0}}, float high = {{500000.0}}> {{
        t = Tanh(x) m = Mul(t, big) {made} r = Relu(v) y = Neg(r) far = Greater(r, limit) }}"""
    size = "4,2" if "Concat<" in made else "2,1" if "axis)" in made else "2,2"
    text = text.replace("SIZE", size)
    source = write(tmp_path, text)
    x = np.array([[0.5, -0.5], [1.0, 2.0]], np.float32)
    for precision in NUMPY:
        wide, half = both(source, {"x": x}, precision)
        assert np.isfinite(half["y"]).all()
        np.testing.assert_allclose(half["y"], wide["y"], rtol=2e-2, atol=1e-2)
        np.testing.assert_array_equal(half["far"], wide["far"])
    model, _ = halve(source)
    assert node(model, "Neg").inputs[0].dtype == FLOAT


@pytest.mark.parametrize(
    "made",
    [
        "v = Softmax(m)",
        "v = Sigmoid(m)",
        "v = Tanh(m)",
        "v = Clip(m, low, high)",
        "v = LayerNormalization(m, scale)",
        "f = Less(m, low) v = Where(f, t, w)",
        "v = Div(t, big)",
    ],
)
def test_what_has_been_bounded_is_computed_in_half_again(tmp_path, made) -> None:
    text = f"""g (float[2,2] x) => (float[2,2] y)
        <{LARGE}, float[2,2] w = {{1.0, 2.0, 3.0, 4.0}}, float low = {{-1.0}}, float high = {{2.0}},
         float[2] scale = {{1.0, 2.0}}> {{
        t = Tanh(x) m = Mul(t, big) {made} y = MatMul(v, w) }}"""
    source = write(tmp_path, text)
    wide, half = both(source, {"x": np.array([[0.5, -0.5], [1.0, 0.0]], np.float32)})
    np.testing.assert_allclose(half["y"], wide["y"], rtol=4e-3, atol=4e-3)
    model, _ = halve(source)
    assert node(model, "MatMul").inputs[0].dtype == HALF


@pytest.mark.parametrize("first", [0.0, 1e30])
def test_a_state_that_may_be_too_large_is_read_in_float32_from_step_to_step(
    tmp_path, first
) -> None:
    text = """g (float[2,2] x, float[2,2] h_in) => (float[2,2] y, float[2,2] h_out)
        <float[2,2] big = {1000000000.0, 1.0, 1.0, 1.0}, float[2,2] w = {1.0, 0.0, 0.0, 1.0}> {
        y = MatMul(h_in, w) h_out = Mul(x, NEXT) }"""
    text = text.replace("NEXT", "w" if first else "big")
    source = write(tmp_path, text, h=Initial.inline(np.full((2, 2), first, np.float32)))
    halve(source)
    wide, half = StatefulRunner(source, threads=1), runner(source)
    for _ in range(3):
        inputs = {"x": np.ones((2, 2), np.float32)}
        np.testing.assert_array_equal(half.run(inputs)["y"], wide.run(inputs)["y"])


def test_silence_is_normalized_to_silence_with_a_small_epsilon(tmp_path) -> None:
    text = """g (float[2,4] x) => (float[2,2] y)
        <float eps = {0.000000000001}, int64[1] last = {-1},
         float[4,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> {
        s = Mul(x, x) m = ReduceMean<keepdims=1>(s, last) e = Add(m, eps) r = Sqrt(e)
        i = Reciprocal(r) n = Mul(x, i) y = MatMul(n, w) }"""
    source = write(tmp_path, text)
    inputs = {"x": np.array([[0, 0, 0, 0], [1, 2, 3, 4]], np.float32)}
    wide, half = both(source, inputs)  # 1 / sqrt(1e-12) is infinite in float16, and 0 * inf NaN
    np.testing.assert_allclose(half["y"], wide["y"], rtol=2e-3, atol=2e-3)
    model, _ = halve(source)
    assert node(model, "MatMul").inputs[0].dtype == HALF


@pytest.mark.parametrize(("threshold", "beside"), [(0, True), (1 << 20, False)])
def test_weights_lie_beside_the_model_where_the_threshold_says_so(
    tmp_path, threshold, beside
) -> None:
    text = "g (float[1,64] x) => (float[1,64] y) <float[64,64] w = {W}> { y = MatMul(x, w) }"
    text = text.replace("W", ", ".join(["0.5"] * 4096))
    source = write(tmp_path, text)
    half_file(source, source, "fp16", (), external_data_threshold=threshold)
    data = tmp_path / "model.onnx.data"
    assert data.exists() is beside
    assert not beside or data.stat().st_size >= 2 * 4096
    got = StatefulRunner(source, threads=1).run({"x": np.ones((1, 64), np.float32)})["y"]
    np.testing.assert_array_equal(got, 32)


def test_no_empty_file_is_written_beside_a_model_of_small_weights(tmp_path) -> None:
    source = write(tmp_path, PLAIN)
    half_file(source, source, "fp16", (), external_data_threshold=0)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_weight_with_a_large_element_stays_float32_by_name(tmp_path) -> None:
    text = PLAIN.replace("6.6", "100000.0")
    source = write(tmp_path, text)
    model, said = halve(source)
    assert model.graph.initializers["w"].dtype == FLOAT
    note = "w: 1 of 6 elements are too large for float16; what reads it stays in float32"
    assert note in said
    assert "MatMul: stays float32" in said


def test_an_epsilon_that_would_vanish_stays_and_lost_elements_are_counted(tmp_path) -> None:
    text = """g (float[2] x) => (float[2] y)
        <float eps = {0.000000000001}, float[2] w = {0.000000000001, 1.0}> {
        s = Abs(x) e = Add(s, eps) q = Div(x, e) t = Tanh(q) y = Mul(t, w) }"""
    source = write(tmp_path, text)
    model, said = halve(source)
    assert model.graph.initializers["eps"].dtype == FLOAT
    assert "eps: it becomes 0 in float16; what reads it stays in float32" in said
    assert "w: 1 of 2 elements become 0 in float16" in said
    got = runner(source).run({"x": np.zeros(2, np.float32)})["y"]
    np.testing.assert_array_equal(got, 0)  # 0 / 0 would be NaN


def test_sums_do_not_overflow_and_positions_stay_exact(tmp_path) -> None:
    text = """g (float[1000] x, int64 at) => (float y, float angle)
        <float[1] count = {1000.0}, float rate = {0.1}> {
        total = ReduceSum<keepdims=0>(x) z = Cast<to=1>(at) turned = Mul(z, rate)
        angle = Cos(turned) y = Mul(total, rate) }"""
    source = write(tmp_path, text)
    model, _ = halve(source)
    got = runner(source).run({"x": np.full(1000, 100.0, np.float32), "at": np.array(30011)})
    assert got["y"] == pytest.approx(1e4)
    assert got["angle"] == pytest.approx(np.cos(np.float32(0.1) * np.float32(30011)), abs=1e-6)
    assert node(model, "Cos").inputs[0].dtype == FLOAT


def test_branches_and_steps_of_a_scan_are_computed_in_half_without_casts_at_their_edges(
    tmp_path,
) -> None:
    text = """g (float[2,2] x, bool c) => (float[2,2] y) <float[2,2] w = {0.1, 0.2, 0.3, 0.4}> {
        m = MatMul(x, w)
        chosen = If (c) <
            then_branch = a () => (float[2,2] t) { t = Mul(m, m) },
            else_branch = b () => (float[2,2] e) { e = Sub(m, x) }>
        every = Scan <num_scan_inputs = 1,
            body = s (float[2] row) => (float[2] out) { out = Tanh(row) }> (chosen)
        y = MatMul(every, w) }"""
    source = write(tmp_path, text)
    model, _ = halve(source)
    for operator in ("Mul", "Sub", "Tanh"):
        assert node(model, operator).outputs[0].dtype == HALF
    assert operators(model)["Cast"] == 2  # x, y
    x = np.random.default_rng(0).standard_normal((2, 2)).astype(np.float32)
    w = np.array([[0.1, 0.2], [0.3, 0.4]])
    for c in (True, False):
        m = x @ w
        expected = np.tanh(m * m if c else m - x) @ w
        got = runner(source).run({"x": x, "c": np.array(c)})["y"]
        np.testing.assert_allclose(got, expected, atol=2e-3)


def test_what_a_loop_carries_is_accumulated_in_float32(tmp_path) -> None:
    text = """g (float[2] x) => (float[2] y)
        <int64 n = {1000}, bool go = {1}, float[2] one = {1.0, 1.0}> {
        small = Tanh(x)
        y = Loop (n, go, one) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
            d = Identity(c) u = Add(v, small) }> }"""
    source = write(tmp_path, text)
    model, _ = halve(source)
    assert node(model, "Tanh").outputs[0].dtype == HALF
    got = runner(source).run({"x": np.full(2, 1e-4, np.float32)})["y"]
    np.testing.assert_allclose(got, 1.1, atol=1e-3)


def test_local_functions_are_written_out(tmp_path) -> None:
    source = write(tmp_path, PLAIN)
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2,3] x) => (float[2,3] y) { y = own.twice(x) }
        <domain: "own", opset_import: ["" : 20]> twice (a) => (b) { b = Add(a, a) }"""
    model = ir.from_onnx_text(text)
    contract = Contract(
        (Value("x", "float32", (2, 3)),), (Value("y", "float32", (2, 3)),), ()
    )  # fmt: skip
    model.metadata_props[METADATA_KEY] = contract.to_json()
    ir.save(model, source)
    halved, _ = halve(source)
    assert not halved.functions
    assert operators(halved) == {"Add": 1, "Cast": 2}


@pytest.mark.parametrize(("half_states", "dtype"), [((), "float32"), (("*",), "float16")])
def test_a_cache_is_still_written_in_place(tmp_path, half_states, dtype) -> None:
    text = """g (float[1,2] x, int64[1,2] i, float[4,2] k_in) => (float[1,4] y, float[4,2] k_out)
        <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
        new = MatMul(x, w) k_out = ScatterElements(k_in, i, new)
        t = Transpose(k_out) y = MatMul(x, t) }"""
    source = write(tmp_path, text, k=zeros(4, 2))
    model = ir.load(source)
    contract = Contract.from_json(model.metadata_props[METADATA_KEY])
    states = tuple(replace(state, in_place=True) for state in contract.states)
    model.metadata_props[METADATA_KEY] = replace(contract, states=states).to_json()
    ir.save(model, source)
    model, _ = halve(source, half_states=half_states)
    (state,) = Contract.from_json(model.metadata_props[METADATA_KEY]).states
    assert (state.in_place, state.dtype) == (True, dtype)
    cached = runner(source)
    x = np.array([[1.0, 2.0]], np.float32)
    for at in range(3):
        cached.run({"x": x, "i": np.full((1, 2), at)})
    np.testing.assert_array_equal(cached.state["k"][:, 0], [7, 7, 7, 0])


def test_a_state_that_half_operators_write_is_not_written_in_place(tmp_path) -> None:
    text = """g (float[1,2] x, int64[1,2] i, float[4,2] k_in) => (float[1,2] y, float[4,2] k_out) {
        y = Tanh(x) t = Tanh(k_in) k_out = ScatterElements(t, i, y) }"""
    source = write(tmp_path, text, k=zeros(4, 2))
    model = ir.load(source)
    contract = Contract.from_json(model.metadata_props[METADATA_KEY])
    states = tuple(replace(state, in_place=True) for state in contract.states)
    model.metadata_props[METADATA_KEY] = replace(contract, states=states).to_json()
    ir.save(model, source)
    halved, _ = halve(source)
    assert not Contract.from_json(halved.metadata_props[METADATA_KEY]).states[0].in_place


def test_what_onnx_does_not_define_in_half_stays_in_float32(tmp_path) -> None:
    text = """g (float[1,1,8] x) => (float[1,1,6] y) <float[1,1,3] w = {1.0, 2.0, 3.0}> {
        a = Tanh(x) y = Conv(a, w) }"""
    model, said = halve(write(tmp_path, text), "bf16")  # Conv of bfloat16 came with opset 22
    assert node(model, "Conv").inputs[0].dtype == FLOAT
    assert node(model, "Tanh").outputs[0].dtype == ir.DataType.BFLOAT16
    assert "Conv: stays float32" in said
    model, said = halve(write(tmp_path, text, 22), "bf16")
    assert node(model, "Conv").inputs[0].dtype == ir.DataType.BFLOAT16


def test_softmax_inside_attention_stays_in_float32(tmp_path) -> None:
    text = """g (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Attention(x, x, x) }"""
    model, _ = halve(write(tmp_path, text, 23))
    attention = node(model, "Attention")
    assert attention.inputs[0].dtype == HALF
    assert attention.attributes["softmax_precision"].as_int() == FLOAT


def test_a_transposed_half_is_cast_before_it_is_transposed_for_a_product() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float16[B,3,4] x, float[4,2] w) => (float[3,B,2] y, float16[3,B,4] t) {
        t = Transpose<perm=[1,0,2]>(x) a = Cast<to=1>(t) y = MatMul(a, w) }"""
    model = ir.from_onnx_text(text)
    assert cast_before_transposes(model)
    assert cast_before_transposes(model) == ()
    product = node(model, "MatMul").inputs[0].producer()
    assert product.op_type == "Transpose"
    assert product.inputs[0].producer().op_type == "Cast"
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    # Where the two are not turned around, ONNX Runtime 1.32 dies here.
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float16)
    w = np.eye(4, 2, dtype=np.float32)
    y, t = session.run(None, {"x": x, "w": w})
    np.testing.assert_array_equal(t, x.transpose(1, 0, 2))
    np.testing.assert_array_equal(y, t.astype(np.float32) @ w)


BINARY = {"Add": torch.add, "Mul": torch.mul, "MatMul": torch.matmul, "Max": torch.maximum}
UNARY = {"Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Neg": torch.neg, "Relu": torch.relu}


@st.composite
def graphs(draw):
    """Draw operators, each on two values that are there already."""
    count = draw(st.integers(1, 8))
    return [
        (draw(st.sampled_from([*BINARY, *UNARY])), draw(st.integers(0, index + 2)),
         draw(st.integers(0, index + 2)))
        for index in range(count)
    ]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(graphs(), st.sampled_from(list(NUMPY)), st.booleans(), st.integers(0, 100))
def test_a_random_graph_gives_what_torch_gives_in_half(
    tmp_path_factory, graph, precision, stored, seed
) -> None:
    folder = tmp_path_factory.mktemp("random")
    generator = np.random.default_rng(seed)
    weight = generator.uniform(-1, 1, (3, 3)).astype(np.float32)
    lines = []
    for index, (operator, first, second) in enumerate(graph):
        names = ["x", "h_in", "w", *(f"v{i}" for i in range(index))]
        operands = names[first] if operator in UNARY else f"{names[first]}, {names[second]}"
        lines.append(f"v{index} = {operator}({operands})")
    numbers = ", ".join(f"{number:.9g}" for number in weight.ravel())
    last = f"v{len(graph) - 1}"
    text = f"""g (float[3,3] x, float[3,3] h_in) => (float[3,3] y, float[3,3] h_out)
        <float[3,3] w = {{{numbers}}}> {{ {" ".join(lines)} y = Identity({last})
        h_out = Tanh({last}) }}"""
    first = generator.uniform(-1, 1, (3, 3)).astype(np.float32)
    source = write(folder, text, h=Initial.inline(first))
    model, _ = halve(source, precision, ("h",) if stored else ())
    contract = Contract.from_json(model.metadata_props[METADATA_KEY])
    assert Contract.from_json(contract.to_json()) == contract
    x = generator.uniform(-1, 1, (3, 3)).astype(np.float32)
    got = runner(source).run({"x": x})["y"]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    wide, half = ([torch.from_numpy(a).to(d) for a in (x, first, weight)] for d in
                  (torch.float64, dtype))  # fmt: skip
    for operator, a, b in graph:
        for values in (wide, half):
            given_ = (values[a],) if operator in UNARY else (values[a], values[b])
            values.append({**BINARY, **UNARY}[operator](*given_))
    exact = wide[-1].numpy()
    allowed = 4 * np.abs(half[-1].double().numpy() - exact).max()
    largest = max(float(value.abs().max()) for value in wide)
    allowed += 16 * float(torch.finfo(dtype).eps) * max(1.0, largest)
    assert np.abs(got - exact).max() <= allowed


def test_constants_of_every_form_are_stored_in_half(tmp_path) -> None:
    text = """g (float[2,2] x) => (float[2,2] y) {
        a = Constant<value_float = 0.5>() b = Constant<value_floats = [1.0, 2.0]>()
        c = Constant<value = float[2] {3.0, 4.0}>() t = Tanh(x) s = Mul(t, a) u = Add(s, b)
        y = Sub(u, c) }"""
    source = write(tmp_path, text)
    model, _ = halve(source)
    dtypes = {n.outputs[0].name: n.outputs[0].dtype for n in model.graph if n.op_type == "Constant"}
    assert dtypes == {"a": HALF, "b": HALF, "c": HALF}
    got = runner(source).run({"x": np.zeros((2, 2), np.float32)})["y"]
    np.testing.assert_array_equal(got, [[-2, -2], [-2, -2]])


def test_elements_of_a_sequence_stay_in_float32(tmp_path) -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <int64 zero = {0}> {
        t = Tanh(x) rows = SplitToSequence<axis=0>(t) s = SequenceInsert(rows, t, zero)
        all = ConcatFromSequence<axis=0>(rows) y = Sigmoid(all) }"""
    source = write(tmp_path, text)
    model, _ = halve(source)
    assert node(model, "Tanh").outputs[0].dtype == HALF
    assert node(model, "SplitToSequence").inputs[0].dtype == FLOAT
    assert runner(source).run({"x": np.zeros((2, 2), np.float32)})["y"].tolist() == [[0.5] * 2] * 2


def test_a_state_that_is_handed_through_keeps_its_names(tmp_path) -> None:
    text = """g (float[2] x, float[2] h_in, float[2] k_in) =>
        (float[2] y, float[2] h_out, float[2] k_out) {
        h_out = Identity(x) k_out = Identity(h_in) y = Add(k_in, h_in) }"""
    source = write(tmp_path, text, h=zeros(2), k=zeros(2))
    for half_states in ((), ("h",), ("k",), ("*",)):
        halve(source, half_states=half_states)
        delay = runner(source)
        seen = [delay.run({"x": np.full(2, step, np.float32)})["y"][0] for step in range(5)]
        assert seen == [0, 0, 1, 3, 5]


def test_weights_that_are_only_moved_are_stored_in_half(tmp_path) -> None:
    text = """g (float[2,3] x) => (float[2,2] y)
        <float[2,3] w = {1.1, 2.2, 3.3, 4.4, 5.5, 6.6}> { t = Transpose(w) y = MatMul(x, t) }"""
    model, _ = halve(write(tmp_path, text))
    assert model.graph.initializers["w"].dtype == HALF
    assert operators(model) == {"Cast": 2, "Transpose": 1, "MatMul": 1}


def test_weights_that_are_moved_for_float32_are_stored_in_float32(tmp_path) -> None:
    text = """g (float[2,3] x, float[3,2] h_in) => (float[2,3] y, float[3,2] h_out)
        <float[2,3] w = {1.1, 2.2, 3.3, 4.4, 5.5, 6.6}> {
        t = Transpose(w) h_out = Mul(h_in, t) y = Tanh(x) }"""
    model, _ = halve(write(tmp_path, text, h=zeros(3, 2)))
    assert model.graph.initializers["w"].dtype == FLOAT


def test_single_numbers_are_computed_in_float32(tmp_path) -> None:
    text = """g (float[2,3] x, float gain) => (float[2,3] y, float z) <float k = {3.0}> {
        z = Mul(gain, k) t = Tanh(x) y = Mul(t, z) }"""
    source = write(tmp_path, text)
    halve(source)
    inputs = {"x": np.zeros((2, 3), np.float32), "gain": np.array(10001, np.float32)}
    assert runner(source).run(inputs)["z"] == 30003  # float16 has 30000 and 30016 there


EXACT = {
    "Add": "{r} = Add({a}, {b})",
    "Mul": "{r} = Mul({a}, x)",
    "MatMul": "{r} = MatMul({a}, w)",
    "Max": "{r} = Max({a}, {b})",
    "Relu": "{r} = Relu({a})",
    "ReduceMax": "{r}m = ReduceMax<keepdims=1>({a}, last) {r} = Sub({a}, {r}m)",
    "Where": "{r}q = Less({a}, {b}) {r} = Where({r}q, {a}, {b})",
    "Equal": "{r}q = Equal({a}, {b}) {r} = Where({r}q, w, {a})",
    "Clip": "{r} = Clip({a}, low, high)",
    "TopK": "{r}, {r}at = TopK({a}, three)",
    "Transpose": "{r} = Transpose({a})",
}
"""Operators that are exact in float16 on a few small multiples of 1/2."""


@st.composite
def exact_graphs(draw):
    """Draw operators, each on two values that are there already; ``big`` or the last, often."""
    names = st.sampled_from(sorted(EXACT))
    return [
        (draw(names), draw(st.sampled_from([*[index + 3] * 4, *range(index + 4)])),
         draw(st.integers(0, index + 3)))
        for index in range(draw(st.integers(1, 5)))
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    exact_graphs(),
    st.sampled_from([1e5, -1e9, 3e30]),
    st.integers(0, 1000),
    st.sampled_from(["Softmax", "Sigmoid", "Identity"]),
)
def test_graphs_with_large_constants_give_what_float32_gives(
    tmp_path_factory, graph, large, seed, last
) -> None:
    folder = tmp_path_factory.mktemp("large")
    generator = np.random.default_rng(seed)
    lines = []
    for index, (operator, first, second) in enumerate(graph):
        names = ["x", "h_in", "w", "big", *(f"v{i}" for i in range(index))]
        lines.append(EXACT[operator].format(r=f"v{index}", a=names[first], b=names[second]))
    weight = generator.permutation(np.diag([1.0, -1.0, 0.5])).ravel()
    big = np.where(generator.random(9) < 0.4, large, 0.5)
    text = f"""g (float[3,3] x, float[3,3] h_in) => (float[3,3] y, float[3,3] h_out)
        <float[3,3] w = {{{", ".join(map(str, weight))}}}, int64[1] last = {{-1}},
         int64[1] three = {{3}}, float low = {{-1.0}}, float high = {{2.0}},
         float[3,3] big = {{{", ".join(f"{number:.1f}" for number in big)}}}> {{
        {" ".join(lines)} y = {last}(v{len(graph) - 1}) h_out = Identity(v{len(graph) - 1}) }}"""
    source = write(folder, text, h=Initial.inline(np.ones((3, 3), np.float32)))
    halve(source)
    wide, half = StatefulRunner(source, threads=1), runner(source)
    for _ in range(2):
        x = generator.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (3, 3)).astype(np.float32)
        expected, got = wide.run({"x": x})["y"], half.run({"x": x})["y"]
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)
