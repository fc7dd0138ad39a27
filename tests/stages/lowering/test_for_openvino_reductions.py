"""Reductions and the operators after them are computed on OpenVINO as they are elsewhere."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_pipeline.stages.lowering.for_openvino import lower_for_openvino

ov = pytest.importorskip("openvino")


def model_of(body, shape, constant, *, batch):
    known = ["batch", *shape[1:]] if batch else shape
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (float[{",".join(map(str, known))}] x) => (float y) {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(constant, "b"))
    return proto


def on_both(proto, feeds):
    """Return what the lowered model gives on OpenVINO, and the model itself on ONNX Runtime."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    model = ir.from_proto(proto)
    lower_for_openvino(model)
    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(ir.to_proto(model).SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32"},
    )
    return compiled(feeds)[0], session.run(None, feeds)[0]


sizes = st.sampled_from([5, 3, 8, 2, 1])


@given(
    shape=st.lists(sizes, min_size=3, max_size=3) | st.lists(sizes, min_size=2, max_size=4),
    keepdims=st.booleans(),
    reduction=st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"]),
    between=st.sampled_from(["Identity (r)", "Relu (r)", "Exp (r)", "Mul (r, two)"]),
    operator=st.sampled_from(["Add", "Div", "Max", "Mul", "PRelu", "Sub"]),
    batch=st.booleans(),
    data=st.data(),
)
@settings(max_examples=120, deadline=None)
def test_a_constant_after_a_reduction_is_read_where_it_belongs(
    shape, keepdims, reduction, between, operator, batch, data
):
    axis = data.draw(st.integers(0, len(shape) - 1))
    kept = [1 if index == axis else size for index, size in enumerate(shape)]
    made = kept if keepdims else shape[:axis] + shape[axis + 1 :]
    if batch and axis != 0:
        made[0] = 1  # a constant has no dynamic size
    constant = [data.draw(st.sampled_from([size, 1])) for size in made]
    random = np.random.default_rng(0)
    proto = model_of(
        f"""two = Constant <value = float {{2.0}}> ()  a = Constant <value_ints = [{axis}]> ()
            r = {reduction} <keepdims = {int(keepdims)}> (x, a)  u = {between}
            t = {operator} (u, b)  y = Relu (t)""",
        shape,
        random.standard_normal(constant).astype(np.float32) + 3,
        batch=batch,
    )
    got, expected = on_both(proto, {"x": random.standard_normal(shape).astype(np.float32)})
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_each_row_of_a_batch_gets_the_bias_of_its_channels(axis, keepdims):
    random = np.random.default_rng(0)
    bias = np.arange(5, dtype=np.float32)
    bias = bias.reshape(5, 1) if axis == 0 or keepdims else bias
    body = f"""a = Constant <value_ints = [{axis}]> ()
        r = ReduceSum <keepdims = {keepdims}> (x, a)  y = Add (r, b)"""
    proto = model_of(body, [4, 5, 3], bias, batch=axis != 0)
    x = random.standard_normal((4, 5, 3)).astype(np.float32)
    got, expected = on_both(proto, {"x": x})
    np.testing.assert_allclose(got, expected, atol=1e-5)
