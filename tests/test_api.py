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


class Fails(Model):
    """Raises in the call with the given number."""

    def __init__(self, call: int, error: type[BaseException]) -> None:
        super().__init__()
        self.left = iter(range(call))
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if next(self.left, None) is None:
            raise self.error("told to")
        return y


@pytest.mark.parametrize("call", [0, 2, 5, 8, 9, 11])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_at_any_call_leaves_the_module_and_the_folder_alone(call, error, path) -> None:
    module = Fails(call, error).eval()
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
        ({"frontend": "torchscript"}, SpecError, "not supported yet"),
        ({"runtime": "tensorrt"}, TargetError, "not supported yet"),
        ({"input_names": ["a", "b"]}, SpecError, "2 names for 1 tensors"),
        ({"output_names": []}, SpecError, "0 names"),
        ({"dynamic_axes": {"y": {0: "batch"}}}, SpecError, "neither an input nor a state"),
        ({"dynamic_axes": {"x": {5: "batch"}}}, SpecError, "no dimension 5"),
        ({"dynamic_axes": {"x": {0: "not a word"}}}, SpecError, "cannot name an axis"),
        ({"states": {"nope": {"init": "zeros"}}}, SpecError, "no tensor called 'nope'"),
        ({"states": {"h": {"dtype": "float64"}}}, StateError, "declared as float64"),
    ],
)
def test_wrong_options_are_refused_with_a_reason(more, error, said: str, path) -> None:
    with pytest.raises(error, match=said):
        sp.export_onnx(Model().eval(), (X,), path, **more)
    assert not path.exists()


def test_arguments_must_fit_forward(path) -> None:
    with pytest.raises(SpecError, match="do not fit forward"):
        sp.export_onnx(nn.Linear(3, 3), (X, X), path)
    with pytest.raises(SpecError, match="nested arguments"):
        sp.export_onnx(Model().eval(), (X, [X]), path)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_script_module_is_refused(path) -> None:
    with pytest.raises(StateError, match="ScriptModule"):
        sp.export_onnx(torch.jit.script(nn.Linear(3, 3)), (X,), path)


def test_outputs_that_come_and_go_are_refused(path) -> None:
    class Sometimes(Model):
        def forward(self, x: torch.Tensor):
            before = COUNT["n"]
            COUNT["n"] += 1
            return {"y": super().forward(x), **({"z": x} if before % 2 else {})}

    COUNT["n"] = 0
    with pytest.raises(StageError, match=r"returns y"):
        sp.export_onnx(Sometimes().eval(), (X,), path)


COUNT: dict[str, int] = {}


def test_a_stateless_module_is_fine(path) -> None:
    contract = sp.export_onnx(nn.Linear(3, 2).eval(), (X,), path)
    assert contract.states == ()
    assert sp.StatefulRunner(path).run({"input": X.numpy()})["output"].shape == (1, 2)
