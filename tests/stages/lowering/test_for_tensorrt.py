"""What TensorRT cannot build is written so that it can, and means the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.lowering.for_tensorrt import (
    lower_file_for_tensorrt,
    lower_for_tensorrt,
)

COUNTS = """g (int64 p, bool b, int64 n) => (int64 po, bool bo, int64 no, int64 twice)
  <int64 zero = {0}, int64 one = {1}, bool yes = {1}> {
  c = Equal (p, zero)
  po, bo, no, twice = If (c) <
    then_branch = first () => (int64 p1, bool b1, int64 n1, int64 t1) {
      p1 = Identity (one)  b1 = Identity (yes)  n1 = Identity (one)  t1 = Add (one, one) },
    else_branch = later () => (int64 p2, bool b2, int64 n2, int64 t2) {
      p2 = Identity (one)  b2 = Not (b)  n2 = Add (n, one)  t2 = Identity (one) }> }"""

MOVING = """g (float[3, 8] data, int64 p, float[3, 4] x) => (float[3, 4] y, float[3, q] z)
  <int64 four = {4}, int64[1] flat = {-1}, int64[1] axis = {1}, int64[1] one = {1}> {
  s = Reshape (p, flat)  q = Add (p, four)  e = Reshape (q, flat)
  y = Slice (data, s, e, axis, one)  z = Slice (data, axis, e, axis, one) }"""


def parsed(text):
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)


def lowered(text):
    model = ir.from_proto(parsed(text))
    changed = lower_for_tensorrt(model)
    return ir.to_proto(model), changed


def run(proto, **feeds):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(value) for name, value in feeds.items()})


@pytest.mark.parametrize("p", [0, 1])
def test_the_constants_of_a_branch_are_told_apart_and_stay_what_they_are(p):
    proto, changed = lowered(COUNTS)
    assert changed == ("If: constants told apart",)
    feeds = {"p": np.array(p), "b": np.array(True), "n": np.array(41)}
    got, expected = (ReferenceEvaluator(m).run(None, feeds) for m in (proto, parsed(COUNTS)))
    assert got == expected


@pytest.mark.parametrize("p", [0, 2, 4])
def test_a_slice_of_one_length_is_taken_by_positions(p):
    proto, changed = lowered(MOVING)
    assert changed == ("Slice: by positions",)
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Slice") == 1  # the one whose length varies
    random = np.random.default_rng(0)
    feeds = {
        "data": random.standard_normal((3, 8)).astype(np.float32),
        "p": p,
        "x": np.zeros((3, 4), np.float32),
    }
    for got, expected in zip(run(proto, **feeds), run(parsed(MOVING), **feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_model_that_needs_nothing_is_not_copied(tmp_path):
    source = tmp_path / "model.onnx"
    onnx.save(parsed("g (double[3] x) => (double[3] y) { y = Abs (x) }"), source)
    found = lower_file_for_tensorrt(source, tmp_path / "lowered")
    assert (found.path, found.changed, found.doubles) == (source, (), ("Abs",))


def test_a_type_that_tensorrt_lacks_is_named_with_its_operator(tmp_path):
    source = tmp_path / "model.onnx"
    onnx.save(
        parsed("""g (int64[3] x) => (int64[3] y) <uint64 two = {2}> {
          u = Cast <to = 13> (x)  s = BitShift <direction = "RIGHT"> (u, two)
          y = Cast <to = 7> (s) }"""),
        source,
    )
    with pytest.raises(StageError, match=r"no uint64, which .*Cast.* gives"):
        lower_file_for_tensorrt(source, tmp_path / "lowered")
