"""The written model: names, opsets, declared dimensions, side files, the same bytes anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.contract import METADATA_KEY, Axis, Contract
from stateful_pipeline.errors import SpecError, StageError, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.stages.export import export as export_module
from stateful_pipeline.stages.export.export import export_program
from stateful_pipeline.stages.rewrite.functional import make_functional

AXES = (Axis("batch", 1, 2, 8),)
PLAN = InputPlan([Input("x", torch.float32, ("batch", 8), Uniform())])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("h", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = torch.tanh(self.h * self.scale + x)
        return self.h * self.scale


def export(path: Path, module: nn.Module | None = None, **more):
    module = (module or Model()).eval()
    found = discover(module, lambda m, i: m(i["x"]), PLAN, AXES, {})
    captured = capture(found.reference, PLAN, probe_sizes(AXES, [8]))
    program = make_functional(captured, found.reference.states)
    options = {"opset": 20, "sizes": [{"batch": 1}, {"batch": 5}], **more}
    return export_program(program, found.reference, PLAN, path, **options)


def test_the_graph_has_the_contracts_names_and_dimensions(tmp_path) -> None:
    exported = export(tmp_path / "model.onnx")
    graph = onnx.load(exported.model).graph

    def declared(values) -> dict[str, list[int | str]]:
        return {
            v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in values
        }

    assert declared(graph.input) == {"x": ["batch", 8], "h_in": ["batch", 8]}
    assert declared(graph.output) == {"output": ["batch", 8], "h_out": ["batch", 8]}


def test_weights_keep_the_names_of_parameters(tmp_path) -> None:
    module = Model().eval()
    sp.export_onnx(module, (torch.zeros(1, 8),), tmp_path / "m.onnx")
    tensors = onnx.load(tmp_path / "m.onnx").graph.initializer
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    np.testing.assert_array_equal(held["scale"], module.scale.detach().numpy())


def test_the_contract_travels_in_the_file(tmp_path) -> None:
    exported = export(tmp_path / "model.onnx")
    metadata = {p.key: p.value for p in onnx.load(exported.model).metadata_props}
    assert Contract.from_json(metadata[METADATA_KEY]) == exported.contract


@pytest.mark.parametrize("opset", range(18, 25))
def test_each_opset_gives_a_model_that_runs_and_is_right(opset: int, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    export(path, opset=opset)
    assert {o.domain: o.version for o in onnx.load(path).opset_import}[""] == opset
    runner, eager = sp.StatefulRunner(path), Model().eval()
    for step in range(4):
        x = torch.randn(1, 8, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            expected = eager(x).numpy()
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], expected, atol=1e-6)


def test_a_wrongly_declared_dimension_is_an_error_and_writes_nothing(tmp_path, monkeypatch) -> None:
    from dataclasses import replace

    build = export_module.build_contract

    def wrong(*arguments):
        contract, arrays = build(*arguments)
        outputs = (replace(contract.outputs[0], shape=(2, 8)),)
        return replace(contract, outputs=outputs), arrays

    monkeypatch.setattr(export_module, "build_contract", wrong)
    with pytest.raises(StageError, match=r"'output' is declared as \[2, 8\].*measures \[1, 8\]"):
        export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch, model
import stateful_pipeline as sp
sp.export_onnx(model.Net().eval(), (torch.ones(1, 3, 4),), "model.onnx",
               dynamic_axes={{"x": {{0: "batch", 1: "time"}}}})
"""
NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(4, 5, batch_first=True)
        self.norm = nn.LayerNorm(5)
        self.register_buffer("h", torch.zeros(1, 1, 5))
        self.register_buffer("ring", torch.full((3, 5), 0.5))
        self.register_buffer("n", torch.tensor(0))
    def forward(self, x):
        y, self.h = self.gru(x, self.h)
        self.ring[self.n % 3] = y[0, -1]
        self.n += 1
        return self.norm(y) + self.ring.mean(0)
