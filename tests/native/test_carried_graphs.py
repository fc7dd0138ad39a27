"""C++ classes whose state takes part in autograd are named, with the method that does it."""

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.model.cpp_autograd import CONSTRUCTOR, carried_graphs
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.model.subject import KeywordCall

FEATURES = 3
PLAN = InputPlan([Input("x", torch.float32, (FEATURES,), Uniform(None, None))])


@pytest.fixture(autouse=True)
def libraries(states, ring):
    """The classes of these tests."""


def found(module):
    return carried_graphs(module.eval(), KeywordCall({}), PLAN, {})


class Swapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(FEATURES))
        self.held = torch.classes.states.Keeping(torch.zeros(FEATURES))

    def forward(self, x):
        return self.held.swap(x * self.scale)


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.classes.states.Hiding(torch.zeros(FEATURES))

    def forward(self, x):
        before = self.held.get()
        self.held.keep(x)
        return before


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.classes.states.Differentiable(FEATURES)

    def forward(self, x):
        return self.held.add(x)


class Safe(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(FEATURES))
        self.ring = torch.classes.stateful.TensorRing(4, FEATURES)
        self.ema = torch.classes.states.Ema(FEATURES, 0.5)
        self.bag = torch.classes.states.Bag(FEATURES)

    def forward(self, x):
        x = x * self.scale
        self.ring.push(x)
        return self.ring.mean() + self.ema.update(x.reshape(1, -1), 1.0) + self.bag.put(x)


class Writing(Swapping):
    """Writes to its argument, which a leaf that requires grad would not allow."""

    def forward(self, x):
        x.add_(1)
        return self.held.swap(x)


@pytest.mark.parametrize(
    ("make", "cpp_class", "method", "what"),
    [
        (Swapping, "states.Keeping", "'swap'", "keeps the graph of the call"),
        (Writing, "states.Keeping", "'swap'", "keeps the graph of the call"),
        (Hiding, "states.Hiding", "'get'", "the graph of earlier calls"),
        (Adding, "states.Differentiable", CONSTRUCTOR, "makes state that requires grad"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_state_with_a_graph_is_reported_with_class_and_method(make, cpp_class, method, what):
    module = make()
    [graph] = found(module)
    assert (graph.path, graph.cpp_class, graph.method) == ("held", cpp_class, method)
    assert what in str(graph)
    assert cpp_class in str(graph)


def test_of_a_scripted_module_the_entry_point_is_named(script):
    [graph] = found(script(Swapping().eval()))
    assert (graph.cpp_class, graph.method) == ("states.Keeping", "'forward'")


def test_state_that_is_detached_and_made_by_at_factories_is_not_reported():
    assert found(Safe()) == ()


def test_looking_leaves_the_module_and_its_gradients_alone():
    module = Swapping()
    found(module)
    assert module.scale.grad is None
    assert not module.held.__getstate__()[0].requires_grad
    torch.testing.assert_close(module.held.__getstate__()[0], torch.zeros(FEATURES))


def test_an_export_warns_of_it(no_forms, tmp_path):
    @sp.explicit_form("states.Keeping")
    class ExplicitKeeping:
        def __init__(self, state):
            self.last = state

        def to_state(self):
            return self.last

        def swap(self, x):
            before, self.last = self.last, x.clone()
            return before

    with pytest.warns(UserWarning, match="states.Keeping: 'swap' leaves state that requires grad"):
        sp.export_onnx(Swapping().eval(), (torch.randn(FEATURES),), tmp_path / "m.onnx")
