"""Checks that a module depends on nothing but its inputs and what it was seen to hold.

The first calls of a module are made on the very module, nothing replaced.  Later it is driven from
copies of its initial state, with the same inputs, and must give the same outputs.  It does not
where something that nobody found survives between calls (a global, a file, a clock), or where
something that nobody found holds a tensor that is a state (``functools.partial``, a weak
reference): replacing the state then cuts that tie, in the reference as well as in the captured
graph, and no later comparison would show it.

Some state shows only where the size of a chunk differs from that of the chunk before.  So the
module is observed once more, over a stream whose free sizes (those that no state follows) vary.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, Place, StateError
from stateful_pipeline.model.equal_tensors import equal_tensors
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import change_places
from stateful_pipeline.model.observe import Observation, Tracked, observe
from stateful_pipeline.model.reference import Call, Reference, StateDef, Tensors
from stateful_pipeline.model.schedule import changing
from stateful_pipeline.model.tree import named_outputs

TOLERANCE = 1e-4
"""Outputs of a replay may differ by this much, relative to their size: kernels may choose another
path for a copy of a tensor."""

VARYING_STEPS = 6
"""Steps of the stream whose chunks vary."""


@dataclass
class FirstRun:
    """The first calls of a module: their inputs, and copies of what they returned.

    ``loaded`` has the states that were expanded before the first call, where that was needed.
    """

    sizes: Mapping[str, int]
    steps: list[Tensors] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    drew_random_numbers: bool = False
    loaded: Tensors = field(default_factory=dict)


def recording(module: nn.Module, call: Call, run: FirstRun) -> Any:
    """Return an entry point that calls ``module`` and keeps inputs and outputs in ``run``."""

    def entry(inputs: Tensors) -> Any:
        given = {name: value.clone() for name, value in inputs.items()}
        before = torch.get_rng_state()
        result = call(module, inputs)
        run.drew_random_numbers |= not torch.equal(before, torch.get_rng_state())
        run.steps.append(given)
        run.outputs.append({n: v.detach().clone() for n, v in named_outputs(result).items()})
        return result

    return entry


def check_replay(
    reference: Reference,
    tracked: Sequence[Tracked],
    run: FirstRun,
    place: Place | None,
    created: Container[str],
) -> None:
    """Drive the module from copies of its own initial state and compare with its first calls.

    Args:
        reference: The module with its states found.
        tracked: The states with the module's own initial values.
        run: The first calls.
        place: Where the module's class is written, for the message.
        created: The states that its first call creates.

    Raises:
        StateError: It gives other outputs.
    """
    if run.drew_random_numbers or not run.outputs:
        return  # refused by name, with the line, where the graph is made functional
    held = {state.name: state.initial for state in reference.states}
    held |= {state.name: state.initial for state in tracked} | run.loaded
    own = [
        state  # it has no value of its own before the first call
        if state.name in created
        else replace(state, initial=held[state.name], shape=tuple(held[state.name].shape))
        for state in reference.states
    ]
    replayed = reference.with_states(own)
    for step in replayed.rollout(run.sizes, run.steps):
        for name, expected in run.outputs[step.index].items():
            got = step.outputs.get(name)
            if got is None or not alike(expected, got):
                raise _other_outputs(name, step.index, reference.states, place)


def _other_outputs(
    name: str, step: int, states: Sequence[StateDef], place: Place | None
) -> StateError:
    found = ", ".join(state.name for state in states) or "none"
    return StateError(
        f"called again from its initial state with the same inputs, the module gives another "
        f"'{name}' at step {step}: it depends on something that is not among its states ({found}), "
        "or something else holds one of them",
        place=place,
        hint="hold what survives between calls in registered buffers, and let nothing else (a "
        "global, a closure, functools.partial, a weak reference, a file, a clock) hold it",
    )


def alike(expected: torch.Tensor, got: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors are the same but for ``tolerance``, relative to their size.

    Those that are not dense floating point numbers must be the same to the bit.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    odd = expected.layout != torch.strided or got.layout != torch.strided
    if odd or expected.is_quantized or not expected.is_floating_point():
        return bool(equal_tensors(expected, got))
    return torch.allclose(
        expected.double(), got.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def observe_varying(
    reference: Reference, plan: InputPlan, ignored: Sequence[str]
) -> tuple[Tracked, ...]:
    """Observe a stream of varying sizes; return the states that only it shows.

    A module that itself raises on such a stream is left alone: it cannot be used so.

    Raises:
        StateError: Something changes there that cannot be made a state.
    """
    schedule = changing(reference.axes, reference.states)
    if schedule is None:
        return ()
    sizes = [schedule.at(step) for step in range(VARYING_STEPS)]
    module = reference.module
    steps = [plan.step(at, 0, index) for index, at in enumerate(sizes)]
    known = {path for state in reference.states for path in state.places} | set(ignored)
    with reference.session() as session:
        session.load(reference.initial(sizes[0]))
        found = _observe(reference, steps)
        if found is None:
            return ()
        for refused in found.refused:
            if refused.path not in known:
                places = change_places(module, lambda: _call_all(reference, steps), [refused.path])
                raise StateError(
                    refused.reason,
                    attribute=refused.path,
                    place=places.get(refused.path),
                    hint=refused.hint,
                )
    return tuple(state for state in found.tracked if not known & set(state.places))


def _observe(reference: Reference, steps: Sequence[Tensors]) -> Observation | None:
    def entry(inputs: Tensors) -> Any:
        return reference.call(reference.module, inputs)

    try:
        return observe(reference.module, entry, [(given,) for given in steps])
    except PipelineError:
        raise
    except Exception:  # noqa: BLE001 - the module refuses such a stream itself
        return None


def _call_all(reference: Reference, steps: Sequence[Tensors]) -> None:
    for given in steps:
        reference.call(reference.module, given)
