"""The stand-in for TensorRT enforces its rules: each is broken here on purpose, and is told.

What the runner is then held against (``test_tensorrt_runner.py``) is worth something.
"""

import gc
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import TargetError


def load(name):
    """Load a file beside this one, once: test modules cannot import each other."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fake_device = load("fake_device")
_, fake_tensorrt, engines = load("fake_context"), load("fake_tensorrt"), load("engines")
BrokenRule = fake_device.BrokenRule

SUM = Contract(
    inputs=(Value("x", "float32", ("batch", 64)),),
    outputs=(Value("y", "float32", ("batch", 64)),),
    states=(State("s", "s_in", "s_out", "float32", ("batch", 64), Initial("zeros", (1, 64)), "s"),),
    axes=(Axis("batch", 1, 2, 8),),
)
SUMS = """g (float[batch,64] x, float[batch,64] s_in) => (float[batch,64] y, float[batch,64] s_out)
    { s_out = Add(x, s_in) y = Neg(s_out) }"""
NAMES = ("x", "s_in", "y", "s_out")
BYTES = 2 * 64 * 4


@pytest.fixture
def device():
    """A device, which is the current one."""
    device = fake_device.FakeDevice()
    with device.current():
        yield device


@pytest.fixture
def engine(device, save_model, tmp_path):
    """Return a function that builds and loads an engine; it keeps what must outlive the engine."""
    kept = []

    def make(profiles=None, library=None, **facts):
        path = engines.build_fake(save_model(SUMS, SUM), SUM, tmp_path, profiles, **facts)
        logger = fake_tensorrt.ILogger()
        logger.log = lambda severity, text: kept.append(text)
        runtime = (library or fake_tensorrt.library()).Runtime(logger)
        loaded = runtime.deserialize_cuda_engine(path.read_bytes())
        kept.extend((runtime, loaded))
        return loaded

    make.kept = kept
    return make


class Ready:
    """A context whose next step is all set: shapes, memory and a stream."""

    def __init__(self, device, engine, profile=0):
        self.device = device
        self.stream = device.open_stream()
        self.context = engine.create_execution_context()
        self.context.set_optimization_profile_async(profile, self.stream)
        device.synchronize(self.stream)
        self.memory = {name: device.allocate(BYTES) for name in NAMES}
        for name in ("x", "s_in"):
            self.context.set_input_shape(name, (2, 64))
            device.upload(self.memory[name], np.ones((2, 64), np.float32), self.stream)
        for name, address in self.memory.items():
            self.context.set_tensor_address(name, address)
        device.synchronize(self.stream)

    def enqueue(self):
        return self.context.execute_async_v3(self.stream)

    def read(self, name):
        return self.device.look(self.memory[name], BYTES).view(np.float32)


@pytest.fixture
def ready(device, engine):
    return Ready(device, engine())


def test_a_step_that_breaks_no_rule_gives_its_result(ready, device):
    assert ready.enqueue()
    device.synchronize(ready.stream)
    assert ready.read("s_out").tolist() == [2.0] * 128
    assert ready.read("y").tolist() == [-2.0] * 128
    assert device.broken == []


@pytest.mark.parametrize("name", NAMES)
def test_every_address_is_set_before_a_step(ready, name):
    ready.context.set_tensor_address(name, 0)
    with pytest.raises(BrokenRule, match=f"'{name}' has n"):
        ready.enqueue()


def test_every_input_shape_is_set_before_a_step(device, engine, ready):
    ready.context.set_optimization_profile_async(0, ready.stream)
    device.synchronize(ready.stream)
    ready.context.set_input_shape("x", (2, 64))
    assert ready.context.infer_shapes() == ["s_in"]
    with pytest.raises(BrokenRule, match="'s_in' has no shape"):
        ready.enqueue()


@pytest.mark.parametrize("shape", [(0, 64), (9, 64)])
def test_input_shapes_lie_within_the_profile(ready, shape):
    with pytest.raises(BrokenRule, match="outside profile 0"):
        ready.context.set_input_shape("x", shape)


@pytest.mark.parametrize("shape", [(2, 63), (2,), (2, 64, 1)])
def test_input_shapes_agree_with_the_network(ready, shape):
    with pytest.raises(BrokenRule, match="in the network"):
        ready.context.set_input_shape("x", shape)


def test_addresses_are_aligned_to_256_bytes(ready):
    with pytest.raises(BrokenRule, match="is not aligned"):
        ready.context.set_tensor_address("x", ready.memory["x"] + 128)


@pytest.mark.parametrize("name", NAMES)
def test_memory_has_room_for_the_tensor(ready, device, name):
    ready.context.set_tensor_address(name, device.allocate(BYTES - 256))
    with pytest.raises(BrokenRule, match="512 bytes are used, and there is room for 256"):
        ready.enqueue()


@pytest.mark.parametrize("name", NAMES)
def test_freed_memory_is_not_used(ready, device, name):
    device.free(ready.memory[name])
    with pytest.raises(BrokenRule, match="freed memory is not used again"):
        ready.enqueue()


def test_memory_of_the_host_is_not_memory_of_the_device(ready, device):
    ready.context.set_tensor_address("x", device.allocate_host(BYTES).ctypes.data)
    with pytest.raises(BrokenRule, match="is not memory of the device"):
        ready.enqueue()


def test_what_shapes_depend_on_lies_on_the_host(device, engine):
    ready = Ready(device, engine(on_host=["x"]))
    with pytest.raises(BrokenRule, match="is not memory of the host"):
        ready.enqueue()


def test_numbers_that_are_no_address_are_told(ready):
    ready.context.set_tensor_address("x", 1 << 20)
    with pytest.raises(BrokenRule, match="is an address of no memory"):
        ready.enqueue()


@pytest.mark.parametrize("other", ["s_in", "x", "y"])
def test_an_output_shares_no_memory_unless_the_engine_says_so(ready, other):
    ready.context.set_tensor_address("s_out", ready.memory[other])
    with pytest.raises(BrokenRule, match="lies over"):
        ready.enqueue()


def test_an_output_that_the_engine_aliases_shares_the_memory_of_its_input(device, engine):
    ready = Ready(device, engine(aliases={"s_out": "s_in"}))
    with pytest.raises(BrokenRule, match="'s_out' must share the memory of 's_in'"):
        ready.enqueue()
    ready.context.set_tensor_address("s_out", ready.memory["s_in"])
    ready.enqueue()
    device.synchronize(ready.stream)
    assert ready.read("s_in").tolist() == [2.0] * 128


def test_a_state_is_not_read_while_it_is_written(ready, device):
    ready.enqueue()
    with pytest.raises(BrokenRule, match="is not read while a stream writes it"):
        ready.read("s_out")
    device.synchronize(ready.stream)
    assert ready.read("s_out").any()


def test_a_copy_to_the_host_is_garbage_until_the_stream_is_synchronized(ready, device):
    array = np.zeros((2, 64), np.float32)
    ready.enqueue()
    device.download(array, ready.memory["s_out"], ready.stream)
    assert not (array == 2).any()
    device.synchronize(ready.stream)
    assert (array == 2).all()


def test_another_stream_does_not_touch_what_a_step_writes(ready, device):
    ready.enqueue()
    other = device.open_stream()
    with pytest.raises(BrokenRule, match="not used by another before it is synchronized"):
        device.download(np.zeros((2, 64), np.float32), ready.memory["s_out"], other)
    with pytest.raises(BrokenRule, match="not used by another before it is synchronized"):
        device.upload(ready.memory["x"], np.zeros((2, 64), np.float32), other)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_not_freed_while_a_step_uses_it(ready, device, name):
    ready.enqueue()
    with pytest.raises(BrokenRule, match="is not released while a stream uses it"):
        device.free(ready.memory[name])
    device.synchronize(ready.stream)
    device.free(ready.memory[name])


def test_memory_of_the_host_stays_as_it_is_until_it_is_copied(ready, device):
    staged = device.allocate_host(BYTES)
    device.upload(ready.memory["x"], staged, ready.stream)
    with pytest.raises(BrokenRule, match="is not released while a stream uses it"):
        device.free_host(staged)
    staged[0] = 1
    with pytest.raises(BrokenRule, match="stays as it is until the stream has copied it"):
        device.synchronize(ready.stream)


def test_a_context_runs_on_one_stream_at_a_time(ready, device):
    ready.enqueue()
    with pytest.raises(BrokenRule, match="a context runs on two streams"):
        ready.context.execute_async_v3(device.open_stream())


def test_two_contexts_do_not_run_in_one_profile(device, engine):
    declared = {"small": {"batch": (1, 2, 4)}, "large": {"batch": (2, 4, 8)}}
    loaded = engine(declared)
    first, second, third = (Ready(device, loaded, profile) for profile in (0, 0, 1))
    first.enqueue()
    with pytest.raises(BrokenRule, match="two contexts run in profile 0"):
        second.enqueue()
    assert third.enqueue()


def test_the_switch_of_a_profile_is_awaited(ready, device):
    other = device.open_stream()
    ready.context.set_optimization_profile_async(0, other)
    for name in ("x", "s_in"):
        ready.context.set_input_shape(name, (2, 64))
    with pytest.raises(BrokenRule, match="the switch of the profile was not awaited"):
        ready.enqueue()
    device.synchronize(other)
    assert ready.enqueue()


def test_a_profile_is_not_switched_while_the_context_runs(ready):
    ready.enqueue()
    with pytest.raises(BrokenRule, match="while the context runs"):
        ready.context.set_optimization_profile_async(0, ready.stream)


def test_a_step_is_not_put_on_the_default_stream(ready):
    with pytest.raises(BrokenRule, match="on the default stream"):
        ready.context.execute_async_v3(0)


def test_a_stream_that_was_given_back_is_no_stream(ready, device):
    ready.enqueue()
    with pytest.raises(BrokenRule, match="destroyed when its work is done"):
        device.close_stream(ready.stream)
    device.synchronize(ready.stream)
    device.close_stream(ready.stream)
    with pytest.raises(BrokenRule, match="is no stream"):
        ready.enqueue()


def test_the_base_classes_that_applications_derive_from_are_initialized(device, ready):
    class Logger(fake_tensorrt.ILogger):
        def __init__(self):
            pass

    class Allocator(fake_tensorrt.library().IOutputAllocator):
        def __init__(self):
            pass

    with pytest.raises(BrokenRule, match=r"ILogger\.__init__"):
        fake_tensorrt.library().Runtime(Logger())
    with pytest.raises(BrokenRule, match=r"IOutputAllocator\.__init__"):
        ready.context.set_output_allocator("y", Allocator())


def test_a_runtime_outlives_its_engine(device, engine):
    loaded = engine()
    engine.kept.clear()
    assert device.broken == ["a runtime was destroyed before its engine"]
    del loaded


def test_an_engine_outlives_its_contexts(device, engine):
    context = engine().create_execution_context()
    runtime = engine.kept[0]
    engine.kept.clear()
    gc.collect()
    assert device.broken == ["an engine was destroyed before its contexts"]
    del context, runtime


def test_a_context_outlives_its_steps(ready, device):
    ready.enqueue()
    ready.context = None
    assert device.broken == ["a context was destroyed while it ran"]


def test_an_engine_of_another_version_or_half_an_engine_is_not_loaded(engine):
    assert engine(library=fake_tensorrt.library(version="11.2.0")) is None
    assert engine.kept[0] == "version mismatch: 11.1.0 and 11.2.0"
    logger = fake_tensorrt.ILogger()
    said = []
    logger.log = lambda severity, text: said.append(text)
    runtime = fake_tensorrt.library().Runtime(logger)
    whole = fake_tensorrt.serialize(Path(__file__), "11.1.0", [])
    assert runtime.deserialize_cuda_engine(whole[:-9]) is None
    assert runtime.deserialize_cuda_engine(b"another file") is None
    assert said == [
        "the engine ends too early", "the engine does not conform to the expected format",
    ]  # fmt: skip


def test_without_a_device_nothing_is_loaded_allocated_or_run():
    device = fake_device.FakeDevice()
    for use in (
        lambda: device.allocate(1), lambda: device.allocate_host(1), device.open_stream,
    ):  # fmt: skip
        with pytest.raises(BrokenRule, match="of the current device"):
            use()
    with pytest.raises(RuntimeError, match="the process would end here"):
        fake_tensorrt.library().Runtime(fake_tensorrt.ILogger())


def test_memory_has_an_end(device):
    with pytest.raises(TargetError, match="out of memory"):
        device.allocate(1 << 31)


def test_memory_is_freed_where_it_begins_and_as_what_it_is(device):
    address, host = device.allocate(1024), device.allocate_host(1024)
    for wrong in (
        lambda: device.free(address + 256),
        lambda: device.free(host.ctypes.data),
        lambda: device.free_host(host[256:]),
    ):
        with pytest.raises(BrokenRule, match="at its first address"):
            wrong()
    device.free(address)
    with pytest.raises(BrokenRule, match="freed memory is not used again"):
        device.free(address)


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt_rtx"])
def test_the_stand_in_has_no_name_that_the_library_lacks(name):
    real = pytest.importorskip(name, reason=f"{name} is not installed")
    fake = fake_tensorrt.library()
    for part in (
        "ILogger", "IOutputAllocator", "Runtime", "ICudaEngine", "IExecutionContext",
        "TensorIOMode", "TensorLocation", "DataType", "ExecutionContextAllocationStrategy",
    ):  # fmt: skip
        for member in vars(getattr(fake, part)):
            if not member.startswith("_"):
                assert member in CALLED_BACK | OWN or hasattr(getattr(real, part), member), member
    for function in ("get_plugin_registry", "init_libnvinfer_plugins"):
        assert callable(getattr(real, function))
    assert callable(real.IPluginRegistry.get_creator)


CALLED_BACK = {"reallocate_output", "reallocate_output_async", "notify_shape"}
OWN = {"version", "numpy_type", "bound"}  # what the stand-in has for itself
