"""Modules that hold other things in their first calls than later are right from the first call."""

import collections
import copy
import dataclasses

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import ContractError, PipelineError, StateError

STEPS = 11


@pytest.fixture
def follow(tmp_path):
    """Return a function that exports a module and follows it beside eager, twice from its start."""

    def check(module, shape=(3,), axes=None, sizes=(2, 4), frontend="auto", steps=STEPS):
        module.eval()
        path = tmp_path / "m.onnx"
        contract = sp.export_onnx(
            module, (torch.randn(shape),), path, dynamic_axes=axes, frontend=frontend
        )
        runner = sp.StatefulRunner(path)
        for size in sizes:
            eager = copy.deepcopy(module)
            runner.reset()
            for step in range(steps):
                given = (size, *shape[1:]) if axes else shape
                x = 2 * torch.randn(given, generator=torch.Generator().manual_seed(step))
                with torch.no_grad():
                    expected = eager(x.clone()).numpy()
                got = runner.run({"x": x.numpy()})["output"]
                assert got.dtype == expected.dtype
                np.testing.assert_allclose(got, expected, 1e-5, 1e-6, err_msg=f"step {step}")
        return {state.name: state.shape for state in contract.states}

    return check


class FirstSample(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        if self.last is None:
            self.last = x
        self.last = self.last + (x - self.last).clamp(-0.2, 0.2)
        return self.last


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=4)

    def forward(self, x):
        self.recent.append(2 * x)
        return torch.stack(list(self.recent)).mean(0)


