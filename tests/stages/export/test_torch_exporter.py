"""The private parts of PyTorch's TorchScript exporter."""

import subprocess
import sys

import pytest
from torch.onnx import symbolic_helper

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.export import torch_exporter


def test_the_first_model_of_a_process_gets_the_forms_of_the_newest_opset():
    code = (
        "from stateful_pipeline.stages.export import torch_exporter as t; "
        "print(t.own_form('aten::add', 20).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("symbolic_opset11")  # the newest that adds lists


def test_a_torch_that_lacks_a_part_is_refused_by_name(monkeypatch):
    torch_exporter.require_supported()
    monkeypatch.delattr(symbolic_helper, "_unpack_list")
    with pytest.raises(
        StageError, match=r"lacks torch\.onnx\.symbolic_helper\._unpack_list"
    ) as caught:
        torch_exporter.require_supported()
    assert "2.13" in caught.value.hint
