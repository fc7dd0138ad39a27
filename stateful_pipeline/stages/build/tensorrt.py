"""Builds a target of TensorRT, or of TensorRT for RTX: an engine, and a description beside it.

The engine is built from the portable model, whose states are inputs and outputs.  Which shapes it
takes is planned first (:mod:`stateful_pipeline.profiles`) and held against what verification will
ask for, so that a profile that is too narrow shows here, and on any machine.

TensorRT for RTX builds without a GPU, for the GPUs that are listed.  What it has built can run on
these alone: elsewhere, verification is owed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract
from stateful_pipeline.errors import SpecError, StageError, StateError, TargetError
from stateful_pipeline.profiles import Profile, plan_profiles
from stateful_pipeline.runtime.cuda_device import CudaDevice
from stateful_pipeline.runtime.tensorrt_sidecar import (
    EngineProfile,
    EngineSidecar,
    engine_sha256,
    host_platform,
    sidecar_path,
)
from stateful_pipeline.spec import TensorRtRtxTarget, TensorRtTarget
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.build.coverage import of_target, refuse_uncovered
from stateful_pipeline.stages.build.tensorrt_process import ask_worker
from stateful_pipeline.stages.files import write_text
from stateful_pipeline.stages.lowering.for_tensorrt import ForTensorRt, lower_file_for_tensorrt
from stateful_pipeline.stages.lowering.half_target import half_target
from stateful_pipeline.stages.model_files import contract_in, copy_initial_values, copy_model

ENGINE = "model.engine"

_LACKS = {
    "float64": "TensorRT computes float64 in float32, without a word",
    "int8": "TensorRT has int8 for quantized numbers alone",
    "uint8": "TensorRT does no arithmetic in uint8",
    "int16": "TensorRT has no int16",
    "uint16": "TensorRT has no uint16",
    "uint32": "TensorRT has no uint32",
    "uint64": "TensorRT has no uint64",
}
"""Element types that an engine cannot take or give, and why."""


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is built: the keys of a target.

    ``compute_capabilities`` are for TensorRT for RTX (its own choice if empty), ``timing_cache``
    and ``gpu`` for TensorRT, which measures kernels.
    """

    precision: str = "fp32"
    tf32: bool = False
    workspace: int | None = None
    optimization_level: int | None = None
    flags: tuple[str, ...] = ()
    compute_capabilities: tuple[str, ...] = ()
    timing_cache: Path | None = None
    gpu: int = 0


def build(artifacts: Artifacts, target: TargetBuild) -> None:
    """Build ``target``; what the library warned of goes into the manifest.

    Raises:
        TargetError: The library is not installed, or there is no GPU: for TensorRT to build on, or
            for TensorRT for RTX to run what it has built on.
        SpecError: A profile is wrong, or does not cover what verification asks for.
        StateError: TensorRT has no such state.
        StageError: TensorRT cannot take the model.
    """
    declared = artifacts.spec.targets[target.name]
    assert isinstance(declared, TensorRtTarget | TensorRtRtxTarget)
    folder = artifacts.folder / "targets" / target.name
    with tempfile.TemporaryDirectory() as scratch:
        source = copy_model(artifacts.need("model", "build"), Path(scratch))
        halved = half_target(artifacts.spec, target.name, declared, source)
        contract = contract_in(source)
        try:
            _check_timing_cache(declared)
            profiles = plan_profiles(contract, declared.profiles)
            refuse_uncovered(artifacts, contract, profiles)
            made = build_engine(
                source,
                contract,
                folder,
                library=declared.runtime,
                profiles=profiles,
                options=_options(declared),
            )
        except SpecError as error:
            raise of_target(error, artifacts.spec, target.name) from error
    target.artifact = folder / ENGINE
    notes = artifacts.notes.setdefault("build", {})
    notes.setdefault("engines", {})[target.name] = made
    if halved:
        notes.setdefault("half", {})[target.name] = halved
    _require_gpu(declared.gpu, made["compute_capabilities"])


def build_engine(
    source: Path,
    contract: Contract,
    folder: Path,
    *,
    library: str,
    profiles: Sequence[Profile],
    options: EngineOptions = EngineOptions(),
) -> dict[str, Any]:
    """Build the portable model at ``source`` into ``folder``: ``model.engine`` and its description.

    Nothing is left in ``folder`` where it fails.

    Args:
        source: The ONNX model; its weights may lie beside it.
        contract: Its contract.
        folder: Made if it is not there.
        library: ``tensorrt`` or ``tensorrt_rtx``.
        profiles: What was planned for the contract.
        options: How it is built.

    Returns:
        What a manifest should say: the library's version, the GPUs, warnings, and what is computed
        in another type.

    Raises:
        TargetError: The library is not installed, or needs a GPU.
        SpecError: The library lacks a flag, or a kind of GPU.
        StateError: A state has a type that TensorRT lacks.
        StageError: TensorRT cannot take the model.
    """
    _refuse_types(contract)
    _refuse_same_names(contract)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building") as scratch:
        lowered = lower_file_for_tensorrt(source, Path(scratch, "lowered"))
        request = request_of(lowered.path, contract, Path(scratch), library, profiles, options)
        answer = ask_worker(request, Path(scratch))
        engine = Path(request["engine"])
        sidecar = EngineSidecar(
            library=library,
            version=answer["version"],
            sha256=engine_sha256(engine),
            contract=contract,
            profiles=tuple(EngineProfile(p.name, p.ranges) for p in profiles),
            compute_capabilities=tuple(answer["compute_capabilities"]),
            precision=options.precision,
            host=host_platform(),
            version_compatible="VERSION_COMPATIBLE" in options.flags,
        )
        copy_initial_values(source, folder)
        write_text(sidecar_path(folder / ENGINE), sidecar.to_json())
        os.replace(engine, folder / ENGINE)
    return _note(answer, lowered)


