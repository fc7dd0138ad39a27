"""``export_onnx``: what it takes, what it refuses, and that it leaves the module alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, SpecError, StageError, StateError, TargetError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.register_buffer("h", torch.full((1, 3), 0.25))
        self.plain = torch.ones(3)
        self.list = [torch.zeros(3)]

    def forward(self, x: torch.Tensor, gain: float = 1.0, *more: torch.Tensor) -> torch.Tensor:
        self.h = torch.tanh(self.linear(x) + self.h) * gain
        self.plain.add_(1.0)
        self.list[0] = self.list[0] + self.plain
        return self.h + self.list[0] + sum(more)


X = torch.arange(3.0).reshape(1, 3)


def picture(module: nn.Module) -> list[object]:
    tensors = [*module.state_dict(keep_vars=True).values(), module.plain, *module.list]
    return [
        module.training,
        *[(id(t), t.detach().numpy().tobytes(), t.requires_grad) for t in tensors],
    ]


def follow(module: nn.Module, path, steps: int = 4) -> None:
    runner = sp.StatefulRunner(path)
    with torch.no_grad():
        for step in range(steps):
            expected = module(X + step)
            (got,) = runner.run({"x": (X + step).numpy()}).values()
            np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def test_the_module_is_exactly_as_it_was(path) -> None:
    module = Model().eval()
    before = picture(module)
    sp.export_onnx(module, (X,), path)
    assert picture(module) == before
    follow(module, path)


def test_modes_of_submodules_stay_mixed(path) -> None:
    module = Model().eval()
    module.linear.train()
    sp.export_onnx(module, (X,), path)
    assert (module.training, module.linear.training) == (False, True)


def calls_before(file: str) -> int:
    """Count calls where nobody looks for a state: return how many bytes ``file`` has, and add one.

    A count in the module, a closure or a global would be refused as a state.
    """
    with open(file, "ab") as stream:  # noqa: PTH123 - as plain as can be, since it is traced
        before = stream.tell()
        stream.write(b".")
    return before


@pytest.fixture
def tally(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("tally") / "calls")


class Fails(Model):
    """Raises from the call with the given number on."""

    def __init__(self, call: int, error: type[BaseException], tally: str) -> None:
        super().__init__()
        self.call = call
        self.error = error
        self.tally = tally

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if calls_before(self.tally) >= self.call:
            raise self.error("told to")
        return y


@pytest.mark.parametrize("call", [0, 2, 5, 8, 9, 11, 14, 18])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_at_any_call_leaves_the_module_and_the_folder_alone(
    call, error, path, tally
) -> None:
    module = Fails(call, error, tally).eval()
    before = picture(module)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else PipelineError):
        sp.export_onnx(module, (X,), path)
    assert picture(module) == before
    assert list(path.parent.iterdir()) == []


def test_a_failure_of_the_exporter_leaves_the_module_alone(path) -> None:
    class Unsupported(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(super().forward(x).mT @ x).real

    module = Unsupported().eval()
    before = picture(module)
    with pytest.raises(PipelineError) as caught:
        sp.export_onnx(module, (X,), path)
    assert caught.value.file == __file__
    assert picture(module) == before
    assert not path.exists()


def test_names_axes_states_and_constants_are_the_callers(path) -> None:
    contract = sp.export_onnx(
        Model().eval(),
        (X, 0.5, X, X + 1),
        path,
        input_names=["audio", "left", "right"],
        output_names=["speech"],
        dynamic_axes={n: {0: "batch"} for n in ("audio", "left", "right")},
        states={"h": {"init": {"value": 2.0}}},
    )
    assert [v.name for v in contract.inputs] == ["audio", "left", "right"]
    assert [v.name for v in contract.outputs] == ["speech"]
    assert contract.state("h").shape == ("batch", 3)
    assert sp.StatefulRunner(path).state["h"].tolist() == [[2.0] * 3]


def test_names_of_inputs_are_those_of_forward(path) -> None:
    contract = sp.export_onnx(Model().eval(), (X, 0.5, X, X), path)
    assert [v.name for v in contract.inputs] == ["x", "more_0", "more_1"]


def test_the_axis_of_a_state_may_be_given(path) -> None:
    axes = {"x": {0: "batch"}, "h": {0: "batch"}}
    contract = sp.export_onnx(Model().eval(), (X,), path, dynamic_axes=axes)
    assert contract.state("h").shape == ("batch", 3)


def test_an_exported_program_is_taken(path) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(1, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h.mul_(0.5).add_(x)
            return self.h * 2

    program = torch.export.export(InPlace().eval(), (X,))
    contract = sp.export_onnx(program, (X,), path)
    assert [s.name for s in contract.states] == ["h"]
    follow(InPlace().eval(), path)


def test_a_portable_file_is_written_for_no_runtime(path) -> None:
    sp.export_onnx(Model().eval(), (X,), path, runtime=None)
    follow(Model().eval(), path)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"opset": 17}, SpecError, "opset 17"),
        ({"frontend": "tracing"}, SpecError, "unknown frontend"),
        ({"runtime": "tensorrt"}, TargetError, "not supported yet"),
        ({"input_names": ["a", "b"]}, SpecError, "2 names for 1 tensors"),
        ({"output_names": []}, SpecError, "0 names"),
        ({"dynamic_axes": {"y": {0: "batch"}}}, SpecError, "neither an input nor a state"),
        ({"dynamic_axes": {"x": {5: "batch"}}}, SpecError, "no dimension 5"),
        ({"dynamic_axes": {"x": {0: "not a word"}}}, SpecError, "cannot name an axis"),
        ({"states": {"nope": {"init": "zeros"}}}, SpecError, "no number called 'nope'"),
        ({"states": {"h": {"dtype": "float64"}}}, StateError, "declared as float64"),
    ],
)
def test_wrong_options_are_refused_with_a_reason(more, error, said: str, path) -> None:
    with pytest.raises(error, match=said):
        sp.export_onnx(Model().eval(), (X,), path, **more)
    assert not path.exists()


def test_a_wrong_call_is_no_refusal_of_a_front_end(path) -> None:
    with pytest.raises(SpecError, match="0 names") as caught:
        sp.export_onnx(Model().eval(), (X,), path, frontend="auto", output_names=[])
    assert "front end" not in str(caught.value)


def test_arguments_must_fit_forward(path) -> None:
    with pytest.raises(SpecError, match="do not fit forward"):
        sp.export_onnx(nn.Linear(3, 3), (X, X), path)
    with pytest.raises(SpecError, match="nested arguments"):
        sp.export_onnx(Model().eval(), (X, [X]), path)


def test_outputs_that_come_and_go_are_refused(path, tally) -> None:
    class Sometimes(Model):
        def forward(self, x: torch.Tensor):
            odd = calls_before(tally) % 2
            return {"y": super().forward(x), **({"z": x} if odd else {})}

    with pytest.raises(PipelineError, match=r"returns y|another 'z'"):
        sp.export_onnx(Sometimes().eval(), (X,), path)


def test_a_stateless_module_is_fine(path) -> None:
    contract = sp.export_onnx(nn.Linear(3, 2).eval(), (X,), path)
    assert contract.states == ()
    assert sp.StatefulRunner(path).run({"input": X.numpy()})["output"].shape == (1, 2)


class Streams(nn.Module):
    """Keeps a buffer of four, and computes the output by a function of it and of the input."""

    def __init__(self, compute) -> None:
        super().__init__()
        self.compute = compute
        self.register_buffer("h", torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x[0]
        return self.compute(self, x)


INDEX = torch.tensor([0, 0, 1, 3])

WRONG = {
    "batch norm of training": lambda m, x: nn.functional.batch_norm(
        x + m.h, m.mean, m.var, training=True
    ),
    "antialiased interpolation": lambda m, x: nn.functional.interpolate(
        (x + m.h)[None, None], scale_factor=(1.0, 0.6), mode="bilinear", antialias=True
    ),
}


RIGHT = {
    "a mean by scatter_reduce": lambda m, x: m.h.scatter_reduce(0, INDEX, x[1], "mean"),
    "attention that is masked throughout": lambda m, x: nn.functional.scaled_dot_product_attention(
        x[None, None],
        (x * m.h)[None, None],
        x[None, None],
        attn_mask=torch.ones(2, 2).tril(-1).bool(),
    ),
}
"""What PyTorch's exporter gets wrong, and this project writes by itself."""


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_exporter_gets_wrong_is_written_otherwise(name: str, path) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.5, 2.0]])
    sp.export_onnx(Streams(RIGHT[name]).eval(), (x,), path)
    got = sp.StatefulRunner(path).run({"x": x.numpy()})["output"]
    np.testing.assert_allclose(got, Streams(RIGHT[name])(x).numpy(), 1e-5)


