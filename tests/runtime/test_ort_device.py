"""States on a device: where they lie, and which copies are made of them."""

from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnx.helper as oh
import pytest

from stateful_pipeline.contract import METADATA_KEY, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, TargetError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.runtime.device_memory import DeviceBlock, OrtDevice
from stateful_pipeline.runtime.engine import Engine
from stateful_pipeline.runtime.ort_binding import Binding, shared_value
from stateful_pipeline.runtime.ort_provider import PROVIDERS, why_unavailable

X = np.array([[1.0, 2.0, 3.0]], np.float32)


@pytest.fixture(params=["device", pytest.param("cuda", marks=pytest.mark.gpu)])
def on_device(request, monkeypatch):
    """Let the states of runners that name no provider lie on a device."""
    provider = replace(PROVIDERS["cpu"], device="cpu")
    if request.param == "cuda":
        reason = why_unavailable("cuda")
        if reason is not None:
            pytest.skip(reason)
        provider = PROVIDERS["cuda"]
    monkeypatch.setitem(PROVIDERS, "cpu", provider)


@pytest.fixture
def copies(on_device, monkeypatch):
    """Count the copies of states, by their direction."""
    counts = Counter()

    def counted(name):
        real = getattr(OrtDevice, name)

        def call(self, *arguments):
            counts[name] += 1
            return real(self, *arguments)

        return call

    for name in ("upload", "download", "copy"):
        monkeypatch.setattr(OrtDevice, name, counted(name))
    return counts


def grow(dtype, out_shape, name="k"):
    return State(
        name, f"{name}_in", f"{name}_out", dtype, ("past",), Initial("zeros", (0,)), name, out_shape
    )


def test_states_are_copied_for_a_reset_and_for_who_asks_and_for_no_step(counter, copies):
    runner = StatefulRunner(counter)
    runner.run({"x": X})
    assert copies == {"upload": 2}
    copies.clear()
    for _ in range(6):
        last = runner.run({"x": X})["output"]
    assert copies == {}
    assert last[0, 0] == 1 + 3 + 6
    assert (runner.state["h"], runner.state["n"]) == (10, 7)
    assert copies == {"download": 4}


