"""The stage ``verify``: prove each built target equal to eager PyTorch over rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import PipelineError, StageError, TargetError
from stateful_pipeline.model.copies import Copies
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.cpp_sharing import compare_with_copy
from stateful_pipeline.model.deployable import initial_module
from stateful_pipeline.model.reference import CAPACITY_HINT, Reference, Tensors, torch_threads
from stateful_pipeline.model.schedule import Schedule, schedules
from stateful_pipeline.report import plain_json
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.files import write_text
from stateful_pipeline.stages.in_process import InProcess
from stateful_pipeline.stages.lowering import is_narrowed
from stateful_pipeline.stages.runners import open_runner
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.half import InFloat32
from stateful_pipeline.stages.verify.libtorch import ProcessRollouts
from stateful_pipeline.stages.verify.rollouts import TargetRollouts, Verified, roll_out

_AS_IT_IS = (
    "without a target that needs explicit states, the module starts from what it holds: let "
    "`dynamic_axes` be the sizes that it takes then, or construct it for the size that is wanted"
)


def run(artifacts: Artifacts) -> None:
    """Fill the verdict of each target that was built, and write ``verify/report.json``.

    A target that cannot run gets an ``error`` and does not stop the others.
    """
    rolling = _rolling(artifacts)
    beside = InFloat32(artifacts, {name: artifacts.targets[name] for name in rolling})
    _roll_all(artifacts, rolling, [*rolling.values(), *beside.rolling.values()])
    for name, target_rollouts in rolling.items():
        build = artifacts.targets[name]
        build.error = target_rollouts.error
        if build.error is None:
            build.verify = beside.add_to(name, target_rollouts.report())
            _explain(artifacts, name, build.verify)
            build.passed = build.verify["passed"]
            build.owed += build.verify["owed"]
    write_report(artifacts)


def _explain(artifacts: Artifacts, name: str, entry: dict[str, Any]) -> None:
    """Say which operators a target computes otherwise, where it is not equal to PyTorch."""
    lowered = artifacts.notes.get("build", {}).get("lowered", {}).get(name, ())
    other = [change for change in lowered if is_narrowed(change)]
    if other and not entry["passed"]:
        entry.setdefault(
            "hint",
            "this engine computes some operators in another precision than PyTorch "
            f"({', '.join(other)}); a target of ONNX Runtime computes them as they are",
        )


def _rolling(artifacts: Artifacts) -> dict[str, Verified]:
    """Return the targets that were built and can run, by name."""
    rolling: dict[str, Verified] = {}
    for build in artifacts.to_build():
        if build.artifact is None:
            continue
        try:
            rolling[build.name] = _target(artifacts, build, build.artifact)
        except TargetError as error:
            build.owed.append(str(error))  # it is built, and cannot run here
        except PipelineError as error:
            build.error = error
    return rolling


def _target(artifacts: Artifacts, build: TargetBuild, path: Path) -> Verified:
    target = artifacts.spec.targets[build.name]
    tolerance = Tolerance(*artifacts.spec.tolerances(build.name))
    if target.needs == "onnx":
        return TargetRollouts(partial(open_runner, target, path), tolerance)
    return ProcessRollouts(InProcess(artifacts, build, "verify"), tolerance)


def _roll_all(
    artifacts: Artifacts, rolling: dict[str, Verified], followers: Sequence[Verified]
) -> None:
    """Roll ``followers`` out, targets and what is beside them, at all sizes and with all seeds."""
    if not rolling:
        return
    # With more threads than asked for, small operators mostly wait for each other.
    asked = [artifacts.spec.targets[name].threads for name in rolling]
    threads = max(filter(None, asked)) if asked and all(asked) else None
    with torch_threads(threads):
        oracle, planned = _oracle(artifacts, rolling)
        for schedule in planned:
            for seed in artifacts.spec.verify.seeds:
                _roll_out(artifacts, oracle, followers, schedule, seed)


def _oracle(
    artifacts: Artifacts, rolling: dict[str, Verified]
) -> tuple[Reference | Copies, list[Schedule]]:
    """Return what gives the right answers, and at which sizes it is asked."""
    subject = artifacts.need("subject", "verify")
    explicit = any(artifacts.spec.targets[name].needs == "onnx" for name in rolling)
    if explicit or artifacts.discovery is not None:
        reference = artifacts.need("discovery", "verify").reference
        return reference, schedules(subject.axes, reference.states)
    copies = Copies(initial_module(subject), subject.call)
    changing = copies.changing(subject.plan, subject.axes)
    fixed = [schedule for schedule in schedules(subject.axes, ()) if not schedule.turns]
    return copies, fixed if changing is None else [*fixed, changing]


def _roll_out(
    artifacts: Artifacts,
    oracle: Reference | Copies,
    targets: Sequence[Verified],
    schedule: Schedule,
    seed: int,
) -> None:
    subject, options = artifacts.need("subject", "verify"), artifacts.spec.verify
    artifacts.say(f"rolling out at {schedule}, seed {seed}")
    _check_oracle(artifacts, oracle, schedule, seed)
    try:
        roll_out(oracle, subject.plan, targets, schedule, seed, options.steps, options.reset_every)
    except PipelineError as error:
        as_it_is = isinstance(oracle, Copies) and subject.axes and error.hint != CAPACITY_HINT
        hint = _AS_IT_IS if as_it_is else error.hint
        raise StageError(
            f"at {schedule}: {error.message}", stage="verify", place=error.place, hint=hint
        ) from error


def _check_oracle(
    artifacts: Artifacts, oracle: Reference | Copies, schedule: Schedule, seed: int
) -> None:
    """Compare the module itself with copies of its C++ objects, such as the oracle has."""
    subject, count = artifacts.need("subject", "verify"), artifacts.spec.verify.steps

    def inputs() -> Iterator[Tensors]:
        for index in range(count):
            yield subject.plan.step(schedule.at(index), seed, index)

    if cpp_objects(subject.module):
        compare_with_copy(subject.module, subject.call.unchecked(), inputs)
    elif isinstance(oracle, Reference):
        subject.compare_with(oracle, schedule.at(0), inputs)


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
