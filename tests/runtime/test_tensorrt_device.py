"""What the runner of engines does with a device: seen on a stand-in that counts, and can fail."""

import gc
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, TargetError
from stateful_pipeline.runtime import cuda_device, tensorrt_runner
from stateful_pipeline.runtime.tensorrt_runner import TensorRtRunner
from stateful_pipeline.runtime.tensorrt_sidecar import EnginePlugin, read_sidecar, sidecar_path


def load(name):
    """Load a file beside this one, once: test modules cannot import each other."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fake_device = load("fake_device")
_, fake_tensorrt, engines = load("fake_context"), load("fake_tensorrt"), load("engines")

AXES = (Axis("batch", 1, 2, 4), Axis("time", 1, 4, 8), Axis("past", 0, 16, 512, grows=True))
BOTH = Contract(
    inputs=(Value("x", "float32", ("batch", "time", 4)),),
    outputs=(Value("y", "float32", ("batch", 4)),),
    states=(
        State(
            "k", "k_in", "k_out", "float32", ("batch", "past", 4), Initial("zeros", (1, 0, 4)),
            "k", out_shape=("batch", "past + time", 4),
        ),
        State("h", "h_in", "h_out", "float32", ("batch", 4), Initial("zeros", (1, 4)), "h"),
    ),
    axes=AXES,
)  # fmt: skip
GRAPH = """g (float[batch,time,4] x, float[batch,past,4] k_in, float[batch,4] h_in)
    => (float[batch,4] y, float[batch,all,4] k_out, float[batch,4] h_out)
  <int64[1] axis = {1}> {
    k_out = Concat<axis=1>(k_in, x)
    total = ReduceSum<keepdims=0>(k_out, axis)
    h_out = Add(total, h_in)
    y = Neg(h_out)
  }"""


@pytest.fixture
def device(monkeypatch):
    """A device; at the end nothing may be left on it, and no rule broken."""
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.library())
    device = fake_device.FakeDevice()
    yield device
    gc.collect()
    assert device.broken == []
    assert not +device.live()


@pytest.fixture
def build(save_model, tmp_path):
    """Return a function that builds an engine; ``described`` replaces what its description says."""

    def make(text=GRAPH, contract=BOTH, profiles=None, opset=20, described=None, **facts):
        model = save_model(text, contract, opset=opset)
        path = engines.build_fake(model, contract, tmp_path, profiles, **facts)
        sidecar = replace(read_sidecar(path), **(described or {}))
        sidecar_path(path).write_text(sidecar.to_json())
        return path

    return make


def chunk(time, batch=2):
    return {"x": np.ones((batch, time, 4), np.float32)}


def test_between_steps_no_state_is_copied_between_host_and_device(device, build):
    runner = TensorRtRunner(build(), device=device)
    runner.run(chunk(4))
    device.copies.clear()
    for _ in range(50):
        runner.run(chunk(1))
    assert [copy.to_device for copy in device.copies] == [True, False] * 50
    assert {copy.size for copy in device.copies} == {2 * 4 * 4}
    device.copies.clear()
    assert runner.state["k"].shape == (2, 54, 4)
    assert sorted(copy.size for copy in device.copies) == [2 * 4 * 4, 2 * 54 * 4 * 4]
    device.copies.clear()
    runner.load_state(runner.state)
    runner.run(chunk(1))
    states = [copy for copy in device.copies if copy.to_device]
    assert sorted(copy.size for copy in states) == [2 * 4 * 4, 2 * 4 * 4, 2 * 54 * 4 * 4]


def test_a_runner_leaves_nothing_under_way(device, build):
    runner = TensorRtRunner(build(profiles={"a": {}, "b": {}}), device=device)
    uses = (
        lambda: runner.run(chunk(2)), lambda: runner.state, lambda: runner.load_state(runner.state),
        lambda: runner.run(chunk(2)), lambda: runner.reset({"h": 1.0}),
    )  # fmt: skip
    assert not list(device.work())
    for use in uses:
        use()
        assert not list(device.work())


def test_a_state_that_grows_is_given_new_memory_a_few_times_only(device, build, monkeypatch):
    runner = TensorRtRunner(build(), device=device)
    sizes = []
    allocate = device.allocate
    monkeypatch.setattr(device, "allocate", lambda size: (sizes.append(size), allocate(size))[1])
    for _ in range(400):
        runner.run(chunk(1))
    assert runner.state["k"].shape == (2, 400, 4)
    assert len(sizes) < 30


def test_once_everything_has_its_place_nothing_is_allocated(device, build, monkeypatch):
    contract = Contract(BOTH.inputs, BOTH.outputs, BOTH.states[1:], AXES[:2])
    text = """g (float[batch,time,4] x, float[batch,4] h_in)
        => (float[batch,4] y, float[batch,4] h_out)
      <int64[1] axis = {1}> {
        total = ReduceSum<keepdims=0>(x, axis) h_out = Add(total, h_in) y = Neg(h_out) }"""
    runner = TensorRtRunner(build(text, contract), device=device)
    for _ in range(2):
        runner.run(chunk(8))
    for name in ("allocate", "allocate_host", "free", "free_host"):
        monkeypatch.setattr(device, name, None)
    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.IExecutionContext, "set_output_allocator", None)
        for time in (8, 1, 3):
            assert runner.run(chunk(time))["y"].shape == (2, 4)
        runner.reset()
        runner.run(chunk(2))
    monkeypatch.undo()


RING = Contract(
    inputs=(Value("x", "float32", (1, 1, 1, 4)), Value("at", "int64", (1,))),
    outputs=(Value("y", "float32", (1, 1, 4)),),
    states=(
        State("k", "k_in", "k_out", "float32", (1, 1, 8, 4), Initial("zeros", (1, 1, 8, 4)), "k"),
    ),
)
SCATTERS = """g (float[1,1,1,4] x, int64[1] at, float[1,1,8,4] k_in)
    => (float[1,1,4] y, float[1,1,8,4] k_out) <int64[1] axis = {2}> {
      k_out = TensorScatter<axis=2>(k_in, x, at) y = ReduceSum<keepdims=0>(k_out, axis) }"""


def row(at):
    return {"x": np.full((1, 1, 1, 4), at + 1, np.float32), "at": np.array([at])}


def test_a_step_that_breaks_off_on_the_device_leaves_the_old_state(device, build):
    runner = TensorRtRunner(build(SCATTERS, RING, opset=24), device=device)
    runner.run(row(0))
    before = runner.state["k"]
    device.fail_next_step()
    with pytest.raises(TargetError, match="illegal memory access"):
        runner.run(row(1))
    np.testing.assert_array_equal(runner.state["k"], before)
    assert runner.run(row(1))["y"][0, 0].tolist() == [3.0] * 4


def test_a_step_that_breaks_off_in_place_on_the_device_is_not_glossed_over(device, build):
    path = build(SCATTERS, RING, opset=24, aliases={"k_out": "k_in"})
    runner = TensorRtRunner(path, device=device)
    runner.run(row(0))
    good = runner.state
    device.fail_next_step()
    with pytest.raises(TargetError, match="illegal memory access"):
        runner.run(row(1))
    with pytest.raises(ContractError, match="k in place: the state is not known"):
        runner.run(row(1))
    runner.load_state(good)
    assert runner.run(row(1))["y"][0, 0].tolist() == [3.0] * 4


def test_a_state_in_place_has_one_buffer_and_another_has_two(device, build):
    used = {}
    for name, aliases in (("two", {}), ("one", {"k_out": "k_in"})):
        runner = TensorRtRunner(build(SCATTERS, RING, opset=24, aliases=aliases), device=device)
        for at in range(3):
            runner.run(row(at))
        used[name] = device.live()["device"]
        runner.close()
    assert used["two"] == used["one"] + 1


def until_full(step):
    """Take steps until the device is full; return how many there were before."""
    done = 0
    with pytest.raises(TargetError, match="out of memory"):  # noqa: PT012
        for done in range(60):  # noqa: B007 - the last one counts
            step()
    return done


def test_where_the_device_is_full_the_state_stays(build, monkeypatch, device):
    runner = TensorRtRunner(build(), device=device)
    runner.run(chunk(8))
    monkeypatch.setattr(device, "_free", 0)
    steps = until_full(lambda: runner.run(chunk(8)))
    assert (runner.state["k"] == np.ones((2, 8 * (steps + 1), 4))).all()
    monkeypatch.setattr(device, "_free", 1 << 30)
    assert runner.run(chunk(8))["y"].shape == (2, 4)


def test_where_the_device_is_full_in_the_middle_of_a_step_the_state_stays(
    build, device, monkeypatch
):
    contract = Contract(
        (Value("x", "float32", ("time",)),),
        (),
        (State("k", "k_in", "k_out", "float32", ("past",), Initial("zeros", (0,)), "k", ("u0",)),),
        AXES[1:],
    )
    text = """g (float[time] x, float[past] k_in) => (float[all] k_out)
        { k_out = Concat<axis=0>(k_in, x) }"""
    runner = TensorRtRunner(build(text, contract, late=["k_out"]), device=device)
    x = np.ones(8, np.float32)
    for _ in range(8):
        runner.run({"x": x})
    monkeypatch.setattr(device, "_free", 0)
    count = 64 + 8 * until_full(lambda: runner.run({"x": x}))
    monkeypatch.setattr(device, "_free", 1 << 30)
    runner.run({"x": x})
    assert runner.state["k"].tolist() == [1.0] * (count + 8)


def test_two_runners_do_not_touch_each_others_state(device, build):
    path = build()
    first, second = (TensorRtRunner(path, device=device) for _ in range(2))
    alone = TensorRtRunner(path, device=device)
    for time in (3, 1, 1):
        wanted = alone.run(chunk(time))["y"]
        np.testing.assert_array_equal(first.run(chunk(time))["y"], wanted)
        second.run(chunk(time + 1))


@pytest.mark.parametrize(
    ("described", "error", "message"),
    [
        ({"sha256": "0" * 64}, ContractError, "not the one that model.engine.json describes"),
        ({"version": "10.9.0"}, TargetError, "built by version 10.9.0, and this is 11.1.0"),
        ({"compute_capabilities": ("9.0", "12.0")}, TargetError, "9.0, 12.0, this one has 8.9"),
        ({"host": "windows_amd64"}, TargetError, "was built on windows_amd64"),
        ({"plugins": (EnginePlugin("Leaky", "1", "acme"),)}, TargetError, "acme::Leaky, version 1"),
        ({"profiles": ()}, ContractError, "has 1 profiles, its description 0"),
        (
            {"contract": replace(BOTH, outputs=(Value("z", "float32", ("batch", 4)),))},
            ContractError,
            "names graph output 'z', which the engine lacks",
        ),
        (
            {"contract": replace(BOTH, outputs=(Value("y", "float16", ("batch", 4)),))},
            ContractError,
            "'y' is FLOAT in the engine, the contract says float16",
        ),
        ({"contract": replace(BOTH, outputs=())}, ContractError, "'y' of the engine is not in"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused_before_a_step(
    device, build, described, error, message
):
    path = build(described=described)
    with pytest.raises(error, match=message.replace(".", r"\.")):
        TensorRtRunner(path, device=device)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"aliases": {"h_out": "k_in"}}, "'h_out' must share the memory of input 'k_in'"),
        ({"aliases": {"k_out": "k_in"}}, "does not make them one state of fixed shape"),
        ({"aliases": {"y": "h_in"}}, "'y' must share the memory of input 'h_in'"),
        ({"vectorized": ["x"]}, "graph input 'x' has a vectorized format"),
    ],
)
def test_an_engine_whose_memory_is_laid_out_otherwise_is_refused(device, build, facts, message):
    with pytest.raises(ContractError, match=message):
        TensorRtRunner(build(**facts), device=device)


def test_a_plugin_that_is_registered_is_found(device, build):
    registry = sys.modules["tensorrt"].get_plugin_registry()
    registry.creators["Leaky", "1", "acme"] = object()
    path = build(described={"plugins": (EnginePlugin("Leaky", "1", "acme"),)})
    TensorRtRunner(path, device=device).run(chunk(1))


def test_an_engine_made_for_later_versions_says_so_and_is_loaded(device, build, monkeypatch):
    path = build(described={"version": "11.0.3", "version_compatible": True})
    runner = TensorRtRunner(path, device=device)
    assert runner.run(chunk(1))["y"].shape == (2, 4)
    for version in ("12.0.0", "11.0.2"):
        monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.library(version=version))
        with pytest.raises(TargetError, match=f"this is {version}"):
            TensorRtRunner(path, device=device)


def test_an_engine_that_the_library_refuses_is_refused_with_its_reason(device, build):
    path = build()
    path.write_bytes(path.read_bytes()[:-9])
    sidecar = replace(read_sidecar(path), sha256=engines.engine_sha256(path))
    sidecar_path(path).write_text(sidecar.to_json())
    with pytest.raises(ContractError, match="cannot load the engine: the engine ends too early"):
        TensorRtRunner(path, device=device)


def test_a_library_without_aliases_runs_as_well(device, build, monkeypatch):
    monkeypatch.delattr(fake_tensorrt.ICudaEngine, "get_aliased_input_tensor")
    assert TensorRtRunner(build(), device=device).run(chunk(1))["y"].shape == (2, 4)


def test_what_the_library_cannot_infer_is_told_with_its_reason(device, build, monkeypatch):
    runner = TensorRtRunner(build(), device=device)
    runner.run(chunk(2))
    before = runner.state["h"]

    def fails(self):
        self.engine.logger.log(self.engine.error_level, "a dimension\nis negative")
        raise RuntimeError("shape inference failed")

    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.IExecutionContext, "infer_shapes", fails)
        with pytest.raises(ContractError, match="inference failed; a dimension is negative"):
            runner.run(chunk(1))
    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.IExecutionContext, "execute_async_v3", lambda *_: False)
        with pytest.raises(ContractError, match="could not run the step: no reason"):
            runner.run(chunk(1))
    np.testing.assert_array_equal(runner.state["h"], before)


def test_without_a_gpu_the_library_is_not_touched(build, monkeypatch):
    path = build()
    monkeypatch.setitem(sys.modules, "tensorrt", None)

    def none(number):
        raise TargetError(f"no CUDA device: {number}")

    monkeypatch.setattr(tensorrt_runner, "CudaDevice", none)
    with pytest.raises(TargetError, match="no CUDA device: 3"):
        TensorRtRunner(path, gpu=3)


def test_a_library_that_is_not_installed_says_which_extra_to_install(device, build, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    path = build(library="tensorrt_rtx")
    with pytest.raises(TargetError, match="tensorrt_rtx cannot be imported") as caught:
        TensorRtRunner(path, device=device)
    assert "stateful-pipeline[tensorrt-rtx]" in caught.value.hint


def test_a_description_that_is_missing_broken_or_newer_is_named(device, build):
    path = build()
    text = sidecar_path(path).read_text()
    for wrong, message in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": 1}', "not the description of an engine: library is missing"),
        (text.replace('"schema": 1,\n  "sha256"', '"schema": 2,\n  "sha256"'), "has schema 2"),
        (text.replace('"tensorrt"', '"tensor"'), 'library is "tensor", and should be one of'),
        (json.dumps({**json.loads(text), "sha256": 5}), "sha256 is 5, and should be a text"),
        (json.dumps({**json.loads(text), "version_compatible": "yes"}), 'compatible is "yes"'),
        (json.dumps({**json.loads(text), "compute_capabilities": "8.9"}), "should be a list"),
        (
            json.dumps({**json.loads(text), "profiles": [{"name": "a", "ranges": {"x": [1]}}]}),
            "profiles.0.ranges.x is a list of 1, and should be a list, each of it a list",
        ),
        (json.dumps({**json.loads(text), "contract": {}}), "not a state contract"),
        (json.dumps({**json.loads(text), "more": 1}), "more"),
    ):
        sidecar_path(path).write_text(wrong)
        with pytest.raises(ContractError, match=message) as caught:
            TensorRtRunner(path, device=device)
        assert caught.value.file == str(sidecar_path(path))
    sidecar_path(path).unlink()
    with pytest.raises(ContractError, match=r"no description beside it \(model\.engine\.json\)"):
        TensorRtRunner(path, device=device)
    path.unlink()
    with pytest.raises(ContractError, match="there is no such engine file"):
        TensorRtRunner(path, device=device)


def test_a_description_comes_back_from_its_json_as_it_was(build):
    declared = {"a": {"time": (1, 2, 4)}, "b": {"past": (0, 0, 8)}}
    more = {
        "plugins": (EnginePlugin("Leaky", "1", "acme"),), "precision": "fp16",
        "version_compatible": True, "compute_capabilities": (),
    }  # fmt: skip
    sidecar = replace(read_sidecar(build(profiles=declared)), **more)
    again = type(sidecar).from_json(sidecar.to_json())
    assert again == sidecar
    assert [profile.name for profile in again.profiles] == ["a", "b"]
    assert again.profiles[1].ranges["k_in"] == ((1, 0, 4), (2, 0, 4), (4, 8, 4))


def test_the_modules_that_run_engines_import_neither_library():
    code = "import stateful_pipeline.runtime.tensorrt_runner, sys; print(*sys.modules)"
    loaded = load_in_another_process(code)
    assert not {"tensorrt", "tensorrt_rtx", "cuda", "torch", "onnx", "pydantic"} & loaded


def load_in_another_process(code):
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_device_has_all_that_the_protocol_asks_for():
    asked = {name for name in vars(cuda_device.Device) if not name.startswith("_")}
    assert len(asked) == 11
    for kind in (cuda_device.CudaDevice, fake_device.FakeDevice):
        assert asked - {"capability"} <= vars(kind).keys()