@pytest.mark.parametrize("out_shape", [("past + time",), ("u0",)], ids=["known", "unknown"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_that_grows_is_not_copied_whoever_allocates_it(
    save_model, copies, dtype, out_shape
):
    kind = {"float32": "float"}.get(dtype, dtype)
    path = save_model(
        f"g ({kind}[time] x, {kind}[past] k_in) => ({kind}[m] k_out) "
        "{ k_out = Concat<axis=0>(k_in, x) }",
        Contract((Value("x", dtype, ("time",)),), (), (grow(dtype, out_shape),)),
    )
    runner = StatefulRunner(path)
    chunks = [
        np.arange(first, first + size).astype(ml_dtypes.bfloat16)
        if dtype == "bfloat16"
        else np.arange(first, first + size, dtype=np.float32)
        for first, size in ((0, 2), (2, 0), (2, 1), (3, 9), (12, 1), (13, 1))
    ]
    runner.run({"x": chunks[0]})
    copies.clear()
    for x in chunks[1:]:
        runner.run({"x": x})
    assert copies == {}
    assert runner.state["k"].astype(np.float32).tolist() == list(range(14))
    snapshot = runner.state
    runner.run({"x": chunks[2]})
    runner.load_state(snapshot)
    runner.run({"x": chunks[2]})
    assert runner.state["k"].astype(np.float32).tolist() == [*range(14), 2]


def test_a_state_that_starts_empty_and_stays_empty_is_no_special_case(save_model, copies):
    path = save_model(
        "g (float[time] x, float[past] k_in) => (float[m] k_out) "
        "{ k_out = Concat<axis=0>(k_in, x) }",
        Contract((Value("x", "float32", ("time",)),), (), (grow("float32", ("u0",)),)),
    )
    runner = StatefulRunner(path)
    for _ in range(3):
        runner.run({"x": np.zeros(0, np.float32)})
        assert runner.state["k"].tolist() == []
    runner.run({"x": np.ones(2, np.float32)})
    assert runner.state["k"].tolist() == [1, 1]


def test_an_update_in_place_uses_one_block_and_no_copy(save_model, copies):
    init = Initial("zeros", (8, 4))
    contract = Contract(
        (Value("x", "float32", (1, 4)), Value("at", "int64", (1, 1))),
        (),
        (State("k", "k_in", "k_out", "float32", (8, 4), init, "k", in_place=True),),
    )
    path = save_model(
        "g (float[1,4] x, int64[1,1] at, float[8,4] k_in) => (float[8,4] k_out) "
        "{ k_out = ScatterND(k_in, at, x) }",
        contract,
    )
    runner = StatefulRunner(path)
    one, other = runner._buffers._slots["k"].blocks
    assert isinstance(one, DeviceBlock)
    assert one is other
    for step in range(8):
        runner.run({"x": np.full((1, 4), step, np.float32), "at": np.array([[step]])})
    assert copies == {"upload": 1}
    assert runner.state["k"][:, 0].tolist() == list(range(8))


def test_a_provider_that_takes_no_overlap_gets_two_blocks(save_model, monkeypatch):
    provider = replace(PROVIDERS["cpu"], device="cpu", in_place=False)
    monkeypatch.setitem(PROVIDERS, "cpu", provider)
    state = State("h", "h_in", "h_out", "float32", (3,), Initial("zeros", (3,)), "h", in_place=True)
    path = save_model(
        "g (float[3] x, float[3] h_in) => (float[3] h_out) { h_out = Add(x, h_in) }",
        Contract((Value("x", "float32", (3,)),), (), (state,)),
    )
    runner = StatefulRunner(path)
    one, other = runner._buffers._slots["h"].blocks
    assert one is not other
    runner.run({"x": X[0]})
    runner.run({"x": X[0]})
    assert runner.state["h"].tolist() == [2, 4, 6]


@pytest.fixture
def delay_line(tmp_path):
    """State ``last`` becomes ``x``, and ``older`` what ``last`` was, with no node between."""

    def info(name):
        return oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"])

    nodes = [oh.make_node("Add", ["last_in", "older_in"], ["y"])]
    graph = oh.make_graph(
        nodes,
        "g",
        [info(name) for name in ("x", "last_in", "older_in")],
        [info(name) for name in ("y", "x", "last_in")],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 20)], ir_version=10)
    zeros = Initial("zeros", (1,))
    contract = Contract(
        (Value("x", "float32", ("n",)),),
        (Value("y", "float32", ("n",)),),
        (
            State("last", "last_in", "x", "float32", ("n",), zeros, "last"),
            State("older", "older_in", "last_in", "float32", ("n",), zeros, "older"),
        ),
    )
    oh.set_model_props(model, {METADATA_KEY: contract.to_json()})
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("before", [0, 5], ids=["at once", "after more rows"])
def test_a_state_that_becomes_another_is_copied_on_the_device(
    delay_line, copies, monkeypatch, before
):
    real = Binding.synchronize

    def synchronize(binding):
        copies["wait"] += 1
        real(binding)

    monkeypatch.setattr(Binding, "synchronize", synchronize)
    runner = StatefulRunner(delay_line)
    if before:
        runner.run({"x": np.ones(before, np.float32)})
        runner.reset()
    runner.run({"x": X[0]})
    copies.clear()
    got = [runner.run({"x": X[0] * factor})["y"][0] for factor in (10, 100, 1000)]
    assert got == [1, 11, 110]
    # The uploads are of `x`, which `last` becomes.
    assert copies == {"upload": 3, "copy": 3, "wait": 3}


def test_an_input_that_is_copied_when_it_is_bound_does_not_stand_still(accumulator, monkeypatch):
    """What ONNX Runtime does where an input lies elsewhere than the node wants it."""
    monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], device="cpu"))

    def copied(self, device, name, dtype, shape, memory):
        array = device.download(memory, int(np.prod(shape)), dtype).reshape(shape)
        self.bind_input(name, shared_value(device.ort_value, array, dtype))

    monkeypatch.setattr(Binding, "bind_input_on", copied)
    runner = StatefulRunner(accumulator)
    got = [runner.run({"x": np.ones((1, 1), np.float32)})["total"][0] for _ in range(5)]
    assert got == [1, 2, 3, 4, 5]


