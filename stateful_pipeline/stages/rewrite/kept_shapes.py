"""Checks that what a program hands on as a state is of the kind that it takes as one."""

from __future__ import annotations

from stateful_pipeline.dimensions import Shape, axes_of, resolve_shape
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import StateDef


def check_states(program: Program, states: tuple[StateDef, ...]) -> None:
    """Check that each state keeps its dtype, and its shape unless it grows.

    Raises:
        StateError: One does not.
    """
    count = len(states)
    made = program.made()
    after = made[len(made) - count :]
    for state, old, new in zip(states, program.given()[:count], after, strict=True):
        if old.dtype != new.dtype:
            raise StateError(
                f"its dtype is {old.dtype} before a call and {new.dtype} after it",
                attribute=state.name,
                place=new.place,
                hint="convert it back before storing it",
            )
        shape = new.shape
        if state.out_shape is not None and not _same_shape(shape, state.out_shape):
            raise StateError(
                f"its shape after a call is {_text(shape)}, declared is {_text(state.out_shape)}",
                attribute=state.name,
                place=new.place,
                hint="correct `out_shape`, or leave it out",
            )
        given_shape = old.shape
        if not state.grows and shape != given_shape:
            raise StateError(
                f"its shape is {_text(given_shape)} before a call and {_text(shape)} after it",
                attribute=state.name,
                place=new.place,
                hint="declare its shape under `states`, with `out_shape` if it grows",
            )


def _same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are the same function of their axes, tried at two sets of sizes."""
    axes = sorted(set().union(*(axes_of(dim) for dim in (*a, *b))))
    trials = [{axis: base + 7 * i for i, axis in enumerate(axes)} for base in (5, 11)]
    return all(resolve_shape(a, sizes) == resolve_shape(b, sizes) for sizes in trials)


def _text(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
