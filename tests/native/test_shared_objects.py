"""What C++ objects share, with one another or with the module, is refused before it is lost."""

import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.cpp_sharing import compare_with_copy

SIZE = 3
BEFORE = 20
"""Calls after which something that is shared changes: more than are taken to find states."""
NEVER_SEEN = 80
"""The same, beyond what is compared when states are found."""


class ExplicitSum:
    def __init__(self, state):
        self.sum = state

    def to_state(self):
        return self.sum

    def add(self, x):
        self.sum = self.sum + x
        return self.sum

    def value(self):
        return self.sum


class ExplicitAdder:
    """Holds the form of another class."""

    def __init__(self, state):
        total, self.after, self.calls = state
        self.total = ExplicitSum(total.value())

    def to_state(self):
        return torch.classes.sharing.Total(self.total.sum), self.after, self.calls

    def step(self, x):
        self.calls = self.calls + 1
        if self.calls > self.after:
            self.total.add(x)
        return x * 2


class ExplicitSecretAdder(ExplicitAdder):
    def __init__(self, state):
        total, self.after, self.calls = state
        self.total = ExplicitSum(total)

    def to_state(self):
        return self.total.sum, self.after, self.calls


class ExplicitObserver:
    def __init__(self, state):
        self.kept, self.after, self.calls = state

    def to_state(self):
        return self.kept, self.after, self.calls

    def look(self):
        self.calls = self.calls + 1
        return self.kept * 1 if self.calls > self.after else self.kept * 0


@pytest.fixture(autouse=True)
def forms(sharing, states, no_forms):
    """The explicit forms of these tests, and none of other ones."""
    sp.explicit_form("states.Sharing")(ExplicitSum)
    sp.explicit_form("sharing.Total")(ExplicitSum)
    sp.explicit_form("sharing.Adder")(ExplicitAdder)
    sp.explicit_form("sharing.SecretAdder")(ExplicitSecretAdder)
    sp.explicit_form("sharing.Observer")(ExplicitObserver)


def new_total():
    return torch.classes.sharing.Total(torch.zeros(SIZE))


def new_sharing(tensor):
    """Return an object that keeps the very tensor, and gives it to be pickled."""
    return torch.classes.states.Sharing(tensor)


class Ledger(nn.Module):
    """Reads a total to which an object adds later on."""

    def __init__(self, cls="Adder", after=BEFORE):
        super().__init__()
        self.total = new_total()
        self.adder = getattr(torch.classes.sharing, cls)(self.total, after)

    def forward(self, x):
        return self.adder.step(x) + self.total.value()


class SecretLedger(Ledger):
    def __init__(self, after=BEFORE):
        super().__init__("SecretAdder", after)


class TwoAdders(nn.Module):
    """Two objects add to a third one, which the module does not hold."""

    def __init__(self):
        super().__init__()
        total = new_total()
        self.one = torch.classes.sharing.Adder(total, BEFORE)
        self.other = torch.classes.sharing.Adder(total, BEFORE)

    def forward(self, x):
        return self.one.step(x) + self.other.step(x)


class TwoHandles(nn.Module):
    """Two of Python's handles of one object."""

    def __init__(self):
        super().__init__()
        adder = torch.classes.sharing.Adder(new_total(), BEFORE)
        self.one, self.other = adder.held(), adder.held()

    def forward(self, x):
        self.one.add(x)
        return self.other.value()


class OneAdder(nn.Module):
    """An object in an object, which nobody else holds."""

    def __init__(self):
        super().__init__()
        self.adder = torch.classes.sharing.Adder(new_total(), BEFORE)

    def forward(self, x):
        return self.adder.step(x)


class WithBuffer(nn.Module):
    """An object keeps the module's own buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(SIZE))
        self.held = new_sharing(self.level)

    def forward(self, x):
        self.level += x
        return self.held.add(x)


class WithPart(WithBuffer):
    """An object keeps a part of the module's buffer."""

    def __init__(self):
        super().__init__()
        self.level = torch.zeros(2, SIZE)
        self.held = new_sharing(self.level[1])


