import threading

import ml_dtypes
import numpy as np
import onnx
import onnx.helper as oh
import pytest

from stateful_pipeline.contract import (
    DTYPES,
    METADATA_KEY,
    Contract,
    Initial,
    State,
    Value,
    numpy_dtype,
)
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

X = np.array([[1.0, 2.0, 3.0]], np.float32)
ONNX_NAMES = {"float32": "float", "float64": "double"}


def remember(dtype, shape=("n",), **more):
    """The contract of a model whose output is the last step's input, kept as state ``h``."""
    return Contract(
        inputs=(Value("x", dtype, shape),),
        outputs=(Value("output", dtype, shape),),
        states=(
            State(
                "h", "h_in", "h_out", dtype, shape, Initial("zeros", (1,) * len(shape)), "h", **more
            ),
        ),
    )


def test_the_state_goes_from_step_to_step_and_reset_brings_it_back(counter):
    runner = StatefulRunner(counter)
    assert runner.run({"x": X})["output"].tolist() == [[4.0, 5.0, 6.0]]
    assert runner.run({"x": X})["output"].tolist() == [[5.0, 6.0, 7.0]]
    runner.reset()
    assert runner.run({"x": X})["output"].tolist() == [[4.0, 5.0, 6.0]]
    assert runner.state["n"] == 1


def test_zero_dimensional_states_stay_arrays_of_their_dtype(counter):
    runner = StatefulRunner(counter)
    for _ in range(3):
        runner.run({"x": X})
    state = runner.state
    assert {name: (a.shape, a.dtype.name) for name, a in state.items()} == {
        "h": ((), "float32"),
        "n": ((), "int64"),
    }
    assert (state["h"], state["n"]) == (6, 3)


def test_outputs_are_the_callers_own(counter):
    runner = StatefulRunner(counter)
    outputs = [runner.run({"x": X})["output"] for _ in range(5)]
    assert [out[0, 0] for out in outputs] == [4, 5, 6, 7, 8]
    outputs[-1][:] = np.nan
    assert runner.run({"x": X})["output"][0, 0] == 9


def test_an_output_that_is_a_state_is_a_copy_of_it(accumulator):
    runner = StatefulRunner(accumulator)
    first = runner.run({"x": np.ones((2, 3), np.float32)})["total"]
    first[:] = 100
    assert runner.run({"x": np.ones((2, 3), np.float32)})["total"].tolist() == [6.0, 6.0]
    assert runner.state["sum"].tolist() == [6.0, 6.0]


def test_an_output_under_the_very_name_of_a_states_output_is_a_copy_too(save_model):
    contract = Contract(
        (Value("x", "float32", (2,)),),
        (Value("h_out", "float32", (2,)),),
        (State("h", "h_in", "h_out", "float32", (2,), Initial("zeros", (2,)), "h"),),
    )
    path = save_model(
        "g (float[2] x, float[2] h_in) => (float[2] h_out) { h_out = Add(x, h_in) }", contract
    )
    runner = StatefulRunner(path)
    x = np.array([1, 2], np.float32)
    runner.run({"x": x})["h_out"][:] = 100
    buffer = np.zeros(2, np.float32)
    assert runner.run({"x": x}, out={"h_out": buffer})["h_out"] is buffer
    assert buffer.tolist() == [2.0, 4.0]