"""


def test_the_bytes_are_the_same_from_any_folder_and_name_none(tmp_path) -> None:
    running, models = [], []
    for name in ("one", "another_folder/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(NET)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT).format(folder=str(folder))],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])},
        )
        running.append((folder, process))
    for folder, process in running:
        assert process.wait(120) == 0
        models.append((folder / "model.onnx").read_bytes())
    assert models[0] == models[1]
    for hint in (str(tmp_path), "site-packages", "model.py", "stateful_pipeline/", os.sep + "home"):
        assert hint.encode() not in models[0]


class Wide(Model):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 500))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ self.table


def test_weights_past_the_threshold_lie_beside_the_model(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    exported = export(path, Wide(), external_data_threshold=100)
    assert {f.name for f in exported.files} == {"model.onnx", "model.onnx.data"}
    x = np.ones((1, 8), np.float32)
    alone = tmp_path / "alone.onnx"
    export(alone, Wide())
    got, expected = (sp.StatefulRunner(p).run({"x": x})["output"] for p in (path, alone))
    np.testing.assert_array_equal(got, expected)
    export(path)  # all in one file again
    assert not (tmp_path / "model.onnx.data").exists()


def test_no_empty_file_lies_beside_a_model_of_small_weights(tmp_path) -> None:
    exported = export(tmp_path / "model.onnx", external_data_threshold=0)
    assert exported.files == (tmp_path / "model.onnx",)


class LargeStart(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("h", torch.arange(40000).reshape(1, 8, 5000).remainder(100).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h + x[..., None].to(self.h.dtype)
        return self.h.sum(-1).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_initial_value_lies_beside_the_model(dtype, tmp_path) -> None:
    module = LargeStart(dtype)
    if dtype == torch.bfloat16:
        module.forward = lambda x: setattr(module, "h", module.h.flip(2)) or x * 1
    exported = export(tmp_path / "model.onnx", module)
    assert (tmp_path / "model.onnx.states.npz").exists()
    state = sp.StatefulRunner(exported.model).state["h"]
    np.testing.assert_array_equal(state.astype(np.float32), LargeStart(dtype).h.float().numpy())


def test_a_failure_leaves_an_existing_file_alone(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    export(path)
    before = path.read_bytes()

    class Broken(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = torch.linalg.svd(self.h + x, full_matrices=False)[0] @ x.mT @ x
            return self.h

    with pytest.raises(StageError):
        export(path, Broken())
    assert path.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]


def test_a_place_that_cannot_be_written_is_a_stage_error(tmp_path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StageError, match="cannot write") as caught:
        export(tmp_path / "file" / "model.onnx")
    assert "writable" in caught.value.hint


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_checking_leaves_nothing(error, tmp_path, monkeypatch) -> None:
    def interrupted(*arguments):
        raise error

    monkeypatch.setattr(export_module, "check_dimensions", interrupted)
    with pytest.raises(error):
        export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


# Names


class Named(nn.Module):
    def __init__(self, body, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.body = body
        self.linear = nn.Linear(3, 3)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor):
        return self.body(self, x)


def adds(module: Named, x: torch.Tensor) -> torch.Tensor:
    module.h = module.h + module.linear(x)
    return module.h * 1.0


X = torch.arange(3.0).reshape(1, 3)


def outputs(body, tmp_path, steps: int = 3, names=None, **more):
    """Export, run three steps, and compare every output by name with eager's."""
    torch.manual_seed(0)
    module = Named(body, h=torch.ones(1, 3)).eval()
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(module, (X,), path, **more)
    runner = sp.StatefulRunner(path)
    with torch.no_grad():
        for step in range(steps):
            result = module(X + step)
            got = runner.run({contract.inputs[0].name: (X + step).numpy()})
            yield result, got


def test_an_input_called_like_a_states_input_is_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match="'h_in'"):
        list(outputs(adds, tmp_path, input_names=["h_in"]))
    with pytest.raises(SpecError, match="'h_out'"):
        list(outputs(adds, tmp_path, output_names=["h_out"]))


@pytest.mark.parametrize("name", ["linear.weight", "linear.bias", "add", "linear", "mul", "val_0"])
def test_outputs_and_inputs_may_be_called_like_anything_inside(name: str, tmp_path) -> None:
    for result, got in outputs(adds, tmp_path, output_names=[name]):
        np.testing.assert_allclose(got[name], result.numpy(), atol=1e-5)
    for result, got in outputs(adds, tmp_path, input_names=[name]):
        np.testing.assert_allclose(got["output"], result.numpy(), atol=1e-5)


def test_an_output_that_is_the_input_the_state_or_a_weight(tmp_path) -> None:
    def body(module: Named, x: torch.Tensor):
        old = module.h
        module.h = module.h + x
        return x, old, module.h, module.h, module.linear.weight

    for result, got in outputs(body, tmp_path):
        for index, expected in enumerate(result):
            np.testing.assert_array_equal(got[f"output_{index}"], expected.detach().numpy())


def test_dicts_nesting_and_none(tmp_path) -> None:
    def body(module: Named, x: torch.Tensor):
        module.h = module.h + x
        return {"y": module.h * 2, "aux": (None, [x + 1, module.h])}

    for result, got in outputs(body, tmp_path):
        assert list(got) == ["y", "aux_1_0", "aux_1_1"]
        np.testing.assert_array_equal(got["y"], result["y"].numpy())
        np.testing.assert_array_equal(got["aux_1_1"], result["aux"][1][1].numpy())


def test_a_number_among_the_outputs_is_refused(tmp_path) -> None:
    def body(module: Named, x: torch.Tensor):
        module.h = module.h + x
        return x, 3

    with pytest.raises(StateError, match="would freeze"):
        list(outputs(body, tmp_path))
    assert list(tmp_path.iterdir()) == []
