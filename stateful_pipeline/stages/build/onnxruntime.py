"""Builds a target of ONNX Runtime: a copy of the portable model, lowered where it lacks kernels.

A model that ONNX Runtime has a kernel for everywhere is copied byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateful_pipeline.errors import ContractError, SpecError, StageError
from stateful_pipeline.profiles import plan_profiles
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.build.coverage import of_target, refuse_uncovered
from stateful_pipeline.stages.lowering import lower_file
from stateful_pipeline.stages.lowering.half_target import half_target
from stateful_pipeline.stages.model_files import contract_in, copy_model
from stateful_pipeline.stages.runners import open_onnxruntime


def build(artifacts: Artifacts, target: TargetBuild) -> None:
    """Build ``target``; note what runs in another dtype there, and what on the CPU beside a GPU.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels, or lacks the provider.
        SpecError: A profile does not fit the model, or `half_states` names no state of it.
        StageError: ONNX Runtime cannot load the model.
    """
    declared = artifacts.spec.targets[target.name]
    assert isinstance(declared, OnnxRuntimeTarget)
    model = artifacts.need("model", "build")
    target.artifact = copy_model(model, artifacts.folder / "targets" / target.name)
    halved = half_target(artifacts.spec, target.name, declared, target.artifact)
    _note(artifacts, "half", target.name, halved)
    if declared.provider == "tensorrt":
        _check_profiles(artifacts, target.name, declared, target.artifact)
    lowered = lower_file(target.artifact, target.artifact)
    _note(artifacts, "lowered", target.name, lowered)
    runner = _load(declared, target.artifact)
    _note(artifacts, "nodes", target.name, runner.nodes)
    _note(artifacts, "on_host", target.name, runner.on_host)


def _check_profiles(
    artifacts: Artifacts, name: str, declared: OnnxRuntimeTarget, model: Path
) -> None:
    """Check the profiles of a target whose engine ONNX Runtime builds when it loads the model.

    Raises:
        SpecError: One is wrong, or they do not cover what verification asks for.
    """
    contract = contract_in(model)
    try:
        refuse_uncovered(artifacts, contract, plan_profiles(contract, declared.profiles))
    except SpecError as error:
        raise of_target(error, artifacts.spec, name) from error


def _note(artifacts: Artifacts, what: str, target: str, found: Any) -> None:
    """Note what was found of a target, if that is anything."""
    if found:
        artifacts.notes.setdefault("build", {}).setdefault(what, {})[target] = found


def _load(target: OnnxRuntimeTarget, model: Path) -> StatefulRunner:
    """Load the model once, so that a refusal shows here.

    Raises:
        TargetError: The provider is not available here.
        SpecError: A profile does not fit the model.
        StageError: ONNX Runtime cannot load the model.
    """
    try:
        return open_onnxruntime(target, model)
    except ContractError as error:
        raise StageError(error.message, stage="build", hint=error.hint) from error
