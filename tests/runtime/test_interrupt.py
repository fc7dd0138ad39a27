import signal

import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

SLOW = """g (int64 loops, float[200,200] h_in) => (float[200,200] output, float[200,200] h_out)
          <bool yes = {1}> {
            h_out = Loop(loops, yes, h_in) <body = b (int64 i, bool c, float[200,200] v)
              => (bool go, float[200,200] w) { go = Identity(c) w = MatMul(v, v) }>
            output = Neg(h_out)
          }"""


def slow(in_place):
    return Contract(
        (Value("loops", "int64", ()),),
        (Value("output", "float32", (200, 200)),),
        (
            State(
                "h", "h_in", "h_out", "float32", (200, 200), Initial("zeros", (200, 200)), "h",
                in_place=in_place,
            ),
        ),
    )  # fmt: skip


@pytest.fixture
def interrupted_step():
    """Return a function that runs a step and has Ctrl-C arrive in the middle of it."""

    def step(runner):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        runner.run({"loops": np.array(2000)})

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield step
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_step_leaves_the_old_state(save_model, interrupted_step):
    runner = StatefulRunner(save_model(SLOW, slow(False)), {"h": np.eye(200, dtype=np.float32)})
    runner.run({"loops": np.array(1)})
    with pytest.raises(KeyboardInterrupt):
        interrupted_step(runner)
    np.testing.assert_array_equal(runner.state["h"], np.eye(200))
    assert runner.run({"loops": np.array(1)})["output"][0, 0] == -1


def test_an_interrupted_step_in_place_leaves_the_state_in_doubt(save_model, interrupted_step):
    runner = StatefulRunner(save_model(SLOW, slow(True)))
    runner.run({"loops": np.array(1)})
    with pytest.raises(KeyboardInterrupt):
        interrupted_step(runner)
    with pytest.raises(ContractError, match="the state is not known"):
        runner.run({"loops": np.array(1)})
    runner.reset()
    runner.run({"loops": np.array(1)})
