"""Lists, deques and dicts that change: lengths that stay, that change, that depend on values."""

import collections

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.inputs import Input, InputPlan, Resampled
from stateful_pipeline.model.reference import Reference, StateDef
from stateful_pipeline.model.scripting import script
from stateful_pipeline.model.subject import PositionalCall
from stateful_pipeline.stages.rewrite.torchscript.explicit import make_explicit


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = [torch.zeros(1, 4)] * 4
        self.cooldown = 0

    def forward(self, x: Tensor) -> Tensor:
        self.window.append(torch.softmax(2 * x, dim=-1))
        if len(self.window) > 4:
            self.window.pop(0)
        score = torch.stack(self.window).mean(dim=0)[0, 1]
        fired = bool(score > 0.3) and self.cooldown == 0
        self.cooldown = 5 if fired else max(self.cooldown - 1, 0)
        return torch.tensor([float(fired), float(score)])


def test_a_full_list_takes_an_item_and_lets_the_oldest_go(roll):
    names = [state.name for state in roll(Spotter(), steps=24, shape=(1, 4)).states]
    assert sorted(names) == ["cooldown", *(f"window.{i}" for i in range(4))]


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.register_buffer("sigmas", torch.linspace(3.0, 0.1, 9))
        self.outputs = [torch.zeros(1, 4), torch.zeros(1, 4)]
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        sigma, after = self.sigmas[self.step], self.sigmas[self.step + 1]
        self.outputs[0] = self.outputs[1]
        self.outputs[1] = self.net(x / (1 + sigma**2).sqrt())
        h = torch.log(sigma / after)
        if self.step == 0:
            denoised = self.outputs[1]
        else:
            r = torch.log(self.sigmas[self.step - 1] / sigma) / h
            denoised = (1 + 1 / (2 * r)) * self.outputs[1] - (1 / (2 * r)) * self.outputs[0]
        self.step += 1
        return (after / sigma) * x - torch.expm1(-h) * denoised


def test_a_list_of_two_is_shifted_and_a_counter_is_an_index(roll):
    roll(Sampler(), steps=8, shape=(1, 4))


class Recent(nn.Module):
    def __init__(self, maxlen=3):
        super().__init__()
        self.recent = collections.deque([torch.zeros(2, 3) + i for i in range(3)], maxlen=maxlen)
        self.levels = collections.deque([0.0] * 3, maxlen=3)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        self.levels.append(float(x.mean()))
        if self.n % 2 == 0:
            self.recent.append(x)
        elif self.n % 3 == 0:
            self.recent.appendleft(x)
        else:
            self.recent.rotate(-2)
        middle = sorted(self.levels)[1] + sum(self.levels) / len(self.levels)
        return torch.stack(tuple(self.recent)).mean(0) + self.recent[0] + middle


def test_a_bounded_deque_drops_at_its_other_end(roll):
    roll(Recent(), steps=14)


class InAndOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(torch.zeros(2, 3) + i for i in range(3))
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if self.n % 2 == 0:
            self.recent.append(x)
            y = self.recent.popleft()
        else:
            self.recent.appendleft(x)
            y = self.recent.pop()
        return torch.stack(list(self.recent)).mean(0) + y


def test_a_deque_without_a_bound_takes_and_gives(roll):
    roll(InAndOut(), steps=9)


class CopiedDeque(Recent):
    def forward(self, x: Tensor) -> Tensor:
        copy, plain = self.recent.copy(), list(self.recent)
        copy.append(x)
        plain.append(x)
        self.n += 1
        if self.n % 2:
            self.recent.rotate()
        sizes = len(copy) * 10 + len(plain) + self.recent.maxlen
        return x + sizes + copy[0] + self.recent[0]


def test_a_copy_of_a_deque_has_its_bound_and_a_list_has_none(roll):
    roll(CopiedDeque(), steps=5)


