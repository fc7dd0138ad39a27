"""What one rollout showed, filled step by step, and how it stands in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stateful_pipeline.model.schedule import Schedule
from stateful_pipeline.stages.verify.compare import Array, Tolerance, compare

LEAST_FINITE = 0.1
"""Share of the steps in which a tensor must have a finite element, for equality to prove anything:
two sides that overflow at the second step agree from then on, whatever they compute."""

RESET_STEPS = 16
"""Steps, at most, that are repeated after the final reset and must give the same bits as at first:
those before the next reset.  A step or two do not tell a state that a later step would read."""


@dataclass
class Count:
    """What the elements of a tensor were, as the reference gives it.

    Attributes:
        elements: How many were compared.
        non_finite: How many of them were NaN or infinite.
        steps: How many steps had an element.
        finite_steps: How many of them had a finite one.
    """

    elements: int = 0
    non_finite: int = 0
    steps: int = 0
    finite_steps: int = 0

    def add_step(self, elements: int, non_finite: int) -> None:
        """Count the elements of one step."""
        self.elements += elements
        self.non_finite += non_finite
        self.steps += elements > 0
        self.finite_steps += elements > non_finite

    def add(self, other: Count) -> None:
        """Count what ``other`` has counted."""
        self.elements += other.elements
        self.non_finite += other.non_finite
        self.steps += other.steps
        self.finite_steps += other.finite_steps

    @property
    def proves_nothing(self) -> bool:
        """Whether it was next to never finite."""
        return self.finite_steps < LEAST_FINITE * self.steps

    def how_finite(self) -> str:
        """Return it in words: ``was never finite``."""
        if self.finite_steps == 0:
            return "was never finite"
        return f"was finite in {self.finite_steps} of {self.steps} steps only"


@dataclass
class RolloutRecord:
    """One rollout of one target.

    Attributes:
        mode: ``free-running`` or ``teacher-forced``.
        schedule: The sizes of its steps.
        seed: The seed of its inputs.
        per_step: The largest error of each step.
        tensors: The largest error of each tensor; a state is called ``state h``.
        counts: What each tensor's elements were.
        first_bad: The first tensor that is off by more than allowed.
    """

    mode: str
    schedule: Schedule
    seed: int
    per_step: list[float] = field(default_factory=list)
    tensors: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    first_bad: dict[str, Any] | None = None

    def add(
        self,
        step: int,
        kind: str,
        expected: dict[str, Array],
        got: dict[str, Array],
        tolerance: Tolerance,
    ) -> None:
        """Compare the tensors of one step."""
        if len(self.per_step) <= step:
            self.per_step.append(0.0)
        for name, want in expected.items():
            found = compare(want, got[name], tolerance)
            key = name if kind == "output" else f"state {name}"
            self.counts.setdefault(key, Count()).add_step(want.size, found.non_finite)
            self.tensors[key] = max(self.tensors.get(key, 0.0), found.abs_error)
            self.per_step[step] = max(self.per_step[step], found.abs_error)
            if not found.equal and self.first_bad is None:
                self.first_bad = {
                    "step": step,
                    "tensor": name,
                    "kind": kind,
                    "index": list(found.where),
                    "expected": found.expected,
                    "got": found.got,
                    "abs_error": found.abs_error,
                    "sizes": self.schedule.at(step),
                    "rollout": self.schedule.summary(),
                    "seed": self.seed,
                    "mode": self.mode,
                }

    @property
    def passed(self) -> bool | None:
        """Whether all was equal; None if a tensor was next to never finite."""
        if self.first_bad is not None:
            return False
        return None if any(count.proves_nothing for count in self.counts.values()) else True

    def summary(self) -> dict[str, Any]:
        """Return the record as it stands in the report.

        ``sizes`` are numbers; of an axis whose size changes from step to step, the usual one, and
        ``turns`` has the sizes that it takes.
        """
        return {
            "mode": self.mode,
            "sizes": dict(self.schedule.sizes),
            "turns": {axis: list(turn) for axis, turn in self.schedule.turns.items()},
            "seed": self.seed,
            "steps": len(self.per_step),
            "passed": self.passed,
            "max_abs_error": max(self.per_step, default=0.0),
            "tensors": self.tensors,
            "per_step": self.per_step,
            "first_bad": self.first_bad,
        }


def report_of(
    records: Sequence[RolloutRecord], tolerance: Tolerance, reset_passed: bool, reset_steps: int
) -> dict[str, Any]:
    """Return a target's entry of ``verify/report.json``.

    Args:
        records: Its rollouts.
        tolerance: What counts as equal.
        reset_passed: Whether the first steps after each final reset gave the bits of the start.
        reset_steps: How many steps those were at least.
    """
    rollouts = [record.summary() for record in records]
    bad = [r["first_bad"] for r in rollouts if r["first_bad"] is not None]
    free = [r for r in rollouts if r["mode"] == "free-running"]
    longest = max((len(r["per_step"]) for r in free), default=0)
    per_step = [
        max((r["per_step"][i] for r in free if i < len(r["per_step"])), default=0.0)
        for i in range(longest)
    ]
    counts = _counts(records)
    owed = [
        f"'{name.removeprefix('state ')}' {count.how_finite()}: "
        "give the inputs a range in which it is"
        for name, count in counts.items()
        if count.proves_nothing
    ]
    wrong = bool(bad) or not reset_passed
    return {
        "passed": False if wrong else None if owed else True,
        "owed": owed,
        "steps": longest,
        "max_abs_error": max(per_step, default=0.0),
        "first_bad": min(bad, key=lambda found: found["step"]) if bad else None,
        "per_step": per_step,
        "atol": tolerance.atol,
        "rtol": tolerance.rtol,
        "reset": {"passed": reset_passed, "steps": reset_steps},
        "non_finite": {
            name: count.non_finite / count.elements
            for name, count in counts.items()
            if count.non_finite
        },
        "rollouts": rollouts,
    }


def _counts(records: Sequence[RolloutRecord]) -> dict[str, Count]:
    """Return what each tensor's elements were, over all rollouts."""
    total: dict[str, Count] = {}
    for record in records:
        for name, count in record.counts.items():
            total.setdefault(name, Count()).add(count)
    return total
