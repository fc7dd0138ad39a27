import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")


def ones(*shape):
    return np.ones(shape, np.float32)


def test_a_row_starts_anew_while_the_others_go_on(accumulator):
    runner = StatefulRunner(accumulator)
    runner.run({"x": ones(4, 1)})
    runner.reset(rows=[3])
    assert runner.run({"x": ones(4, 1)})["total"].tolist() == [2, 2, 2, 1]
    runner.reset(rows=np.array([0, 1]))
    runner.reset(rows=[])
    assert runner.run({"x": ones(4, 1)})["total"].tolist() == [1, 1, 3, 2]
    assert runner.sizes == {"batch": 4}


def test_a_row_starts_from_the_runners_initial_value_or_a_given_one(accumulator):
    runner = StatefulRunner(accumulator, {"sum": [10]})
    runner.run({"x": ones(3, 1)})
    runner.reset(rows=[0])
    runner.reset({"sum": [20]}, rows=[1])
    assert runner.state["sum"].tolist() == [10, 20, 11]
    runner.reset({"sum": [1, 2, 3]}, rows=[1, 2])
    assert runner.state["sum"].tolist() == [10, 2, 3]


def test_rows_of_a_loaded_state_can_be_reset_before_a_step(accumulator):
    runner = StatefulRunner(accumulator)
    runner.load_state({"sum": np.array([5, 6, 7], np.float32)})
    runner.reset(rows=[1])
    assert runner.state["sum"].tolist() == [5, 0, 7]
    assert runner.run({"x": ones(3, 1)})["total"].tolist() == [6, 1, 8]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([4], "there is no row 4: the batch has 4"),
        ([-1], "there is no row -1"),
        ([0, 1.5], r"a list of row numbers, rows=\[3\]"),
        (3, r"a list of row numbers, rows=\[3\]"),
        ([True, False, False, False], "numbers, not a mask"),
        (np.array([True, False, False, False]), "numbers, not a mask"),
    ],
)
def test_rows_that_are_not_row_numbers_change_nothing(accumulator, rows, message):
    runner = StatefulRunner(accumulator)
    runner.run({"x": ones(4, 1)})
    with pytest.raises(ContractError, match=message):
        runner.reset(rows=rows)
    assert runner.state["sum"].tolist() == [1] * 4


def test_rows_need_a_batch_whose_size_is_known(accumulator):
    runner = StatefulRunner(accumulator)
    with pytest.raises(ContractError, match="'batch' has no size yet"):
        runner.reset(rows=[0])


def with_shared(in_place=False):
    """A sum per row along the second axis, and a step counter for all."""
    zeros = Initial("zeros", (1, 1))
    return Contract(
        (Value("x", "float32", ("batch",)),),
        (Value("y", "float32", (1, "batch")),),
        (
            State("s", "s_in", "s_out", "float32", (1, "batch"), zeros, "s", in_place=in_place),
            State("n", "n_in", "n_out", "float32", (), Initial("zeros", ()), "n"),
        ),
    )


WITH_SHARED = """g (float[batch] x, float[1,batch] s_in, float n_in)
                   => (float[1,batch] y, float[1,batch] s_out, float n_out) <float one = {1.0}> {
                     s_out = Add(s_in, x)
                     n_out = Add(n_in, one)
                     y = Add(s_out, n_out)
                   }"""


@pytest.mark.parametrize("in_place", [False, True])
def test_states_that_all_rows_share_are_kept_only_if_asked(save_model, in_place):
    runner = StatefulRunner(save_model(WITH_SHARED, with_shared(in_place)))
    for _ in range(2):
        runner.run({"x": ones(3)})
    with pytest.raises(ContractError, match=r"all rows share 'n', which would go on\n.*keep"):
        runner.reset(rows=[1])
    with pytest.raises(ContractError, match='None or "keep"'):
        runner.reset(rows=[1], shared="all")
    assert runner.state["s"].tolist() == [[2, 2, 2]]
    runner.reset(rows=[1], shared="keep")
    assert runner.state["s"].tolist() == [[2, 0, 2]]
    assert runner.run({"x": ones(3)})["y"].tolist() == [[6, 4, 6]]


def test_shared_has_a_meaning_only_with_rows(accumulator):
    with pytest.raises(ContractError, match="only with rows="):
        StatefulRunner(accumulator).reset(shared="keep")


def test_rows_of_a_growing_state_cannot_be_reset(cache):
    runner = StatefulRunner(cache)
    runner.run({"x": ones(2, 1, 2)})
    with pytest.raises(ContractError, match="state 'k' grows, all its rows together"):
        runner.reset(rows=[0])


def test_without_an_axis_called_batch_the_first_axis_of_the_first_input_counts(save_model):
    contract = with_shared()
    streams = Contract(
        (Value("x", "float32", ("streams",)),),
        (Value("y", "float32", (1, "streams")),),
        (
            State("s", "s_in", "s_out", "float32", (1, "streams"), contract.states[0].init, "s"),
            contract.states[1],
        ),
    )
    runner = StatefulRunner(save_model(WITH_SHARED, streams))
    runner.run({"x": ones(3)})
    runner.reset(rows=[2], shared="keep")
    assert runner.state["s"].tolist() == [[1, 1, 0]]


def test_a_model_without_rows_says_so(counter):
    with pytest.raises(ContractError, match="no state has an axis 'batch'"):
        StatefulRunner(counter).reset(rows=[0])
