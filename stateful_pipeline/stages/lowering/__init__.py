"""Casts around operators that a dtype is not for, so that a model can be written and run.

Two things can be in the way of an operator at a dtype.  ONNX may not define it (``Conv`` of
bfloat16 before opset 22), and then no file may have it; or ONNX Runtime may have no kernel for it
(``Add`` of bfloat16 on the CPU), and then the copy that it loads must do without.  In both cases
the operator is run in a wider dtype, and each result is cast back at once::

    m = Mul(x, y)      m = Cast(Mul(Cast(x), Cast(y)))

Every value between two operators keeps its dtype, so that rounding happens where PyTorch rounds,
whose kernels for 16 bits compute in float32 and round each result; and integers wrap around where
PyTorch's do.  ONNX Runtime's own casts of float16 do not: it computes chains of operators in
float32, and a state drifts away from eager's.

float64 has no wider dtype: layers of it that ONNX Runtime lacks are written out in operators that
it has (:mod:`.doubles`).

OpenVINO has gaps of its own (:mod:`.for_openvino`).
"""

from stateful_pipeline.stages.lowering.for_openvino import (
    lower_file_for_openvino,
    lower_for_openvino,
)
from stateful_pipeline.stages.lowering.for_openvino_narrowed import is_narrowed
from stateful_pipeline.stages.lowering.lower import define, is_lowered, lower, lower_file

__all__ = [
    "define",
    "is_lowered",
    "is_narrowed",
    "lower",
    "lower_file",
    "lower_file_for_openvino",
    "lower_for_openvino",
]
