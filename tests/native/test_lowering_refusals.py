"""C++ objects that cannot become explicit states are refused: what is wrong, where, what to do."""

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError
from stateful_pipeline.zoo.tensor_ring import ExplicitTensorRing

FEATURES = 3


class ExplicitEma:
    def __init__(self, state):
        self.mean, self.decay, self.steps = state

    def to_state(self):
        return self.mean, self.decay, self.steps

    def update(self, x, weight: float):
        later = self.mean * self.decay + x * ((1 - self.decay) * weight)
        self.mean = torch.where(torch.tensor(self.steps == 0), x * weight, later)
        self.steps += 1
        return self.mean


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


def new_ring():
    return torch.classes.stateful.TensorRing(4, FEATURES)


class Pushing(nn.Module):
    def __init__(self):
        super().__init__()
        self.ring = new_ring()

    def forward(self, x):
        self.ring.push(x)
        return self.ring.mean()


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.ema = torch.classes.states.Ema(FEATURES, 0.75)

    def forward(self, x):
        return self.ema.update(x.reshape(-1, 3), 2.0)


def refusal(module, tmp_path, **options):
    """Return the error of an export, of which nothing is left."""
    with pytest.raises(StateError) as caught:
        sp.export_onnx(module.eval(), (torch.randn(FEATURES),), tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir())
    return caught.value


def test_a_class_without_a_form_is_refused_with_what_to_write(monkeypatch, tmp_path):
    monkeypatch.setattr("stateful_pipeline.model.cpp_objects._forms", {})
    error = refusal(Pushing(), tmp_path)
    assert error.attribute == "ring"
    assert "C++ class stateful.TensorRing, whose state (Tuple[Tensor, int, int])" in error.message
    for part in ("__init__(self, state)", "to_state(self)", "push(Tensor) -> None", "`classes:"):
        assert part in error.hint


def test_strings_are_refused_with_the_runtime_that_holds_them(stack, tmp_path):
    module = Pushing()
    module.stack = torch.classes.my_classes.MyStackClass(["a"])
    error = refusal(module, tmp_path)
    assert error.attribute == "stack"
    assert "runtime: libtorch" in error.hint


def test_a_class_that_is_not_pickled_is_refused(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.counter = torch.classes.states.Unpickled()

        def forward(self, x):
            return self.counter.next(x)

    error = refusal(Counting(), tmp_path)
    assert "states.Unpickled, which does not say what it holds" in error.message
    assert ".def_pickle(" in error.hint


GLOBAL = {}


class FromGlobal(nn.Module):
    def forward(self, x):
        GLOBAL["ring"].push(x)
        return GLOBAL["ring"].mean()


@pytest.mark.parametrize("has_form", [True, False])
def test_an_object_that_only_a_global_holds_is_refused(has_form, monkeypatch, tmp_path):
    monkeypatch.setitem(GLOBAL, "ring", new_ring())
    if not has_form:
        monkeypatch.setattr("stateful_pipeline.model.cpp_objects._forms", {})
    assert "GLOBAL" in str(refusal(FromGlobal(), tmp_path))


class NoMean(ExplicitTensorRing):
    mean = None


class WrongMean(ExplicitTensorRing):
    def mean(self):
        return super().mean() + (self.count > 2) * 0.5


class WrongPush(ExplicitTensorRing):
    def push(self, frame):
        super().push(frame)
        self.head = self.head * 0


class RaisingPush(ExplicitTensorRing):
    def push(self, frame):
        raise ValueError("not today")


class WrongState(ExplicitTensorRing):
    def to_state(self):
        return self.buffer + 1, int(self.head), int(self.count)


class UntakenState(ExplicitTensorRing):
    def to_state(self):
        return self.buffer.double(), int(self.head), int(self.count)


class Unmade(ExplicitTensorRing):
    def __init__(self, state):
        self.buffer, self.head = state


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (NoMean, "has no method 'mean', which the model calls"),
        (WrongMean, "'mean' returns another result than the class"),
        (WrongPush, "'push' leaves another state than the class"),
        (RaisingPush, "'push' raises ValueError: not today"),
        (WrongState, "does not give back the state that it is made from"),
        (UntakenState, "is not taken back: TensorRing: the buffer must be float32"),
        (Unmade, "cannot be made from a pickled state: ValueError"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_form_that_is_not_like_its_class_is_refused_by_its_name(form, message, tmp_path):
    sp.explicit_form("stateful.TensorRing")(form)
    error = refusal(Pushing(), tmp_path)
    assert form.__name__ in error.message
    assert "stateful.TensorRing" in error.message
    assert message in error.message


@pytest.mark.parametrize("form", [NoMean, WrongMean, WrongPush], ids=lambda cls: cls.__name__)
def test_a_wrong_form_is_refused_for_a_torchscript_file_too(form, script, reload, tmp_path):
    sp.explicit_form("stateful.TensorRing")(form)
    module = reload(script(Pushing().eval()))
    with pytest.raises(sp.errors.PipelineError):
        sp.export_onnx(module, (torch.randn(FEATURES),), tmp_path / "m.onnx")
    assert not list(tmp_path.glob("*.onnx*"))


class Adding(nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.held = cls(torch.zeros(FEATURES))

    def forward(self, x):
        return self.held.add(x)


def test_state_that_a_class_does_not_pickle_is_not_lost_silently(tmp_path):
    sp.explicit_form("states.Forgetful")(ExplicitSum)
    error = refusal(Adding(torch.classes.states.Forgetful), tmp_path)
    assert "states.Forgetful" in error.message


def test_an_object_that_an_operator_takes_is_refused_with_the_line(tmp_path):
    class Lifted(Smoothed):
        def forward(self, x):
            return torch.ops.states.lift(self.ema, super().forward(x))

    error = refusal(Lifted(), tmp_path)
    assert error.attribute == "ema"
    assert "given to an operator" in error.message
    assert error.place.file == __file__