def test_rows_that_are_reset_are_put_back_on_the_device(accumulator, copies):
    runner = StatefulRunner(accumulator)
    runner.run({"x": np.ones((3, 2), np.float32)})
    copies.clear()
    runner.reset(rows=[1])
    assert copies == {"download": 1, "upload": 1}
    assert runner.run({"x": np.ones((3, 2), np.float32)})["total"].tolist() == [4, 2, 4]


def test_a_smaller_batch_after_a_reset_finds_nothing_of_the_larger_one(accumulator, on_device):
    runner = StatefulRunner(accumulator)
    for batch in (4, 1, 3):
        runner.run({"x": np.ones((batch, 2), np.float32)})
        runner.run({"x": np.ones((batch, 2), np.float32)})
        assert runner.state["sum"].tolist() == [4.0] * batch
        runner.reset()


@pytest.mark.usefixtures("memory")
def test_steps_go_on_after_one_that_failed_and_was_explained(save_model):
    contract = Contract(
        (Value("x", "float32", ("n",)),),
        (Value("y", "float32", (2,)),),
        (State("h", "h_in", "h_out", "float32", (2,), Initial("zeros", (2,)), "h"),),
    )
    path = save_model(
        """g (float[n] x, float[2] h_in) => (float[n] y, float[2] h_out)
           <int64[1] axis = {0}> { y = Neg(x) s = ReduceSum(x, axis) h_out = Add(h_in, s) }""",
        contract,
    )
    runner = StatefulRunner(path)
    good, bad = np.ones(2, np.float32), np.ones(3, np.float32)
    runner.run({"x": good})
    with pytest.raises(ContractError, match=r"'y' has shape \[3\].* says \[2\]"):
        runner.run({"x": bad})
    for total in (4, 6, 8):
        assert runner.run({"x": good})["y"].tolist() == [-1, -1]
        assert runner.state["h"].tolist() == [total, total]


def test_a_state_that_is_read_on_the_cpu_lies_there_and_is_named(counter, monkeypatch):
    monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], device="cpu"))
    real = Engine._on_device
    monkeypatch.setattr(Engine, "_on_device", lambda *given: real(*given) - {"n_in"})
    runner = StatefulRunner(counter)
    kinds = {name: type(slot.blocks[0]).__name__ for name, slot in runner._buffers._slots.items()}
    assert kinds == {"h": "DeviceBlock", "n": "HostBlock"}
    assert runner.on_host == ("n",)
    got = [runner.run({"x": X})["output"][0, 0] for _ in range(4)]
    assert got == [4, 5, 6, 7]
    assert (runner.state["h"], runner.state["n"]) == (7, 4)


def test_a_state_that_is_written_on_the_cpu_alone_is_named_too(counter, monkeypatch):
    monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], device="cpu"))
    real = Engine._on_device
    monkeypatch.setattr(Engine, "_on_device", lambda *given: real(*given) - {"h_out"})
    assert StatefulRunner(counter).on_host == ("h",)


def test_a_runner_on_a_device_tells_which_provider_runs_what(counter, on_device):
    runner = StatefulRunner(counter)
    assert runner.on_host == ()
    assert runner.nodes == {PROVIDERS["cpu"].ort_name: {"Add": 3}}


def test_the_cpu_has_nothing_to_tell(counter):
    runner = StatefulRunner(counter)
    assert (runner.nodes, runner.on_host) == ({}, ())


def test_a_device_without_room_is_an_error_of_the_target(counter, on_device, monkeypatch):
    runner = StatefulRunner(counter)
    ort_value = runner._engine._ort_value

    def full(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ort_value, "ortvalue_from_shape_and_type", full)
    with pytest.raises(TargetError, match=r"no room for a state of 1 float32 .*: out of memory"):
        runner.run({"x": X})
