"""C++ objects become explicit states by the explicit forms of their classes, and ONNX models."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.model.cpp_objects import declare_forms, state_of
from stateful_pipeline.zoo.tensor_ring import ExplicitTensorRing

FEATURES = 3
STEPS = 30


class ExplicitEma:
    def __init__(self, state):
        self.mean, self.decay, self.steps = state

    def to_state(self):
        return self.mean, self.decay, self.steps

    def update(self, x, weight: float):
        first = torch.tensor(self.steps == 0)
        later = self.mean * self.decay + x * ((1 - self.decay) * weight)
        self.mean = torch.where(first, x * weight, later)
        self.steps += 1
        return self.mean

    def count(self):
        return self.steps


class ExplicitBag(nn.Module):
    """A form may be a module, with buffers."""

    def __init__(self, state):
        super().__init__()
        items, sums = state
        self.register_buffer("older", items[0])
        self.register_buffer("newer", items[1])
        self.register_buffer("total", sums["all"])

    def to_state(self):
        return [self.older, self.newer], {"all": self.total}

    def put(self, x):
        self.older, self.newer = self.newer, x.clone()
        self.total = self.total + x
        return self.older + self.total


class ExplicitSum:
    def __init__(self, state):
        self.sum = state

    def to_state(self):
        return self.sum

    def add(self, x):
        self.sum = self.sum + x
        return self.sum


@pytest.fixture(autouse=True)
def forms(ring, states, no_forms):
    """The explicit forms of these tests, and none of other ones."""
    sp.explicit_form("stateful.TensorRing")(ExplicitTensorRing)
    sp.explicit_form("states.Ema")(ExplicitEma)
    sp.explicit_form("states.Bag")(ExplicitBag)


@pytest.fixture
def follow(tmp_path):
    """Return a function that exports a module and follows its objects beside it."""

    def check(module, *, shape=(FEATURES,), batches=(None,), axes=None, **options):
        module.eval()
        path = tmp_path / "model.onnx"
        example = torch.randn(*(() if axes is None else (3,)), *shape)
        contract = sp.export_onnx(module, (example,), path, dynamic_axes=axes, **options)
        runner = sp.StatefulRunner(path)
        for batch in batches:
            eager = copy.deepcopy(module)
            runner.reset()
            for step in range(STEPS):
                size = shape if batch is None else (batch, *shape)
                x = torch.randn(size, generator=torch.Generator().manual_seed(step))
                with torch.no_grad():
                    expected = eager(x).numpy()
                got = runner.run({"x": x.numpy()})["output"]
                np.testing.assert_allclose(got, expected, 1e-5, 1e-5, err_msg=f"step {step}")
        return [state.name for state in contract.states]

    return check


def new_ring(capacity=4):
    return torch.classes.stateful.TensorRing(capacity, FEATURES)


def new_ema():
    return torch.classes.states.Ema(FEATURES, 0.75)


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.ema = new_ema()

    def forward(self, x):
        return self.ema.update(x.reshape(-1, 3), 2.0) + self.ema.count()


class Held(nn.Module):
    """Holds one ring in two places, and others in a list, a dict and a helper object."""

    class Box:
        def __init__(self):
            self.ring = new_ring(2)

    def __init__(self):
        super().__init__()
        self.ring = new_ring()
        self.again = self.ring
        self.listed = [new_ring(3)]
        self.named = {"slow": new_ring(5)}
        self.box = self.Box()

    def forward(self, x):
        for ring in (self.ring, self.listed[0], self.named["slow"], self.box.ring):
            ring.push(x)
        self.again.push(2 * x)
        means = [self.ring.mean(), self.listed[0].mean(), self.named["slow"].mean()]
        return torch.stack([*means, self.box.ring.mean()]).sum(0)


class Chosen(nn.Module):
    """Calls its objects on branches, in a loop and in submodules; beside states of Python's."""

    def __init__(self):
        super().__init__()
        self.inner = Pushing()
        self.ring = new_ring()
        self.other = self.inner.ring
        self.register_buffer("h", torch.zeros(FEATURES))

    def forward(self, x):
        if x.sum() > 0:
            self.ring.push(x)
        else:
            self.inner(x)
        for _ in range(2):
            self.other.push(self.h)
        self.h = self.h * 0.5 + x
        return self.ring.mean() + self.inner.ring.mean()


class Pushing(nn.Module):
    def __init__(self):
        super().__init__()
        self.ring = new_ring(6)

    def forward(self, x):
        self.ring.push(x)
        return self.ring.mean()


