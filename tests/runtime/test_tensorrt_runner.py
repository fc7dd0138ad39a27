"""The runner of engines has the interface of the runner of ONNX files, and gives what that gives.

Each test runs against a stand-in for TensorRT that enforces the rules of its documentation, and
unchanged against the real library where there is a GPU.
"""

import gc
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.runtime.tensorrt_context import Context
from stateful_pipeline.runtime.tensorrt_runner import TensorRtRunner


def load(name):
    """Load a file beside this one, once: test modules cannot import each other."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fake_device = load("fake_device")
_, _, engines = load("fake_context"), load("fake_tensorrt"), load("engines")


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def target(request, tmp_path, monkeypatch):
    """What builds engines; at the end nothing may be left on the device, and no rule broken."""
    if request.param == "gpu":
        yield engines.real_target(tmp_path)
        return
    device = fake_device.FakeDevice()
    yield engines.fake_target(tmp_path, device, monkeypatch)
    gc.collect()
    assert device.broken == []
    assert not +device.live()


@pytest.fixture
def pair(target, save_model):
    """Return a function that gives the runner of an engine, and that of the same ONNX file."""
    opened = []

    def make(text, contract, profiles=None, init=None, opset=20, **facts):
        model = save_model(text, contract, opset=opset)
        path = target.build(model, contract, profiles, **facts)
        runner = TensorRtRunner(path, init, device=target.device)
        opened.append(runner)
        return runner, StatefulRunner(model, init)

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture
def same(target):
    """Return a function that runs a step on both runners and compares outputs and states."""

    def check(pair, **inputs):
        results = [runner.run(inputs) for runner in pair]
        states = [runner.state for runner in pair]
        for got, wanted in (results, states):
            assert list(got) == list(wanted)
            for name, value in wanted.items():
                assert got[name].dtype == value.dtype
                assert got[name].shape == value.shape
                np.testing.assert_allclose(got[name], value, rtol=target.atol, atol=target.atol)
        assert pair[0].sizes == pair[1].sizes
        return results[0]

    return check


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ROWS = (Axis("rows", 1, 2, 8),)
COUNTER = Contract(
    inputs=(Value("x", "float32", ("rows", 3)),),
    outputs=(Value("output", "float32", ("rows", 3)), Value("odd", "bool", ())),
    states=(
        State("h", "h_in", "h_out", "float32", (), Initial.inline(np.float32(3)), "h"),
        State("n", "n_in", "n_out", "int64", (), Initial.inline(np.int64(2**40)), "n"),
        State("on", "on_in", "on_out", "bool", (2,), Initial.inline(np.array([True, False])), "on"),
    ),
    axes=ROWS,
)
COUNTS = """g (float[rows,3] x, float h_in, int64 n_in, bool[2] on_in)
    => (float[rows,3] output, bool odd, float h_out, int64 n_out, bool[2] on_out)
  <float one = {1.0}, int64 unit = {1}, int64 two = {2}, int64[1] last = {1}> {
    output = Add(x, h_in)
    h_out = Add(h_in, one)
    n_out = Add(n_in, unit)
    rest = Mod(n_in, two)
    odd = Equal(rest, unit)
    on_out = Not(on_in)
  }"""


@pytest.mark.parametrize("on_host", [[], ["n_out"], ["n_in", "n_out"]], ids=len)
def test_a_counter_counts_in_float_int64_and_bool_and_comes_back_by_reset(pair, same, on_host):
    runners = pair(COUNTS, COUNTER, on_host=on_host)
    for rows in (1, 3, 8):
        for step in range(3):
            same(runners, x=floats(rows, 3, seed=step))
    assert runners[0].state["n"] == 2**40 + 9
    for runner in runners:
        runner.reset()
    assert runners[0].state["n"] == 2**40
    same(runners, x=floats(2, 3))


RNN = Contract(
    inputs=(Value("x", "float32", ("batch", 4)),),
    outputs=(Value("y", "float32", ("batch", 3)),),
    states=(
        State("h", "h_in", "h_out", "float32", ("batch", 3), Initial("zeros", (1, 3)), "h"),
        State(
            "c", "c_in", "c_out", "float32", ("batch", 3),
            Initial.inline(np.full((1, 3), 0.5, np.float32)), "c",
        ),
    ),
    axes=(Axis("batch", 1, 2, 8),),
)  # fmt: skip
CELL = """g (float[batch,4] x, float[batch,3] h_in, float[batch,3] c_in)
    => (float[batch,3] y, float[batch,3] h_out, float[batch,3] c_out)
  <float[4,3] w = {0.1,0.2,-0.3,0.4,-0.5,0.6,0.7,0.8,-0.9,0.1,0.3,0.2},
   float[3,3] u = {0.5,0.1,0.0,-0.2,0.4,0.1,0.3,0.0,0.6}> {
    a = MatMul(x, w)
    b = MatMul(h_in, u)
    z = Add(a, b)
    gate = Sigmoid(z)
    new = Tanh(z)
    kept = Mul(gate, c_in)
    c_out = Add(kept, new)
    d = Tanh(c_out)
    h_out = Mul(gate, d)
    y = Neg(h_out)
  }"""


def test_a_recurrent_cell_runs_freely_as_onnxruntime_does(pair, same):
    runners = pair(CELL, RNN)
    for step in range(12):
        same(runners, x=floats(2, 4, seed=step))


def test_a_new_batch_after_reset_begins_with_its_own_initial_values(pair, same):
    runners = pair(CELL, RNN)
    for batch in (2, 8, 1):
        for step in range(3):
            same(runners, x=floats(batch, 4, seed=step))
        for runner in runners:
            runner.reset()


def test_another_batch_without_a_reset_is_refused_and_changes_nothing(pair, same):
    runners = pair(CELL, RNN)
    same(runners, x=floats(2, 4))
    with pytest.raises(ContractError, match="'batch' is 2 since the last reset, and 3 now"):
        runners[0].run({"x": floats(3, 4)})
    same(runners, x=floats(2, 4, seed=1))


def test_single_rows_are_reset_and_the_others_go_on(pair, same):
    runners = pair(CELL, RNN)
    for step in range(3):
        same(runners, x=floats(3, 4, seed=step))
    for runner in runners:
        runner.reset(rows=[1])
    assert runners[0].state["c"][1].tolist() == [0.5] * 3
    same(runners, x=floats(3, 4))


def test_a_state_is_saved_loaded_and_given_at_the_start(pair, same, tmp_path):
    runners = pair(CELL, RNN, init={"h": 0.25})
    same(runners, x=floats(2, 4))
    runners[0].save(tmp_path / "state.npz")
    first = same(runners, x=floats(2, 4, seed=1))["y"]
    for runner in runners:
        runner.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(same(runners, x=floats(2, 4, seed=1))["y"], first)
    snapshot = runners[0].state
    same(runners, x=floats(2, 4, seed=2))
    for runner in runners:
        runner.load_state(snapshot)
    same(runners, x=floats(2, 4, seed=3))
    for runner in runners:
        runner.reset({"c": -1.0})
    same(runners, x=floats(4, 4, seed=4))


def test_the_arrays_that_come_out_are_the_callers_own_or_the_buffers_given(pair):
    runner, _ = pair(CELL, RNN)
    given = floats(2, 4)
    first, state = runner.run({"x": given})["y"], runner.state["h"]
    kept, held = first.copy(), state.copy()
    given[:] = 100
    buffer = np.zeros((2, 3), np.float32)
    assert runner.run({"x": floats(2, 4, seed=1)}, out={"y": buffer})["y"] is buffer
    assert buffer.any()
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(state, held)
    assert first.flags.owndata
    with pytest.raises(ContractError, match=r"this step gives \[2, 3\]"):
        runner.run({"x": floats(2, 4)}, out={"y": np.zeros((2, 4), np.float32)})


SUM = Contract(
    inputs=(Value("x", "float32", ("batch",)),),
    outputs=(Value("s_out", "float32", ("batch",)),),
    states=(State("s", "s_in", "s_out", "float32", ("batch",), Initial("zeros", (1,)), "s"),),
    axes=(Axis("batch", 1, 2, 8),),
)


@pytest.mark.parametrize("on_host", [[], ["s_out"]], ids=len)
def test_an_output_that_is_a_state_too_comes_out_as_a_copy(pair, same, on_host):
    text = "g (float[batch] x, float[batch] s_in) => (float[batch] s_out) { s_out = Add(x, s_in) }"
    runners = pair(text, SUM, on_host=on_host)
    first = same(runners, x=floats(2))["s_out"]
    kept = first.copy()
    buffer = np.zeros(2, np.float32)
    assert runners[0].run({"x": floats(2)}, out={"s_out": buffer})["s_out"] is buffer
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(runners[0].state["s"], buffer)


CACHE = Contract(
    inputs=(Value("x", "float32", ("batch", "time", 2)),),
    outputs=(Value("total", "float32", ("batch", 2)),),
    states=(
        State(
            "k", "k_in", "k_out", "float32", ("batch", "past", 2), Initial("zeros", (1, 0, 2)),
            "k", out_shape=("batch", "past + time", 2),
        ),
    ),
    axes=(
        Axis("batch", 1, 1, 4), Axis("time", 1, 8, 16), Axis("past", 0, 16, 64, grows=True),
    ),
)  # fmt: skip
GROWS = """g (float[batch,time,2] x, float[batch,past,2] k_in)
    => (float[batch,2] total, float[batch,all,2] k_out)
  <int64[1] axis = {1}> {
    k_out = Concat<axis=1>(k_in, x)
    total = ReduceSum<keepdims=0>(k_out, axis)
  }"""
PHASES = {"prefill": {"time": (2, 8, 16), "past": (0, 0, 0)}, "decode": {"time": (1, 1, 1)}}


def test_a_cache_grows_by_each_chunk(pair, same):
    runners = pair(GROWS, CACHE)
    for batch in (2, 1):
        for step, time in enumerate((5, 1, 1, 16, 1, 7)):
            same(runners, x=floats(batch, time, 2, seed=step))
        assert runners[0].state["k"].shape == (batch, 31, 2)
        for runner in runners:
            runner.reset()
        assert runners[0].state["k"].shape == (1, 0, 2)


def test_each_step_takes_the_first_profile_that_covers_it(pair, same, monkeypatch):
    runners = pair(GROWS, CACHE, PHASES)
    taken = []
    enqueue = Context.enqueue

    def noted(self, stream):
        taken.append(runners[0]._resources.engine.contexts.index(self))
        return enqueue(self, stream)

    monkeypatch.setattr(Context, "enqueue", noted)
    for _ in range(2):
        for step, time in enumerate((9, 1, 1, 1)):
            same(runners, x=floats(2, time, 2, seed=step))
        for runner in runners:
            runner.reset()
    assert taken == [0, 1, 1, 1] * 2


def test_a_step_that_no_profile_covers_names_axis_size_and_ranges_and_loses_nothing(pair, same):
    runners = pair(GROWS, CACHE, PHASES)
    same(runners, x=floats(2, 3, 2))
    with pytest.raises(ContractError, match="no profile covers this step") as caught:
        runners[0].run({"x": floats(2, 5, 2)})
    assert "axis 'time' is 5, and prefill takes 2 to 16, decode takes 1" in str(caught.value)
    assert "axis 'past' is 3, and prefill takes 0, decode takes 0 to 64" in str(caught.value)
    same(runners, x=floats(2, 1, 2))


FIXED = Contract(
    inputs=(Value("x", "float32", (1, 2, "time", 4)), Value("at", "int64", (1,))),
    outputs=(Value("total", "float32", (1, 2, 4)),),
    states=(
        State(
            "k", "k_in", "k_out", "float32", (1, 2, 16, 4), Initial("zeros", (1, 2, 16, 4)), "k",
            in_place=True,
        ),
    ),
    axes=(Axis("time", 1, 1, 8),),
)  # fmt: skip
IN_PLACE = """g (float[1,2,time,4] x, int64[1] at, float[1,2,16,4] k_in)
    => (float[1,2,4] total, float[1,2,16,4] k_out)
  <int64[1] axis = {2}> {
    k_out = TensorScatter<axis=2>(k_in, x, at)
    total = ReduceSum<keepdims=0>(k_out, axis)
  }"""
ALIASED = {"aliases": {"k_out": "k_in"}, "opset": 24}


def fill_cache(runners, same, start=0):
    at = start
    for step, time in enumerate((5, 1, 1, 3)):
        same(runners, x=floats(1, 2, time, 4, seed=step), at=np.array([at]))
        at += time


def test_a_cache_that_the_engine_updates_in_place_is_one_buffer(pair, same):
    runners = pair(IN_PLACE, FIXED, **ALIASED)
    fill_cache(runners, same)
    snapshot = runners[0].state
    fill_cache(runners, same, start=4)
    for runner in runners:
        runner.load_state(snapshot)
    fill_cache(runners, same, start=6)
    for runner in runners:
        runner.reset()
    fill_cache(runners, same)


def breaks_off(self, stream):
    raise ContractError("TensorRT could not run the step: out of luck")


def test_a_step_that_fails_leaves_the_old_state(pair, same, monkeypatch):
    runners = pair(CELL, RNN)
    same(runners, x=floats(2, 4))
    for wrong, why in (({}, "missing"), ({"x": np.ones((2, 4))}, "float64")):
        with pytest.raises(ContractError, match=why):
            runners[0].run(wrong)
    with monkeypatch.context() as patch:
        patch.setattr(Context, "enqueue", breaks_off)
        with pytest.raises(ContractError, match="out of luck"):
            runners[0].run({"x": floats(2, 4, seed=9)})
    same(runners, x=floats(2, 4, seed=1))


def test_a_first_step_that_fails_can_be_tried_again(pair, same, monkeypatch):
    runners = pair(IN_PLACE, FIXED, **ALIASED)
    with monkeypatch.context() as patch:
        patch.setattr(Context, "enqueue", breaks_off)
        with pytest.raises(ContractError, match="out of luck"):
            runners[0].run({"x": floats(1, 2, 2, 4), "at": np.array([0])})
    fill_cache(runners, same)


def test_a_step_that_fails_in_place_leaves_the_state_in_doubt_until_it_is_reset(
    pair, same, monkeypatch, tmp_path
):
    runners = pair(IN_PLACE, FIXED, **ALIASED)
    fill_cache(runners, same)
    inputs = {"x": floats(1, 2, 2, 4), "at": np.array([10])}
    with monkeypatch.context() as patch:
        patch.setattr(Context, "enqueue", breaks_off)
        with pytest.raises(ContractError, match="out of luck"):
            runners[0].run(inputs)
    for use in (lambda: runners[0].run(inputs), lambda: runners[0].save(tmp_path / "s.npz")):
        with pytest.raises(ContractError, match="k in place: the state is not known"):
            use()
    for runner in runners:
        runner.reset()
    fill_cache(runners, same)


def test_an_engine_that_gives_another_shape_than_the_contract_says_loses_no_state(pair):
    wrong = Contract(
        SUM.inputs, (Value("y", "float32", ("batch",)),), SUM.states, SUM.axes
    )  # fmt: skip
    text = """g (float[batch] x, float[batch] s_in) => (float[twice] y, float[batch] s_out) {
        s_out = Add(x, s_in) y = Concat<axis=0>(x, x) }"""
    runner, _ = pair(text, wrong)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"'y' has shape \[4\].* contract says \[2\]"):
            runner.run({"x": np.ones(2, np.float32)})
        assert runner.state["s"].tolist() == [0.0]


SEEN = Contract(
    inputs=(Value("x", "float32", ("time",)),),
    outputs=(Value("big", "float32", ("u0",)),),
    states=(
        State("k", "k_in", "k_out", "float32", ("past",), Initial("zeros", (0,)), "k", ("u1",)),
    ),
    axes=(Axis("time", 1, 4, 32), Axis("past", 0, 16, 64, grows=True)),
)
CHOOSES = """g (float[time] x, float[past] k_in) => (float[m] big, float[n] k_out)
  <int64[1] all = {-1}> {
    above = Relu(x)
    places = NonZero(above)
    flat = Reshape(places, all)
    big = Gather(x, flat)
    k_out = Concat<axis=0>(k_in, big)
  }"""


def test_sizes_that_only_the_run_can_tell_are_found_by_it(pair, same):
    runners = pair(CHOOSES, SEEN, late=["big", "k_out"])
    for step, time in enumerate((4, 8, 1, 32)):
        same(runners, x=floats(time, seed=step))
    none = same(runners, x=np.full(3, -1, np.float32))
    assert none["big"].shape == (0,)
    buffer = np.zeros(2, np.float32)
    given = runners[0].run({"x": np.array([1, -1, 2], np.float32)}, out={"big": buffer})
    assert given["big"] is buffer
    assert buffer.tolist() == [1, 2]
    before = runners[0].state["k"]
    with pytest.raises(ContractError, match=r"this step gives \[1\]"):
        runners[0].run({"x": np.ones(1, np.float32)}, out={"big": buffer})
    np.testing.assert_array_equal(runners[0].state["k"], before)


LONGER = Contract(
    inputs=(Value("x", "float32", (1,)), Value("extra", "int64", (1,))),
    outputs=(Value("y", "float32", ("u0",)), Value("size", "int64", (1,))),
    states=(
        State("n", "n_in", "n_out", "int64", (1,), Initial.inline(np.array([1])), "n"),
        State("sum", "sum_in", "sum_out", "float32", (1,), Initial("zeros", (1,)), "sum"),
    ),
)
EXPANDS = """g (float[1] x, int64[1] extra, int64[1] n_in, float[1] sum_in)
    => (float[m] y, int64[1] size, int64[1] n_out, float[1] sum_out)
  <int64[1] one = {1}> {
    size = Add(n_in, extra)
    y = Expand(x, size)
    n_out = Add(n_in, one)
    sum_out = Add(sum_in, x)
  }"""
ON_HOST = ["extra", "n_in", "size", "n_out"]


@pytest.mark.parametrize("count", [3, 4, 2])
def test_states_and_inputs_that_shapes_depend_on_lie_on_the_host(target, pair, same, count):
    if target.device is None:
        pytest.skip("engines are built without ranges for the values that shapes depend on")
    runners = pair(EXPANDS, LONGER, on_host=ON_HOST[:count])
    for _ in range(2):
        for step in range(5):
            given = same(runners, x=floats(1, seed=step), extra=np.array([step]))
            assert given["y"].shape == (2 * step + 1,)
        for runner in runners:
            runner.reset()


def test_a_closed_runner_says_so(pair):
    runner, _ = pair(CELL, RNN)
    runner.run({"x": floats(2, 4)})
    runner.close()
    runner.close()
    with pytest.raises(ContractError, match="the runner is closed"):
        runner.run({"x": floats(2, 4)})


def test_a_runner_that_is_no_longer_used_gives_everything_back(target, save_model):
    path = target.build(save_model(CELL, RNN), RNN)
    runner = TensorRtRunner(path, device=target.device)
    runner.run({"x": floats(2, 4)})
    resources = runner._resources
    del runner
    gc.collect()
    assert not resources.engine.contexts