class SecretBuffer(WithBuffer):
    """The same, by a class that pickles a copy, and long after the first calls."""

    def __init__(self):
        super().__init__()
        self.held = torch.classes.sharing.Observer(self.level, BEFORE, 0)

    def forward(self, x):
        self.level += x
        return self.held.look() + x


class TwoOfOneTensor(nn.Module):
    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = new_sharing(one), new_sharing(other)

    def forward(self, x):
        return self.one.add(x) + self.other.add(x)


def same_tensor():
    tensor = torch.zeros(SIZE)
    return TwoOfOneTensor(tensor, tensor)


def overlapping():
    tensor = torch.zeros(SIZE + 1)
    return TwoOfOneTensor(tensor[1:], tensor[:-1])


def apart():
    tensor = torch.zeros(2 * SIZE)
    return TwoOfOneTensor(tensor[:SIZE], tensor[SIZE:])


def answers(module, count=100):
    with torch.no_grad():
        return [module(torch.full((SIZE,), 1.0 + step)).tolist() for step in range(count)]


def export(module, path):
    return sp.export_onnx(module, (torch.ones(SIZE),), path / "m.onnx")


SHARED = [
    (Ledger, "total", ("'adder', one of sharing.Adder", "sharing.Total")),
    (TwoAdders, "one", ("as a C++ object of sharing.Adder", "sharing.Total that 'other' holds")),
    (TwoHandles, "one", ("sharing.Total that 'other' is too",)),
    (WithBuffer, "held", ("states.Sharing", "with the buffer 'level'")),
    (WithPart, "held", ("states.Sharing", "with the buffer 'level'")),
    (SecretBuffer, "held", ("sharing.Observer shares something", "the buffer 'level'")),
    (SecretLedger, None, ("'total'", "'adder'", f"at step {BEFORE}", "shares something with")),
    (same_tensor, "other", ("states.Sharing", "with the C++ object 'one'")),
    (overlapping, "other", ("states.Sharing", "with the C++ object 'one'")),
]


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize(
    ("make", "attribute", "words"), SHARED, ids=lambda part: getattr(part, "__name__", "")
)
def test_what_is_shared_is_refused_by_both_names_and_stays_shared(
    make, attribute, words, scripted, script, tmp_path
):
    module, fresh = make().eval(), make().eval()
    if scripted:
        module, fresh = script(module), script(fresh)
    with pytest.raises(StateError) as caught:
        export(module, tmp_path)
    if attribute is not None:  # which of two comes first may depend on the order of attributes
        assert caught.value.attribute == attribute
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
    assert answers(module) == answers(fresh)


@pytest.mark.parametrize("make", [OneAdder, apart], ids=lambda make: make.__name__)
def test_what_is_not_shared_is_taken_and_equals_the_module(make, tmp_path):
    export(make().eval(), tmp_path)
    runner = sp.StatefulRunner(tmp_path / "m.onnx")
    for step, expected in enumerate(answers(make())):
        got = runner.run({"x": torch.full((SIZE,), 1.0 + step).numpy()})["output"]
        torch.testing.assert_close(torch.from_numpy(got), torch.tensor(expected))


class Lazily(nn.Module):
    """Makes its objects in its first call."""

    def __init__(self, after=BEFORE):
        super().__init__()
        self.after, self.total, self.adder = after, None, None

    def forward(self, x):
        if self.total is None:
            self.total = torch.classes.sharing.Total(torch.zeros(SIZE))
            self.adder = torch.classes.sharing.SecretAdder(self.total, self.after)
        return self.adder.step(x) + self.total.value()