def request_of(
    source: Path,
    contract: Contract,
    scratch: Path,
    library: str,
    profiles: Sequence[Profile],
    options: EngineOptions,
) -> dict[str, Any]:
    """Return what the process that builds is asked for; it writes to ``scratch`` alone."""
    return {
        "library": library,
        "model": str(source.absolute()),
        "engine": str(scratch / ENGINE),
        "answer": str(scratch / "answer.json"),
        "profiles": [{"name": p.name, "ranges": dict(p.ranges)} for p in profiles],
        "dtypes": _dtypes(contract),
        "tf32": options.tf32,
        "workspace": options.workspace,
        "optimization_level": options.optimization_level,
        "flags": list(options.flags),
        "compute_capabilities": list(options.compute_capabilities),
        "timing_cache": None if options.timing_cache is None else str(options.timing_cache),
        "gpu": options.gpu,
    }


def _note(answer: Mapping[str, Any], lowered: ForTensorRt) -> dict[str, Any]:
    note: dict[str, Any] = {
        "version": answer["version"],
        "compute_capabilities": answer["compute_capabilities"],
        "warnings": answer["warnings"],
    }
    if lowered.changed:
        note["lowered"] = list(lowered.changed)
    if lowered.doubles:
        note["inexact"] = [f"{operator}: float64 in float32" for operator in lowered.doubles]
    return note


def _require_gpu(number: int, capabilities: Sequence[str]) -> None:
    """Say that what has been built cannot run here, where that is so.

    Raises:
        TargetError: There is no GPU, or one of another kind.
    """
    built = f"built for GPUs of compute capability {', '.join(capabilities)}, and not run"
    try:
        device = CudaDevice(number)
    except TargetError as error:
        raise TargetError(f"{built}: {error.message}", hint=error.hint) from error
    if device.capability not in capabilities:
        raise TargetError(
            f"{built}: the GPU here has {device.capability}",
            hint="verify the engine on a GPU of a kind that it was built for",
        )


def _check_timing_cache(declared: TensorRtTarget | TensorRtRtxTarget) -> None:
    """Check, before anything is built, that the timing cache can be written.

    Raises:
        SpecError: Its folder is not there, or it is a folder.
    """
    path = declared.timing_cache if isinstance(declared, TensorRtTarget) else None
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SpecError(
            f"timing_cache {path}: {what}", hint="name a file in a folder", key="timing_cache"
        )


def _options(declared: TensorRtTarget | TensorRtRtxTarget) -> EngineOptions:
    options = EngineOptions(
        precision=declared.precision,
        tf32=declared.tf32,
        workspace=declared.workspace,
        optimization_level=declared.optimization_level,
        flags=declared.flags,
        gpu=declared.gpu,
    )
    if isinstance(declared, TensorRtRtxTarget):
        return replace(options, compute_capabilities=declared.compute_capabilities)
    return replace(options, timing_cache=declared.timing_cache)


def _refuse_types(contract: Contract) -> None:
    """Refuse what an engine cannot take or give.

    Raises:
        StateError: A state has a type that TensorRT lacks.
        StageError: An input or an output has.
    """
    hint = "a target of ONNX Runtime computes it as it is"
    for state in contract.states:
        if state.dtype in _LACKS:
            raise StateError(
                f"it is {state.dtype}: {_LACKS[state.dtype]}", attribute=state.name, hint=hint
            )
    for kind, values in (("input", contract.inputs), ("output", contract.outputs)):
        for value in values:
            if value.dtype in _LACKS:
                raise StageError(
                    f"{kind} '{value.name}' is {value.dtype}: {_LACKS[value.dtype]}",
                    stage="build",
                    hint=hint,
                )


def _refuse_same_names(contract: Contract) -> None:
    """Refuse graph outputs that are graph inputs, which a network of TensorRT cannot have.

    Raises:
        StageError: There is one.
    """
    dtypes = [v.name for v in contract.inputs] + [s.input for s in contract.states]
    gives = {v.name for v in contract.outputs} | {s.output for s in contract.states}
    for name in dtypes:
        if name in gives:
            raise StageError(
                f"'{name}' is an input and an output of the graph at once, which TensorRT cannot "
                "have",
                stage="build",
                hint="put an Identity between the two, and give the output a name of its own",
            )


def _dtypes(contract: Contract) -> dict[str, str]:
    """Return the element type of every graph input and output."""
    found = {value.name: value.dtype for value in (*contract.inputs, *contract.outputs)}
    for state in contract.states:
        found |= {state.input: state.dtype, state.output: state.dtype}
    return found
