"""Modules through the TorchScript front end: what is rewritten, what is refused by its line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, StageError, StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.inputs import Input, InputPlan, Resampled
from stateful_pipeline.model.scripting import script
from stateful_pipeline.model.subject import PositionalCall, Subject
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.rewrite import rewrite


def explicit(module, *xs):
    """Rewrite ``module`` and prove it equal to eager, bit for bit; return the program."""
    names = tuple(f"x{i}" for i in range(len(xs))) if len(xs) > 1 else ("x",)
    plan = InputPlan(
        [
            Input(name, x.dtype, tuple(x.shape), Resampled(x))
            for name, x in zip(names, xs, strict=True)
        ]
    )
    subject = Subject(module.eval(), plan, (), PositionalCall(names, {}), {})
    found = subject.discover()
    scripted = script(found.reference, plan, {})
    program, found = rewrite(scripted, subject, found, {})
    assert check_equal(program, found.reference, plan, [{}], 5).bitwise
    return program


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.tensor(3.0))
        self.register_buffer("counter", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x + self.h
        self.h = self.h + 1
        self.counter += 1
        return out


def test_the_counter_counts_and_starts_again(tmp_path):
    sp.export_onnx(Counter(), (torch.ones(1, 3),), tmp_path / "m.onnx", frontend="torchscript")
    runner = sp.StatefulRunner(tmp_path / "m.onnx")
    x = {"x": np.array([[1.0, 2.0, 3.0]], np.float32)}
    np.testing.assert_array_equal(runner.run(x)["output"], [[4, 5, 6]])
    np.testing.assert_array_equal(runner.run(x)["output"], [[5, 6, 7]])
    runner.reset()
    np.testing.assert_array_equal(runner.run(x)["output"], [[4, 5, 6]])


def test_the_code_after_shows_states_as_arguments_and_results():
    code = explicit(Counter(), torch.ones(1, 3)).code("title")
    assert code.startswith("# title\n")
    for name in ("h_in", "counter_in", "h_out", "counter_out"):
        assert name in code
    assert "self" not in code
    assert "_(" not in code  # nothing is written in place


class Hysteresis(nn.Module):
    """A switch with memory, in a submodule that is called twice, in a branch and in a loop."""

    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("on", torch.tensor(False))
            self.register_buffer("level", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(self.on):
                self.on = x.mean() > -0.5
                self.level.mul_(0.5)
            else:
                self.on = x.mean() > 0.5
                for i in range(x.shape[0]):
                    self.level[i % 3] += x[i].sum()
            return x * self.level.sum()

    def __init__(self):
        super().__init__()
        self.switch = self.Switch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.switch(x)
        if y.sum() > 0:
            y = y + self.switch(-x)
        return y


def test_branches_and_loops_in_a_submodule_that_is_called_twice(roll):
    explicit(Hysteresis(), torch.randn(2, 3))
    contract = roll(Hysteresis(), steps=20)
    assert {state.name for state in contract.states} == {"switch.on", "switch.level"}


class Rare(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("alarm", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        if self.n > 40:
            self.alarm += 1.0
        return x + self.alarm


def test_what_first_changes_late_is_a_state_that_was_not_exercised(tmp_path):
    contract = sp.export_onnx(Rare(), (torch.ones(2, 3),), tmp_path / "m.onnx")
    exercised = {state.name: state.exercised for state in contract.states}
    assert exercised == {"n": True, "alarm": False}
    runner, module = sp.StatefulRunner(tmp_path / "m.onnx"), Rare()
    for _ in range(45):
        expected = module(torch.ones(2, 3)).numpy()
        np.testing.assert_array_equal(
            runner.run({"x": np.ones((2, 3), np.float32)})["output"], expected
        )


class Swapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            self.a, self.b = self.b, self.a
            self.a[i] += x[0, i]
            self.b.mul_(0.5)
        return x + self.a - self.b


def test_buffers_that_are_swapped_in_a_loop_and_written_to_in_place(roll):
    explicit(Swapped(), torch.randn(2, 3))
    roll(Swapped())


class EitherName(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.a
        for _ in range(3):
            if x.sum() > 0:
                held = self.b
        held.add_(1.0)
        return x + self.a + self.b


def test_a_write_to_one_of_two_tensors_by_a_loops_choice_is_refused_by_its_line(tmp_path):
    with pytest.raises(StateError, match="may be the same tensor") as caught:
        sp.export_onnx(
            EitherName(), (torch.ones(2, 3),), tmp_path / "m.onnx", frontend="torchscript"
        )
    assert caught.value.file == __file__
    assert list(tmp_path.iterdir()) == []


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.a
        if x.sum() > 0:
            held = self.b[:]
        held.add_(x[0])
        return x + self.a + 2 * self.b


def test_a_write_to_one_of_two_tensors_by_a_branchs_choice_goes_to_the_right_one(roll):
    explicit(Chosen(), torch.randn(2, 3))
    roll(Chosen(), steps=12)


class Dice(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + 1
        if self.h.sum() > 100:
            x = x + torch.rand_like(x)
        return x + self.h


def test_random_numbers_on_a_branch_that_is_not_taken_are_refused(tmp_path):
    with pytest.raises(StateError, match="random") as caught:
        sp.export_onnx(Dice(), (torch.ones(2, 3),), tmp_path / "m.onnx", frontend="torchscript")
    assert caught.value.file == __file__


class Both(nn.Module):
    """Neither front end takes it: a branch on data, and an attribute that nothing can type."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.names = {1: "one", "two": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.h = self.h + len(self.names)
        return x + self.h


