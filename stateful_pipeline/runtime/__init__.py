"""What a deployment imports: a runner that hides a model's explicit state again.

Needs numpy and one runtime, no torch: onnxruntime, or for files of theirs openvino, or tensorrt or
tensorrt_rtx with cuda-bindings.  A model describes itself: its state contract travels in the
metadata of the file, or beside an engine.  The runtime is imported when the first runner is made.

::

    runner = StatefulRunner("model.onnx")
    out = runner.run({"x": x})
"""

from __future__ import annotations

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.runtime.openvino_runner import OpenVinoRunner
from stateful_pipeline.runtime.ort_options import SessionOptions
from stateful_pipeline.runtime.stateful_runner import StatefulRunner
from stateful_pipeline.runtime.tensorrt_runner import TensorRtRunner

__all__ = [
    "Axis",
    "Contract",
    "Initial",
    "OpenVinoRunner",
    "SessionOptions",
    "State",
    "StatefulRunner",
    "TensorRtRunner",
    "Value",
]
