"""Builds a target of ONNX Runtime: a copy of the portable model, lowered where it lacks kernels.

A model that ONNX Runtime has a kernel for everywhere is copied byte for byte.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.lowering import lower_file


def build(artifacts: Artifacts, target: TargetBuild) -> None:
    """Build ``target``, and note what runs in another dtype there.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels, or lacks the provider.
        StageError: ONNX Runtime cannot load the model.
    """
    declared = artifacts.spec.targets[target.name]
    assert isinstance(declared, OnnxRuntimeTarget)
    model = artifacts.need("model", "build")
    target.artifact = _copy(model, artifacts.folder / "targets" / target.name)
    lowered = lower_file(target.artifact, target.artifact)
    if lowered:
        artifacts.notes.setdefault("build", {}).setdefault("lowered", {})[target.name] = lowered
    _load(declared, target.artifact)


def _copy(model: Path, folder: Path) -> Path:
    """Copy the model with the files beside it; return the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(model.parent.glob(f"{model.name}*")):
        shutil.copyfile(file, folder / file.name)
    return folder / model.name


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