class Putting(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.classes.states.Bag(FEATURES)

    def forward(self, x):
        return self.bag.put(x)


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_ring_is_three_states_and_equals_the_cpp_object_when_it_wraps(frontend, follow):
    assert follow(Pushing(), frontend=frontend) == ["ring.buffer", "ring.head", "ring.count"]


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_tensors_in_containers_of_an_object_are_states(frontend, follow):
    assert follow(Putting(), frontend=frontend) == ["bag.older", "bag.newer", "bag.total"]


@pytest.mark.parametrize("frontend", ["export", "torchscript"])
def test_numbers_of_an_object_are_states_and_rows_follow_a_dynamic_axis(frontend, follow):
    found = follow(Smoothed(), axes={"x": {0: "batch"}}, batches=(1, 3, 5), frontend=frontend)
    assert found == ["ema.mean", "ema.steps"]


def test_an_object_in_any_place_is_followed_and_one_in_two_places_is_one(follow):
    rings = {"ring", "listed.0", "named.slow", "box.ring"}
    assert {name.rpartition(".")[0] for name in follow(Held())} == rings


def test_objects_on_branches_and_in_loops_are_followed(follow):
    module = Chosen()
    assert {name.partition(".")[0] for name in follow(module)} == {"inner", "ring", "h"}


@pytest.mark.parametrize("make", [Pushing, Smoothed, Putting, Chosen], ids=lambda cls: cls.__name__)
def test_a_torchscript_file_with_an_object_in_it_is_made_explicit(make, script, reload, follow):
    follow(reload(script(make().eval())))


def test_an_object_that_has_been_in_use_is_taken_as_it_is(follow):
    module = Pushing()
    for step in range(7):
        module(torch.full((FEATURES,), float(step)))
    before = state_of(module.ring)
    follow(module)
    torch.testing.assert_close(state_of(module.ring), before, rtol=0, atol=0)


class Raising(Pushing):
    def forward(self, x):
        mean = super().forward(x)
        if self.ring.size() > 2:
            raise ValueError("no more")
        return mean


@pytest.mark.parametrize("make", [Pushing, Raising], ids=lambda cls: cls.__name__)
def test_the_object_is_left_as_it_was_whatever_happens(make, tmp_path):
    module = make().eval()
    module.ring.push(torch.ones(FEATURES))
    held, before = module.ring, state_of(module.ring)
    try:
        sp.export_onnx(module, (torch.randn(FEATURES),), tmp_path / "m.onnx")
    except sp.errors.PipelineError:
        assert make is Raising
    assert module.ring is held
    torch.testing.assert_close(state_of(module.ring), before, rtol=0, atol=0)


class Windowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.ring = new_ring()

    def forward(self, x):
        self.ring.push(x)
        return self.ring.window().sum(0)


class WithWindow(ExplicitTensorRing):
    def window(self):
        if bool(self.count < self.buffer.size(0)):
            return self.buffer[: int(self.count)]
        head = int(self.head)
        return torch.cat([self.buffer[head:], self.buffer[:head]])


def test_a_method_whose_result_has_a_size_that_depends_on_state(follow):
    sp.explicit_form("stateful.TensorRing")(WithWindow)
    follow(Windowed(), frontend="torchscript")


class Adding(nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.held = cls(torch.zeros(FEATURES))

    def forward(self, x):
        return self.held.add(x)


def test_an_export_leaves_the_modes_of_torch_as_they_were(tmp_path):
    sp.export_onnx(Pushing().eval(), (torch.randn(FEATURES),), tmp_path / "m.onnx")
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("scripted", [False, True])
def test_an_object_that_pickles_its_own_tensor_is_left_as_it_was(scripted, script, tmp_path):
    sp.explicit_form("states.Sharing")(ExplicitSum)
    module = Adding(torch.classes.states.Sharing).eval()
    taken = script(module) if scripted else module
    sp.export_onnx(taken, (torch.randn(FEATURES),), tmp_path / "m.onnx")
    torch.testing.assert_close(state_of(taken.held), torch.zeros(FEATURES))
    runner, x = sp.StatefulRunner(tmp_path / "m.onnx"), np.ones(FEATURES, np.float32)
    assert [runner.run({"x": x})["output"][0] for _ in range(3)] == [1, 2, 3]


def test_state_that_the_example_does_not_change_is_state_all_the_same(tmp_path):
    sp.explicit_form("states.Sharing")(ExplicitSum)
    module = Adding(torch.classes.states.Sharing).eval()
    sp.export_onnx(module, (torch.zeros(FEATURES),), tmp_path / "m.onnx")
    runner, x = sp.StatefulRunner(tmp_path / "m.onnx"), np.ones(FEATURES, np.float32)
    assert [runner.run({"x": x})["output"][0] for _ in range(3)] == [1, 2, 3]


def test_an_object_that_holds_none_before_its_first_call_is_left_so(follow):
    @sp.explicit_form("states.Lazy")
    class ExplicitLazy:
        def __init__(self, state):
            self.last = state

        def to_state(self):
            return self.last

        def next(self, x):
            self.last = x.clone() if self.last is None else self.last + x
            return self.last

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = torch.classes.states.Lazy(None)

        def forward(self, x):
            return self.held.next(x)

    module = Lazy()
    assert "held.last" in follow(module)
    assert state_of(module.held) is None


class WithLayer(nn.Module):
    """A form with a layer, whose weights are random until they are set."""

    def __init__(self, state):
        super().__init__()
        self.sum, self.layer = state, nn.Linear(FEATURES, FEATURES, bias=False)
        nn.init.eye_(self.layer.weight)

    def to_state(self):
        return self.sum

    def add(self, x):
        self.sum = self.layer(self.sum) + x
        return self.sum


class Inner:
    def __init__(self, state):
        self.sum = state


class Nested:
    def __init__(self, state):
        self.inner = Inner(state)

    def to_state(self):
        return self.inner.sum

    def add(self, x):
        self.inner.sum = self.inner.sum + x
        return self.inner.sum


@pytest.mark.parametrize("form", [WithLayer, Nested], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("scripted", [False, True])
def test_a_form_may_hold_layers_and_objects(form, scripted, script, follow):
    sp.explicit_form("states.Sharing")(form)
    module = Adding(torch.classes.states.Sharing).eval()
    follow(script(module) if scripted else module)


def test_of_two_declarations_of_a_form_the_later_counts(follow):
    declare_forms({"stateful.TensorRing": ExplicitSum})
    sp.explicit_form("stateful.TensorRing")(ExplicitTensorRing)
    follow(Pushing())
