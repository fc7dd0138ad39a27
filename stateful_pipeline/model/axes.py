"""Finds which dimension of a state follows which dynamic axis, where the user did not say.

Two kinds of evidence, both from running the eager module at *probe sizes*, which are at least 2
and differ from axis to axis:

* a state whose size goes from 1 to an axis's probe size in the first call follows that axis;
* a module that only runs once some size-1 dimensions are expanded (an LSTM's ``h`` of batch 1)
  follows the axis there.  States of equal shape and dtype are tried together, with few expansions
  first.

An assignment counts only if the module then runs twice with shapes that stay as they are, at two
sets of sizes.  A dimension that keeps changing from call to call *grows*: it gets an axis of its
own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.observe import Tracked
from stateful_pipeline.model.reference import CAPACITY_HINT, Call, Reference, StateDef

_MAX_TRIALS = 600


def probe_sizes(
    axes: Sequence[Axis], fixed: Sequence[int] = (), variant: int = 0
) -> dict[str, int]:
    """Return a size for each axis, within its range, at least 2 and distinct where possible.

    Args:
        axes: The dynamic axes; one whose max is 1 gets 1.
        fixed: Sizes to stay clear of, such as the fixed dimensions of inputs.
        variant: 0 stays near ``opt``; other numbers give other sizes.
    """
    sizes: dict[str, int] = {}
    taken = set(fixed)
    for axis in axes:
        top = axis.max if axis.max is not None else max(axis.min, axis.opt or 2) + 64
        start = max(2, axis.min, (axis.opt or 2) - variant if variant else (axis.opt or 2))
        around = sorted(
            range(max(2, axis.min), min(top, start + 64) + 1), key=lambda n: abs(n - start)
        )
        around = around[variant:] or around
        chosen = next((n for n in around if n not in taken), around[0] if around else top)
        taken.add(chosen)
        sizes[axis.name] = chosen
    return sizes


class ShapeFinder:
    """Assigns axes to the dimensions of states.

    Args:
        module: The module.
        tracked: The states that observation found.
        call: Calls the entry point of a module with inputs by name.
        plan: The inputs.
        axes: The dynamic axes.
        declared: State name to declared shape, for those that the user declared.
        initial: State name to initial value, where it is not the module's own.
    """

    def __init__(
        self,
        module: nn.Module,
        tracked: Sequence[Tracked],
        call: Call,
        plan: InputPlan,
        axes: Sequence[Axis],
        declared: Mapping[str, Shape],
        initial: Mapping[str, torch.Tensor],
    ) -> None:
        self.module = module
        self.tracked = tuple(tracked)
        self.call = call
        self.plan = plan
        self.axes = tuple(axes)
        self.declared = dict(declared)
        self.initial = dict(initial)

    def find(self) -> tuple[StateDef, ...]:
        """Return the states with named axes.

        Raises:
            StateError: No assignment lets the module run at the probe sizes.
            StageError: The module itself raises, and there is no axis to try.
        """
        shapes: dict[str, Shape] = {
            state.name: self.declared.get(state.name, tuple(self._value(state).shape))
            for state in self.tracked
        }
        if not self.tracked and not self.axes:
            return ()
        fixed = [d for s in shapes.values() for d in s if isinstance(d, int)]
        fixed += [d for value in self.plan.inputs for d in value.shape if isinstance(d, int)]
        first = probe_sizes(self.axes, fixed)
        second = probe_sizes(self.axes, fixed, variant=1)
        failure: Exception | None = None
        for trial in itertools.islice(self._assignments(shapes), _MAX_TRIALS):
            try:
                settled = self._settle(trial, first)
                if first != second:
                    self._settle(settled, second)
                return self._defs(settled)
            except Exception as error:  # any module may raise anything at a wrong shape
                if failure is None or (_ran_out(error) and not _ran_out(failure)):
                    failure = error
                if isinstance(error, StateError) and error.attribute in self.declared:
                    raise
        assert failure is not None  # every trial either returned or raised
        raise self._explain(failure, first)

    def _value(self, state: Tracked) -> torch.Tensor:
        return self.initial.get(state.name, state.initial)

    def _defs(self, shapes: Mapping[str, Shape]) -> tuple[StateDef, ...]:
        known = {axis.name for axis in self.axes}
        return tuple(
            StateDef(
                state.name,
                state.paths,
                shapes[state.name],
                self._value(state),
                frozenset(d for d in shapes[state.name] if isinstance(d, str) and d not in known),
                state.exercised,
                state.kind,
                number=state.number,
                parts=state.parts,
            )
            for state in self.tracked
        )

    def _assignments(self, shapes: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
        """Yield candidate shapes, those with no expansion first."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for state in self.tracked:
            if state.name not in self.declared:
                key = (shapes[state.name], state.initial.dtype)
                groups.setdefault(key, []).append(state.name)
        options = [list(self._options(shapes[names[0]])) for names in groups.values()]
        ranked = sorted(
            itertools.islice(itertools.product(*options), 20_000),
            key=lambda choice: sum(cost for cost, _ in choice),
        )
        # Nothing expanded, then everything in its likeliest place, then the rest by cost.
        likely = tuple(option[1] if len(option) > 1 else option[0] for option in options)
        for choice in dict.fromkeys([*ranked[:1], likely, *ranked[1:]]):
            trial = dict(shapes)
            for names, (_, shape) in zip(groups.values(), choice, strict=True):
                trial.update(dict.fromkeys(names, shape))
            yield trial

    def _options(self, shape: Shape) -> Iterator[tuple[int, Shape]]:
        """Yield ``(cost, shape)``: as it is, then one size-1 dimension named, then two."""
        yield 0, shape
        ones = [index for index, dim in enumerate(shape) if dim == 1]
        cost = 0
        for axis in self.axes:
            for index in ones:
                cost += 1
                yield cost, (*shape[:index], axis.name, *shape[index + 1 :])
        for (a, b), (i, j) in itertools.product(
            itertools.permutations(self.axes, 2), itertools.combinations(ones, 2)
        ):
            cost += 1
            named: list[Dim] = list(shape)
            named[i], named[j] = a.name, b.name
            yield 10 + cost, tuple(named)

    def _settle(self, shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> dict[str, Shape]:
        """Run at ``sizes`` and name what then changes, until two steps leave all shapes alone."""
        current = dict(shapes)
        for _ in range(2 + len(self.axes)):
            history = self._run(current, sizes)
            updated = {
                name: self._name_changes(name, shape, history[name], sizes)
                for name, shape in current.items()
            }
            if updated == current:
                return current
            current = updated
        raise StateError("the shapes of its states keep changing")

    def _run(
        self, shapes: Mapping[str, Shape], sizes: Mapping[str, int]
    ) -> dict[str, list[tuple[int, ...]]]:
        reference = Reference(self.module, self._defs(shapes), self.call, self.axes)
        history: dict[str, list[tuple[int, ...]]] = {name: [] for name in shapes}
        last = None
        for step in reference.rollout(sizes, self.plan.steps(sizes, 0, 3)):
            for name, value in step.before.items():
                history[name].append(tuple(value.shape))
            last = step
        assert last is not None  # three steps were asked for
        for name, value in last.after.items():
            history[name].append(tuple(value.shape))
        return history

    def _name_changes(
        self,
        name: str,
        shape: Shape,
        history: list[tuple[int, ...]],
        sizes: Mapping[str, int],
    ) -> Shape:
        start, *later = history
        if any(len(s) != len(start) for s in later):
            raise StateError(
                f"changes its shape from {list(start)} to {list(later[0])} in the first call",
                attribute=name,
                hint="give its initial value all dimensions, with size 1 along the batch axis",
            )
        named: list[Dim] = list(shape)
        for index, dim in enumerate(shape):
            run = [s[index] for s in history]
            if len(set(run)) == 1 or (isinstance(dim, str) and dim not in sizes):
                continue
            named[index] = self._name_change(name, index, run, sizes)
        return tuple(named)

    def _name_change(self, name: str, index: int, run: list[int], sizes: Mapping[str, int]) -> str:
        for axis, size in sizes.items():
            if run[0] == 1 and run[-1] == size and run == sorted(run) and set(run) == {1, size}:
                return axis
        if len(set(run[1:])) == 1:
            raise StateError(
                f"has size {run[0]} along dimension {index} before the first call "
                f"and {run[1]} after it",
                attribute=name,
                hint="give it its final size in the constructor, or size 1 along a dynamic axis, "
                f"or declare it: `states: {{{name}: {{shape: [...], init: zeros}}}}`",
            )
        return f"{name.replace('.', '_')}_{index}"

    def _explain(self, failure: Exception, sizes: Mapping[str, int]) -> Exception:
        if not isinstance(failure, StageError) or not self.axes:
            return failure
        at = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        names = ", ".join(f"{s.name}{list(s.initial.shape)}" for s in self.tracked)
        shapes = (
            "construct it with size 1 along dynamic axes, "
            "or declare the shapes, as in `states: {h: {shape: [2, batch, 128]}}`"
        )
        error = StateError(
            f"the module does not run at {at}, with no choice of which dimensions of its states "
            f"({names}) follow the dynamic axes; {failure.message.removeprefix('script: ')}",
            place=failure.place,
            hint=f"{CAPACITY_HINT}; or {shapes}" if _ran_out(failure) else shapes,
        )
        error.__cause__ = failure
        return error


def _ran_out(failure: Exception) -> bool:
    """Whether the module ran past a capacity, so that shapes may have fitted until then."""
    return isinstance(failure, StageError) and failure.hint == CAPACITY_HINT
