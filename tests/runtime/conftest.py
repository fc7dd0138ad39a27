"""Tiny ONNX models, written as text, with a state contract put into their metadata."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest

from stateful_pipeline.contract import METADATA_KEY, Contract, Initial, State, Value
from stateful_pipeline.runtime.ort_provider import PROVIDERS, why_unavailable


@pytest.fixture(params=["shared", "device", pytest.param("cuda", marks=pytest.mark.gpu)])
def memory(request, monkeypatch):
    """Where the states of runners lie that name no provider.

    In memory shared with numpy, in memory that is reached as a GPU's is, or on a GPU.
    """
    if request.param == "device":
        monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], device="cpu"))
    elif request.param == "cuda":
        reason = why_unavailable("cuda")
        if reason is not None:
            pytest.skip(reason)
        monkeypatch.setitem(PROVIDERS, "cpu", PROVIDERS["cuda"])
    return request.param


@pytest.fixture
def save_model(tmp_path):
    """Return a function that writes the graph ``text`` with ``contract`` inside; gives the path."""

    def save(text, contract, name="model.onnx", opset=20):
        header = f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
        model = onnx.parser.parse_model(header + text)
        if contract is not None:
            json = contract if isinstance(contract, str) else contract.to_json()
            onnx.helper.set_model_props(model, {METADATA_KEY: json})
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return save


@pytest.fixture
def counter(save_model):
    """``x + h``, then h and the step counter go up by one."""
    contract = Contract(
        inputs=(Value("x", "float32", ("rows", 3)),),
        outputs=(Value("output", "float32", ("rows", 3)),),
        states=(
            State("h", "h_in", "h_out", "float32", (), Initial.inline(np.float32(3)), "h"),
            State("n", "n_in", "n_out", "int64", (), Initial("zeros", ()), "n"),
        ),
    )
    return save_model(
        """g (float[rows,3] x, float h_in, int64 n_in)
             => (float[rows,3] output, float h_out, int64 n_out)
           <float one = {1.0}, int64 unit = {1}> {
             output = Add(x, h_in)
             h_out = Add(h_in, one)
             n_out = Add(n_in, unit)
           }""",
        contract,
        "counter.onnx",
    )


@pytest.fixture
def accumulator(save_model):
    """A running sum per row of a batch; the chunk length ``time`` is free."""
    zeros = Initial("zeros", (1,))
    contract = Contract(
        inputs=(Value("x", "float32", ("batch", "time")),),
        outputs=(Value("total", "float32", ("batch",)),),
        states=(State("sum", "sum_in", "sum_out", "float32", ("batch",), zeros, "sum"),),
    )
    return save_model(
        """g (float[batch,time] x, float[batch] sum_in)
             => (float[batch] total, float[batch] sum_out)
           <int64[1] axis = {1}> {
             chunk = ReduceSum<keepdims=0>(x, axis)
             sum_out = Add(sum_in, chunk)
             total = Identity(sum_out)
           }""",
        contract,
        "accumulator.onnx",
    )


@pytest.fixture
def cache(save_model):
    """A cache that grows by the rows of each step; the output sums what is in it."""
    contract = Contract(
        inputs=(Value("x", "float32", ("batch", "time", 2)),),
        outputs=(Value("total", "float32", ("batch", 2)),),
        states=(
            State(
                "k", "k_in", "k_out", "float32", ("batch", "past", 2), Initial("zeros", (1, 0, 2)),
                "k", out_shape=("batch", "past + time", 2),
            ),
        ),
    )  # fmt: skip
    return save_model(
        """g (float[batch,time,2] x, float[batch,past,2] k_in)
             => (float[batch,2] total, float[batch,all,2] k_out)
           <int64[1] axis = {1}> {
             k_out = Concat<axis=1>(k_in, x)
             total = ReduceSum<keepdims=0>(k_out, axis)
           }""",
        contract,
        "cache.onnx",
    )
