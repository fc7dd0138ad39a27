"""Says what TensorRT computes otherwise than the portable model does.

Its ONNX parser turns float64 into float32 without a word.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from stateful_pipeline.stages.lowering.typed import infer_types


def doubles_inside(path: Path) -> tuple[str, ...]:
    """Return the operators of the model at ``path`` that give float64, each once."""
    model = ir.load(path)
    infer_types(model)
    return tuple(
        dict.fromkeys(
            node.op_type
            for graph in model.graphs()
            for node in graph
            if any(output.dtype == ir.DataType.DOUBLE for output in node.outputs)
        )
    )