def test_a_model_that_no_front_end_takes_is_refused_with_both_reasons(tmp_path):
    with pytest.raises(PipelineError) as caught:
        sp.export_onnx(Both(), (torch.ones(2, 3),), tmp_path / "m.onnx")
    text = str(caught.value)
    assert "export: script: torch.export refused" in text
    assert "torchscript: script: torch.jit.script refused" in text
    assert caught.value.file == __file__
    assert list(tmp_path.iterdir()) == []


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("h", torch.zeros(2, 4))
        self.register_buffer("c", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, (self.h, self.c))
        if h.sum() < 100:
            self.h, self.c = h, c
        return self.head(h)


@pytest.mark.parametrize("opset", [18, 20, 24])
def test_weights_keep_their_names_at_every_opset(tmp_path, roll, opset):
    import onnx

    roll(Steps(), opset=opset)
    model = onnx.load(tmp_path / "m.onnx")
    assert {entry.version for entry in model.opset_import if entry.domain == ""} == {opset}
    assert {"cell.weight_ih", "cell.bias_hh", "head.weight"} <= {
        value.name for value in model.graph.initializer
    }
    assert "If" in {node.op_type for node in model.graph.node}


def test_a_script_module_is_exported_as_it_is(tmp_path):
    with jit.quiet_scripting():
        scripted = torch.jit.script(Hysteresis().eval())
    contract = sp.export_onnx(scripted, (torch.randn(2, 3),), tmp_path / "m.onnx")
    assert {state.name for state in contract.states} == {"switch.on", "switch.level"}
    with pytest.raises(StageError, match=r"torch\.export"):
        sp.export_onnx(scripted, (torch.randn(2, 3),), tmp_path / "n.onnx", frontend="export")


def test_a_torch_without_what_the_rewrite_needs_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_jit_pass_inline")
    with pytest.raises(StageError, match=r"lacks torch\._C\._jit_pass_inline"):
        jit.require_supported()


def test_a_torch_that_does_not_ask_before_it_assumes_a_size_is_named(monkeypatch):
    monkeypatch.delattr(ShapeEnv, "_check_frozen")
    with pytest.raises(StageError, match=r"lacks ShapeEnv\._check_frozen"):
        jit.require_supported()


def test_dynamic_sizes_stay_dynamic_through_branches(tmp_path):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.zeros(1, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for t in range(x.shape[1]):
                if x[:, t].sum() > 0:
                    self.h = 0.5 * self.h + x[:, t]
                else:
                    self.h = self.h * 0.9
            return x + self.h.unsqueeze(1)

    path = tmp_path / "m.onnx"
    axes = {"x": {0: "batch", 1: "time"}}
    contract = sp.export_onnx(Gated(), (torch.randn(2, 4, 3),), path, dynamic_axes=axes)
    assert contract.states[0].shape == ("batch", 3)
    assert contract.outputs[0].shape == ("batch", "time", 3)
    for batch, time in ((1, 1), (3, 7)):
        runner, module = sp.StatefulRunner(path), Gated()
        module.h = module.h.expand(batch, 3)
        for step in range(4):
            x = torch.randn(batch, time, 3, generator=torch.Generator().manual_seed(step))
            got = runner.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(got, module(x).numpy(), atol=1e-5)
