"""Operators that OpenVINO computes in fewer bits are named; what sizes are made of is not."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from stateful_pipeline.stages.lowering.for_openvino import lower_for_openvino


def narrowed(body):
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (int64[n] x, double[n] w) => (int64[m] y) <int64 two = {{2}}> {{ {body} }}"""
    return lower_for_openvino(ir.from_proto(onnx.parser.parse_model(text)))


def test_arithmetic_on_int64_and_float64_is_named_once():
    body = "a = Mul (x, x)  b = Mul (a, two)  c = Add (w, w)  d = Cast <to = 7> (c)  y = Add (b, d)"
    assert set(narrowed(body)) == {
        "Mul: int64 in 32 bits", "Add: int64 in 32 bits", "Cast: int64 in 32 bits",
        "Add: float64 in float32",
    }  # fmt: skip


def test_arithmetic_in_a_body_is_named():
    body = """s = ReduceSum <keepdims = 0> (w)  b = Cast <to = 9> (s)
      y = If (b) <then_branch = t () => (int64[n] p) { p = Mul (x, two) },
                  else_branch = e () => (int64[n] q) { q = Identity (x) }>"""
    assert "Mul: int64 in 32 bits" in narrowed(body)


def test_sizes_are_not_named():
    body = "s = Shape (x)  t = Mul (s, two)  u = Sub (t, s)  y = Expand (x, u)"
    assert narrowed(body) == ()


def test_whole_numbers_that_go_through_float32_are_named():
    assert "ReduceSum: int64 in float32" in narrowed("y = ReduceSum (x)")
    assert "Pow: int64 in float32" in narrowed("y = Pow (x, two)")
