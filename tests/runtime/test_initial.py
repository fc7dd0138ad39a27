import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

X = np.array([[1.0, 2.0, 3.0]], np.float32)


def first(runner):
    return runner.run({"x": X})["output"][0, 0]


def test_init_persists_over_resets_and_leaves_other_states_alone(counter):
    runner = StatefulRunner(counter, {"h": np.array(10, np.float32)})
    assert (first(runner), first(runner)) == (11, 12)
    runner.reset()
    assert first(runner) == 11
    assert runner.state["n"] == 1


def test_a_reset_with_values_holds_for_that_reset_only(counter):
    runner = StatefulRunner(counter, {"h": 10})
    runner.reset({"h": np.array(20, np.float32), "n": np.array(7)})
    assert first(runner) == 21
    assert runner.state["n"] == 8
    runner.reset()
    assert first(runner) == 11
    assert runner.state["n"] == 1


def test_the_textbook_form_of_names(counter):
    assert first(StatefulRunner(counter, {"h.init": np.array(10, np.float32)})) == 11
    with pytest.raises(ContractError, match="'h' is given twice"):
        StatefulRunner(counter, {"h": 1, "h.init": 2})


def test_the_array_given_is_copied(counter):
    value = np.array(10, np.float32)
    runner = StatefulRunner(counter, {"h": value})
    value[()] = 0
    assert first(runner) == 11
    runner.reset()
    assert first(runner) == 11


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"hh": 1}, "no state 'hh'\n  try: did you mean 'h'"),
        ({"h": np.array(1.0)}, r"'h' is float32, the value given is float64\n.*astype\(np.float32"),
        ({"n": 1.5}, "'n' is int64 and cannot be 1.5"),
        ({"n": 2**63}, "'n' is int64 and cannot be"),
        ({"h": 1e39}, r"cannot be 1e\+39: out of its range"),
        ({"h": "1"}, "takes an array or numbers, not a str"),
        ({"h": [1.0]}, r"has shape \[\], the value given has \[1\]"),
        ({"h": [[1.0], [1.0, 2.0]]}, "cannot be"),
        ([1.0], "given as a dict by name, not as list"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(counter, init, message):
    with pytest.raises(ContractError, match=message):
        StatefulRunner(counter, init)
    runner = StatefulRunner(counter)
    first(runner)
    with pytest.raises(ContractError, match=message):
        runner.reset(init)
    assert first(runner) == 5


def small(dtype, value):
    return Contract(
        (Value("x", "float32", (1,)),),
        (Value("y", dtype, (2,)),),
        (State("h", "h_in", "h_out", dtype, (2,), value, "h"),),
    )


@pytest.mark.parametrize(
    ("dtype", "kind", "given", "stored"),
    [
        ("float32", "float", [1, 2.5], [1, 2.5]),
        ("float16", "float16", 3, [3, 3]),
        ("bfloat16", "bfloat16", [1, float("inf")], [1, float("inf")]),
        ("uint8", "uint8", [0, 255], [0, 255]),
        ("int64", "int64", True, [1, 1]),
        ("bool", "bool", [True, False], [True, False]),
    ],
)
def test_python_numbers_are_converted_and_one_number_fills(save_model, dtype, kind, given, stored):
    path = save_model(
        f"g (float[1] x, {kind}[2] h_in) => ({kind}[2] y, {kind}[2] h_out) "
        "{ y = Identity(h_in) h_out = Identity(h_in) }",
        small(dtype, Initial("zeros", (2,))),
    )
    runner = StatefulRunner(path, {"h": given})
    assert runner.run({"x": np.zeros(1, np.float32)})["y"].tolist() == stored


@pytest.mark.parametrize(
    ("dtype", "given"), [("uint8", 256), ("int8", [1, -129]), ("bool", [1, 0]), ("uint8", -1)]
)
def test_python_numbers_that_the_dtype_cannot_hold_are_refused(save_model, dtype, given):
    path = save_model(
        f"g (float[1] x, {dtype}[2] h_in) => ({dtype}[2] y, {dtype}[2] h_out) "
        "{ y = Identity(h_in) h_out = Identity(h_in) }",
        small(dtype, Initial("zeros", (2,))),
    )
    with pytest.raises(ContractError, match=f"'h' is {dtype} and cannot be"):
        StatefulRunner(path, {"h": given})


def test_a_value_of_size_one_is_expanded_along_a_named_axis(accumulator):
    runner = StatefulRunner(accumulator, {"sum": np.array([5], np.float32)})
    assert runner.sizes == {}
    assert runner.run({"x": np.ones((3, 2), np.float32)})["total"].tolist() == [7, 7, 7]


def test_a_value_of_another_size_binds_its_axis(accumulator):
    runner = StatefulRunner(accumulator, {"sum": np.array([5, 6, 7], np.float32)})
    assert runner.sizes == {"batch": 3}
    with pytest.raises(ContractError, match="'batch' is 3 since the last reset, and 2 now"):
        runner.run({"x": np.ones((2, 2), np.float32)})
    assert runner.run({"x": np.ones((3, 2), np.float32)})["total"].tolist() == [7, 8, 9]
    runner.reset({"sum": [1]})
    assert runner.sizes == {}


def test_an_initial_value_in_a_file_beside_the_model(save_model, tmp_path):
    init = Initial("file", (2,), file="init.npz", key="h")
    path = save_model(
        "g (float[1] x, float[2] h_in) => (float[2] y, float[2] h_out) "
        "{ y = Identity(h_in) h_out = Identity(h_in) }",
        small("float32", init),
    )
    with pytest.raises(ContractError, match=r"init\.npz.*'h' cannot be read"):
        StatefulRunner(path)
    np.savez(tmp_path / "init.npz", h=np.array([3, 4], np.float32))
    runner = StatefulRunner(path)
    assert runner.run({"x": np.zeros(1, np.float32)})["y"].tolist() == [3, 4]