class OneAfterTheOther(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = None
        self.second = None

    def forward(self, x):
        if self.first is None:
            self.first = x.clone()
            return x
        if self.second is None:
            self.second = self.first + x
            return self.second
        self.second = 0.5 * self.second + self.first + x
        return self.second.clone()


class WithFlags(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None
        self.started = False
        self.mode = "cold"

    def forward(self, x):
        if not self.started:
            self.h, self.started, self.mode = 2 * x, True, "warm"
        self.h = 0.5 * self.h + x
        return self.h if self.mode == "warm" else x


class Calibrated(nn.Module):
    """Another tensor, there from the start, is set in the first call alone."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        if self.h is None:
            self.h, self.scale = x, x.abs() + 1
        self.h = 0.5 * self.h + x
        return self.h / self.scale


class Range(nn.Module):
    """Two states begin as one tensor and part."""

    def __init__(self):
        super().__init__()
        self.low = None
        self.high = None

    def forward(self, x):
        if self.low is None:
            self.low = self.high = x
        self.low, self.high = torch.minimum(self.low, x), torch.maximum(self.high, x)
        return self.high - self.low


class OneTensor(nn.Module):
    """Two names of one tensor, which is written to in place."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.same = None

    def forward(self, x):
        if self.h is None:
            self.h = self.same = x.clone()
            return x
        self.h.mul_(0.5).add_(x)
        return self.h + 2 * self.same


class RememberedTwice(nn.Module):
    """What a list holds last, an attribute holds too."""

    def __init__(self):
        super().__init__()
        self.last = None
        self.recent = collections.deque(maxlen=3)

    def forward(self, x):
        if self.last is None:
            self.last = x
        self.last = self.last + (x - self.last).clamp(-0.2, 0.2)
        self.recent.append(self.last)
        return sum(self.recent) / len(self.recent)


@dataclasses.dataclass
class Memory:
    h: torch.Tensor | None = None
    c: torch.Tensor | None = None


class InAnObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        memory = self.memory
        if memory.h is None:
            memory.h, memory.c = self.linear(x), x.cumsum(0)
        memory.h, memory.c = torch.tanh(self.linear(memory.h) + memory.c), memory.c + x
        return memory.h


class EmptyAtFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.empty(0))

    def forward(self, x):
        if self.h.numel() == 0:
            self.h = 3 * x
        self.h = 0.5 * self.h + x
        return self.h


class MissingAtFirst(nn.Module):
    def forward(self, x):
        if not hasattr(self, "h"):
            self.h = 3 * x
        self.h = 0.5 * self.h + x
        return self.h


class NoneInABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", None)

    def forward(self, x):
        self.peak = x if self.peak is None else torch.maximum(0.9 * self.peak, x)
        return self.peak


class Narrows(nn.Module):
    """The first call leaves another dtype than the constructor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.full((3,), 0.3))

    def forward(self, x):
        self.h = (0.7 * self.h + x).half()
        return self.h.float()


class FirstGain(nn.Module):
    """A Python number that the first call computes from its input."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.gain = None

    def forward(self, x):
        if self.h is None:
            self.h, self.gain = x, x.abs().sum().item()
        self.h = 0.5 * self.h + x
        return self.h * self.gain


class FirstNumber(nn.Module):
    """A Python number that is None at first, and asked for that."""

    def __init__(self):
        super().__init__()
        self.scale = None
        self.count = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x.abs().sum().item()
        self.count = 3 if self.count is None else self.count + 1
        return x * self.scale + self.count


class Sets(nn.Module):
    """The first call sets more than it creates, which shows late."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.limit = 0
        self.mode = "a"
        self.n = 0
        self.register_buffer("w", torch.zeros(3))

    def forward(self, x):
        if self.h is None:
            self.h = torch.zeros_like(x)
            self.limit, self.mode = 7, "b"
            self.w.fill_(3)
        self.n += 1
        self.h = 0.5 * self.h + x
        late = self.n // 9
        return self.h + late * (self.limit + self.w + (1 if self.mode == "a" else 5))


class Observed(nn.Module):
    """A hook that encloses the module fills a dict."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.ranges = {}

        def observe(module, arguments, output):
            low = self.ranges.get("low", output)
            self.ranges["low"] = torch.minimum(low, output)

        self.body.register_forward_hook(observe)

    def forward(self, x):
        return self.body(x) - self.ranges["low"]


class Multistep(nn.Module):
    """The order of a method rises with what is remembered, and a Python number counts steps."""

    def __init__(self):
        super().__init__()
        self.slopes = [None, None]
        self.step = 0
        self.register_buffer("rates", torch.linspace(1.0, 0.1, 40))

    def forward(self, x):
        self.slopes[0] = self.slopes[1]
        self.slopes[1] = x * self.rates[self.step]
        begins = self.step == 0
        self.step += 1
        return self.slopes[1] if begins else 1.5 * self.slopes[1] - 0.5 * self.slopes[0]


class SetLate(nn.Module):
    """A tensor that is there from the start changes in the sixth call alone."""

    def __init__(self):
        super().__init__()
        self.recent = []
        self.offset = torch.zeros(3)

    def forward(self, x):
        if len(self.recent) == 5:
            self.offset += x
        self.recent = [*self.recent, x][-6:]
        return sum(self.recent) + self.offset


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (FirstSample, {"last"}),
        (SetLate, {"offset", *(f"recent.{i}" for i in range(6))}),
        (Averaged, {f"recent.{i}" for i in range(4)}),
        (OneAfterTheOther, {"first", "second"}),
        (WithFlags, {"h"}),
        (Calibrated, {"h", "scale"}),
        (Range, {"low", "high"}),
        (OneTensor, {"h"}),
        (RememberedTwice, {"last", "recent.0", "recent.1"}),
        (InAnObject, {"memory.h", "memory.c"}),
        (EmptyAtFirst, {"h"}),
        (MissingAtFirst, {"h"}),
        (NoneInABuffer, {"peak"}),
        (FirstGain, {"h", "gain"}),
        (Narrows, {"h"}),
        (FirstNumber, {"scale", "count"}),
        (Sets, {"h", "n", "w"}),
        (Multistep, {"slopes.0", "slopes.1", "step"}),
    ],
)
def test_what_begins_with_an_input_is_right_from_the_first_call(module, states, follow) -> None:
    torch.manual_seed(0)
    assert follow(module()).keys() == {"phase", *states}


