"""What half precision costs: the same target in float32, rolled out over the same steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.report.verdict import scientific
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.in_fp32 import (
    artifact_in_fp32,
    in_fp32,
    precision_of,
    why_not_in_fp32,
)
from stateful_pipeline.stages.runners import open_runner
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.rollouts import TargetRollouts

_CURVE = ("passed", "steps", "max_abs_error", "first_bad", "per_step", "atol", "rtol")


class InFloat32:
    """The same targets in float32, as far as they were built.

    Args:
        artifacts: Those of the run.
        builds: The targets that are rolled out.
    """

    def __init__(self, artifacts: Artifacts, builds: Mapping[str, TargetBuild]) -> None:
        self._artifacts = artifacts
        self._why_not: dict[str, str] = {}
        self.rolling: dict[str, TargetRollouts] = {}
        for name, build in builds.items():
            target = in_fp32(artifacts.spec.targets[name])
            if target is None or build.artifact is None:
                continue
            missing = why_not_in_fp32(artifacts, build)
            if missing is not None:
                self._why_not[name] = missing
                continue
            options = artifacts.spec.verify
            path = artifact_in_fp32(build.artifact)
            try:
                self.rolling[name] = TargetRollouts(
                    partial(open_runner, target, path), Tolerance(options.atol, options.rtol)
                )
            except PipelineError as error:
                self._why_not[name] = str(error)

    def add_to(self, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Return a target's entry of ``verify/report.json``, with the one in float32 beside it.

        Args:
            name: The target.
            entry: What verification found of it.
        """
        precision = precision_of(self._artifacts.spec.targets[name])
        if precision == "fp32":
            return entry
        beside = self._entry(name)
        found = {**entry, "precision": precision, "fp32": beside}
        bad = entry["first_bad"]
        if bad is not None and not isinstance(bad["expected"], str):  # dtypes and shapes are equal
            found["hint"] = half_hint(name, found)
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        """Return what the target in float32 showed, or why it showed nothing."""
        rollouts = self.rolling.get(name)
        if rollouts is None:
            return {"error": self._why_not.get(name, "it was not built")}
        if rollouts.error is not None:
            return {"error": str(rollouts.error)}
        entry = rollouts.report()
        return {key: entry[key] for key in _CURVE}


def half_hint(name: str, entry: Mapping[str, Any]) -> str:
    """Say what is off in half precision, and which tolerance would take it.

    Args:
        name: The target.
        entry: Its entry of ``verify/report.json``, with a first bad tensor.
    """
    bad, precision = entry["first_bad"], entry["precision"]
    beside = entry["fp32"].get("max_abs_error")
    instead = "" if beside is None else f", {scientific(beside)} in fp32"
    worst = max(rollout["max_abs_error"] for rollout in entry["rollouts"])
    if isinstance(bad["expected"], bool | int):
        return (
            f"{precision} changes whole numbers, for which there is no tolerance: "
            f"`targets.{name}.precision: fp32`"
        )
    if not math.isfinite(worst):
        return (
            f"{precision} gives NaN or infinity where eager PyTorch does not: values are too large "
            f"for it; `precision: {'bf16' if precision == 'fp16' else 'fp32'}` has a wider range"
        )
    return (
        f"in {precision} '{bad['tensor']}' is off at step {bad['step']}, the worst error is "
        f"{scientific(worst)}{instead}; if that is good enough, `targets.{name}.verify: "
        f'{{atol: {scientific(_enough(worst))}, reason: "half precision"}}`'
    )


def _enough(error: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is twice ``error`` or more."""
    power = 10.0 ** math.floor(math.log10(2 * error))
    return next(
        float(f"{digit * power:.0e}") for digit in (1, 2, 5, 10) if digit * power >= 2 * error
    )
