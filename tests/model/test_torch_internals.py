"""What is put into PyTorch while a model is converted is gone afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from stateful_pipeline.model.torch_internals import forms_read_once


def sine(x: Any) -> Any:
    return x


def functions(registry: Any) -> list[Any]:
    return [form.onnx_function for form in registry.get_decomps(torch.ops.aten.sin.default)]


def test_forms_that_one_model_adds_are_not_there_for_the_next() -> None:
    own = ONNXRegistry.__dict__["from_torchlib"]
    with forms_read_once():
        first = ONNXRegistry.from_torchlib(opset_version=18)
        first.register_op(torch.ops.aten.sin.default, sine)
        second = ONNXRegistry().from_torchlib(opset_version=18)
    assert functions(first)[0] is sine
    assert functions(second) == functions(first)[1:]
    assert ONNXRegistry.__dict__["from_torchlib"] is own
    assert len(functions(ONNXRegistry.from_torchlib(opset_version=18))) == len(functions(second))