class SometimesLonger(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = [torch.zeros(2, 3)]
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if float(x.sum()) > 100:
            self.recent.append(x)
        return x + self.recent[0]


class UnboundedDeque(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque([0.0])
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if float(x.sum()) > 100:
            self.recent.append(1.0)
        return x + self.recent[0]


class SometimesAnotherKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {"a": torch.zeros(2, 3)}
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if float(x.sum()) > 100:
            self.table["b"] = x
        return x + self.table["a"]


@pytest.mark.parametrize("cls", [SometimesLonger, UnboundedDeque, SometimesAnotherKey])
def test_a_length_that_depends_on_values_is_refused_with_its_line(roll, cls):
    with pytest.raises(Exception) as refused:  # noqa: PT011 - either kind, with a line
        roll(cls())
    assert refused.value.place.line == cls.forward.__code__.co_firstlineno + 3


class Filling(nn.Module):
    """Fills a list and a dict, and creates an attribute, in its first call."""

    def __init__(self):
        super().__init__()
        self.recent = []
        self.table = {}
        self.last = None
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.recent.append(x)
        if self.last is None:
            self.last = x * 2
        if not hasattr(self, "level"):
            self.level = x.mean(0)
        self.table["a"] = x + 1
        self.n += 1
        if float(x.sum()) > 0:
            self.last = self.last - 1
        self.level = self.level + x[0]
        return torch.stack(self.recent).sum(0) + self.last + self.level


def state(name: str, initial: Tensor, *, number: bool = False) -> StateDef:
    return StateDef(name, (name,), tuple(initial.shape), initial, kind="attribute", number=number)


COUNT = state("n", torch.tensor(0), number=True)
CREATED = [
    state("recent.0", torch.zeros(2, 3)),
    state("table.a", torch.zeros(2, 3)),
    state("last", torch.zeros(2, 3)),
    state("level", torch.zeros(3)),
]


class OneCall(Reference):
    """A module of which one call is captured, whatever it holds after it."""

    def pick(self, before: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(before)


def explicit(module: nn.Module, before: list[StateDef], later: list[StateDef]):
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    plan = InputPlan([Input("x", x.dtype, (2, 3), Resampled(x))])
    reference = OneCall(module.eval(), before, PositionalCall(("x",), {}))
    return make_explicit(script(reference, plan, {}), reference, plan, {}, later)


def test_a_call_may_leave_more_than_it_found():
    made = explicit(Filling(), [COUNT], [COUNT, *CREATED])
    assert made.program.states == ("n",)
    assert made.program.states_after == ("n", *(s.name for s in CREATED))
    assert made.held == {
        "n": "int",
        "recent.0": "Tensor",
        "table.a": "Tensor",
        "last": "Tensor",
        "level": "Tensor",
    }
    module = Filling().eval()
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        outputs, after = made.program.run({"n": torch.tensor(0)}, {"x": x})
        fresh = Filling().eval()
        np.testing.assert_array_equal(outputs["output"], fresh(x))
        assert int(after["n"]) == 1
        for name, held in {
            "recent.0": fresh.recent[0],
            "table.a": fresh.table["a"],
            "last": fresh.last,
            "level": fresh.level,
        }.items():
            np.testing.assert_array_equal(after[name], held)
    assert not hasattr(module, "level")
    assert module.last is None


def test_what_was_not_declared_for_after_the_call_is_refused():
    with pytest.raises(StateError) as refused:
        explicit(Filling(), [COUNT], [COUNT, *CREATED[1:]])
    assert refused.value.attribute == "recent"
    assert refused.value.place.line == Filling.forward.__code__.co_firstlineno + 1


def test_what_was_declared_for_after_the_call_has_to_be_there():
    more = [COUNT, *CREATED, state("recent.1", torch.zeros(2, 3))]
    with pytest.raises(StateError) as refused:
        explicit(Filling(), [COUNT], more)
    assert refused.value.attribute == "recent.1"


class Draining(nn.Module):
    def __init__(self):
        super().__init__()
        self.recent = [torch.ones(2, 3), torch.zeros(2, 3)]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.recent.pop(0)


def test_a_call_may_leave_less_than_it_found():
    before = [state(f"recent.{i}", torch.ones(2, 3)) for i in range(2)]
    made = explicit(Draining(), before, before[:1])
    given = {"recent.0": torch.full((2, 3), 3.0), "recent.1": torch.full((2, 3), 5.0)}
    outputs, after = made.program.run(given, {"x": torch.ones(2, 3)})
    np.testing.assert_array_equal(outputs["output"], np.full((2, 3), 4.0))
    assert list(after) == ["recent.0"]
    np.testing.assert_array_equal(after["recent.0"], given["recent.1"])


def test_what_should_be_gone_after_the_call_is_refused_if_it_is_there():
    before = [state(f"recent.{i}", torch.ones(2, 3)) for i in range(2)]
    with pytest.raises(StateError, match=r"still there|length or keys"):
        explicit(Draining(), before, [])


class NoneElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.level = None
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if not hasattr(self, "level"):
            self.level = x
        return x + self.level if hasattr(self.inner, "level") else x


def test_an_attribute_that_is_none_is_not_one_that_is_missing():
    with pytest.raises(StageError, match="level"):
        explicit(NoneElsewhere(), [COUNT], [COUNT, state("level", torch.zeros(2, 3))])


class DefaultOfTheClass(nn.Module):
    count = 3

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count if hasattr(self, "count") else x


def test_an_attribute_that_hides_a_default_of_the_class_begins_with_it():
    made = explicit(DefaultOfTheClass(), [], [state("count", torch.tensor(0), number=True)])
    outputs, after = made.program.run({}, {"x": torch.ones(2, 3)})
    np.testing.assert_array_equal(outputs["output"], np.full((2, 3), 4.0))
    assert int(after["count"]) == 4