class Gated(nn.Module):
    """A branch on a value beside a state that begins with an input: TorchScript in all phases."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.register_buffer("loud", torch.zeros(()))

    def forward(self, x):
        if self.h is None:
            self.h = x
        if x.sum() > 0:
            self.loud = self.loud + 1
        self.h = 0.5 * self.h + x
        return self.h * self.loud


class Spotter(nn.Module):
    """A list that fills up, and a Python number that branches change."""

    def __init__(self):
        super().__init__()
        self.window = []
        self.cooldown = 0

    def forward(self, x):
        self.window.append(torch.softmax(x, 0))
        if len(self.window) > 3:
            self.window.pop(0)
        score = torch.stack(self.window).mean(0)[0]
        fired = bool(score > 0.4) and self.cooldown == 0
        self.cooldown = 3 if fired else max(self.cooldown - 1, 0)
        return torch.tensor([float(fired), float(score)])


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (Gated, {"h", "loud"}),
        (Spotter, {"window.0", "window.1", "window.2", "cooldown"}),
        (Multistep, {"slopes.0", "slopes.1", "step"}),
    ],
)
@pytest.mark.parametrize("frontend", ["auto", "torchscript"])
def test_phases_with_branches_on_values_go_through_torchscript(
    module, states, frontend, follow
) -> None:
    assert follow(module(), frontend=frontend).keys() == {"phase", *states}


def test_what_branches_leave_in_a_first_call_has_to_be_one_thing(tmp_path) -> None:
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = None

        def forward(self, x):
            if self.h is None and bool(x.sum() > -100):
                self.h = x
            return x if self.h is None else self.h + x

    with pytest.raises(PipelineError, match="h"):
        sp.export_onnx(
            Either().eval(), (torch.randn(3),), tmp_path / "m.onnx", frontend="torchscript"
        )
    assert list(tmp_path.iterdir()) == []


def test_what_a_hook_fills_is_right_from_the_first_call(tmp_path) -> None:
    torch.manual_seed(0)
    module, eager = Observed().eval(), Observed().eval()
    eager.load_state_dict(module.state_dict())
    path = tmp_path / "m.onnx"
    sp.export_onnx(module, (torch.randn(3),), path)
    assert module.ranges == {}
    runner = sp.StatefulRunner(path)
    for step in range(STEPS):
        x = torch.randn(3, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            expected = eager(x).numpy()
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], expected, 1e-5, 1e-6)


def test_such_a_state_follows_a_dynamic_axis(follow) -> None:
    shapes = follow(FirstSample(), (1, 3), {"x": {0: "batch"}})
    assert shapes == {"phase": (), "last": ("batch", 3)}


def test_single_rows_cannot_begin_anew_where_all_share_a_phase(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    axes = {"x": {0: "batch"}}
    sp.export_onnx(FirstSample().eval(), (torch.randn(2, 3),), path, dynamic_axes=axes)
    runner = sp.StatefulRunner(path)
    runner.run({"x": np.ones((2, 3), np.float32)})
    with pytest.raises(ContractError, match="'phase' says for all rows"):
        runner.reset(rows=[1], shared="keep")


def test_initial_values_come_with_the_phase_that_reads_them(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    sp.export_onnx(FirstSample().eval(), (torch.randn(2),), path)
    with pytest.raises(ContractError, match="without 'phase'"):
        sp.StatefulRunner(path, init={"last": 7.0})
    runner = sp.StatefulRunner(path, init={"last": 7.0, "phase": 1})
    got = runner.run({"x": np.zeros(2, np.float32)})["output"]
    np.testing.assert_allclose(got, [6.8, 6.8], 1e-6)


class Rare(nn.Module):
    """What the first call creates depends on values that are rare."""

    def __init__(self):
        super().__init__()
        self.language = None

    def forward(self, x):
        if self.language is None:
            self.language = (x[:1] == 0.123).float()
        self.language = self.language * 1.0
        return x + self.language


class RareSize(nn.Module):
    """What the first call creates depends on a size that is rare."""

    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        if self.h is None:
            self.h = torch.full((1, 3), float(max(x.shape[0] - 50, 0)))
        self.h = 0.5 * self.h + x.sum(0, keepdim=True)
        return x + self.h


class MadeZeros(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.h = None

    def forward(self, x):
        if self.h is None:
            self.h = (x.new_zeros(x.shape[0], 4), torch.zeros(x.shape[0], 4))
        self.h = self.cell(x, self.h)
        return self.h[0]


def test_a_first_value_that_no_trial_shows_to_depend_on_inputs_is_right(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    sp.export_onnx(Rare().eval(), (torch.randn(3),), path)
    runner, eager = sp.StatefulRunner(path), Rare()
    for x in (torch.tensor([0.123, 1.0, 2.0]), torch.ones(3)):
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x).numpy())


def test_a_first_value_that_depends_on_a_rare_size_is_right(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    sp.export_onnx(RareSize().eval(), (torch.randn(4, 3),), path, dynamic_axes={"x": {0: "t"}})
    for first in (4, 80):
        runner, eager = sp.StatefulRunner(path), RareSize()
        for x in (torch.randn(first, 3), torch.randn(2, 3)):
            got = runner.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(got, eager(x).numpy(), 1e-4, 1e-5)


class NumberBeside(nn.Module):
    """The first call creates a constant number, and gives something else for rare inputs."""

    def __init__(self):
        super().__init__()
        self.calls = None

    def forward(self, x):
        if self.calls is None:
            self.calls = 1
            return x + torch.relu(x - 1e6)
        self.calls += 1
        return x


class WithinACondition(nn.Module):
    """The first call takes another graph within the graph than later calls."""

    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        first = self.h is None
        if first:
            self.h = torch.zeros(3)
        shown = (lambda v: v + torch.relu(v - 1e6)) if first else (lambda v: v * 1)
        y = torch.cond(x.sum() > -1e9, shown, lambda v: v - 1, (x,))
        self.h = 0.5 * self.h + x
        return y + self.h


class ResetsANumber(nn.Module):
    """A number that the first call sets to a constant, beside a branch on values."""

    def __init__(self):
        super().__init__()
        self.h = None
        self.n = 5

    def forward(self, x):
        if self.h is None:
            self.h, self.n = x, 0
        if x.sum() > 0:
            self.n += 1
        self.h = 0.5 * self.h + x
        return self.h * self.n


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (NumberBeside, ["phase", "calls"]),
        (WithinACondition, ["phase", "h"]),
        (ResetsANumber, ["phase", "h", "n"]),
    ],
)
def test_what_the_first_call_does_beside_is_right_for_rare_inputs(module, states, tmp_path) -> None:
    path = tmp_path / "m.onnx"
    contract = sp.export_onnx(module().eval(), (torch.randn(3),), path)
    assert [state.name for state in contract.states] == states
    runner, eager = sp.StatefulRunner(path), module()
    for x in (torch.tensor([3e6, 1.0, -2.0]), torch.ones(3), -torch.ones(3)):
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x).numpy(), 1e-6)


def test_a_number_that_is_proven_constant_needs_no_phases(follow) -> None:
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = None
            self.h = None

        def forward(self, x):
            if self.n is None:
                self.n, self.h = 0, torch.zeros(3)
            self.n += 1
            self.h = 0.5 * self.h + x
            return self.h * self.n

    assert follow(Counted()).keys() == {"n", "h"}


def test_a_first_value_that_is_proven_constant_needs_no_phases(follow) -> None:
    torch.manual_seed(0)
    shapes = follow(MadeZeros(), (2, 3), {"x": {0: "batch"}})
    assert shapes == {"h.0": ("batch", 4), "h.1": ("batch", 4)}


def test_an_example_that_does_not_show_the_dependence_does_no_harm(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    sp.export_onnx(FirstSample().eval(), (torch.zeros(3),), path)
    runner = sp.StatefulRunner(path)
    x = np.array([5.0, -7.0, 0.0], dtype=np.float32)
    np.testing.assert_array_equal(runner.run({"x": x})["output"], x)
    np.testing.assert_allclose(runner.run({"x": -x})["output"], [4.8, -6.8, 0.0], 1e-6)


def test_weights_are_stored_once_for_all_phases(tmp_path) -> None:
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.recent = []

        def forward(self, x):
            self.recent = [*self.recent, self.linear(x)][-3:]
            return sum(self.recent)

    path = tmp_path / "m.onnx"
    sp.export_onnx(Filled().eval(), (torch.randn(64),), path)
    weights = [w for w in onnx.load(path).graph.initializer if np.prod(w.dims) == 64 * 64]
    assert len(weights) == 1


def test_the_phase_is_named_apart_from_what_the_module_holds(follow) -> None:
    class Phased(FirstSample):
        def __init__(self):
            super().__init__()
            self.register_buffer("phase", torch.zeros(3))

        def forward(self, x):
            self.phase = self.phase + 1
            return super().forward(x) * self.phase

    assert follow(Phased()).keys() == {"phase_2", "phase", "last"}


class ByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        if self.h is None and x.sum() > 0:
            self.h = x  # by value
        return x if self.h is None else self.h + x


class BySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        if self.h is None and x.shape[0] > 1:
            self.h = x.sum(0)  # by size
        return x if self.h is None else self.h + x


class GoesRound(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = []

    def forward(self, x):
        self.recent.append(x)
        total = torch.stack(self.recent).sum(0)
        if len(self.recent) == 3:
            self.recent = []
        return total


class NeverSettles(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=100)

    def forward(self, x):
        self.recent.append(x)
        return torch.stack(list(self.recent)).sum(0)


class Passing(nn.Module):
    def __init__(self):
        super().__init__()
        self.boot = None
        self.h = None

    def forward(self, x):
        if self.h is not None:
            self.h = 0.5 * self.h + x
        elif self.boot is None:
            self.boot = x  # passes
            return x
        else:
            self.h, self.boot = self.boot + x, None
        return self.h


def test_what_is_there_in_one_of_the_first_calls_alone_is_refused(tmp_path) -> None:
    with pytest.raises(StateError, match="another kind of thing in call 2") as caught:
        sp.export_onnx(Passing().eval(), (torch.randn(3),), tmp_path / "m.onnx")
    assert (caught.value.attribute, caught.value.file) == ("boot", __file__)


class AnotherForm(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        first, self.h = self.h is None, x
        return x.sum() if first else x


@pytest.mark.parametrize(
    ("module", "attribute", "hint"),
    [
        (ByValue, "h", "try: "),
        (BySize, "h", "constructor"),
        (GoesRound, "recent.0", "after 3 calls the module holds what it held before"),
        (NeverSettles, "recent.0", "after 17 calls what the module holds still changes"),
    ],
)
def test_what_settles_by_chance_or_never_is_refused(module, attribute, hint, tmp_path) -> None:
    axes = {"x": {0: "batch"}}
    with pytest.raises(PipelineError) as caught:
        sp.export_onnx(module().eval(), (torch.randn(1, 3),), tmp_path / "m", dynamic_axes=axes)
    assert caught.value.file == __file__
    assert getattr(caught.value, "attribute", attribute) == attribute
    assert hint in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_another_form_of_output_in_the_first_call_is_refused(tmp_path) -> None:
    with pytest.raises(PipelineError, match=r"call 1 returns output \(float32, 0-d\)"):
        sp.export_onnx(AnotherForm().eval(), (torch.randn(3),), tmp_path / "m", frontend="export")


def test_a_declared_initial_value_is_not_overruled_by_phases(tmp_path) -> None:
    with pytest.raises(StateError, match="no initial value does"):
        sp.export_onnx(
            FirstSample().eval(),
            (torch.randn(3),),
            tmp_path / "m.onnx",
            states={"last": {"init": "zeros"}},
        )


@pytest.mark.parametrize("module", [FirstSample, Averaged, InAnObject, MissingAtFirst, Multistep])
def test_the_module_is_left_as_it_was_constructed(module, tmp_path) -> None:
    made = module().eval()
    before = copy.deepcopy({k: v for k, v in vars(made).items() if not k.startswith("_")})
    sp.export_onnx(made, (torch.randn(3),), tmp_path / "m.onnx")
    after = {k: v for k, v in vars(made).items() if not k.startswith("_")}
    assert after == before
