"""What a deployment imports: a runner that hides a model's explicit state again.

Needs numpy and onnxruntime (or openvino, for files of that), no torch.  The model file describes
itself: its state contract travels in the metadata of the file.  The runtime is imported when the
first runner is made.

::

    runner = StatefulRunner("model.onnx")
    out = runner.run({"x": x})
"""

from __future__ import annotations

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.runtime.openvino_runner import OpenVinoRunner
from stateful_pipeline.runtime.stateful_runner import StatefulRunner

__all__ = ["Axis", "Contract", "Initial", "OpenVinoRunner", "State", "StatefulRunner", "Value"]
