"""Opens the runner of a built target whose states are explicit, whatever its runtime."""

from __future__ import annotations

from pathlib import Path

from stateful_pipeline.profiles import merged, plan_profiles
from stateful_pipeline.runtime import OpenVinoRunner, StatefulRunner, TensorRtRunner
from stateful_pipeline.runtime.ort_options import SessionOptions
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.spec import (
    OnnxRuntimeTarget,
    OpenVinoTarget,
    Target,
    TensorRtRtxTarget,
    TensorRtTarget,
)
from stateful_pipeline.stages.model_files import contract_in


def open_runner(target: Target, model: Path) -> Runner:
    """Return a new runner of ``model``, as the spec declares ``target``.

    Raises:
        ContractError: The model cannot be loaded.
        SpecError: A profile of the target does not fit the model.
        TargetError: The runtime, or what it is to use, is not available here.
    """
    if isinstance(target, OpenVinoTarget):
        return OpenVinoRunner(model, threads=target.threads)
    if isinstance(target, TensorRtTarget | TensorRtRtxTarget):
        return TensorRtRunner(model, gpu=target.gpu)
    assert isinstance(target, OnnxRuntimeTarget)
    return open_onnxruntime(target, model)


def open_onnxruntime(target: OnnxRuntimeTarget, model: Path) -> StatefulRunner:
    """Return a new runner of ``model`` for a target of ONNX Runtime.

    Raises:
        ContractError: The model cannot be loaded.
        SpecError: A profile of the target does not fit the model.
        TargetError: ONNX Runtime, the provider or its device is not available here.
    """
    return StatefulRunner(
        model,
        provider=target.provider,
        threads=target.threads,
        options=onnxruntime_options(target, model),
    )


def onnxruntime_options(target: OnnxRuntimeTarget, model: Path) -> SessionOptions:
    """Return what the spec says of the session of a target.

    TensorRT gets one range of shapes, which covers all profiles of the target.

    Raises:
        ContractError: The model has no contract to plan a profile from.
        SpecError: A profile of the target does not fit the model.
    """
    ranges = None
    if target.provider == "tensorrt":
        ranges = merged(plan_profiles(contract_in(model), target.profiles)).ranges
    return SessionOptions(
        graph_optimization=target.graph_optimization,
        arena=target.arena,
        gpu=target.gpu,
        tf32=target.tf32,
        ranges=ranges,
    )
