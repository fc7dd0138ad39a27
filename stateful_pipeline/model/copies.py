"""Drives copies of a module whose states are not known: what C++ objects hold, no tensor shows.

It is the reference for what needs no explicit states.  A rollout starts from a copy of the module
as it is, and so does each reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.cpp_places import own_copy
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call, Step, Tensors, exact_kernels, module_raised
from stateful_pipeline.model.schedule import Schedule, changing
from stateful_pipeline.model.sizes import usual_sizes
from stateful_pipeline.model.tree import named_outputs


class Copies:
    """Copies of a module, one at a time.

    Args:
        module: The module, in its initial state, in which it stays.
        call: Takes a module and the inputs by name, and calls the entry point.
    """

    def __init__(self, module: nn.Module, call: Call) -> None:
        self._module, self._call = module, call
        self._copy: nn.Module | None = None

    def reset(self) -> None:
        """Go back to the initial state.

        Raises:
            StageError: The module cannot be copied.
        """
        self._copy = own_copy(self._module)

    def call(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Call the entry point once, after a reset; return what it returns."""
        assert self._copy is not None
        return self._call(self._copy, inputs)

    def step(self, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """Call the entry point once, after a reset; outputs are detached copies, by name.

        Raises:
            StageError: The module raised.
        """
        given = {name: value.clone() for name, value in inputs.items()}
        try:
            with torch.no_grad():
                result = self.call(given)
        except PipelineError:
            raise
        except Exception as error:  # any module may raise anything
            raise module_raised(error) from error
        return {name: value.detach().clone() for name, value in named_outputs(result).items()}

    def rollout(
        self,
        sizes: Mapping[str, int],
        inputs: Iterable[Tensors],
        reset_every: int | None = None,
    ) -> Iterator[Step]:
        """Yield one :class:`Step`, without states, for each of ``inputs``.

        Args:
            sizes: Not used: the module has the initial states that it has.
            inputs: The inputs of each step, by name.
            reset_every: Start again from the initial state after that many steps.
        """
        del sizes
        with exact_kernels():
            for index, given in enumerate(inputs):
                if index == 0 or (reset_every and index % reset_every == 0):
                    self.reset()
                yield Step(index, given, self.step(given), {}, {})

    def changing(self, plan: InputPlan, axes: Sequence[Axis]) -> Schedule | None:
        """Return the rollout in which all sizes change that may change, or None if none may.

        Which axes a state follows is not known, so that each is tried on its own.
        """
        usual = usual_sizes(axes)
        turns: dict[str, tuple[int, ...]] = {}
        for axis in axes:
            alone = changing([axis], ())
            if alone is not None and self._takes(plan, Schedule(usual, alone.turns)):
                turns |= alone.turns
        whole = Schedule(usual, turns)
        return whole if turns and self._takes(plan, whole) else None

    def _takes(self, plan: InputPlan, schedule: Schedule) -> bool:
        count = 1 + max(map(len, schedule.turns.values()))
        steps = (plan.step(schedule.at(index), 0, index) for index in range(count))
        try:
            for _ in self.rollout(schedule.at(0), steps):
                pass
        except StageError:
            return False
        return True
