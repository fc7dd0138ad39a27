"""Rolls a target of LibTorch out in a C++ process, free-running: its states stay inside the module.

So nothing but outputs can be compared, and no step can start from the reference's state.  A rollout
is collected first, and then run in one process of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.arrays import Array, to_arrays
from stateful_pipeline.model.reference import Step
from stateful_pipeline.model.schedule import Schedule
from stateful_pipeline.model.tree import named_outputs
from stateful_pipeline.stages.in_process import InProcess
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.record import RESET_STEPS, RolloutRecord, report_of

_AS_IT_IS = (
    "construct the module for the size that is wanted, and fix the "
    "axis to it in `inputs`; let `dynamic_axes` be the sizes that the file takes; or let the first "
    "call broadcast the state, as `self.h = 0.5 * self.h + x` does"
)


class ProcessRollouts:
    """A target under verification.

    Args:
        target: The target, ready to run.
        tolerance: What counts as equal.

    Attributes:
        error: Why the target could not be run to the end, if it could not.
    """

    def __init__(self, target: InProcess, tolerance: Tolerance) -> None:
        self._target, self._tolerance = target, tolerance
        self.records: list[RolloutRecord] = []
        self.reset_passed, self._reset_steps = True, RESET_STEPS
        self.error: PipelineError | None = None

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin a rollout whose steps have the sizes of ``schedule``."""
        self.records.append(RolloutRecord("free-running", schedule, seed))
        self._steps: list[Step] = []
        self._resets: list[int] = []

    def try_to_follow(self, step: Step, begins: bool) -> None:
        """Note a step of the reference; ``begins`` says that it starts from reset."""
        self._steps.append(step)
        if begins and step.index:
            self._resets.append(step.index)

    def finish(self) -> None:
        """Run the rollout; then reset, and repeat its first steps, which must give the same bits.

        An error ends this target's verification alone.
        """
        try:
            self._run(self.records[-1])
        except PipelineError as error:
            schedule = self.records[-1].schedule
            message = error.message.removeprefix("verify: ")
            self.error = StageError(
                f"the target does not run at {schedule}: {message}",
                stage="verify",
                place=error.place,
                hint=self._of_sizes(schedule) or error.hint,
            )

    def _run(self, record: RolloutRecord) -> None:
        steps, count = self._steps, len(self._steps)
        # What is repeated ends where the rollout was reset.
        self._reset_steps = min(self._reset_steps, count, *self._resets)
        taken = [*steps, *steps[: self._reset_steps]]
        resets = [*self._resets, count]
        inputs = [step.inputs for step in taken]
        # A method may reset a state to the size that it has by then.
        by_method = not record.schedule.turns
        done = self._target.run(inputs, reset_at=resets, reset_by_method=by_method)
        got = [_outputs(value, step) for value, step in zip(done.outputs, taken, strict=True)]
        for step, outputs in zip(steps, got[:count], strict=True):
            record.add(step.index, "output", to_arrays(step.outputs), outputs, self._tolerance)
        for first, again in zip(got[: len(taken) - count], got[count:], strict=True):
            if any(again[name].tobytes() != value.tobytes() for name, value in first.items()):
                self.reset_passed = False

    def report(self) -> dict[str, Any]:
        """Return the target's entry of ``verify/report.json``."""
        entry = report_of(self.records, self._tolerance, self.reset_passed, self._reset_steps)
        bad = [each for each in self.records if each.first_bad is not None]
        hints = list(filter(None, (self._of_sizes(each.schedule) for each in bad)))
        hint = {"hint": hints[0]} if hints else {}
        return {**entry, **hint, "states": "inside the module"}

    def _of_sizes(self, schedule: Schedule) -> str | None:
        """Return the hint where the file holds states of other sizes than eager begins with."""
        sized = self._target.sized_otherwise(schedule.at(0))
        return None if sized is None else f"{sized}; {_AS_IT_IS}"


def _outputs(value: Any, step: Step) -> dict[str, Array]:
    """Return what a step gave by the names of eager: a named tuple comes back without names.

    Raises:
        StageError: It gave more or fewer tensors.
    """
    found: dict[str, torch.Tensor] = named_outputs(value)
    if found.keys() != step.outputs.keys():
        if len(found) != len(step.outputs):
            raise StageError(
                f"step {step.index} returns {len(found)} tensors, and {len(step.outputs)} in eager",
                stage="verify",
            )
        found = dict(zip(step.outputs, found.values(), strict=True))
    return to_arrays(found)