@pytest.mark.parametrize("name", WRONG)
def test_what_the_exporter_gets_wrong_is_refused_and_not_written(name: str, path) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.5, 2.0]])
    path.write_text("an earlier model")
    with pytest.raises(StageError, match="not equal to eager PyTorch") as caught:
        sp.export_onnx(Streams(WRONG[name]).eval(), (x,), path)
    assert "exporter or of ONNX Runtime" in str(caught.value)
    assert "'output'" in str(caught.value)
    assert caught.value.file == __file__
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "an earlier model"


def test_values_are_compared_under_the_names_that_were_asked_for(path) -> None:
    x = torch.ones(2, 4)
    contract = sp.export_onnx(Streams(lambda m, x: x + m.h).eval(), (x,), path, output_names=["y"])
    assert [value.name for value in contract.outputs] == ["y"]
    wrong = Streams(WRONG["antialiased interpolation"]).eval()
    with pytest.raises(StageError, match="output 'y'"):
        sp.export_onnx(wrong, (x * 3,), path, output_names=["y"])


def test_values_that_are_large_and_cancel_are_no_fault(path) -> None:
    def cancels(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        large = torch.fft.irfft(torch.fft.rfft(x * 1e6 + m.h))
        return torch.stack([large, large - x * 1e6])

    sp.export_onnx(Streams(cancels).eval(), (torch.randn(2, 4),), path)


def test_values_that_are_not_finite_are_compared_too(path) -> None:
    def divides(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x / 0.0, (x - x) / 0.0, m.h * x])

    sp.export_onnx(Streams(divides).eval(), (torch.ones(2, 4),), path)