def test_what_objects_share_that_the_first_call_makes_is_refused(tmp_path):
    with pytest.raises(StateError) as caught:
        export(Lazily().eval(), tmp_path)
    assert f"at step {BEFORE}" in caught.value.message
    assert "sharing.SecretAdder and sharing.Total" in caught.value.message


def test_an_export_leaves_the_module_as_it_was_also_where_nobody_sees_what_it_shares(tmp_path):
    module, fresh = SecretLedger(NEVER_SEEN).eval(), SecretLedger(NEVER_SEEN).eval()
    export(module, tmp_path)
    assert answers(module) == answers(fresh)


def test_as_many_steps_are_compared_as_are_asked_for():
    def steps(count):
        return [{"x": torch.full((SIZE,), 1.0 + step)} for step in range(count)]

    def call(module, inputs):
        return module(**inputs)

    module = SecretLedger(NEVER_SEEN)
    assert compare_with_copy(module, call, lambda: steps(NEVER_SEEN)) == NEVER_SEEN
    with pytest.raises(StateError, match=f"at step {NEVER_SEEN}: a C.. object of sharing"):
        compare_with_copy(module, call, lambda: steps(NEVER_SEEN + 20))


LATE = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = torch.classes.sharing.Total(torch.zeros(3))
        self.adder = torch.classes.sharing.{cls}(self.total, {after})

    def forward(self, x):
        return self.adder.step(x[0]) + self.total.value()
"""


@pytest.mark.parametrize(
    ("cls", "after", "stage"), [("Adder", BEFORE, "script"), ("SecretAdder", NEVER_SEEN, "verify")]
)
def test_no_target_passes_that_was_made_of_parted_objects(cls, after, stage, project, sharing):
    model = LATE.format(cls=cls, after=after)
    source = f'source: {{file: "model.py:Leaky", libraries: ["{sharing.path}"]}}'
    targets = "targets: {native: {runtime: libtorch}}\n"
    ran = project.run(
        project.spec(targets, source=source, model=model), "--set", "verify.steps=100"
    )
    assert ran.code == 3
    assert "sharing.Total" in ran.text
    assert "'adder'" in ran.text
    assert stage in ran.text


# --- arguments -------------------------------------------------------------------------------


class ExplicitMarker:
    """Does what the class does."""

    def __init__(self, state):
        self.mark = state

    def to_state(self):
        return self.mark

    def write(self, x):
        x.add_(self.mark)
        self.mark = self.mark + 1

    def read(self, x):
        self.mark = self.mark + x


class NotWriting(ExplicitMarker):
    def write(self, x):
        self.mark = self.mark + 1


class WritingToo(ExplicitMarker):
    def read(self, y):
        y.mul_(2)
        self.mark = self.mark + y / 2


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.marker = torch.classes.sharing.Marker(torch.ones(SIZE))

    def forward(self, x):
        y = x * 2
        self.marker.write(y)
        self.marker.read(y)
        return y


@pytest.mark.parametrize(
    ("form", "method", "argument"), [(NotWriting, "write", "x"), (WritingToo, "read", "y")]
)
def test_a_form_that_writes_to_other_arguments_than_its_class_is_refused(
    form, method, argument, tmp_path
):
    sp.explicit_form("sharing.Marker")(form)
    with pytest.raises(StateError) as caught:
        export(Marked().eval(), tmp_path)
    expected = f"'{method}' leaves another value in its argument '{argument}' than the class"
    assert expected in caught.value.message
    assert form.__name__ in caught.value.message


def test_a_form_may_write_to_an_argument_as_its_class_does(tmp_path):
    sp.explicit_form("sharing.Marker")(ExplicitMarker)
    export(Marked().eval(), tmp_path)
    runner = sp.StatefulRunner(tmp_path / "m.onnx")
    for step, expected in enumerate(answers(Marked(), 10)):
        got = runner.run({"x": torch.full((SIZE,), 1.0 + step).numpy()})["output"]
        torch.testing.assert_close(torch.from_numpy(got), torch.tensor(expected))
