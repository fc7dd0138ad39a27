"""The same target in float32, beside one in half precision, so that the cost of half shows.

It is built in ``targets/<name>/fp32/`` as its own builder does it, and verification rolls it out
over the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.spec import Target
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild

FOLDER = "fp32"


def precision_of(target: Target) -> str:
    """Return what ``target`` computes floats in: ``fp32``, ``fp16`` or ``bf16``."""
    return str(getattr(target, "precision", "fp32"))


def in_fp32(target: Target) -> Target | None:
    """Return ``target`` in float32; None if that is what it is."""
    if precision_of(target) == "fp32":
        return None
    changes = {"precision": "fp32", "half_states": ()}
    return target.model_copy(update={k: v for k, v in changes.items() if hasattr(target, k)})


def artifact_in_fp32(artifact: Path) -> Path:
    """Return where the same as ``artifact`` in float32 is."""
    return artifact.parent / FOLDER / artifact.name


def build_in_fp32(
    artifacts: Artifacts, build: TargetBuild, builder: Callable[[Artifacts, TargetBuild], None]
) -> None:
    """Build a target in half precision in float32, too; note why, where that fails.

    Args:
        artifacts: Those of the run.
        build: The target, built.
        builder: What has built it.
    """
    target = in_fp32(artifacts.spec.targets[build.name])
    if target is None or build.artifact is None:
        return
    name = f"{build.name}/{FOLDER}"
    spec = artifacts.spec.model_copy(update={"targets": {**artifacts.spec.targets, name: target}})
    artifacts.say(f"building {build.name} in fp32, to compare")
    try:
        builder(replace(artifacts, spec=spec, notes={}), TargetBuild(name))
    except PipelineError as error:
        artifacts.notes.setdefault("build", {}).setdefault(FOLDER, {})[build.name] = str(error)


def why_not_in_fp32(artifacts: Artifacts, build: TargetBuild) -> str | None:
    """Return why a target in half precision has none in float32 beside it; None if it has."""
    if build.artifact is not None and artifact_in_fp32(build.artifact).is_file():
        return None
    failed = artifacts.notes.get("build", {}).get(FOLDER, {})
    return str(failed.get(build.name, "it was not built"))
