"""Fourier transforms are written as products that give the same."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_pipeline.stages.lowering.fourier import write_out_transforms
from stateful_pipeline.stages.lowering.names import Names


def written(shape, *, axis, length, inverse, onesided):
    """Return the graph of one transform, written out, as text that runs."""
    sizes = ", ".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (float[{sizes}] x) => (float y) <int64 length = {{{length}}}, int64 axis = {{{axis}}}> {{
        y = DFT <inverse = {int(inverse)}, onesided = {int(onesided)}> (x, length, axis) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    assert write_out_transforms(model, Names(model)) == ["DFT: as a product"]
    return ir.to_proto(model)


def run(proto, x):
    from onnxruntime import InferenceSession

    session = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def as_pairs(array):
    return np.stack([array.real, array.imag], axis=-1)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    is_complex=st.booleans(),
    inverse=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_transform_of_all_frequencies_is_that_of_numpy(sizes, is_complex, inverse, data):
    axis = data.draw(st.integers(0, len(sizes) - 1))
    length = data.draw(st.integers(1, 8))
    x = np.random.default_rng(0).standard_normal((*sizes, 1 + is_complex)).astype(np.float32)
    proto = written(x.shape, axis=axis, length=length, inverse=inverse, onesided=False)
    values = x[..., 0] + 1j * x[..., 1] if is_complex else x[..., 0]
    expected = (np.fft.ifft if inverse else np.fft.fft)(values, n=length, axis=axis)
    np.testing.assert_allclose(run(proto, x), as_pairs(expected), atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 400])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_onesided_transform_and_its_inverse_are_those_of_numpy(axis, length):
    random = np.random.default_rng(0)
    place = axis if axis >= 0 else 1
    shape = [3, 4]
    shape[place] = length
    x = random.standard_normal((*shape, 1)).astype(np.float32)
    proto = written(x.shape, axis=axis, length=length, inverse=False, onesided=True)
    there = np.fft.rfft(x[..., 0], axis=place)
    np.testing.assert_allclose(run(proto, x), as_pairs(there), atol=2e-4)
    shape[place] = length // 2 + 1
    half = random.standard_normal((*shape, 2)).astype(np.float32)
    proto = written(half.shape, axis=axis, length=length, inverse=True, onesided=True)
    back = np.fft.irfft(half[..., 0] + 1j * half[..., 1], n=length, axis=place)
    np.testing.assert_allclose(run(proto, half)[..., 0], back, atol=1e-5)


def test_a_transform_of_a_size_that_varies_stays():
    text = """<ir_version: 10, opset_import: ["" : 20]>
      g (float[batch, time, 1] x) => (float[batch, f, 2] y) <int64 axis = {1}> {
        y = DFT <onesided = 1> (x, , axis) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert write_out_transforms(model, Names(model)) == []
