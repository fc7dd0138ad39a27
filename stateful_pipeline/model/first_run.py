"""Observes the first calls of a module, at sizes at which it runs from its own start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Observation, observe
from stateful_pipeline.model.reference import Call, Reference, StateDef, module_raised
from stateful_pipeline.model.replay import FirstRun, recording
from stateful_pipeline.model.settle import Wish, declared_only

OBSERVED_STEPS = 4


def first_run(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    wishes: Mapping[str, Wish],
) -> tuple[Observation, FirstRun]:
    """Observe the module's first calls; return what changed, and inputs and outputs."""
    # Sizes first as the module's own states have them, then others, then 1 where only they fit.
    least = {axis.name: axis.min for axis in axes}
    tries = [least, probe_sizes(axes), {a.name: a.opt or 2 for a in axes}]
    tries += [{**least, axis.name: 1} for axis in axes if axis.min > 1]
    tries += [dict.fromkeys(least, 1)]
    failure: Exception | None = None
    for sizes in tries:
        steps = [(given,) for given in plan.steps(sizes, 0, OBSERVED_STEPS)]
        run = FirstRun(sizes)
        try:
            return observe(module, recording(module, call, run), steps), run
        except PipelineError:
            raise
        except Exception as error:  # noqa: BLE001 - any module may raise anything; raised below
            failure = failure or error
    assert failure is not None  # every try either returned or raised
    if wishes:
        sizes = probe_sizes(axes)
        run = FirstRun(sizes)
        return _observe_expanded(module, call, plan, sizes, wishes, failure, run), run
    raise module_raised(failure) from failure


def _observe_expanded(
    module: nn.Module,
    call: Call,
    plan: InputPlan,
    sizes: Mapping[str, int],
    wishes: Mapping[str, Wish],
    failure: Exception,
    run: FirstRun,
) -> Observation:
    """Observe with the declared states expanded first, for axes whose minimum is above 1."""
    declared = []
    for name, wish in wishes.items():
        if wish.shape is not None and not wish.ignore:
            state = declared_only(module, name)
            grows = frozenset(d for d in wish.shape if isinstance(d, str) and d not in sizes)
            definition = StateDef(name, state.paths, wish.shape, state.initial, grows)
            declared.append(replace(definition, number=state.number, parts=state.parts))
    reference = Reference(module, declared, call)
    with reference.session() as session:
        run.loaded = reference.initial(sizes)
        session.load(run.loaded)
        try:
            observation = observe(
                module,
                recording(module, call, run),
                [(given,) for given in plan.steps(sizes, 0, OBSERVED_STEPS)],
            )
        except Exception:  # noqa: BLE001 - the first failure, at the module's own sizes, says more
            raise module_raised(failure) from failure
    originals = {state.name: state.initial for state in declared}
    return replace(
        observation,
        tracked=tuple(
            replace(s, initial=originals.get(s.name, s.initial)) for s in observation.tracked
        ),
    )
