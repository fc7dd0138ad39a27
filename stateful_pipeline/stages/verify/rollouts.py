"""Rolls a built target out beside the eager module: free-running and teacher-forced.

*Free-running*: the target feeds itself its own last state, as it will when deployed; errors may
accumulate, which is what this is for.  *Teacher-forced*: each step starts from the reference's
state, so that a step that is wrong shows by itself.  Both compare every output and every state
after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from stateful_pipeline.contract import Contract, numpy_dtype
from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.arrays import Array, to_arrays
from stateful_pipeline.model.copies import Copies
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Reference, Step
from stateful_pipeline.model.schedule import Schedule
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.record import RESET_STEPS, RolloutRecord, report_of


class Verified(Protocol):
    """A target under verification, whatever its runtime.

    Attributes:
        error: Why the target could not be run to the end, if it could not.
    """

    error: PipelineError | None

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin a rollout whose steps have the sizes of ``schedule``."""
        ...

    def try_to_follow(self, step: Step, begins: bool) -> None:
        """Take one step of the reference; ``begins`` says that it starts from reset."""
        ...

    def finish(self) -> None:
        """End a rollout: reset, and repeat its first steps, which must give the same bits."""
        ...

    def report(self) -> dict[str, Any]:
        """Return the target's entry of ``verify/report.json``."""
        ...


class TargetRollouts:
    """A target under verification.

    Args:
        new_runner: Makes a runner of the built model.
        tolerance: What counts as equal.

    Attributes:
        error: Why the target could not be run to the end, if it could not.
    """

    def __init__(self, new_runner: Callable[[], Runner], tolerance: Tolerance) -> None:
        self._free, self._forced = new_runner(), new_runner()
        self._tolerance = tolerance
        self.records: list[RolloutRecord] = []
        self.reset_passed, self._reset_steps = True, RESET_STEPS
        self.error: PipelineError | None = None

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin a rollout whose steps have the sizes of ``schedule``."""
        for mode in ("free-running", "teacher-forced"):
            self.records.append(RolloutRecord(mode, schedule, seed))
        self._first: list[tuple[dict[str, Array], list[Array]]] = []
        self._is_first = True

    def try_to_follow(self, step: Step, begins: bool) -> None:
        """Take one step as :meth:`follow` does; an error ends this target's verification alone."""
        if self.error is not None:
            return
        try:
            self.follow(step, begins)
        except PipelineError as error:
            self.error = StageError(
                f"the target does not run at step {step.index}: {error.message}",
                stage="verify",
                hint=error.hint,
            )

    def follow(self, step: Step, begins: bool) -> None:
        """Take one step beside the reference; ``begins`` says that it starts from reset."""
        free, forced = self.records[-2:]
        given = to_arrays(step.inputs)
        outputs, after = to_arrays(step.outputs), to_arrays(step.after)
        if begins:
            self._is_first = step.index == 0
            self._free.reset()
        got = self._free.run(given)
        state = self._free.state
        self._record(free, step.index, outputs, after, got, in_dtypes(state, after))
        if self._is_first and step.index < RESET_STEPS:
            self._first.append((given, [*got.values(), *state.values()]))
        self._forced.reset()
        if step.before:
            self._forced.load_state(in_dtypes(to_arrays(step.before), self._forced.contract))
        got = self._forced.run(given)
        self._record(forced, step.index, outputs, after, got, in_dtypes(self._forced.state, after))

    def finish(self) -> None:
        """End a rollout: reset, and repeat its first steps, which must give the same bits."""
        self._free.reset()
        for given, first in self._first:
            again = [*self._free.run(given).values(), *self._free.state.values()]
            if any(a.tobytes() != b.tobytes() for a, b in zip(again, first, strict=True)):
                self.reset_passed = False
        self._reset_steps = min(self._reset_steps, len(self._first))

    def _record(
        self,
        record: RolloutRecord,
        step: int,
        outputs: dict[str, Array],
        after: dict[str, Array],
        got: dict[str, Array],
        state: dict[str, Array],
    ) -> None:
        record.add(step, "output", outputs, got, self._tolerance)
        record.add(step, "state", after, state, self._tolerance)

    def report(self) -> dict[str, Any]:
        """Return the target's entry of ``verify/report.json``."""
        return report_of(self.records, self._tolerance, self.reset_passed, self._reset_steps)


def in_dtypes(values: dict[str, Array], like: Contract | dict[str, Array]) -> dict[str, Array]:
    """Return states in the dtypes of others, where one side holds in 16 bits what is float32.

    Args:
        values: State name to value.
        like: The states as they should be, or the contract of who holds them.
    """
    if isinstance(like, Contract):
        dtypes = {state.name: numpy_dtype(state.dtype) for state in like.states}
    else:
        dtypes = {name: value.dtype for name, value in like.items()}
    with np.errstate(over="ignore"):
        return {name: _between_halves(value, dtypes.get(name)) for name, value in values.items()}


def _between_halves(value: Array, dtype: np.dtype[Any] | None) -> Array:
    """Return ``value`` as ``dtype`` if one of the two is float32, and the other a half."""
    names = {value.dtype.name, "" if dtype is None else dtype.name}
    halved = "float32" in names and not names.isdisjoint(("float16", "bfloat16"))
    return value.astype(dtype) if halved else value


def roll_out(
    reference: Reference | Copies,
    plan: InputPlan,
    targets: Sequence[Verified],
    schedule: Schedule,
    seed: int,
    steps: int,
    reset_every: int | None,
) -> None:
    """Take ``steps`` steps of the reference at the sizes of ``schedule``, ``targets`` beside it."""
    for target in targets:
        target.start(schedule, seed)
    inputs = (plan.step(schedule.at(index), seed, index) for index in range(steps))
    for step in reference.rollout(schedule.at(0), inputs, reset_every):
        begins = step.index == 0 or bool(reset_every and step.index % reset_every == 0)
        for target in targets:
            target.try_to_follow(step, begins)
    for target in targets:
        if target.error is None:
            target.finish()
