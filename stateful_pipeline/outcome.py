"""How a run ended: its status, the process's exit code, and its line of JSON.

===  =====================================================================
0    done, and equal
1    not equal, or a gate missed
2    the spec or the call is wrong, or the model cannot be found or constructed
3    a stage failed, or the model was refused
4    a required target is not available here, or could not be checked
130  interrupted
===  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateful_pipeline.errors import SpecError, StateError, TargetError

if TYPE_CHECKING:
    from stateful_pipeline.spec import Target
    from stateful_pipeline.stages.artifacts import TargetBuild
    from stateful_pipeline.stages.log import LogResult


class Exit(IntEnum):
    """What the process ends with."""

    DONE = 0
    UNEQUAL = 1
    WRONG = 2
    FAILED = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130


_WORST_FIRST = (Exit.INTERRUPTED, Exit.FAILED, Exit.WRONG, Exit.UNEQUAL, Exit.UNAVAILABLE)


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        name: The spec's name.
        status: ``passed``, ``built`` (not verified, since nobody asked), ``failed``, ``refused``,
            ``owed`` or ``interrupted``.
        folder: The build's folder.
        link: Where the build can be found from now on; None if it stays where it is.
        kept: The link to a verified build that this one, not verified, does not replace.
        error: The first error, if any.
        targets: The targets with their verdicts.
        summary: All of it as plain data.
        log: Where it was logged.
        stages: Status of each stage.
        missed: The gates that were missed, in words.
    """

    name: str
    status: str
    folder: Path
    link: Path | None = None
    kept: Path | None = None
    error: Exception | None = None
    targets: dict[str, TargetBuild] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    log: LogResult | None = None
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> Exit:
        """What the process ends with, if this is its only run."""
        ends = {
            "passed": Exit.DONE,
            "built": Exit.DONE,
            "interrupted": Exit.INTERRUPTED,
            "owed": Exit.UNAVAILABLE,
            "refused": Exit.FAILED,
        }
        if self.status in ends:
            return ends[self.status]
        if self.error is None:
            return Exit.UNEQUAL
        code = code_of(self.error)
        unequal = any(target.passed is False for target in self.targets.values())
        unequal = unequal or bool(self.missed)
        return Exit.UNEQUAL if code is Exit.UNAVAILABLE and unequal else code

    def line(self, spec: Path) -> dict[str, Any]:
        """Return the line of JSON of the run of the file ``spec``."""
        return {
            "spec": str(spec),
            "name": self.name,
            "status": self.status,
            "exit_code": int(self.exit_code),
            "build": str(self.link.absolute() if self.link else self.folder),
            "error": None if self.error is None else str(self.error),
            "stages": {name: stage["status"] for name, stage in self.stages.items()},
            "targets": {name: _target_line(target) for name, target in self.targets.items()},
            "missed_gates": self.missed,
            "mlflow": None if self.log is None else self.log.url,
        }


def line_without_build(spec: Path, code: Exit, error: str) -> dict[str, Any]:
    """Return the line of JSON of a run of the file ``spec`` that came to no build."""
    status = {Exit.WRONG: "wrong", Exit.INTERRUPTED: "interrupted"}.get(code, "failed")
    return {
        "spec": str(spec),
        "name": None,
        "status": status,
        "exit_code": int(code),
        "build": None,
        "error": error,
        "stages": {},
        "targets": {},
        "missed_gates": [],
        "mlflow": None,
    }


def _target_line(target: TargetBuild) -> dict[str, Any]:
    verify, timed = target.verify or {}, target.benchmark or {}
    worst = verify.get("max_abs_error")
    return {
        "passed": target.passed,
        "owed": target.owed,
        "error": None if target.error is None else str(target.error),
        "steps": verify.get("steps"),
        "max_abs_error": worst if worst is None or abs(worst) < float("inf") else str(worst),
        "p50_ms": timed.get("p50_ms"),
    }


def code_of(error: BaseException) -> Exit:
    """Return what the process ends with where ``error`` ends it."""
    if isinstance(error, SpecError):
        return Exit.WRONG
    if isinstance(error, TargetError):
        return Exit.UNAVAILABLE
    return Exit.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.FAILED


def worst(codes: Sequence[Exit]) -> Exit:
    """Return what a process ends with whose runs ended with ``codes``."""
    return next((code for code in _WORST_FIRST if code in codes), Exit.DONE)


def status_of(
    error: BaseException | None,
    builds: Mapping[str, TargetBuild],
    targets: Mapping[str, Target],
    missed: Sequence[str],
) -> str:
    """Return the status of a run.

    Args:
        error: The first error of a stage, if any.
        builds: The targets that were asked for, as far as they came.
        targets: The targets as the spec has them.
        missed: The gates that were missed.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    made = list(builds.values())
    required = [build for name, build in builds.items() if not targets[name].optional]
    if any(isinstance(found, StateError) for found in (error, *(t.error for t in required))):
        return "refused"
    broken = any(t.error is not None and not isinstance(t.error, TargetError) for t in made)
    if error is not None or broken or missed or any(t.passed is False for t in made):
        return "failed"
    if any(t.error is not None or t.owed for t in required):
        return "owed"
    if any(t.passed is None for t in required) or not any(t.passed for t in made):
        return "built"
    return "passed"
