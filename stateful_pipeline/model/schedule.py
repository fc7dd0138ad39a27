"""Which sizes the axes have at each step of a rollout.

Most rollouts keep one size per axis.  An axis that no state follows, such as the ``time`` of a
stream fed in chunks, may change from step to step in use, and a module may look at that
(``if x.shape[1] < self.last``).  So one more rollout lets all such axes change at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import axes_of
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.sizes import corner_sizes, usual_sizes


@dataclass(frozen=True)
class Schedule:
    """The sizes of all axes, step by step.

    Attributes:
        sizes: Axis name to size; of an axis in ``turns``, the usual one.
        turns: Axis name to the sizes that it takes in turn.
    """

    sizes: Mapping[str, int]
    turns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def at(self, step: int) -> dict[str, int]:
        """Return the size of each axis at ``step``."""
        now = {axis: turn[step % len(turn)] for axis, turn in self.turns.items()}
        return {**self.sizes, **now}

    def summary(self) -> dict[str, int | str]:
        """Return it for a report: ``{"batch": 4, "time": "1, 20, 200 in turn"}``."""
        in_turn = {
            axis: f"{', '.join(map(str, dict.fromkeys(turn)))} in turn"
            for axis, turn in self.turns.items()
        }
        return {**self.sizes, **in_turn}

    def __str__(self) -> str:
        text = ", ".join(f"{axis}={size}" for axis, size in self.summary().items())
        return text or "fixed sizes"


def schedules(
    axes: Sequence[Axis], states: Sequence[StateDef], corners: int | None = None
) -> list[Schedule]:
    """Return the rollouts to take: at corners of the axes, and one of changing sizes.

    Args:
        axes: The dynamic axes.
        states: The states; an axis that one of them follows keeps its size.
        corners: The most corners to take; all of :func:`corner_sizes` if None.
    """
    fixed = [Schedule(sizes) for sizes in corner_sizes(axes)[:corners]]
    turns = {axis.name: _turn(axis) for axis in _free(axes, states) if len(set(_turn(axis))) > 1}
    return [*fixed, Schedule(usual_sizes(axes), turns)] if turns else fixed


def changing(axes: Sequence[Axis], states: Sequence[StateDef]) -> Schedule | None:
    """Return the rollout of changing sizes, or None if no size may change within a stream."""
    return next((s for s in schedules(axes, states, corners=0) if s.turns), None)


def _free(axes: Sequence[Axis], states: Sequence[StateDef]) -> list[Axis]:
    followed = {name for s in states for dim in s.shape for name in axes_of(dim)}
    return [axis for axis in axes if axis.name not in followed]


def _turn(axis: Axis) -> tuple[int, ...]:
    """Return min, opt, max, opt: both larger and smaller steps follow each size."""
    values = [sizes[axis.name] for sizes in corner_sizes([axis])]
    return min(values), values[0], max(values), values[0]
