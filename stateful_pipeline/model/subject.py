"""What a run is about: a module that is ready to be observed, with its inputs and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError, Place
from stateful_pipeline.model.cpp_autograd import CarriedGraph, carried_graphs
from stateful_pipeline.model.cpp_objects import give_written
from stateful_pipeline.model.cpp_places import cpp_objects, own_copy
from stateful_pipeline.model.cpp_sharing import (
    STEPS,
    Steps,
    compare_with_reference,
    refuse_sharing,
)
from stateful_pipeline.model.discover import (
    Discovery,
    discover,
    observe_anew,
    places_of_changes,
)
from stateful_pipeline.model.fixed import refuse_other_values
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.modes import refuse_opaque
from stateful_pipeline.model.observe import Observation
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.model.resets import left_by_reset
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.sizes import corner_sizes


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
    call: KeywordCall | PositionalCall
    wishes: Mapping[str, Wish]

    @property
    def ignored(self) -> tuple[str, ...]:
        """The states that the user declared as ignored."""
        return tuple(name for name, wish in self.wishes.items() if wish.ignore)

    @cached_property
    def _observed(self) -> nn.Module:
        """The module, or a copy where it holds C++ objects.

        Whatever is put back into an object parts it from what it shares, so that a module with
        objects cannot be left as it was.
        """
        if not cpp_objects(self.module):
            return self.module
        try:
            return own_copy(self.module)
        except PipelineError:  # for which it is refused; what it does can be shown all the same
            return self.module

    def refuse_sharing(self) -> None:
        """Refuse C++ objects that share something, or do not pickle all that they hold.

        Raises:
            StateError: There are such objects.
            StageError: The module cannot be copied.
        """
        refuse_sharing(self.module, self.call.unchecked(), self.plan, corner_sizes(self.axes))

    def observe(self) -> Observation:
        """Run it and return what changed, also where that cannot be made a state."""
        call = self.call.unchecked()
        return observe_anew(self._observed, call, self.plan, self.axes, self.wishes)

    def places(self, paths: Sequence[str]) -> dict[str, Place]:
        """Return the line of the user's code that changes each of ``paths``, where one is found."""
        return places_of_changes(self._observed, self.call, self.plan, self.axes, paths)

    def carried_graphs(self) -> tuple[CarriedGraph, ...]:
        """Return which of its C++ objects keep graphs of autograd from call to call."""
        sizes = corner_sizes(self.axes)[0]
        return carried_graphs(self.module, self.call.unchecked(), self.plan, sizes)

    def left_by_reset(self, reset: str) -> tuple[str, ...]:
        """Return the paths of what calls change and the method ``reset`` leaves as it is then."""
        call, sizes = self.call.unchecked(), corner_sizes(self.axes)
        left = left_by_reset(self._observed, reset, call, self.plan, sizes)
        return tuple(path for path in left if path not in self.ignored)

    def discover(self) -> Discovery:
        """Find its states, in a copy if it holds C++ objects."""
        refuse_opaque(self.module)
        self.refuse_sharing()
        discovery = discover(self._observed, self.call, self.plan, self.axes, self.wishes)
        sizes = corner_sizes(self.axes)[0]
        self.compare_with(discovery.reference, sizes, lambda: self.plan.steps(sizes, 0, STEPS))
        return discovery

    def compare_with(self, reference: Reference, sizes: Mapping[str, int], steps: Steps) -> None:
        """Compare C++ objects that are made in the first call with those of the reference.

        Args:
            reference: What stands for the module.
            sizes: The sizes of the first step.
            steps: Gives the inputs of each step.

        Raises:
            StateError: They do something else.
        """
        if all(wish.is_own for wish in self.wishes.values()):  # it begins as the module does
            compare_with_reference(self.module, reference, sizes, steps)


@dataclass(frozen=True)
class KeywordCall:
    """Calls a method with inputs by keyword, and ``constants`` with them.

    Hooks run, as they do in eager use, where ``method`` is ``forward``.  ``fixed`` has the
    constants of fixed attributes, which each call has to leave as they are; ``positional`` the
    names of what the method takes by position alone.
    """

    constants: Mapping[str, Any]
    method: str = "forward"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[str, ...] = ()

    def __call__(self, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Call the method once.

        Raises:
            StateError: It leaves something else in a fixed attribute.
        """
        give_written()
        entry = module if self.method == "forward" else getattr(module, self.method)
        given = {**inputs, **self.constants}
        by_position = [given.pop(name) for name in self.positional]
        result = entry(*by_position, **given)
        refuse_other_values(module, self.fixed)
        return result

    def unchecked(self) -> KeywordCall:
        """Return the same for attributes that are not fixed: to see what changes them."""
        return replace(self, fixed={})

    def bind(self, parameters: Sequence[str]) -> dict[str, Argument]:
        """Return what each of the method's ``parameters`` gets, but for those left at defaults."""
        constants = {name: Argument(value=value) for name, value in self.constants.items()}
        return {name: constants.get(name, Argument(name)) for name in parameters}


@dataclass(frozen=True)
class PositionalCall:
    """Calls ``forward`` with inputs by position and ``constants`` at theirs, then by keyword."""

    names: tuple[str, ...]
    constants: Mapping[int, Any]
    keywords: Mapping[str, Argument] = field(default_factory=dict)
    method: str = "forward"
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Call the module once."""
        give_written()
        given = iter(inputs[name] for name in self.names)
        count = len(self.names) + len(self.constants)
        return module(
            *(self.constants[i] if i in self.constants else next(given) for i in range(count)),
            **{name: argument.of(inputs) for name, argument in self.keywords.items()},
        )

    def bind(self, parameters: Sequence[str]) -> dict[str, Argument]:
        """Return what each of ``forward``'s ``parameters`` gets, but for those left at defaults."""
        names = iter(self.names)
        count = len(self.names) + len(self.constants)
        by_position = {
            parameter: Argument(value=self.constants[i])
            if i in self.constants
            else Argument(next(names))
            for i, parameter in enumerate(parameters[:count])
        }
        return {**by_position, **self.keywords}

    def unchecked(self) -> PositionalCall:
        """Return the same: no attributes are fixed."""
        return self


@dataclass(frozen=True)
class Argument:
    """What a parameter gets: the input called ``name``, or else ``value``."""

    name: str | None = None
    value: Any = None

    def of(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Return it for a step with these inputs."""
        return self.value if self.name is None else inputs[self.name]
