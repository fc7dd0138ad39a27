"""The runner of OpenVINO files has the interface of the runner of ONNX files, and its errors."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, SpecError, TargetError
from stateful_pipeline.runtime import OpenVinoRunner, openvino_engine

COUNTER = Contract(
    inputs=(Value("x", "float32", ("rows", 3)),),
    outputs=(Value("output", "float32", ("rows", 3)),),
    states=(
        State("h", "h_in", "h_out", "float32", (), Initial.inline(np.float32(3)), "h"),
        State("n", "n_in", "n_out", "int64", (), Initial("zeros", ()), "n"),
    ),
)
COUNTS = """g (float[rows,3] x, float h_in, int64 n_in)
    => (float[rows,3] output, float h_out, int64 n_out)
  <float one = {1.0}, int64 unit = {1}> {
    output = Add(x, h_in)
    h_out = Add(h_in, one)
    n_out = Add(n_in, unit)
  }"""

SUM = Contract(
    inputs=(Value("x", "float32", ("batch", "time")),),
    outputs=(Value("total", "float32", ("batch",)), Value("x2", "float32", ("batch", "time"))),
    states=(State("sum", "sum_in", "sum_out", "float32", ("batch",), Initial("zeros", (1,)), "s"),),
    axes=(Axis("batch", 1, 2, 8),),
)
SUMS = """g (float[batch,time] x, float[batch] sum_in)
    => (float[batch] total, float[batch,time] x2, float[batch] sum_out)
  <int64[1] one = {1}> {
    here = ReduceSum <keepdims = 0> (x, one)
    sum_out = Add(sum_in, here)
    total = Identity(sum_out)
    x2 = Add(x, x)
  }"""


@pytest.fixture
def counter(save_openvino):
    return save_openvino(COUNTS, COUNTER)


@pytest.fixture
def sums(save_openvino):
    return save_openvino(SUMS, SUM)


def ones(*shape):
    return {"x": np.ones(shape, np.float32)}


def first_row(runner, rows=1):
    return runner.run(ones(rows, 3))["output"][0].tolist()


def test_it_counts_and_comes_back_to_the_initial_value_by_reset(counter):
    runner = OpenVinoRunner(counter, threads=1)
    assert [first_row(runner) for _ in range(2)] == [[4.0] * 3, [5.0] * 3]
    assert runner.state["n"] == 2
    assert runner.state["n"].dtype == np.int64
    assert runner.state["h"].shape == ()
    runner.reset()
    assert first_row(runner, rows=4) == [4.0] * 3


def test_a_new_batch_after_reset_begins_with_its_own_initial_values(sums):
    runner = OpenVinoRunner(sums)
    for batch, time in ((2, 3), (5, 1), (1, 4)):
        runner.reset()
        for step in (1, 2):
            total = runner.run(ones(batch, time))["total"]
            np.testing.assert_array_equal(total, np.full(batch, step * time, np.float32))
        assert runner.sizes == {"batch": batch}
        assert runner.state["sum"].shape == (batch,)


def test_another_size_or_one_out_of_range_needs_a_reset_or_is_refused(sums):
    runner = OpenVinoRunner(sums)
    runner.run(ones(2, 3))
    with pytest.raises(ContractError, match="'batch' is 2 since the last reset, and 3 now"):
        runner.run(ones(3, 3))
    assert runner.run(ones(2, 1))["total"].tolist() == [4.0, 4.0]
    runner.reset()
    with pytest.raises(ContractError, match="made for 1 to 8"):
        runner.run(ones(9, 1))


def test_the_arrays_that_come_out_are_the_callers_own(sums):
    runner = OpenVinoRunner(sums)
    given = ones(2, 2)
    first, state = runner.run(given), runner.state
    given["x"][:] = 100
    second = runner.run(ones(2, 2))
    assert first["total"].tolist() == [2.0, 2.0]
    assert second["total"].tolist() == [4.0, 4.0]
    assert state["sum"].tolist() == [2.0, 2.0]


def test_outputs_are_written_to_the_buffers_given_for_them(sums):
    runner = OpenVinoRunner(sums)
    buffer = np.zeros((2, 3), np.float32)
    got = runner.run(ones(2, 3), out={"x2": buffer})
    assert got["x2"] is buffer
    assert buffer.tolist() == [[2.0] * 3] * 2
    with pytest.raises(ContractError, match=r"this step gives \[2, 3\]"):
        runner.run(ones(2, 3), out={"x2": np.zeros((2, 4), np.float32)})
    assert runner.run(ones(2, 3))["total"].tolist() == [6.0, 6.0]


def test_a_state_is_saved_loaded_and_given_at_the_start(sums, tmp_path):
    runner = OpenVinoRunner(sums)
    runner.run(ones(2, 3))
    runner.save(tmp_path / "state.npz")
    snapshot = runner.state
    runner.run(ones(2, 3))
    runner.load_state(snapshot)
    assert runner.run(ones(2, 1))["total"].tolist() == [4.0, 4.0]
    runner.load(tmp_path / "state.npz")
    assert runner.state["sum"].tolist() == [3.0, 3.0]
    other = OpenVinoRunner(sums, init={"sum.init": np.array([10], np.float32)})
    for _ in range(2):
        assert other.run(ones(2, 1))["total"].tolist() == [11.0, 11.0]
        other.reset()
    other.reset({"sum": 20.0})
    assert other.run(ones(3, 1))["total"].tolist() == [21.0] * 3
    other.reset()
    assert other.run(ones(3, 1))["total"].tolist() == [11.0] * 3


def test_single_rows_are_reset_and_the_others_go_on(sums):
    runner = OpenVinoRunner(sums)
    for _ in range(2):
        runner.run(ones(3, 1))
    runner.reset(rows=[1])
    assert runner.state["sum"].tolist() == [2.0, 0.0, 2.0]
    assert runner.run(ones(3, 1))["total"].tolist() == [3.0, 1.0, 3.0]


def test_numbers_that_32_bits_cannot_hold_are_refused(counter):
    with pytest.raises(ContractError, match="state 'n' has 2147483648: OpenVINO computes int64"):
        OpenVinoRunner(counter, init={"n": 2**31})
    runner = OpenVinoRunner(counter)
    with pytest.raises(ContractError, match="in 32 bits"):
        runner.load_state({"h": np.float32(0), "n": np.int64(-(2**31) - 1)})
    runner.load_state({"h": np.float32(0), "n": np.int64(2**31 - 2)})
    runner.run(ones(1, 3))
    assert runner.state["n"] == 2**31 - 1


def test_wrong_inputs_leave_the_state_as_it_was(sums):
    runner = OpenVinoRunner(sums)
    runner.run(ones(2, 3))
    for wrong, why in (({}, "missing"), ({"x": np.ones((2, 3))}, "float64")):
        with pytest.raises(ContractError, match=why):
            runner.run(wrong)
    assert runner.run(ones(2, 1))["total"].tolist() == [4.0, 4.0]


def test_a_step_that_breaks_off_leaves_the_state_in_doubt_until_it_is_reset(sums, monkeypatch):
    runner = OpenVinoRunner(sums)
    runner.run(ones(2, 3))

    def fails(self, arrays):
        raise RuntimeError("Exception from src/graph.cpp:1:\nno memory\n")

    with monkeypatch.context() as patch:
        patch.setattr(openvino_engine.OpenVinoEngine, "run", fails)
        with pytest.raises(ContractError, match="could not run the step: no memory"):
            runner.run(ones(2, 3))
    with pytest.raises(ContractError, match="the state is not known"):
        runner.run(ones(2, 3))
    runner.reset()
    assert runner.run(ones(1, 1))["total"].tolist() == [1.0]


def test_the_files_work_elsewhere_with_numpy_and_openvino_alone(counter, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(counter.parent, moved)
    script = (
        "import sys\n"
        "import numpy as np\n"
        "from stateful_pipeline.runtime import OpenVinoRunner\n"
        "runner = OpenVinoRunner(sys.argv[1])\n"
        "x = np.ones((1, 3), np.float32)\n"
        "for reset in (False, False, True):\n"
        "    if reset: runner.reset()\n"
        "    print(runner.run({'x': x})['output'][0].tolist())\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'onnxscript', 'pydantic', 'mlflow'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(moved / "model.xml")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str([n] * 3) for n in (4.0, 5.0, 4.0)]


def test_floats_are_computed_in_full_unless_asked_and_caches_are_held_in_full(counter):
    runner = OpenVinoRunner(counter, threads=1)
    assert runner.precision == "fp32"
    core = openvino_engine.openvino_core()
    properties = openvino_engine._properties(1, "fp32")
    compiled = core.compile_model(core.read_model(counter), "CPU", properties)
    got = {
        name: str(compiled.get_property(name))
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "INFERENCE_NUM_THREADS")
    }
    assert got == {
        "INFERENCE_PRECISION_HINT": "<Type: 'float32'>",
        "KV_CACHE_PRECISION": "<Type: 'float32'>",
        "INFERENCE_NUM_THREADS": "1",
    }


def test_a_precision_that_the_processor_lacks_is_no_silent_other_one(counter, monkeypatch):
    asked = openvino_engine._properties

    def without(threads, precision):
        return {**asked(threads, precision), "INFERENCE_PRECISION_HINT": "f32"}

    monkeypatch.setattr(openvino_engine, "_properties", without)
    with pytest.raises(TargetError, match="does not compute in bf16: OpenVINO takes f32"):
        OpenVinoRunner(counter, precision="bf16")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"threads": 0}, SpecError, "threads is 0"),
        ({"precision": "int8"}, SpecError, "precision is 'int8'"),
        ({"init": {"m": 1}}, ContractError, "no state 'm'"),
    ],
)
def test_wrong_arguments_are_named(counter, given, error, message):
    with pytest.raises(error, match=message):
        OpenVinoRunner(counter, **given)


def test_files_that_are_missing_broken_or_without_a_contract_are_named(counter, tmp_path):
    with pytest.raises(ContractError, match="there is no such model file"):
        OpenVinoRunner(tmp_path / "gone.xml")
    text = counter.read_text()
    (counter.parent / "broken.xml").write_text("<net")
    with pytest.raises(ContractError, match="cannot read the model"):
        OpenVinoRunner(counter.parent / "broken.xml")
    shutil.copy(counter.with_suffix(".bin"), counter.parent / "other.bin")
    other = counter.parent / "other.xml"
    other.write_text(text.replace("stateful_pipeline.contract", "another.contract"))
    with pytest.raises(ContractError, match="no state contract"):
        OpenVinoRunner(other)
    other.write_text(text.replace('variable_id="n"', 'variable_id="m"'))
    with pytest.raises(ContractError, match="state 'm' of the contract is in the graph alone"):
        OpenVinoRunner(other)


def test_a_missing_package_says_which_extra_to_install(counter, monkeypatch):
    openvino_engine.openvino_core.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(TargetError, match="OpenVINO cannot be imported") as caught:
        OpenVinoRunner(counter)
    assert "stateful-pipeline[openvino]" in caught.value.hint
