"""Reads the conditions on sizes (*guards*) under which a program was traced.

The tracer follows the branch that the sizes at hand take, and notes the condition.  An axis of the
spec has a range that the condition is held against; a state that grows has none, and the graph
would go on as if the condition held for ever.  So a condition on the length of such a state must
hold for every length.

A condition is a Python expression over ``L['states'][0].size()[1]`` and the like.  It is evaluated
at many lengths: all small ones, some large ones, and around every number that it mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Reference, StateDef
from stateful_pipeline.model.sizes import corner_sizes

_SIZE = re.compile(r"L\['(states|inputs)'\]\[(\d+)\]\.size\(\)\[(\d+)\]")


def refuse_length_tests(guards: Sequence[str], reference: Reference, plan: InputPlan) -> None:
    """Refuse code that tests the length of a state that grows.

    Args:
        guards: The conditions.
        reference: The module and its states.
        plan: Its inputs.

    Raises:
        StateError: A condition does not hold for every length; with the state's name.
    """
    for guard in guards:
        tested = [
            state
            for holder, number, index in _SIZE.findall(guard)
            if holder == "states"
            for state in [reference.states[int(number)]]
            if state.shape[int(index)] in state.grows
        ]
        if tested and not _always_holds(guard, reference, plan):
            raise StateError(
                "the code tests how long it has grown, and the graph is right only while "
                f"{in_own_words(guard, reference, plan)}",
                attribute=tested[0].name,
                hint="trim it without a test: k[:, -100:] is right for shorter ones too",
            )


@dataclass(frozen=True)
class _Sized:
    """Stands for a tensor in a condition."""

    sizes: tuple[int, ...]

    def size(self) -> tuple[int, ...]:
        return self.sizes


def _always_holds(guard: str, reference: Reference, plan: InputPlan) -> bool:
    code = compile(guard, "<guard>", "eval")
    functions = {"max": max, "min": min, "Max": max, "Min": min, "abs": abs, "__builtins__": {}}
    for at in corner_sizes(reference.axes):
        inputs = [_Sized(_resolved(value.shape, at)) for value in plan.inputs]
        for steps in _lengths(guard):
            states = [_Sized(_grown(state, at, steps)) for state in reference.states]
            held = {"L": {"states": states, "inputs": inputs}}
            if not eval(code, functions, held):  # noqa: S307 - the tracer's own expression
                return False
    return True


def _lengths(guard: str) -> Iterator[int]:
    """Yield by how much states may have grown: all small numbers, some large, and those named.

    Not 0 and 1: operators ask whether a size is 1, to choose a layout, and the first steps of a
    rollout, which is compared with eager, have these lengths.
    """
    yield from range(2, 200)
    yield from (3**power + power for power in range(5, 14))
    for number in {int(text) for text in re.findall(r"(?<![\w\[])\d+", guard)}:
        yield from range(max(2, number - 3), number + 4)


def _grown(state: StateDef, at: Mapping[str, int], steps: int) -> tuple[int, ...]:
    return tuple(
        size + steps if dim in state.grows else at.get(dim, size) if isinstance(dim, str) else dim
        for dim, size in zip(state.shape, state.initial.shape, strict=True)
    )


def _resolved(shape: Shape, at: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(at[dim] if isinstance(dim, str) else dim for dim in shape)


def in_own_words(text: str, reference: Reference, plan: InputPlan) -> str:
    """Return ``text`` with the tracer's names of sizes replaced by names of axes."""
    holders = {
        "states": [state.shape for state in reference.states],
        "inputs": [value.shape for value in plan.inputs],
    }

    def name(match: re.Match[str]) -> str:
        return str(holders[match[1]][int(match[2])][int(match[3])])

    text = re.sub(r"L\['(states|inputs)'\]\[(\d+)\]\.size\(\)\[(\d+)\]", name, text)
    return re.sub(r"\b(\w+) = \1\b", r"\1", text)
