"""ScriptModules are looked into, driven and put back as modules written in Python are."""

import contextlib
import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.discover import Discovery, discover
from stateful_pipeline.model.holders import leaves, read, write
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.scripted import (
    CONSTANT,
    class_name,
    is_scripted,
    methods,
    scripted_sources,
    signature,
)
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.subject import KeywordCall, PositionalCall


def script(module: nn.Module) -> nn.Module:
    with quiet_scripting():
        return torch.jit.script(module.eval())


def loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    with quiet_scripting():
        torch.jit.save(torch.jit.script(module.eval()), file)
        file.seek(0)
        return torch.jit.load(file)


FORMS = pytest.mark.parametrize("form", [script, loaded])


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.register_buffer("h", torch.zeros(1, 1, 3))
        self.register_buffer("c", torch.zeros(1, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (self.h, self.c) = self.lstm(x.unsqueeze(1), (self.h, self.c))
        return y


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.full((1, 3), 3.0))
        self.register_buffer("counter", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter += 1
        self.h = self.h * 0.5 + x
        return self.h + self.counter


class Nested(nn.Module):
    """The same cell in a list, and another one deeper down."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Counter(), Counter()])
        self.deep = nn.Sequential(nn.Linear(3, 3), Counter())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            x = cell(x)
        return self.deep(x)


class Attributes(nn.Module):
    """Tensors that are no buffers: one of its own, and in containers of all kinds."""

    items: list[torch.Tensor]
    table: dict[str, torch.Tensor]
    numbered: dict[int, torch.Tensor]
    pair: tuple[torch.Tensor, int]
    rows: list[list[torch.Tensor]]
    maybe: list[torch.Tensor] | None

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.zeros(1, 3)
        self.items = [torch.zeros(1, 3), torch.ones(1, 3)]
        self.table = {"a": torch.zeros(1, 3), "b.c": torch.ones(1, 3)}
        self.numbered = {1: torch.zeros(1, 3)}
        self.pair = (torch.zeros(1, 3), 2)
        self.rows = [[torch.zeros(1, 3)], [torch.ones(1, 3)]]
        self.maybe = [torch.zeros(1, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.plain = self.plain + x
        self.items[0] = self.items[0] * 0.5 + x
        self.items[1].add_(1.0)
        self.table["b.c"] = self.table["b.c"] * x
        self.numbered[1] = self.numbered[1] + x
        self.pair = (self.pair[0] + x, self.pair[1])
        self.rows[1][0] = self.rows[1][0] * 0.5 + x
        maybe = self.maybe
        if maybe is not None:
            maybe[0] = maybe[0] - x
            x = x + maybe[0]
        return (
            x
            + self.plain
            + self.items[0] * self.items[1]
            + self.table["b.c"]
            + self.numbered[1]
            + self.pair[0]
            + self.rows[1][0]
        )


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(()))
        self.register_buffer("opened", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > self.level:
            self.level = x.sum()
            self.opened += 1
        else:
            self.level = self.level * 0.5
        return x * self.level + self.opened


STATES = {
    Lstm: {"h", "c"},
    Counter: {"h", "counter"},
    Nested: {
        f"{path}.{name}" for path in ("cells.0", "cells.1", "deep.1") for name in ("h", "counter")
    },
    Attributes: {
        "plain",
        "items.0",
        "items.1",
        "table.b.c",
        "numbered.1",
        "pair.0",
        "rows.1.0",
        "maybe.0",
    },
    Branch: {"level", "opened"},
}
EVERY_MODEL = pytest.mark.parametrize("model", list(STATES))
AXES = (Axis("batch", min=1, opt=2, max=4),)


def find(module: nn.Module, shape: tuple = ("batch", 3), axes: tuple = AXES) -> Discovery:
    plan = InputPlan([Input("x", torch.float32, shape, Uniform())])
    return discover(module, KeywordCall({}), plan, axes, {})


def steps(count: int, rows: int = 2) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [{"x": torch.randn(rows, 3)} for _ in range(count)]


@FORMS
@EVERY_MODEL
def test_the_states_are_those_of_the_module_that_it_was_made_from(model, form) -> None:
    torch.manual_seed(0)
    module = model().eval()
    scripted = form(module)
    assert is_scripted(scripted)
    expected = {state.name: state for state in find(module).reference.states}
    found = {state.name: state for state in find(scripted).reference.states}
    assert set(found) == set(expected) == STATES[model]
    for name, state in found.items():
        assert torch.equal(state.initial, expected[name].initial)
        assert state.shape == expected[name].shape


@FORMS
@EVERY_MODEL
def test_a_rollout_equals_that_of_the_module_that_it_was_made_from(model, form) -> None:
    torch.manual_seed(0)
    module = model().eval()
    scripted = form(module)
    given = steps(6)
    theirs = list(find(module).reference.rollout({"batch": 2}, given, reset_every=4))
    ours = list(find(scripted).reference.rollout({"batch": 2}, given, reset_every=4))
    for expected, step in zip(theirs, ours, strict=True):
        assert step.outputs.keys() == expected.outputs.keys()
        for name, value in {**step.outputs, **step.after}.items():
            torch.testing.assert_close(value, {**expected.outputs, **expected.after}[name])


def picture(module: nn.Module) -> dict[str, object]:
    """Return the tensors of ``module``, which ones they are and what is in them; and the rest."""
    return {
        leaf.path: (id(leaf.value), leaf.value.tolist())
        if isinstance(leaf.value, torch.Tensor)
        else repr(leaf.value)
        for leaf in leaves(module)
    }


class Stops(nn.Module):
    """Does what its model does, and raises at the call that it is told."""

    def __init__(self, model: nn.Module, last: int) -> None:
        super().__init__()
        self.model = model
        self.last = last
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.model(x)
        self.calls += 1
        assert int(self.calls) <= self.last, "stop here"  # here it stops
        return y


@FORMS
@pytest.mark.parametrize("last", [100, 2])
@EVERY_MODEL
def test_a_snapshot_puts_everything_back_after_success_and_failure(model, last, form) -> None:
    module = form(Stops(model(), last))
    before = picture(module)
    stops = pytest.raises(torch.jit.Error, match="stop here")
    with stops if last < 100 else contextlib.nullcontext(), Snapshot(module):
        module(torch.ones(1, 3))
        assert picture(module) != before
        for _ in range(3):
            module(torch.ones(1, 3))
    assert picture(module) == before


@FORMS
@EVERY_MODEL
def test_observing_leaves_the_module_as_it_was(model, form) -> None:
    torch.manual_seed(0)
    module = model().eval()
    scripted = form(copy.deepcopy(module))
    before = picture(scripted)
    find(scripted)
    assert picture(scripted) == before
    x = torch.ones(1, 3)
    torch.testing.assert_close(scripted(x), module(x))


@FORMS
def test_what_is_written_is_read_back_and_nothing_else_moves(form) -> None:
    for path in STATES[Attributes]:
        module = form(Attributes())
        others = {leaf.path: leaf.value for leaf in leaves(module) if leaf.path != path}
        value = torch.full((1, 3), 5.0)
        write(module, path, value)
        assert read(module, path) is value
        tensors = {n: v for n, v in others.items() if isinstance(v, torch.Tensor)}
        assert all(read(module, name) is held for name, held in tensors.items())


class Shares(nn.Module):
    """Lets an attribute be the very list that another one is, or that is inside another one."""

    items: list[torch.Tensor]
    same: list[torch.Tensor]
    rows: list[list[torch.Tensor]]

    def __init__(self) -> None:
        super().__init__()
        self.items = [torch.zeros(1)]
        self.same = [torch.zeros(1)]
        self.rows = [[torch.zeros(1)]]

    @torch.jit.export
    def share(self) -> None:
        self.same = self.items
        self.rows[0] = self.items

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.items[0] = self.items[0] + x
        self.items.append(x)
        return self.same[0] + self.rows[0][0]


def test_two_attributes_that_are_one_list_stay_one_list() -> None:
    module = script(Shares())
    module.share()
    with Snapshot(module):
        module(torch.ones(1))
        assert len(module.same) == 2
    assert len(module.same) == len(module.items) == len(module.rows[0]) == 1
    write(module, "rows.0.0", torch.full((1,), 7.0))
    assert module.items[0].item() == module.same[0].item() == 7.0
    assert module(torch.ones(1)).item() == 16.0


def test_a_list_that_forward_replaces_is_put_back_as_the_one_that_it_was() -> None:
    module = script(Shares())
    with Snapshot(module):
        module.share()
        module(torch.ones(1))
    module(torch.ones(1))
    assert (len(module.items), len(module.same), len(module.rows[0])) == (2, 1, 1)


class Changes(nn.Module):
    """Changes what cannot be a state, as it is told."""

    flags: list[int]
    grows: list[torch.Tensor]
    keys: dict[str, torch.Tensor]
    maybe: torch.Tensor | None
    fixed: tuple[torch.Tensor, list[torch.Tensor]]

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.calls = 0
        self.rate = 0.5
        self.seen = False
        self.name = "a"
        self.flags = [1]
        self.grows = [torch.zeros(1)]
        self.keys = {"a": torch.zeros(1)}
        self.maybe = None
        self.fixed = (torch.zeros(1), [torch.zeros(1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.rate
        if self.what == "calls":
            self.calls += 1  # calls
        if self.what == "rate":
            self.rate = self.rate * 0.5  # rate
        if self.what == "seen":
            self.seen = True  # seen
        if self.what == "name":
            self.name = self.name + "b"  # name
        if self.what == "flags.0":
            self.flags[0] = self.flags[0] + 1  # flags.0
        if self.what == "grows":
            self.grows.append(x)  # grows
        if self.what == "keys":
            self.keys[str(len(self.keys))] = x  # keys
        if self.what == "maybe":
            self.maybe = x  # maybe
        if self.what == "fixed.0":
            self.fixed = (x, self.fixed[1])  # fixed.0
        return y


def line_of(comment: str) -> int:
    with Path(__file__).open() as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {comment}"))


@FORMS
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("name", "a str that changes"),
        ("grows", "appears during a call"),
        ("keys", "appears during a call"),
        ("fixed.0", "a tuple with a list or a dict in it"),
    ],
)
def test_what_changes_and_cannot_be_a_state_is_refused_with_its_line(what, said, form) -> None:
    with pytest.raises(StateError, match=said) as caught:
        find(form(Changes(what)), (2, 3), ())
    assert (caught.value.attribute or "").startswith(what)
    assert (caught.value.file, caught.value.line) == (__file__, line_of(what))


@FORMS
@pytest.mark.parametrize(
    ("what", "dtype"),
    [
        ("calls", torch.int64),
        ("rate", torch.float64),
        ("seen", torch.bool),
        ("flags.0", torch.int64),
        ("maybe", torch.float32),
    ],
)
def test_numbers_and_what_the_first_call_creates_are_states(what, dtype, form) -> None:
    [state] = find(form(Changes(what)), (2, 3), ()).reference.states
    assert state.name == what
    assert state.initial.dtype == dtype


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return x + self.total


def test_a_tensor_that_tracing_put_into_the_code_is_seen_and_put_back() -> None:
    with quiet_scripting():
        traced = torch.jit.trace(Adds(), (torch.ones(2, 3),), check_trace=False)
    before = traced(torch.zeros(2, 3))
    with pytest.raises(StateError, match=f"held in a {CONSTANT}"):
        find(traced, (2, 3), ())
    with Snapshot(traced):
        traced(torch.ones(2, 3))
    assert torch.equal(traced(torch.zeros(2, 3)), before)


def test_what_a_traced_module_still_changes_is_its_state() -> None:
    """Tracing drops reassignments; the traced module is what it is."""
    with quiet_scripting():
        traced = torch.jit.trace(Counter(), (torch.ones(1, 3),), check_trace=False)
    assert {state.name for state in find(traced).reference.states} == {"counter"}


def test_a_frozen_module_has_its_states() -> None:
    with quiet_scripting():
        scripted = torch.jit.script(Nested().eval())  # a frozen one that raises refers to it
        frozen = torch.jit.freeze(scripted)
    before = picture(frozen)
    assert {state.name for state in find(frozen).reference.states} == STATES[Nested]
    assert picture(frozen) == before


CALLS = 0


@torch.jit.ignore
def tick(x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return x


class CallsPython(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tick(x)


def test_the_python_functions_that_it_calls_are_looked_at_too() -> None:
    with pytest.raises(StateError, match="global variable") as caught:
        find(script(CallsPython()), (2, 3), ())
    assert "CALLS" in (caught.value.attribute or "")


class Wraps(nn.Module):
    """A module in Python with a ScriptModule in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = script(Nested())
        self.register_buffer("last", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x + self.last)
        self.last = y
        return y


def test_a_script_module_inside_has_its_states_seen_and_put_back() -> None:
    module = Wraps()
    before = picture(module)
    names = {state.name for state in find(module).reference.states}
    assert names == {"last", *(f"inner.{name}" for name in STATES[Nested])}
    assert picture(module) == before


class Store:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class HoldsObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with quiet_scripting():
            torch.jit.script(Store)
        self.store = Store(torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.store.value = self.store.value + x
        return self.store.value


def test_an_object_of_a_torchscript_class_is_refused() -> None:
    module = script(HoldsObject())
    with pytest.raises(StateError, match="cannot be seen from Python") as caught:
        find(module)
    assert caught.value.attribute == "store"


class Layers(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@FORMS
@pytest.mark.parametrize(
    ("layer", "said"),
    [(nn.BatchNorm1d(3), "BatchNorm1d is in training"), (nn.Dropout(0.5), "elements at random")],
)
def test_layers_in_training_mode_are_refused(layer, said, form) -> None:
    module = form(Layers(layer))
    find(module)
    module.train()
    with pytest.raises(StateError, match=said) as caught:
        find(module)
    assert caught.value.attribute == "layers.1"


@FORMS
def test_a_module_that_raises_is_named_with_its_line(form) -> None:
    with pytest.raises(StageError, match="stop here") as caught:
        find(form(Stops(Counter(), 1)))
    assert (caught.value.file, caught.value.line) == (__file__, line_of("here it stops"))


@FORMS
def test_a_deep_copy_in_float64_shares_nothing(form) -> None:
    module = form(Attributes())
    before = picture(module)
    wide = copy.deepcopy(module).double()
    for leaf in list(leaves(wide)):
        if isinstance(leaf.value, torch.Tensor):
            write(wide, leaf.path, leaf.value.double())
    wide(torch.ones(1, 3, dtype=torch.float64))
    assert read(wide, "rows.1.0").dtype == torch.float64
    assert picture(module) == before


class Signs(nn.Module):
    def forward(self, x: torch.Tensor, gain: float = 2.0) -> torch.Tensor:
        return x * gain

    @torch.jit.export
    def reset_states(self) -> None:
        pass


@FORMS
def test_parameters_have_the_names_and_defaults_of_the_class(form) -> None:
    module = form(Signs())
    assert str(signature(module)) == "(x, gain=2.0)"
    assert signature(Signs()).parameters.keys() == signature(module).parameters.keys()
    assert methods(module) == ["forward", "reset_states"]
    assert class_name(module) == "Signs"
    with pytest.raises(AttributeError, match="no compiled method 'step'"):
        signature(module, "step")


@FORMS
def test_it_is_called_by_keyword_and_by_position(form) -> None:
    module, given = form(Signs()), {"x": torch.ones(1)}
    assert KeywordCall({"gain": 3.0})(module, given).item() == 3.0
    assert PositionalCall(("x",), {1: 4.0})(module, given).item() == 4.0


@FORMS
def test_the_code_of_each_class_is_to_be_had_once(form) -> None:
    sources = list(scripted_sources(form(Nested())))
    assert sum("self.counter = torch.add_" in source for source in sources) == 1
    assert any("def forward(self," in source and "cells" in source for source in sources)
    assert not any(__file__ in source for source in sources)
