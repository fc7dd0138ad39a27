"""Graph outputs have the dtypes of the captured program, whatever the exporter computes in."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.stages.export.interface import cast_outputs


class HalfSum(nn.Module):
    """The exporter gives the sum of a float16 tensor as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x
        return self.h.sum()


class Bytes(nn.Module):
    """The exporter gives the shift and the running inverse of bytes as int8."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.h = self.h // 2 + x
        return self.h << 1, ~self.h, self.h.clamp(5, 90)


@pytest.mark.parametrize("module", [HalfSum, Bytes])
def test_outputs_have_the_dtypes_of_eager(module, tmp_path) -> None:
    path, x = tmp_path / "model.onnx", torch.tensor([1, 2, 200])
    eager = module().eval()
    x = x.to(eager.h.dtype)
    sp.export_onnx(module().eval(), (x,), path)
    runner = sp.StatefulRunner(path)
    for _ in range(5):
        expected = eager(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for want, got in zip(expected, runner.run({"x": x.numpy()}).values(), strict=True):
            assert got.dtype == want.numpy().dtype
            np.testing.assert_array_equal(got, want.numpy())
    assert runner.state["h"].dtype == eager.h.numpy().dtype


def test_only_outputs_of_another_dtype_are_cast() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[2] x) => (float[2] a, float[2] b) { a = Neg(x) b = Abs(x) }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    cast_outputs(model, ["float32", "bfloat16"])
    assert [node.op_type for node in model.graph] == ["Neg", "Abs", "Cast"]
    assert [value.dtype for value in model.graph.outputs] == [
        ir.DataType.FLOAT,
        ir.DataType.BFLOAT16,
    ]
    onnx.checker.check_model(ir.to_proto(model), full_check=False)
