"""The stage ``verify``: prove each built target equal to eager PyTorch over rollouts."""

from __future__ import annotations

from typing import Any

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.model.schedule import Schedule, schedules
from stateful_pipeline.report import plain_json
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.files import write_text
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.rollouts import TargetRollouts, roll_out


def run(artifacts: Artifacts) -> None:
    """Fill the verdict of each target that was built, and write ``verify/report.json``.

    A target that cannot run gets an ``error`` and does not stop the others.
    """
    subject = artifacts.need("subject", "verify")
    states = artifacts.need("discovery", "verify").reference.states
    options = artifacts.spec.verify
    rolling: dict[str, TargetRollouts] = {}
    for name, build in artifacts.targets.items():
        if build.artifact is None or build.error is not None or build.owed:
            continue
        target = artifacts.spec.targets[name]
        try:
            rolling[name] = TargetRollouts(
                build.artifact,
                target.provider,
                target.threads,
                Tolerance(*artifacts.spec.tolerances(name)),
            )
        except PipelineError as error:
            build.error = error
    # With more threads than asked for, small operators mostly wait for each other.
    asked = [artifacts.spec.targets[name].threads for name in rolling]
    threads = max(filter(None, asked)) if asked and all(asked) else None
    with torch_threads(threads):
        for schedule in schedules(subject.axes, states):
            for seed in options.seeds:
                _roll_out(artifacts, list(rolling.values()), schedule, seed)
    for name, target_rollouts in rolling.items():
        build = artifacts.targets[name]
        build.error = target_rollouts.error
        if build.error is None:
            build.verify = target_rollouts.report()
            build.passed = build.verify["passed"]
            build.owed += build.verify["owed"]
    write_report(artifacts)


def _roll_out(
    artifacts: Artifacts, targets: list[TargetRollouts], schedule: Schedule, seed: int
) -> None:
    subject, options = artifacts.need("subject", "verify"), artifacts.spec.verify
    reference = artifacts.need("discovery", "verify").reference
    artifacts.say(f"rolling out at {schedule}, seed {seed}")
    try:
        roll_out(
            reference, subject.plan, targets, schedule, seed, options.steps, options.reset_every
        )
    except PipelineError as error:
        raise StageError(
            f"at {schedule}: {error.message}", stage="verify", place=error.place, hint=error.hint
        ) from error


def write_report(artifacts: Artifacts) -> None:
    """Write ``verify/report.json``: every target's entry, also of those that could not run."""
    targets: dict[str, Any] = {}
    for name, build in artifacts.targets.items():
        targets[name] = build.verify or {
            "passed": build.passed,
            "owed": build.owed,
            "steps": 0,
            "error": None if build.error is None else str(build.error),
        }
    folder = artifacts.folder / "verify"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "report.json", plain_json({"schema": 1, "targets": targets}))
