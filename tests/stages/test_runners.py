from __future__ import annotations

import onnx
import onnx.helper
import onnx.parser
import pytest

from stateful_pipeline.contract import METADATA_KEY, Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, SpecError, TargetError
from stateful_pipeline.runtime.ort_options import SessionOptions
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.runners import onnxruntime_options, open_runner

CONTRACT = Contract(
    (Value("x", "float32", ("batch", "time")),),
    (Value("y", "float32", ("batch",)),),
    (State("h", "h_in", "h_out", "float32", ("batch",), Initial("zeros", (1,)), "h"),),
    axes=(Axis("batch", 1, 4, 16), Axis("time", 1, 20, 200)),
)
GRAPH = """<ir_version: 10, opset_import: ["" : 20]>
g (float[batch,time] x, float[batch] h_in) => (float[batch] y, float[batch] h_out)
<int64[1] axis = {1}> { s = ReduceSum<keepdims=0>(x, axis) h_out = Add(h_in, s) y = Neg(h_out) }"""


@pytest.fixture
def model(tmp_path):
    written = onnx.parser.parse_model(GRAPH)
    onnx.helper.set_model_props(written, {METADATA_KEY: CONTRACT.to_json()})
    onnx.save(written, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def target(**keys) -> OnnxRuntimeTarget:
    return OnnxRuntimeTarget.model_validate({"runtime": "onnxruntime", **keys})


def test_what_the_spec_says_of_a_session_is_asked_for(model) -> None:
    asked = target(provider="cuda", graph_optimization="basic", arena=False, gpu=1, tf32=True)
    assert onnxruntime_options(asked, model) == SessionOptions("basic", False, 1, True, None)


def test_a_spec_that_says_nothing_gets_the_runners_own_defaults(model) -> None:
    assert onnxruntime_options(target(), model) == SessionOptions()


def test_a_session_of_the_spec_is_opened_with_what_it_says(model) -> None:
    runner = open_runner(target(threads=1, graph_optimization="none"), model)
    used = runner._engine.session.get_session_options()
    assert used.graph_optimization_level.name == "ORT_DISABLE_ALL"
    assert used.intra_op_num_threads == 1


def test_tensorrt_is_built_for_the_axes_of_inputs_and_states(model) -> None:
    ranges = onnxruntime_options(target(provider="tensorrt"), model).ranges
    assert ranges == {"x": ((1, 1), (4, 20), (16, 200)), "h_in": ((1,), (4,), (16,))}


def test_profiles_of_tensorrt_become_one_range_that_covers_them(model) -> None:
    profiles = {
        "prefill": {"time": [2, 64, 200]},
        "decode": {"time": [1, 1, 1], "batch": [1, 1, 8]},
    }
    ranges = onnxruntime_options(target(provider="tensorrt", profiles=profiles), model).ranges
    assert ranges == {"x": ((1, 1), (4, 64), (16, 200)), "h_in": ((1,), (4,), (16,))}


def test_a_profile_that_names_no_axis_of_the_model_is_refused(model) -> None:
    asked = target(provider="tensorrt", profiles={"all": {"past": [0, 1, 2]}})
    with pytest.raises(SpecError, match="'past'"):
        open_runner(asked, model)


def test_a_model_without_a_contract_has_no_profiles(tmp_path) -> None:
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "model.onnx")
    with pytest.raises(ContractError, match=r"model\.onnx: .* no state contract"):
        onnxruntime_options(target(provider="tensorrt"), tmp_path / "model.onnx")


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_that_is_absent_opens_no_runner(model, provider) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(TargetError, match=f"'{provider}': this ONNX Runtime has no"):
        open_runner(target(provider=provider), model)
