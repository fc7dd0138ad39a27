"""What half precision costs: the same target in float32, rolled out over the same steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.arrays import Array, to_arrays
from stateful_pipeline.model.reference import Step
from stateful_pipeline.report.verdict import scientific
from stateful_pipeline.runtime.runner import Runner
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

_LIMITS = {"fp16": 65504.0, "bf16": 3.3895313892515355e38}
"""The largest number of each."""

ROUNDING = 0.03
"""Share of a tensor's largest element that it may be off by, to be taken for rounding.

bfloat16 rounds by 0.004 of a number, float16 by 0.0005, once.
"""


class RolloutsInFloat32(TargetRollouts):
    """A target in float32, which notes how large each tensor of the reference is.

    Attributes:
        largest: The largest finite element of each tensor of floats; a state is called
            ``state h``.
    """

    def __init__(self, new_runner: Callable[[], Runner], tolerance: Tolerance) -> None:
        super().__init__(new_runner, tolerance)
        self.largest: dict[str, float] = {}

    def follow(self, step: Step, begins: bool) -> None:
        """Take one step beside the reference."""
        for name, value in to_arrays(step.outputs).items():
            self._note(name, value)
        for name, value in to_arrays(step.after).items():
            self._note(f"state {name}", value)
        super().follow(step, begins)

    def _note(self, tensor: str, value: Array) -> None:
        if value.dtype.kind in "biu":
            return
        numbers = np.abs(value[np.isfinite(value)].astype(np.float64))
        self.largest[tensor] = max(self.largest.get(tensor, 0.0), float(numbers.max(initial=0)))


class InFloat32:
    """The same targets in float32, as far as they were built.

    Args:
        artifacts: Those of the run.
        builds: The targets that are rolled out.
    """

    def __init__(self, artifacts: Artifacts, builds: Mapping[str, TargetBuild]) -> None:
        self._artifacts = artifacts
        self._why_not: dict[str, str] = {}
        self.rolling: dict[str, RolloutsInFloat32] = {}
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
                self.rolling[name] = RolloutsInFloat32(
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
        target = self._artifacts.spec.targets[name]
        precision = precision_of(target)
        if precision == "fp32":
            return entry
        beside = self._entry(name)
        found = {**entry, "precision": precision, "fp32": beside}
        bad = entry["first_bad"]
        if bad is not None and not isinstance(bad["expected"], str):  # dtypes and shapes are equal
            found["hint"] = half_hint(name, found, bool(getattr(target, "half_states", ())))
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        """Return what the target in float32 showed, or why it showed nothing."""
        rollouts = self.rolling.get(name)
        if rollouts is None:
            return {"error": self._why_not.get(name, "it was not built")}
        if rollouts.error is not None:
            return {"error": str(rollouts.error)}
        entry = rollouts.report()
        return {**{key: entry[key] for key in _CURVE}, "largest": rollouts.largest}


def half_hint(name: str, entry: Mapping[str, Any], half_states: bool = False) -> str:
    """Say what is off in half precision, and which tolerance would take it, if rounding is all.

    Args:
        name: The target.
        entry: Its entry of ``verify/report.json``, with a first bad tensor and what was seen in
            fp32.
        half_states: Whether states of it are in half, too.
    """
    bad, precision = entry["first_bad"], entry["precision"]
    if isinstance(bad["expected"], bool | int):
        return (
            f"{precision} changes whole numbers, for which there is no tolerance: "
            f"`targets.{name}.precision: fp32`"
        )
    worst = max(rollout["max_abs_error"] for rollout in entry["rollouts"])
    errors, largest = _errors(entry), entry["fp32"].get("largest", {})
    outside = [tensor for tensor, error in errors.items() if not math.isfinite(error)]
    unfit = (
        _overflow(outside, largest, precision)
        if outside or not math.isfinite(worst)
        else _beyond_rounding(errors, largest, entry["atol"]) or _hidden(errors, largest)
    )
    if unfit is not None:
        other = ", or bf16" if precision == "fp16" and outside else ""
        fewer = ", or fewer `half_states`" if half_states else ""
        return (
            f"{precision} does not fit this model: {unfit}; "
            f"`targets.{name}.precision: fp32`{other}{fewer}"
        )
    beside = entry["fp32"].get("max_abs_error")
    instead = "" if beside is None else f", {scientific(beside)} in fp32"
    forced = "" if worst == entry["max_abs_error"] else f", {scientific(worst)} teacher-forced"
    return (
        f"in {precision} '{bad['tensor']}' is off at step {bad['step']}, the worst error is "
        f"{scientific(entry['max_abs_error'])}{forced}{instead}; if that is good enough, "
        f"`targets.{name}.verify: "
        f'{{atol: {scientific(_enough(worst))}, reason: "half precision"}}`'
    )


def _errors(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the worst error of each tensor over all rollouts."""
    errors: dict[str, float] = {}
    for rollout in entry["rollouts"]:
        for tensor, error in rollout["tensors"].items():
            errors[tensor] = max(error, errors.get(tensor, 0.0))
    return errors


def _overflow(outside: Sequence[str], largest: Mapping[str, float], precision: str) -> str:
    """Say which tensor has left the range of half, if it is one that is compared."""
    limit = _LIMITS[precision]
    for tensor in outside:
        if largest.get(tensor, 0.0) > limit:
            reached = f"{scientific(largest[tensor])}, and {precision} ends at {limit:.6g}"
            return f"{_said(tensor)} reaches {reached}"
    return f"something that {_said(outside[0])} is made of is outside its range (NaN or infinity)"


def _beyond_rounding(
    errors: Mapping[str, float], largest: Mapping[str, float], atol: float
) -> str | None:
    """Say which tensor is off by more than rounding to half explains; None if none is."""
    off = {
        tensor: error / largest[tensor] if largest[tensor] else math.inf
        for tensor, error in errors.items()
        if error > atol and tensor in largest
    }
    tensor = max(off, key=off.__getitem__, default="")
    if off.get(tensor, 0.0) <= ROUNDING:
        return None
    return (
        f"{_said(tensor)} is off by {scientific(errors[tensor])}, and is "
        f"{scientific(largest[tensor])} at most: that is no rounding"
    )


def _hidden(errors: Mapping[str, float], largest: Mapping[str, float]) -> str | None:
    """Say which tensor would pass whatever it is, if the tolerance took all errors."""
    sizes = {tensor: size for tensor, size in largest.items() if size > 0}
    if not sizes:
        return None
    worst = max(errors, key=errors.__getitem__)
    small = min(sizes, key=sizes.__getitem__)
    if _enough(errors[worst]) < 10 * ROUNDING * sizes[small]:
        return None
    return (
        f"an `atol` for {_said(worst)}, which is off by {scientific(errors[worst])}, would hide "
        f"any error of {_said(small)}, which is {scientific(sizes[small])} at most"
    )


def _said(tensor: str) -> str:
    kind, space, name = tensor.rpartition("state ")
    return f"{kind}{space}'{name}'"


def _enough(error: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is twice ``error`` or more."""
    power = 10.0 ** math.floor(math.log10(2 * error))
    return next(
        float(f"{digit * power:.0e}") for digit in (1, 2, 5, 10) if digit * power >= 2 * error
    )
