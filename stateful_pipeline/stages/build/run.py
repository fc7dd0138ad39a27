"""The stage ``build``: one engine, or one copy of the model that is made for a runtime, per target.

Each runtime has a file here, whose ``build`` builds one target.
"""

from __future__ import annotations

from collections.abc import Callable

from stateful_pipeline.errors import PipelineError, TargetError
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.build import libtorch, onnxruntime, openvino, tensorrt
from stateful_pipeline.stages.in_fp32 import build_in_fp32

_BUILDERS: dict[str, Callable[[Artifacts, TargetBuild], None]] = {
    "onnxruntime": onnxruntime.build,
    "openvino": openvino.build,
    "tensorrt": tensorrt.build,
    "tensorrt_rtx": tensorrt.build,
    "libtorch": libtorch.build,
}
"""What builds a target, by its runtime; it leaves the target's ``artifact``."""

_NEEDED = {"onnx": "model", "scripted": "scripted"}
"""What earlier stages call the artifacts that targets need."""


def run(artifacts: Artifacts) -> None:
    """Build every target; one that fails has its ``error`` set and does not stop the others."""
    targets = artifacts.spec.targets
    waiting = artifacts.to_build()
    for build in waiting:
        artifacts.need(_NEEDED[targets[build.name].needs], "build")
    for build in waiting:
        artifacts.say(f"building {build.name}")
        try:
            builder = _BUILDERS[targets[build.name].runtime]
            builder(artifacts, build)
            build_in_fp32(artifacts, build, builder)
        except TargetError as error:
            if build.artifact is None:
                build.error = error
            else:
                build.owed.append(str(error))  # it is built, and cannot run here
        except PipelineError as error:
            build.error = error
