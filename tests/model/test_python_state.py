"""Python numbers that change from call to call are states, through either front end."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.python_state import as_tensor, carrying

STEPS = 14
BOTH = ("export", "torchscript")


@pytest.fixture
def follow(tmp_path):
    """Return a function that exports a module and follows it beside eager, free-running."""

    def check(module, frontend, **options):
        module.eval()
        eager = copy.deepcopy(module)
        xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)) for n in range(STEPS)]
        path = tmp_path / "m.onnx"
        contract = sp.export_onnx(module, (xs[0],), path, frontend=frontend, **options)
        runner = sp.StatefulRunner(path)
        for step, x in enumerate(xs):
            with torch.no_grad():
                expected = eager(x).numpy()
            got = runner.run({"x": x.numpy()})["output"]
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, 1e-5, 1e-6, err_msg=f"step {step}")
        return {state.name: state.dtype for state in contract.states}

    return check


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * self.step + 1 / self.step


class Decays(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 1.0

    def forward(self, x):
        self.gain *= 0.9
        return x * self.gain + 0.1 / self.gain


class Ring(nn.Module):
    """A number is an index, to read and to write, and the start of a slice."""

    def __init__(self):
        super().__init__()
        self.at = 0
        self.register_buffer("ring", torch.zeros(5, 3, 4))
        self.register_buffer("table", torch.linspace(-1, 1, 400).reshape(100, 4))

    def forward(self, x):
        self.ring[self.at % 5] = x
        self.at += 3
        return self.ring.sum(0) + self.table[self.at : self.at + 3] + self.ring[self.at % 5]


class Promotes(nn.Module):
    """Numbers promote as numbers: a 0-d float32 tensor times a float stays float32."""

    def __init__(self):
        super().__init__()
        self.n, self.g = 3, 0.5
        self.register_buffer("z", torch.tensor(1.0))

    def forward(self, x):
        whole = torch.arange(4) * self.n // 2 + torch.arange(4) % self.n
        self.n += 1
        self.g = self.g / 2 + 0.1
        self.z = self.z * self.g + self.n
        wide = x.double() * self.g
        return x * self.z + whole + torch.full((4,), self.g) + wide.float() * (whole / self.n)


class RoundsDown(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.low = 0, -7

    def forward(self, x):
        self.n += 1
        self.low = self.low // 2 + self.n % 3 - (-self.n) // 4
        return x * (self.low / self.n)


class BiasCorrected(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = 0
        self.register_buffer("m", torch.zeros(3, 4))

    def forward(self, x):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * x
        return self.m / (1 - 0.9**self.t)


class InContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.hits = [0, 0]
        self.pair = (0, 1)

    def forward(self, x):
        self.hits[0] += 1
        self.hits[1] += 2
        a, b = self.pair
        self.pair = (b, (a + b) % 97)
        return x * self.hits[0] - self.hits[1] + self.pair[0]


@pytest.mark.parametrize("frontend", BOTH)
@pytest.mark.parametrize(
    ("module", "states"),
    [
        (Counts, {"step": "int64"}),
        (Decays, {"gain": "float64"}),
        (Ring, {"ring": "float32", "at": "int64"}),
        (Promotes, {"z": "float32", "n": "int64", "g": "float64"}),
        (RoundsDown, {"n": "int64", "low": "int64"}),
        (BiasCorrected, {"m": "float32", "t": "int64"}),
        (
            InContainers,
            {"hits.0": "int64", "hits.1": "int64", "pair.0": "int64", "pair.1": "int64"},
        ),
    ],
)
def test_a_number_that_changes_is_a_state(module, states, frontend, follow):
    assert follow(module(), frontend) == states


class Holds(nn.Module):
    """Keeps the first chunk, and follows it later."""

    def __init__(self):
        super().__init__()
        self.started = False
        self.register_buffer("h", torch.zeros(3, 4))

    def forward(self, x):
        if not self.started:
            self.h = x.clone()
            self.started = True
        else:
            self.h = 0.9 * self.h + 0.1 * x
        return self.h


class EveryFourth(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.register_buffer("s", torch.zeros(3, 4))

    def forward(self, x):
        self.n += 1
        if self.n % 4 == 0:
            self.s = self.s + x
        return self.s + self.n / 3


class Late(nn.Module):
    """What first changes after the steps that were observed is a state, too."""

    def __init__(self):
        super().__init__()
        self.n, self.mode = 0, 0

    def forward(self, x):
        self.n += 1
        if self.n > 9:
            self.mode = 2
        return x * self.mode + self.n


class Credit(nn.Module):
    def __init__(self):
        super().__init__()
        self.credit, self.sent, self.on = 0.0, 0, True

    def forward(self, x):
        self.credit += 0.7
        self.on = not self.on
        while self.credit >= 1.0:
            self.credit -= 1.0
            self.sent += 1
        if float(x.mean()) > 0.3:
            self.credit = 0.0
        return torch.where(torch.tensor(self.on), x, -x) * self.sent + self.credit


class Clock(nn.Module):
    """What is read before it first changes, long after the calls that were observed."""

    def __init__(self):
        super().__init__()
        self.second, self.minute = 0, 0

    def forward(self, x):
        y = x + self.second + 100 * self.minute
        self.second += 1
        self.minute += self.second // 10
        self.second = self.second % 10
        return y


def test_a_number_that_changes_late_is_no_constant(follow):
    assert follow(Clock(), "auto") == {"second": "int64", "minute": "int64"}
    with pytest.raises(StateError, match="although no call was seen to") as caught:
        follow(Clock(), "export")
    assert caught.value.attribute == "minute"


class Peaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        y = x + self.n
        self.n = self.n + (x > 40).sum().item()
        return y


def test_a_number_that_changes_with_rare_inputs_is_not_frozen(tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(StateError):
        sp.export_onnx(Peaks().eval(), (torch.ones(3, 4),), path, frontend="export")
    assert not path.exists()


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = 15

    def forward(self, x):
        self.left -= 1
        return torch.ones(max(self.left // 7, 1), 4) * 2.0 + x


def test_a_program_that_holds_for_some_numbers_alone_is_refused(tmp_path):
    with pytest.raises(StageError, match="does not run where the module does"):
        sp.export_onnx(Sized().eval(), (torch.ones(2, 4),), tmp_path / "m.onnx", frontend="export")


class Level(nn.Module):
    """An int that becomes a float is a float from the start."""

    def __init__(self):
        super().__init__()
        self.level = 0

    def forward(self, x):
        self.level = self.level * 0.9 + 0.1 * float(x.mean())
        return x - self.level


class Schedule(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = 0
        self.last = [0.0, 0.0, 0.0]

    def forward(self, x):
        gain = math.sin(self.t * 0.1) + max(self.t, 3)
        self.t += 1
        self.last.append(float(x.mean()))
        self.last.pop(0)
        return x * gain + sum(self.last)


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (Holds, {"h": "float32", "started": "bool"}),
        (EveryFourth, {"s": "float32", "n": "int64"}),
        (Late, {"n": "int64", "mode": "int64"}),
        (Credit, {"credit": "float64", "sent": "int64", "on": "bool"}),
        (Level, {"level": "float64"}),
        (
            Schedule,
            {"t": "int64", "last.0": "float64", "last.1": "float64", "last.2": "float64"},
        ),
    ],
)
def test_branches_and_loops_on_numbers_go_through_torchscript(module, states, follow):
    assert follow(module(), "auto") == states


class Helper:
    def __init__(self):
        self.n = 0
        self.total = torch.zeros(3, 4)


@dataclasses.dataclass
class Record:
    peak: float = 0.5


class WithHelper(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = Helper()
        self.record = Record()
        self.named = {"a": 0, "b": 1.5}

    def forward(self, x):
        self.helper.n += 1
        self.helper.total = self.helper.total + x * self.helper.n
        self.record.peak = self.record.peak * 0.5 + x.abs().max().item()
        self.named["a"] += 1
        self.named["b"] *= 0.5
        return self.helper.total * self.record.peak + self.named["a"] - self.named["b"]


def test_numbers_in_objects_and_dicts_are_states(follow):
    assert follow(WithHelper(), "export") == {
        "helper.n": "int64",
        "helper.total": "float32",
        "record.peak": "float64",
        "named.a": "int64",
        "named.b": "float64",
    }


def test_an_initial_number_can_be_declared(follow, tmp_path):
    path = tmp_path / "m.onnx"
    contract = sp.export_onnx(
        Counts().eval(), (torch.ones(3, 4),), path, states={"step": {"init": {"value": 5}}}
    )
    [state] = contract.states
    assert state.shape == ()
    got = sp.StatefulRunner(path).run({"x": np.ones((3, 4), np.float32)})["output"]
    np.testing.assert_allclose(got, np.full((3, 4), 6 + 1 / 6, np.float32))


def test_a_constant_number_stays_a_constant(follow):
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 3
            self.register_buffer("h", torch.zeros(3, 4))

        def forward(self, x):
            self.h = self.h + x * self.scale
            return self.h

    for frontend in BOTH:
        assert follow(Scales(), frontend) == {"h": "float32"}


def test_the_module_keeps_its_number(tmp_path):
    module = Counts().eval()
    sp.export_onnx(module, (torch.ones(3, 4),), tmp_path / "m.onnx")
    assert module.step == 0
    assert type(module.step) is int


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([0, 1], torch.int64),
        ([True, False], torch.bool),
        ([0, 0.5], torch.float64),
        ([False, 2], torch.int64),
        ([0, "a"], None),
        ([1j], None),
        ([2**63], None),
        ([-(2**63)], torch.int64),
    ],
)
def test_numbers_are_carried_in_the_dtype_that_has_them_all(numbers, dtype):
    assert carrying(numbers) == dtype


@pytest.mark.parametrize(
    ("number", "dtype"), [(0.5, torch.int64), (2, torch.bool), ("a", torch.int64)]
)
def test_a_number_that_its_dtype_does_not_have_is_refused(number, dtype):
    with pytest.raises(StateError, match="is carried as"):
        as_tensor(number, dtype, "n")
