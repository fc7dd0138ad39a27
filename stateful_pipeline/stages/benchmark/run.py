"""The stage ``benchmark``: time a step of each target beside eager PyTorch, in the same run.

Inputs are made beforehand and differ from step to step, and states are warm (filled by the warm-up
steps).  Each runtime has a file here, whose ``measure`` times one target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.sizes import usual_sizes
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.benchmark import in_turns, libtorch

_Measure = Callable[[Artifacts, TargetBuild, Mapping[str, int]], dict[str, Any]]

_MEASURES: dict[str, _Measure] = {
    "onnxruntime": in_turns.measure,
    "openvino": in_turns.measure,
    "libtorch": libtorch.measure,
}
"""What times a target, by its runtime."""


def run(artifacts: Artifacts) -> None:
    """Fill ``benchmark`` of each target that was built and runs."""
    if artifacts.spec.benchmark.steps == 0:
        return
    subject = artifacts.need("subject", "benchmark")
    sizes = usual_sizes(subject.axes)
    for build in artifacts.to_build():
        if build.artifact is None:
            continue
        measure = _MEASURES[artifacts.spec.targets[build.name].runtime]
        artifacts.say(f"timing {build.name}")
        try:
            build.benchmark = measure(artifacts, build, sizes)
        except PipelineError as error:
            build.error = error
