import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")


def chunk(batch, time, first=0):
    return np.arange(first, first + batch * time * 2, dtype=np.float32).reshape(batch, time, 2)


def test_a_cache_grows_by_each_chunk(cache):
    runner = StatefulRunner(cache)
    chunks = [chunk(2, time, first) for first, time in enumerate((3, 1, 1, 7, 1, 0, 40, 1))]
    for count, x in enumerate(chunks, 1):
        total = runner.run({"x": x})["total"]
        whole = np.concatenate(chunks[:count], axis=1)
        np.testing.assert_array_equal(total, whole.sum(axis=1))
        np.testing.assert_array_equal(runner.state["k"], whole)
    assert runner.sizes == {"batch": 2}


def test_reset_empties_a_cache(cache):
    runner = StatefulRunner(cache)
    for batch in (2, 1, 3):
        for _ in range(5):
            runner.run({"x": chunk(batch, 4)})
        runner.reset()
        assert runner.state["k"].shape == (1, 0, 2)


def test_the_batch_of_a_cache_stays_bound(cache):
    runner = StatefulRunner(cache)
    runner.run({"x": chunk(2, 1)})
    with pytest.raises(ContractError, match="'batch' is 2 since the last reset"):
        runner.run({"x": chunk(3, 1)})


def test_a_loaded_cache_goes_on_growing(cache):
    first, second = StatefulRunner(cache), StatefulRunner(cache)
    for _ in range(3):
        first.run({"x": chunk(2, 2)})
    second.load_state(first.state)
    for _ in range(3):
        a, b = (runner.run({"x": chunk(2, 1)})["total"] for runner in (first, second))
        np.testing.assert_array_equal(a, b)
    assert second.state["k"].shape == (2, 9, 2)


def grow(save_model, out_shape, axes=(), body="k_out = Concat<axis=0>(k_in, x)"):
    contract = Contract(
        (Value("x", "float32", ("time",)),),
        (Value("y", "float32", ("time",)),),
        (
            State(
                "k", "k_in", "k_out", "float32", ("past",), Initial("zeros", (0,)), "k", out_shape
            ),
        ),
        axes=axes,
    )
    return save_model(
        f"g (float[time] x, float[past] k_in) => (float[time] y, float[m] k_out) "
        f"<int64[1] keep = {{-3}}, int64[1] last = {{1000}}> {{ y = Neg(x) {body} }}",
        contract,
    )  # fmt: skip


def steps(runner, count):
    return [
        (runner.run({"x": np.array([k], np.float32)}), runner.state["k"].tolist())[1]
        for k in range(count)
    ]


def test_a_sliding_window_grows_until_it_is_full(save_model):
    body = "all = Concat<axis=0>(k_in, x) k_out = Slice(all, keep, last)"
    runner = StatefulRunner(grow(save_model, ("Min(3, past + time)",), body=body))
    assert steps(runner, 5) == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_growth_that_only_the_run_can_tell(save_model):
    runner = StatefulRunner(grow(save_model, ("u0",)))
    assert steps(runner, 3) == [[0], [0, 1], [0, 1, 2]]


def test_growth_that_is_declared_wrongly_is_an_error_and_loses_nothing(save_model):
    runner = StatefulRunner(grow(save_model, ("Max(2, past + time)",)))
    runner.load_state({"k": [0.0, 0.0]})
    assert steps(runner, 2)[-1] == [0, 0, 0, 1]
    runner.reset()
    with pytest.raises(ContractError, match=r"'k_out' has shape \[1\].* contract says \[2\]"):
        steps(runner, 1)
    assert runner.state["k"].tolist() == []


def test_a_cache_may_not_outgrow_its_axis(save_model):
    axes = (Axis("past", 1, None, 2, grows=True),)
    runner = StatefulRunner(grow(save_model, ("past + time",), axes))
    steps(runner, 3)
    with pytest.raises(ContractError, match="'past' is 3, the model was made for 0 to 2"):
        steps(runner, 1)
    assert runner.state["k"].tolist() == [0, 1, 2]


def test_an_input_that_has_a_growing_axis_must_agree_with_the_state(save_model):
    contract = Contract(
        (Value("x", "float32", ("time",)), Value("bias", "float32", ("past + time",))),
        (Value("y", "float32", ("past + time",)),),
        (
            State(
                "k", "k_in", "k_out", "float32", ("past",), Initial("zeros", (0,)), "k",
                ("past + time",),
            ),
        ),
    )  # fmt: skip
    path = save_model(
        """g (float[time] x, float[m] bias, float[past] k_in) => (float[m] y, float[m] k_out)
           { k_out = Concat<axis=0>(k_in, x) y = Add(k_out, bias) }""",
        contract,
    )
    runner = StatefulRunner(path)
    x = np.ones(2, np.float32)
    assert runner.run({"x": x, "bias": np.zeros(2, np.float32)})["y"].tolist() == [1, 1]
    with pytest.raises(ContractError, match=r"size 3 along 'past \+ time', which is 4"):
        runner.run({"x": x, "bias": np.zeros(3, np.float32)})
    assert runner.run({"x": x, "bias": np.zeros(4, np.float32)})["y"].tolist() == [1] * 4


def test_states_that_grow_together_must_be_loaded_together(save_model):
    init = Initial("zeros", (0,))
    states = tuple(
        State(n, f"{n}_in", f"{n}_out", "float32", ("past",), init, n, ("past + time",))
        for n in ("k", "v")
    )
    contract = Contract((Value("x", "float32", ("time",)),), (), states)
    path = save_model(
        """g (float[time] x, float[past] k_in, float[past] v_in) => (float[m] k_out, float[m] v_out)
           { k_out = Concat<axis=0>(k_in, x) v_out = Concat<axis=0>(v_in, x) }""",
        contract,
    )
    runner = StatefulRunner(path)
    with pytest.raises(ContractError, match="'past' is 1 in state 'v' and 2 elsewhere"):
        runner.load_state({"k": [1.0, 2.0], "v": [1.0]})
    runner.load_state({"k": [1.0], "v": [2.0]})
    assert runner.run({"x": np.zeros(1, np.float32)}) == {}
    assert runner.state["v"].tolist() == [2, 0]


def test_an_axis_cannot_grow_in_one_state_and_be_fixed_in_another(save_model):
    states = (
        State("k", "k_in", "k_out", "float32", ("past",), Initial("zeros", (0,)), "k", ("past+1",)),
        State("m", "m_in", "m_out", "float32", ("past",), Initial("zeros", (0,)), "m"),
    )
    path = save_model(
        """g (float[1] x, float[past] k_in, float[past] m_in) => (float[n] k_out, float[past] m_out)
           { k_out = Concat<axis=0>(k_in, x) m_out = Identity(m_in) }""",
        Contract((Value("x", "float32", (1,)),), (), states),
    )
    with pytest.raises(ContractError, match=r"model\.onnx: axis 'past' grows in one state"):
        StatefulRunner(path)
