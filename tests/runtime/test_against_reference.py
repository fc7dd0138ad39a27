"""Random sequences of calls, held against a model of the runner written with numpy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

GRAPH = """g (float[batch,time] x, float[batch] sum_in, int64 n_in, float[4] ring_in,
              float[past] seen_in)
             => (float[batch] total, float[all] seen, float[batch] sum_out, int64 n_out,
                 float[4] ring_out, float[all] seen_out)
           <int64[1] axis = {1}, int64[1] zero = {0}, int64[1] one1 = {1}, int64 one = {1},
            int64 four = {4}, int64[1] flat = {-1}, int64[2] column = {1, 1}> {
             chunk = ReduceSum<keepdims=0>(x, axis)
             sum_out = Add(sum_in, chunk)
             total = Identity(sum_out)
             n_out = Add(n_in, one)
             slot = Mod(n_in, four)
             index = Reshape(slot, column)
             front = Slice(sum_out, zero, one1)
             ring_out = ScatterND(ring_in, index, front)
             row = Gather<axis=0>(x, zero)
             frames = Reshape(row, flat)
             seen_out = Concat<axis=0>(seen_in, frames)
             seen = Identity(seen_out)
           }"""


def model_contract(in_place):
    def zeros(*shape):
        return Initial("zeros", shape)

    return Contract(
        (Value("x", "float32", ("batch", "time")),),
        (Value("total", "float32", ("batch",)), Value("seen", "float32", ("past + time",))),
        (
            State("sum", "sum_in", "sum_out", "float32", ("batch",), zeros(1), "sum"),
            State("n", "n_in", "n_out", "int64", (), zeros(), "n"),
            State("ring", "ring_in", "ring_out", "float32", (4,), zeros(4), "ring",
                  in_place=in_place),
            State("seen", "seen_in", "seen_out", "float32", ("past",), zeros(0), "seen",
                  ("past + time",)),
        ),
    )  # fmt: skip


class Reference:
    """What the runner should do, the plain way."""

    def __init__(self):
        self.reset()

    def reset(self, start=0.0):
        self.load(
            {
                "sum": np.full(1, start, np.float32),
                "n": np.array(0),
                "ring": np.zeros(4, np.float32),
                "seen": np.zeros(0, np.float32),
            }
        )

    def load(self, state):
        self.state = {name: value.copy() for name, value in state.items()}
        self.batch = None if len(state["sum"]) == 1 else len(state["sum"])

    def run(self, x):
        if self.batch not in (None, len(x)):
            return None
        self.batch = len(x)
        total = self.state["sum"] + x.sum(axis=1)
        ring = self.state["ring"].copy()
        ring[self.state["n"] % 4] = total[0]
        seen = np.concatenate([self.state["seen"], x[0]])
        self.state = {"sum": total, "n": self.state["n"] + 1, "ring": ring, "seen": seen}
        return {"total": total, "seen": seen}


runs = st.tuples(st.just("run"), st.integers(1, 3), st.integers(0, 4), st.integers(-9, 9))
CALLS = st.lists(
    st.one_of(
        runs,
        runs,
        st.tuples(st.just("bad"), st.integers(1, 3)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("reset to"), st.integers(-9, 9)),
        st.tuples(st.just("take")),
        st.tuples(st.just("put")),
        st.tuples(st.just("save")),
        st.tuples(st.just("load")),
    ),
    max_size=30,
)


def same(state, expected):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        np.testing.assert_array_equal(state[name], value, strict=True)


def call(runner, reference, kept, folder, step):
    """Do one step on both."""
    match step:
        case ("run", batch, time, first):
            x = np.arange(first, first + batch * time, dtype=np.float32).reshape(batch, time)
            expected = reference.run(x)
            if expected is None:
                with pytest.raises(ContractError, match="since the last reset"):
                    runner.run({"x": x})
            else:
                same(runner.run({"x": x}), expected)
        case ("bad", batch):
            with pytest.raises(ContractError, match="float64"):
                runner.run({"x": np.zeros((batch, 1))})
        case ("reset",):
            runner.reset()
            reference.reset()
        case ("reset to", start):
            runner.reset({"sum": start})
            reference.reset(start)
        case ("take",):
            kept["memory"] = (runner.state, reference.state)
        case ("put",) if "memory" in kept:
            runner.load_state(kept["memory"][0])
            reference.load(kept["memory"][1])
        case ("save",):
            runner.save(folder / "state.npz")
            kept["file"] = reference.state
        case ("load",) if "file" in kept:
            runner.load(folder / "state.npz")
            reference.load(kept["file"])


@pytest.mark.parametrize("in_place", [False, True])
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(calls=CALLS)
def test_any_sequence_of_calls_agrees_with_the_reference(save_model, tmp_path, in_place, calls):
    path = tmp_path / "model.onnx"
    if not path.exists():
        save_model(GRAPH, model_contract(in_place))
    runner, reference, kept = StatefulRunner(path, threads=1), Reference(), {}
    for step in calls:
        call(runner, reference, kept, tmp_path, step)
        same(runner.state, reference.state)
        assert runner.sizes == ({} if reference.batch is None else {"batch": reference.batch})
