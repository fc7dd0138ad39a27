"""A source of ``exported_program``: what torch.export.save wrote, however it was called."""

import pytest
import torch
from torch import nn

from stateful_pipeline.runner import run_spec
from stateful_pipeline.spec import load_spec


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x, gain, *, shift):
        self.h = self.h * 0.5 + x
        return self.h * gain + shift


@pytest.mark.parametrize(
    ("by_position", "by_name"),
    [(("x", "gain"), ("shift",)), (("x",), ("gain", "shift")), ((), ("x", "gain", "shift"))],
    ids=["two", "one", "none"],
)
def test_arguments_are_given_as_they_were_exported(by_position, by_name, tmp_path):
    given = {"x": torch.ones(2, 3), "gain": torch.ones(3), "shift": torch.ones(3)}
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(
        Leaky().eval(),
        tuple(given[name] for name in by_position),
        {name: given[name] for name in by_name},
        dynamic_shapes={"x": {0: batch}, "gain": None, "shift": None},
    )
    torch.export.save(program, tmp_path / "leaky.pt2")
    (tmp_path / "leaky.yaml").write_text(
        "name: leaky\n"
        "source: {exported_program: leaky.pt2}\n"
        "inputs: {x: {shape: [batch, 3]}, gain: {shape: [3]}, shift: {shape: [3]}}\n"
        "dynamic_axes: {batch: {min: 1, opt: 2, max: 8}}\n"
        "verify: {steps: 8, seeds: [0]}\n"
        "benchmark: {steps: 0}\n"
        "mlflow: {enabled: false}\n"
    )
    outcome = run_spec(load_spec(tmp_path / "leaky.yaml"), out=tmp_path / "build")
    assert outcome.status == "passed", outcome.error
