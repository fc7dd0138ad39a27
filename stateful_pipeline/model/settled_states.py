"""Settles the states that an observation found, and those that are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Observation, Tracked
from stateful_pipeline.model.reference import Call, Reference
from stateful_pipeline.model.replay import observe_varying
from stateful_pipeline.model.settle import Wish, declared_only, settle


@dataclass(frozen=True)
class Setting:
    """How a module is called, and what was declared about its states.

    Attributes:
        call: Calls its entry point.
        plan: Its inputs.
        axes: Its dynamic axes.
        wishes: What the user declared, by state name.
    """

    call: Call
    plan: InputPlan
    axes: Sequence[Axis]
    wishes: Mapping[str, Wish]

    @property
    def ignored(self) -> tuple[str, ...]:
        """The states that the user declared as ignored."""
        return tuple(name for name, wish in self.wishes.items() if wish.ignore)

    @property
    def each(self) -> tuple[Call, InputPlan, Sequence[Axis], Mapping[str, Wish]]:
        """All of it, in order."""
        return self.call, self.plan, self.axes, self.wishes

    def shape(self, path: str) -> Shape | None:
        """Return the shape that was declared for the state at ``path``, or None."""
        return wish.shape if (wish := self.wishes.get(path)) else None


def settled_states(
    module: nn.Module,
    observation: Observation,
    setting: Setting,
    shapes: Mapping[str, Shape],
    more: Sequence[str] = (),
) -> tuple[Reference, list[Tracked]]:
    """Return the module with the states that were observed, and the states with their own values.

    Args:
        module: The module.
        observation: What its calls did to it.
        setting: How it is called, and what was declared.
        shapes: The shapes of states that are known, beside those that the user declared.
        more: Tensors that are states too, if they are not known as such.
    """
    call, plan, axes, wishes = setting.each
    ignored = setting.ignored
    observation.raise_refused(ignored)
    known = {path for state in observation.tracked for path in state.places}
    known |= {refused.path for refused in observation.refused}
    tracked = [state for state in observation.tracked if not set(state.paths) & set(ignored)]
    tracked += [declared_only(module, name) for name in wishes if name not in known]
    for path in more:
        if not any(path in state.places for state in tracked):
            tracked.append(replace(declared_only(module, path), exercised=True))
    renamed = [_under_declared_name(state, wishes) for state in tracked]
    scratch = tuple(
        path for s in observation.tracked if set(s.paths) & set(ignored) for path in s.paths
    )
    reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    late = observe_varying(reference, plan, ignored)
    if late:
        renamed += [_under_declared_name(state, wishes) for state in late]
        reference = settle(module, renamed, call, plan, axes, wishes, scratch, shapes)
    return reference, renamed


def _under_declared_name(state: Tracked, wishes: Mapping[str, Wish]) -> Tracked:
    """Return ``state`` named as the user named it, where it is known under several paths."""
    for path in state.paths:
        if path in wishes:
            return replace(state, name=path, paths=(path, *(p for p in state.paths if p != path)))
    return state
