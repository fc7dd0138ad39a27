"""The stage ``build``: one engine, or one lowered copy of the model, per target.

A model that ONNX Runtime has a kernel for everywhere is copied byte for byte.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stateful_pipeline.errors import PipelineError, StageError, TargetError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.lowering import lower_file


def run(artifacts: Artifacts) -> None:
    """Build every target; one that fails has its ``error`` set and does not stop the others."""
    model = artifacts.need("model", "build")
    lowered: dict[str, tuple[str, ...]] = {}
    for name, build in artifacts.targets.items():
        artifacts.say(f"building {name}")
        try:
            build.artifact, lowered[name] = _lower(model, artifacts.folder / "targets" / name)
            _load(artifacts.spec.targets[name], build.artifact)
        except TargetError as error:
            build.owed.append(str(error))  # it is built, and cannot run here
        except PipelineError as error:
            build.error = error
    if any(lowered.values()):
        artifacts.notes["build"] = {"lowered": lowered}


def _lower(model: Path, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Copy the model for ONNX Runtime; return the copy, and what runs in another dtype there.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "model.onnx"
    for file in sorted(model.parent.glob(f"{model.name}*")):
        shutil.copyfile(file, folder / file.name)
    return copy, lower_file(copy, copy)


def _load(target: OnnxRuntimeTarget, model: Path) -> None:
    """Load the model once, so that a refusal shows here.

    Raises:
        TargetError: The provider is not available here.
        StageError: ONNX Runtime cannot load the model.
    """
    try:
        StatefulRunner(model, provider=target.provider, threads=target.threads)
    except PipelineError as error:
        if type(error).__name__ == "ContractError":
            raise StageError(error.message, stage="build", hint=error.hint) from error
        raise
