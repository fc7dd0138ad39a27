"""What a module creates in its first call is a state with the right value to begin with."""

import copy
from typing import Optional

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError

BATCHES = (3, 2, 5)


@pytest.fixture
def follow(tmp_path):
    """Return a function that exports a module and follows it beside eager at several batches."""

    def check(module, frontend, axes=None):
        module.eval()
        path = tmp_path / "m.onnx"
        contract = sp.export_onnx(
            module, (torch.randn(3, 4),), path, frontend=frontend, dynamic_axes=axes
        )
        runner = sp.StatefulRunner(path)
        for batch in BATCHES if axes else BATCHES[:1]:
            eager = copy.deepcopy(module)
            runner.reset()
            for step in range(6):
                x = torch.randn(batch, 4, generator=torch.Generator().manual_seed(step))
                with torch.no_grad():
                    expected = eager(x).numpy()
                got = runner.run({"x": x.numpy()})["output"]
                np.testing.assert_allclose(got, expected, 1e-4, 1e-5, err_msg=f"step {step}")
        return {state.name: state.shape for state in contract.states}

    return check


class Recurrent(nn.Module):
    h: Optional[torch.Tensor]  # noqa: UP045 - TorchScript reads it

    def __init__(self):
        super().__init__()
        self.h = None
        self.cell = nn.GRUCell(4, 5)

    def forward(self, x):
        h = self.h
        if h is None:
            h = torch.zeros(x.shape[0], 5)
        h = self.cell(x, h)
        self.h = h
        return h


class TupleOfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = None
        self.lstm = nn.LSTM(4, 5)

    def forward(self, x):
        y, self.hidden = self.lstm(x.unsqueeze(0), self.hidden)
        return y


class Peak(nn.Module):
    """The branch that creates the state says what it begins with."""

    def __init__(self):
        super().__init__()
        self.register_buffer("peak", None)

    def forward(self, x):
        if self.peak is None:
            self.peak = torch.full((x.shape[0], 4), -5.0)
        self.peak = torch.maximum(self.peak * 0.9, x)
        return self.peak


class EmptyAtFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(0))
        self.cell = nn.GRUCell(4, 5)

    def forward(self, x):
        if self.h.numel() == 0:
            self.h = torch.zeros(x.shape[0], 5)
        self.h = self.cell(x, self.h)
        return self.h


class Attention(nn.Module):
    """A cache that is None, and then grows."""

    def __init__(self):
        super().__init__()
        self.k = self.v = None
        self.q = nn.Linear(4, 4)

    def forward(self, x):
        k, v = self.q(x).unsqueeze(1), x.unsqueeze(1)
        if self.k is not None:
            k, v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        self.k, self.v = k, v
        return torch.softmax(x.unsqueeze(1) @ k.transpose(1, 2), -1) @ v


class Missing(nn.Module):
    def forward(self, x):
        if not hasattr(self, "h"):
            self.h = torch.zeros(x.shape[0], 4)
        self.h = self.h * 0.5 + x
        return self.h


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
@pytest.mark.parametrize(
    ("module", "states"),
    [
        (Recurrent, {"h": ("batch", 5)}),
        (TupleOfTwo, {"hidden.0": (1, "batch", 5), "hidden.1": (1, "batch", 5)}),
        (Peak, {"peak": ("batch", 4)}),
        (EmptyAtFirst, {"h": ("batch", 5)}),
        (Missing, {"h": ("batch", 4)}),
    ],
)
def test_what_the_first_call_creates_is_a_state(module, states, frontend, follow):
    assert follow(module(), frontend, {"x": {0: "batch"}}) == states


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_a_cache_that_is_none_at_first_grows_from_length_zero(frontend, follow):
    states = follow(Attention(), frontend, {"x": {0: "batch"}})
    assert states.keys() == {"k", "v"}
    assert all((shape[0], shape[2]) == ("batch", 4) for shape in states.values())


class FilledList(nn.Module):
    def __init__(self):
        super().__init__()
        self.delay = []

    def forward(self, x):
        if not self.delay:
            self.delay = [torch.zeros(3, 4) for _ in range(2)]
        out = self.delay.pop(0)
        self.delay.append(x)
        return out


class FilledDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = {}

    def forward(self, x):
        before = self.memory.get("sum")
        self.memory["sum"] = x if before is None else before + x
        return self.memory["sum"]


class Cache:
    pass


class MadeObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = Cache()
            self.cache.h = torch.zeros(3, 4)
            self.cache.n = 0
        self.cache.n += 1
        self.cache.h = self.cache.h * 0.5 + x
        return self.cache.h * self.cache.n


@pytest.mark.parametrize(
    ("module", "states"),
    [
        (FilledList, {"delay.0", "delay.1"}),
        (FilledDict, {"phase", "memory.sum"}),
        (MadeObject, {"cache.h", "cache.n"}),
    ],
)
def test_containers_and_objects_that_the_first_call_fills_hold_states(module, states, follow):
    assert follow(module(), "auto").keys() == states


class Follows(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = None

    def forward(self, x):
        self.mean = x if self.mean is None else 0.9 * self.mean + 0.1 * x  # follows
        return self.mean


class Least(nn.Module):
    def __init__(self):
        super().__init__()
        self.least = None

    def forward(self, x):
        now = x.min()
        self.least = now if self.least is None else torch.minimum(self.least, now)
        return x - self.least


class Since(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        passed = torch.zeros_like(x) if self.last is None else x - self.last
        self.last = x.clone()
        return passed


class AllOf(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        self.mask = x if self.mask is None else self.mask & x
        return self.mask * 1.0


@pytest.mark.parametrize(
    ("module", "example", "first"),
    [
        (Follows, torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])),
        (Since, torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])),
        (Since, torch.tensor([100]), torch.tensor([-7])),
        (Least, torch.tensor([5, 3, 9]), torch.tensor([70, 80, 90])),
        (Least, torch.ones(4), torch.full((4,), 200.0)),
        (AllOf, torch.zeros(3, dtype=torch.bool), torch.tensor([True, False, True])),
        (AllOf, torch.ones(3, dtype=torch.bool), torch.tensor([True, False, True])),
    ],
)
def test_an_example_that_does_not_show_the_dependence_is_seen_through(
    module, example, first, tmp_path
):
    path = tmp_path / "m.onnx"
    contract = sp.export_onnx(module().eval(), (example,), path)
    assert contract.states[0].name == "phase"
    runner, eager = sp.StatefulRunner(path), module()
    for x in (first, first // 2 if first.dtype == torch.int64 else first):
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x).numpy(), 1e-6)


def test_a_list_that_goes_on_growing_is_refused(tmp_path):
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x)
            return torch.stack(self.seen).sum(0)

    with pytest.raises(StateError, match="seen"):
        sp.export_onnx(Grows().eval(), (torch.randn(3, 4),), tmp_path / "m.onnx")


@pytest.mark.parametrize("module", [Recurrent, TupleOfTwo, FilledDict, Missing, Follows])
def test_the_module_is_left_as_it_was_constructed(module, tmp_path):
    made = module().eval()
    before = {k: v for k, v in vars(made).items() if not k.startswith("_")}
    sp.export_onnx(made, (torch.randn(3, 4),), tmp_path / "m.onnx")
    after = {k: v for k, v in vars(made).items() if not k.startswith("_")}
    assert after == before


def test_a_declared_initial_value_has_to_do_what_the_first_call_does(tmp_path):
    x, path = torch.randn(3, 4), tmp_path / "m.onnx"
    sp.export_onnx(Peak().eval(), (x,), path, states={"peak": {"init": {"value": -5.0}}})
    with pytest.raises(StateError, match="no initial value does"):
        sp.export_onnx(Peak().eval(), (x,), path, states={"peak": {"init": {"value": 1.0}}})


class BesideConstant(nn.Module):
    """Holds a tensor that is no dense tensor of numbers, and that ``forward`` leaves alone."""

    def __init__(self, constant):
        super().__init__()
        self.constant, self.h, self.calls = constant, None, 0

    def forward(self, x):
        if self.h is None:
            self.h = torch.zeros_like(x)
        self.h = self.h + x
        self.calls += 1
        return self.h * self.calls


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.ones(3, dtype=torch.complex64),
    ],
    ids=["coo", "meta", "complex"],
)
def test_a_constant_of_any_layout_may_lie_beside_what_the_first_call_creates(make, follow):
    follow(BesideConstant(make()), "auto")
