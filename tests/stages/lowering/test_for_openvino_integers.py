"""Whole numbers beyond 2**24 are divided and compared on OpenVINO as they are elsewhere."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_pipeline.stages.lowering.for_openvino import lower_for_openvino

ov = pytest.importorskip("openvino")

COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
DIVISIONS = ("Div", "Mod", "Mod <fmod = 1>")
COUNT = 64

numbers = st.integers(-(2**31) + 1, 2**31 - 1)
near = st.sampled_from([0, 1, -1, 2, 2**24, 2**24 + 1, 2**30, 2**31 - 1, -(2**31) + 1])


@st.composite
def pairs(draw):
    """Two arrays of int64 within 32 bits, which meet at the points that are hard."""
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    bits = random.integers(1, 32, size=(2, COUNT))
    first, second = random.integers(-(2**bits) + 1, 2**bits)
    first[0], second[0] = draw(numbers | near), draw(numbers | near)
    first[1], second[1] = 2**31 - 1, 1
    closeness = random.random(COUNT)
    second = np.where(closeness < 0.2, first + random.integers(-2, 3, COUNT), second)
    second = np.clip(second, -(2**31) + 1, 2**31 - 1)
    second[second == 0] = 1
    multiples = first // second * second + random.integers(-1, 2, COUNT)
    first = np.where(closeness > 0.8, multiples, first)
    return np.clip(first, -(2**31) + 1, 2**31 - 1), second


def model_of(operator, dtype, made):
    name, _, attributes = operator.partition(" ")
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g ({dtype}[{COUNT}] a, {dtype}[{COUNT}] b) => ({made}[{COUNT}] c)
      {{ c = {name} {attributes} (a, b) }}"""
    return onnx.parser.parse_model(text)


def on_onnxruntime(proto, feeds):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def on_openvino(proto, feeds):
    model = ir.from_proto(proto)
    lowered = lower_for_openvino(model)
    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(ir.to_proto(model).SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32"},
    )
    return lowered, compiled(feeds)[0]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("operator", [*COMPARISONS, *DIVISIONS])
@given(given_pair=pairs())
@settings(max_examples=15, deadline=None)
def test_large_numbers_are_divided_and_compared_as_elsewhere(operator, dtype, given_pair):
    feeds = {name: v.astype(dtype) for name, v in zip("ab", given_pair, strict=True)}
    proto = model_of(operator, dtype, "bool" if operator in COMPARISONS else dtype)
    lowered, found = on_openvino(proto, feeds)
    assert f"{operator.split()[0]}: {dtype} beyond 2**24" in lowered
    np.testing.assert_array_equal(found, on_onnxruntime(proto, feeds))


@pytest.mark.parametrize(
    ("body", "is_written_out"),
    [
        ("c = Less (a, small)", False),
        ("c = Less (large, a)", True),
        ("s = Shape (a)  c = Equal (a, s)", False),
        ("d = Mod (a, small)  c = Cast <to = 9> (d)", True),
        ("s = Shape (a)  d = Mod (s, small)  c = Less (a, d)", False),
    ],
)
def test_only_what_may_be_inexact_is_written_out(body, is_written_out):
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (int64[n] a) => (bool[n] c)
      <int64 small = {{7}}, int64 large = {{16777216}}> {{ {body} }}"""
    lowered = lower_for_openvino(ir.from_proto(onnx.parser.parse_model(text)))
    assert any("beyond 2**24" in change for change in lowered) == is_written_out


def test_the_positive_part_of_large_numbers_is_exact():
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (int32[{COUNT}] a) => (int32[{COUNT}] c) {{ c = Relu (a) }}"""
    numbers = np.random.default_rng(0).integers(-(2**31), 2**31, COUNT).astype(np.int32)
    _, found = on_openvino(onnx.parser.parse_model(text), {"a": numbers})
    np.testing.assert_array_equal(found, np.maximum(numbers, 0))


ONE = ("Abs", "BitwiseNot", "Neg", "Sign")
TWO = ("Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min", "Mul", "Sub")


def statement(random, made, numbers, conditions):
    """Return a statement of a random operator, and append what it makes."""

    def one_of(values):
        return values[random.integers(len(values))]

    kind = one_of(("one", "two", "two", "compare", "compare", "where", "where", "clip", "divide"))
    recent = numbers[-3:]
    constants = ("zero", "one", "large", "low")
    (conditions if kind == "compare" else numbers).append(made)
    if kind == "one":
        return f"{made} = {one_of(ONE)} ({one_of(recent)})"
    if kind == "two":
        return f"{made} = {one_of(TWO)} ({one_of(recent)}, {one_of((*recent, *constants))})"
    if kind == "compare":
        return f"{made} = {one_of(COMPARISONS)} ({one_of(recent)}, {one_of((*recent, *constants))})"
    if kind == "where":
        chosen = f"{one_of(conditions)}, {one_of((*recent, *constants))}, {one_of(recent)}"
        return f"{made} = Where ({chosen})"
    if kind == "clip":
        if random.integers(2):
            return f"{made} = Clip ({one_of(recent)}, low, large)"
        return f"{made}m = Max ({one_of(recent)}, low)  {made} = Min ({made}m, large)"
    divisor = f"{made}o = BitwiseOr ({one_of(recent)}, one)  {made}d = BitwiseAnd ({made}o, large)"
    return f"{divisor}  {made} = {one_of(DIVISIONS[:2])} ({one_of(recent)}, {made}d)"


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_operators_that_are_computed_together_are_exact(seed):
    random = np.random.default_rng(seed)
    numbers, conditions = ["a", "b"], ["p"]
    body = [statement(random, f"t{n}", numbers, conditions) for n in range(random.integers(2, 7))]
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (int32[{COUNT}] a, int32[{COUNT}] b, bool[{COUNT}] p) => (int32[{COUNT}] c) {{
        zero = Constant <value = int32 {{0}}> ()  one = Constant <value = int32 {{1}}> ()
        large = Constant <value = int32 {{1000000007}}> ()
        low = Constant <value = int32 {{-1000000009}}> ()
        {"  ".join(body)}  q = Cast <to = 6> (p)  ab = Add (a, b)  abq = Add (ab, q)
        all = Mul (abq, zero)  c = Add (all, {numbers[-1]}) }}"""
    a, b = random.integers(-(2**31) + 1, 2**31, (2, COUNT))
    b = np.where(random.random(COUNT) < 0.4, a + random.integers(-1, 2, COUNT), b)
    b = np.clip(b, -(2**31) + 1, 2**31 - 1)
    feeds = {"a": a.astype(np.int32), "b": b.astype(np.int32), "p": random.random(COUNT) < 0.5}
    proto = onnx.parser.parse_model(text)
    np.testing.assert_array_equal(on_openvino(proto, feeds)[1], on_onnxruntime(proto, feeds))
