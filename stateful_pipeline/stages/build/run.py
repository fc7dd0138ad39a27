"""The stage ``build``: one engine, or one lowered copy of the model, per target."""

from __future__ import annotations

import shutil
from pathlib import Path

from stateful_pipeline.errors import PipelineError, StageError, TargetError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild


def run(artifacts: Artifacts) -> None:
    """Build every target; one that fails has its ``error`` set and does not stop the others."""
    model = artifacts.need("model", "build")
    for name, build in artifacts.targets.items():
        artifacts.say(f"building {name}")
        try:
            _build(artifacts.spec.targets[name], model, artifacts.folder / "targets" / name, build)
        except TargetError as error:
            build.owed.append(str(error))  # it is built, and cannot run here
        except PipelineError as error:
            build.error = error


def _build(target: OnnxRuntimeTarget, model: Path, folder: Path, build: TargetBuild) -> None:
    """Copy the model for ONNX Runtime and load it once, so that a refusal shows here.

    Raises:
        TargetError: The provider is not available here.
        StageError: ONNX Runtime cannot load the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "model.onnx"
    for file in sorted(model.parent.glob(f"{model.name}*")):
        shutil.copyfile(file, folder / file.name)
    build.artifact = copy
    try:
        StatefulRunner(copy, provider=target.provider, threads=target.threads)
    except PipelineError as error:
        if type(error).__name__ == "ContractError":
            raise StageError(error.message, stage="build", hint=error.hint) from error
        raise