@pytest.fixture
def passed_through(tmp_path):
    """Graph outputs that are graph inputs by name, with no node between.

    The state ``last`` becomes the input ``x``, ``older`` becomes what ``last`` was, ``same`` stays.
    """

    def info(name):
        return oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"])

    graph = oh.make_graph(
        [oh.make_node("Add", ["x", "older_in"], ["y"])],
        "g",
        [info(name) for name in ("x", "last_in", "older_in", "same_in")],
        [info(name) for name in ("y", "x", "last_in", "same_in")],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 20)], ir_version=10)
    zeros = Initial("zeros", (1,))
    contract = Contract(
        (Value("x", "float32", ("n",)),),
        (Value("y", "float32", ("n",)), Value("last_in", "float32", ("n",))),
        (
            State("last", "last_in", "x", "float32", ("n",), zeros, "last", in_place=True),
            State("older", "older_in", "last_in", "float32", ("n",), zeros, "older", in_place=True),
            State("same", "same_in", "same_in", "float32", ("n",), zeros, "same", in_place=True),
        ),
    )
    oh.set_model_props(model, {METADATA_KEY: contract.to_json()})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def test_outputs_that_are_inputs_by_name_are_carried_over(passed_through):
    runner = StatefulRunner(passed_through, {"same": [7.0]})
    steps = [np.array([k, 2 * k], np.float32) for k in range(1, 6)]
    outputs = [runner.run({"x": x}) for x in steps]
    assert [out["y"][0] for out in outputs] == [1, 2, 3 + 1, 4 + 2, 5 + 3]
    assert [out["last_in"][0] for out in outputs] == [0, 1, 2, 3, 4]
    outputs[-1]["last_in"][:] = -1
    steps[-1][:] = -1
    state = {name: value.tolist() for name, value in runner.state.items()}
    assert state == {"last": [5, 10], "older": [4, 8], "same": [7, 7]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(save_model, dtype):
    kind = ONNX_NAMES.get(dtype, dtype)
    path = save_model(
        f"g ({kind}[n] x, {kind}[n] h_in) => ({kind}[n] output, {kind}[n] h_out) "
        "{ output = Identity(h_in) h_out = Identity(x) }",
        remember(dtype),
    )
    runner = StatefulRunner(path)
    first = np.array([1, 0, 1]).astype(numpy_dtype(dtype))
    second = np.array([0, 0, 1]).astype(numpy_dtype(dtype))
    assert not runner.run({"x": first})["output"].any()
    output = runner.run({"x": second})["output"]
    assert output.dtype == numpy_dtype(dtype)
    assert output.tobytes() == first.tobytes()
    assert runner.state["h"].tobytes() == second.tobytes()


def test_a_bfloat16_state_is_computed_and_rounded_in_the_model(save_model):
    contract = Contract(
        (Value("x", "bfloat16", (2,)),),
        (Value("output", "bfloat16", (2,)),),
        (State("h", "h_in", "h_out", "bfloat16", (2,), Initial("zeros", (2,)), "h"),),
    )
    path = save_model(
        """g (bfloat16[2] x, bfloat16[2] h_in) => (bfloat16[2] output, bfloat16[2] h_out) {
             a = Cast<to=1>(x)
             b = Cast<to=1>(h_in)
             sum = Add(a, b)
             h_out = Cast<to=16>(sum)
             output = Identity(h_out)
           }""",
        contract,
    )
    runner = StatefulRunner(path, {"h": np.array([256, 1], ml_dtypes.bfloat16)})
    x = np.array([1, 0.5], ml_dtypes.bfloat16)
    expected = np.array([256, 1], ml_dtypes.bfloat16)
    for _ in range(4):
        expected = expected + x
        output = runner.run({"x": x})["output"]
        assert output.dtype == ml_dtypes.bfloat16
        assert output.tolist() == expected.tolist()
    assert runner.state["h"].tolist() == [256.0, 3.0]  # 257 is no bfloat16
    buffer = np.zeros(2, ml_dtypes.bfloat16)
    runner.run({"x": x}, out={"output": buffer})
    assert buffer.tolist() == [256.0, 3.5]


def test_a_bool_state_toggles(save_model):
    contract = Contract(
        (Value("x", "float32", (1,)),),
        (Value("output", "bool", ()),),
        (State("on", "on_in", "on_out", "bool", (), Initial.inline(np.array(True)), "on"),),
    )
    path = save_model(
        """g (float[1] x, bool on_in) => (bool output, bool on_out)
           { output = Identity(on_in) on_out = Not(on_in) }""",
        contract,
    )
    runner = StatefulRunner(path)
    seen = [bool(runner.run({"x": np.zeros(1, np.float32)})["output"]) for _ in range(4)]
    assert seen == [True, False, True, False]


def test_outputs_go_into_the_callers_buffers(counter):
    runner = StatefulRunner(counter)
    buffer = np.empty((1, 3), np.float32)
    for step in range(3):
        out = runner.run({"x": X}, out={"output": buffer})
        assert out["output"] is buffer
        assert buffer.tolist() == [[4 + step, 5 + step, 6 + step]]


def test_a_buffer_that_does_not_fit_is_refused_before_the_step(counter):
    runner = StatefulRunner(counter)
    x = X.copy()
    read_only = np.empty((1, 3), np.float32)
    read_only.flags.writeable = False
    bad = {
        "shape": {"output": np.empty((2, 3), np.float32)},
        "float64": {"output": np.empty((1, 3))},
        "contiguous": {"output": np.empty((1, 6), np.float32)[:, ::2]},
        "writeable": {"output": read_only},
        "shares memory": {"output": x},
        "did you mean 'output'": {"outptu": np.empty((1, 3), np.float32)},
        "not a numpy array": {"output": [0, 0, 0]},
    }
    for message, out in bad.items():
        with pytest.raises(ContractError, match=message):
            runner.run({"x": x}, out=out)
    assert runner.sizes == {}
    assert runner.state["h"] == 3


def test_an_output_whose_shape_only_the_run_can_tell(save_model):
    contract = Contract(
        (Value("x", "float32", ("n",)),),
        (Value("output", "float32", ("found", 1)), Value("where", "int64", ("found",))),
        (State("h", "h_in", "h_out", "float32", (), Initial("zeros", ()), "h"),),
    )
    path = save_model(
        """g (float[n] x, float h_in) => (float[found,1] output, int64[found] where, float h_out)
           <float one = {1.0}, int64[1] flat = {-1}, int64[2] column = {-1, 1}> {
             above = Greater(x, h_in)
             picked = Compress(x, above)
             output = Reshape(picked, column)
             index = NonZero(above)
             where = Reshape(index, flat)
             h_out = Add(h_in, one)
           }""",
        contract,
    )
    runner = StatefulRunner(path)
    x = np.array([0.5, 2.5, 1.5], np.float32)
    kept = [runner.run({"x": x}) for _ in range(4)]
    assert [out["output"].tolist() for out in kept] == [[[0.5], [2.5], [1.5]], [[2.5], [1.5]],
                                                        [[2.5]], []]  # fmt: skip
    assert [out["where"].tolist() for out in kept] == [[0, 1, 2], [1, 2], [1], []]
    runner.reset()
    buffer = np.empty((3, 1), np.float32)
    assert runner.run({"x": x}, out={"output": buffer})["output"] is buffer
    with pytest.raises(ContractError, match=r"shape \[3, 1\], this step gives \[2, 1\]"):
        runner.run({"x": x}, out={"output": buffer})
    assert runner.state["h"] == 1


def test_an_output_of_another_shape_than_declared_is_an_error_and_loses_nothing(save_model):
    contract = Contract(
        (Value("x", "float32", ("time",)),),
        (Value("output", "float32", (4,)),),
        (State("h", "h_in", "h_out", "float32", (), Initial("zeros", ()), "h"),),
    )
    path = save_model(
        """g (float[time] x, float h_in) => (float[m] output, float h_out)
           <float one = {1.0}> { output = Neg(x) h_out = Add(h_in, one) }""",
        contract,
    )
    runner = StatefulRunner(path)
    with pytest.raises(ContractError, match=r"'output' has shape \[6\].* contract says \[4\]"):
        runner.run({"x": np.ones(6, np.float32)})
    for _ in range(2):
        runner.run({"x": np.ones(4, np.float32)})
    with pytest.raises(ContractError, match=r"model\.onnx.*\[3\].* contract says \[4\]"):
        runner.run({"x": np.ones(3, np.float32)})
    assert runner.state["h"] == 2
    assert runner.run({"x": np.ones(4, np.float32)})["output"].tolist() == [-1] * 4


def test_a_state_of_another_shape_than_declared_is_an_error(save_model):
    path = save_model(
        """g (float[n] x, float[n] h_in) => (float[n] output, float[m] h_out)
           { output = Add(x, h_in) h_out = Concat<axis=0>(h_in, x) }""",
        remember("float32"),
    )
    runner = StatefulRunner(path)
    with pytest.raises(ContractError, match=r"'h_out' has shape \[4\].* contract says \[2\]"):
        runner.run({"x": np.ones(2, np.float32)})
    assert runner.sizes == {}


def test_a_failure_inside_the_model_leaves_the_state_and_the_sizes(save_model):
    contract = Contract(
        (Value("i", "int64", ("n",)),),
        (Value("output", "float32", ("n",)),),
        (State("h", "h_in", "h_out", "float32", ("n",), Initial("zeros", (1,)), "h"),),
    )
    path = save_model(
        """g (int64[n] i, float[n] h_in) => (float[n] output, float[n] h_out)
           <float[3] table = {1.0, 2.0, 3.0}>
           { output = Gather(table, i) h_out = Add(h_in, output) }""",
        contract,
    )
    runner = StatefulRunner(path)
    with pytest.raises(ContractError, match="could not run the step"):
        runner.run({"i": np.array([0, 9])})
    assert runner.sizes == {}
    runner.run({"i": np.array([0, 1, 2])})
    for _ in range(3):
        with pytest.raises(ContractError, match="could not run the step"):
            runner.run({"i": np.array([0, 1, 9])})
    assert runner.state["h"].tolist() == [1, 2, 3]
    assert runner.run({"i": np.array([2, 2, 2])})["output"].tolist() == [3, 3, 3]
    assert runner.state["h"].tolist() == [4, 5, 6]


def test_empty_arrays_are_arrays(accumulator):
    runner = StatefulRunner(accumulator)
    assert runner.run({"x": np.zeros((2, 0), np.float32)})["total"].tolist() == [0, 0]
    assert runner.run({"x": np.ones((2, 1), np.float32)})["total"].tolist() == [1, 1]


def test_threads_may_share_a_runner_without_mixing_steps(counter):
    runner = StatefulRunner(counter, threads=1)
    seen = []

    def work():
        seen.extend(int(runner.run({"x": X})["output"][0, 0]) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(4, 204))
