"""What a run is about: a module that is ready to be observed, with its inputs and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import Place
from stateful_pipeline.model.discover import (
    Discovery,
    discover,
    observe_anew,
    places_of_changes,
)
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Observation
from stateful_pipeline.model.reference import Call
from stateful_pipeline.model.settle import Wish


@dataclass(frozen=True)
class Subject:
    """A module, how it is called, with which inputs, and what was declared about its states.

    Attributes:
        module: In the mode in which it is to be exported.
        plan: Its inputs.
        axes: Its dynamic axes.
        call: Calls its entry point.
        wishes: What the user declared about states.
    """

    module: nn.Module
    plan: InputPlan
    axes: tuple[Axis, ...]
    call: Call
    wishes: Mapping[str, Wish]

    @property
    def ignored(self) -> tuple[str, ...]:
        """The states that the user declared as ignored."""
        return tuple(name for name, wish in self.wishes.items() if wish.ignore)

    def observe(self) -> Observation:
        """Run it and return what changed, also where that cannot be made a state."""
        return observe_anew(self.module, self.call, self.plan, self.axes, self.wishes)

    def places(self, paths: Sequence[str]) -> dict[str, Place]:
        """Return the line of the user's code that changes each of ``paths``, where one is found."""
        return places_of_changes(self.module, self.call, self.plan, self.axes, paths)

    def discover(self) -> Discovery:
        """Find its states."""
        return discover(self.module, self.call, self.plan, self.axes, self.wishes)


def keyword_call(constants: Mapping[str, Any], method: str = "forward") -> Call:
    """Return a call that passes inputs by keyword, and ``constants`` with them.

    Hooks run, as they do in eager use, where ``method`` is ``forward``.
    """

    def call(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
        entry = module if method == "forward" else getattr(module, method)
        return entry(**inputs, **constants)

    return call


def positional_call(
    names: tuple[str, ...], constants: Mapping[int, Any], keywords: Mapping[str, Any]
) -> Call:
    """Return a call that passes inputs by position, with ``constants`` at theirs."""
    count = len(names) + len(constants)

    def call(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
        given = iter(inputs[name] for name in names)
        return module(
            *(constants[i] if i in constants else next(given) for i in range(count)), **keywords
        )

    return call
