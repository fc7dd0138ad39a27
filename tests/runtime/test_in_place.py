import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

SLOTS = 8


def ring(in_place):
    """A ring buffer of rows; ``at`` says which row ``x`` overwrites."""
    rng = np.random.default_rng(0)
    init = Initial.inline(rng.standard_normal((SLOTS, 4)).astype(np.float32))
    return Contract(
        (Value("x", "float32", (1, 4)), Value("at", "int64", (1, 1)), Value("pick", "int64", (1,))),
        (Value("sum", "float32", (4,)), Value("picked", "float32", (1, 4))),
        (State("k", "k_in", "k_out", "float32", (SLOTS, 4), init, "k", in_place=in_place),),
    )


SCATTER_ND = """g (float[1,4] x, int64[1,1] at, int64[1] pick, float[8,4] k_in)
                  => (float[4] sum, float[1,4] picked, float[8,4] k_out) <int64[1] axis = {0}> {
                    k_out = ScatterND(k_in, at, x)
                    sum = ReduceSum<keepdims=0>(k_out, axis)
                    picked = Gather<axis=0>(k_out, pick)
                  }"""
SCATTER_ELEMENTS = SCATTER_ND.replace(
    "k_out = ScatterND(k_in, at, x)",
    "whole = Expand(at, width) k_out = ScatterElements<axis=0>(k_in, whole, x)",
).replace("<int64[1] axis = {0}>", "<int64[1] axis = {0}, int64[2] width = {1, 4}>")


def inputs(step, rng, pick=0):
    return {
        "x": rng.standard_normal((1, 4)).astype(np.float32),
        "at": np.array([[step % SLOTS]]),
        "pick": np.array([pick]),
    }


@pytest.mark.parametrize("graph", [SCATTER_ND, SCATTER_ELEMENTS], ids=["nd", "elements"])
def test_an_update_in_place_equals_one_that_is_not(save_model, graph):
    runners = [
        StatefulRunner(save_model(graph, ring(in_place), f"{in_place}.onnx"))
        for in_place in (True, False)
    ]
    rng = np.random.default_rng(1)
    for step in range(40):
        if step == 25:
            for runner in runners:
                runner.reset()
        feed = inputs(step, rng)
        a, b = (runner.run(feed) for runner in runners)
        np.testing.assert_array_equal(a["sum"], b["sum"])
        np.testing.assert_array_equal(runners[0].state["k"], runners[1].state["k"])


def test_a_snapshot_is_not_touched_by_later_updates_in_place(save_model):
    runner = StatefulRunner(save_model(SCATTER_ND, ring(True)))
    rng = np.random.default_rng(2)
    runner.run(inputs(0, rng))
    snapshot = runner.state
    kept = snapshot["k"].copy()
    for step in range(3):
        runner.run(inputs(step, rng))
    np.testing.assert_array_equal(snapshot["k"], kept)
    runner.load_state(snapshot)
    runner.run(inputs(1, rng))
    np.testing.assert_array_equal(snapshot["k"], kept)


def test_wrong_inputs_do_not_put_a_state_in_doubt(save_model):
    runner = StatefulRunner(save_model(SCATTER_ND, ring(True)))
    rng = np.random.default_rng(3)
    runner.run(inputs(0, rng))
    before = runner.state["k"]
    with pytest.raises(ContractError, match="int64"):
        runner.run({**inputs(1, rng), "pick": np.zeros(1)})
    np.testing.assert_array_equal(runner.state["k"], before)


def test_a_step_that_breaks_off_in_place_is_not_glossed_over(save_model, tmp_path):
    runner = StatefulRunner(save_model(SCATTER_ND, ring(True)))
    rng = np.random.default_rng(4)
    runner.run(inputs(0, rng))
    good = runner.state
    with pytest.raises(ContractError, match="could not run the step"):
        runner.run(inputs(1, rng, pick=99))
    for use in (lambda: runner.run(inputs(1, rng)), lambda: runner.state,
                lambda: runner.save(tmp_path / "s.npz")):  # fmt: skip
        with pytest.raises(ContractError, match="k in place: the state is not known"):
            use()
    runner.load_state(good)
    np.testing.assert_array_equal(runner.state["k"], good["k"])
    runner.run(inputs(1, rng))


def test_a_first_step_that_breaks_off_can_be_tried_again(save_model):
    path = save_model(SCATTER_ND, ring(True))
    runner, other = StatefulRunner(path), StatefulRunner(path)
    feed = inputs(0, np.random.default_rng(5))
    with pytest.raises(ContractError, match="could not run the step"):
        runner.run({**feed, "pick": np.array([99])})
    np.testing.assert_array_equal(runner.run(feed)["sum"], other.run(feed)["sum"])


def test_an_output_that_is_the_state_before_the_step_forbids_updating_in_place(save_model):
    contract = ring(True)
    before = Contract(contract.inputs[:2], (Value("k_in", "float32", (SLOTS, 4)),), contract.states)
    path = save_model(
        """g (float[1,4] x, int64[1,1] at, float[8,4] k_in) => (float[8,4] k_in, float[8,4] k_out)
           { k_out = ScatterND(k_in, at, x) }""",
        before,
    )
    runner = StatefulRunner(path)
    rng = np.random.default_rng(6)
    for step in range(4):
        feed = {name: inputs(step, rng)[name] for name in ("x", "at")}
        state = runner.state["k"]
        np.testing.assert_array_equal(runner.run(feed)["k_in"], state)
        assert (runner.state["k"][step] == feed["x"]).all()
