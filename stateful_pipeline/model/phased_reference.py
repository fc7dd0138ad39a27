"""Drives a module in phases (see :mod:`.phases`): as a whole, and each phase for a front end."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StateError
from stateful_pipeline.model.holders import read, write
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.phases import Phase, Structure, find_phases, structure_of
from stateful_pipeline.model.reference import Call, Reference, StateDef, Step, Tensors, put, taken
from stateful_pipeline.model.snapshot import Snapshot

_HINT = "create it in the constructor, of its final size, with a buffer that says how much is set"


class PhasedReference(Reference):
    """The eager module with its states found, one of which says what structure it has.

    Args:
        module: The module, as it was constructed.
        states: Its states, of which the first is the phase.
        call: Takes the module and the inputs by name, and calls the entry point.
        axes: The dynamic axes.
        scratch: Paths of tensors that change and that nobody reads.
        phases: Its structures, in order.
        sizes: Sizes at which it runs from its own start.
    """

    def __init__(
        self,
        module: nn.Module,
        states: Sequence[StateDef],
        call: Call,
        axes: Sequence[Axis],
        scratch: Sequence[str],
        phases: Sequence[Phase],
        sizes: Mapping[str, int],
    ) -> None:
        super().__init__(module, states, call, axes, scratch)
        self.phases = tuple(phases)
        self.transient = len(self.phases) - 1
        self.sizes = dict(sizes)

    def with_states(self, states: Sequence[StateDef]) -> PhasedReference:
        """Return the same with other states."""
        return self._like(self.module, states, self.phases)

    def with_module(
        self, module: nn.Module, states: Sequence[StateDef], plan: InputPlan
    ) -> PhasedReference:
        """Return the same for a copy of the module whose states have other initial values.

        Raises:
            StateError: The copy does not go through these structures.
        """
        phases = find_phases(module, self.call, plan, self.sizes).each
        if len(phases) != len(self.phases):
            raise StateError("a copy of the module does not do what the module does")
        return self._like(module, states, phases)

    def _like(
        self, module: nn.Module, states: Sequence[StateDef], phases: Sequence[Phase]
    ) -> PhasedReference:
        return PhasedReference(
            module, states, self.call, self.axes, self.scratch, phases, self.sizes
        )

    def lay(self, values: Tensors) -> None:
        """Give the module the structure of ``values['phase']``, and put the states there."""
        phase = self.phases[int(values[self.states[0].name])]
        phase.objects.restore()
        for state in self.states[1:]:
            if (held := self.held_in(phase, state)) is not None:
                put(self.module, held, values[state.name])

    def pick(self, before: Tensors) -> Tensors:
        """Return what the module holds as its states; what it does not hold stays as it was."""
        return self.picked(self.current(), before)

    def picked(self, index: int, before: Tensors) -> Tensors:
        """Return what the module, which is in phase ``index``, holds as its states."""
        phase = self.phases[index]
        found = {self.states[0].name: torch.full((), index, dtype=torch.int64)}
        for state in self.states[1:]:
            held = self.held_in(phase, state)
            found[state.name] = taken(self.module, held) if held else before[state.name]
        return found

    def current(self) -> int:
        """Return which structure the module has now.

        Raises:
            StateError: One that it had in none of its first calls.
        """
        structure = structure_of(self.module)
        for index, phase in enumerate(self.phases):
            if phase.structure == structure:
                return index
        path = _difference(structure, self.phases[-1].structure)
        raise StateError(
            "a call leaves something there that the first calls did not", attribute=path, hint=_HINT
        )

    def first_difference(self, one: int, other: int) -> str:
        """Return a path at which two different phases hold different kinds of things."""
        return _difference(self.phases[one].structure, self.phases[other].structure)

    def held_in(self, phase: Phase, state: StateDef) -> StateDef | None:
        """Return ``state`` with those of its paths that ``phase`` has; None if it has none.

        Raises:
            StateError: Views of it are not all there.
        """
        last = self.phases[-1].structure
        held = tuple(path for path in state.paths if phase.holds(path, last))
        parts = [phase.holds(path, last) for part in state.parts for path in part.paths]
        if parts and set(parts) != {bool(held)}:
            raise StateError(
                f"{' and '.join(state.places)} share memory, but not from the first call on",
                attribute=state.name,
                hint="create them together",
            )
        return replace(state, paths=held) if held else None

    def at(self, index: int, known: Mapping[str, Any]) -> InPhase:
        """Return the module in one of its phases, for a tracer.

        Args:
            index: The phase.
            known: The Python numbers of states, where they are always the same in this phase.
        """
        return InPhase(self, self.states, index, known)

    def alone_at(self, index: int) -> InPhase:
        """Return the module in one of its phases, with the states that are there alone."""
        return InPhase(self, self.states_in(index), index, {})

    def states_in(self, index: int) -> list[StateDef]:
        """Return the states that are there in a phase, with the paths that they have there."""
        held = [self.held_in(self.phases[index], state) for state in self.states[1:]]
        return [state for state in held if state is not None]

    def after(self, index: int) -> int:
        """Return the phase after another; the last stays."""
        return min(index + 1, self.transient)

    def check_left(self, index: int, held: Mapping[str, str]) -> None:
        """Check that a call in phase ``index`` leaves the structure of the phase that follows.

        Args:
            index: The phase.
            held: What is there after the call, in words, for all that the code may change.

        Raises:
            StateError: It leaves another.
        """
        wanted = self.phases[self.after(index)]
        before = self.phases[index].structure
        states = {path for state in self.states for path in state.places}
        changes = {
            p
            for p in {**before, **wanted.structure}
            if _words(before, p) != _words(wanted.structure, p)
        }
        for path in sorted(changes | held.keys()):
            now = held.get(path, "nothing")
            expected = _words(wanted.structure, path)
            if expected == "number" and path in states:
                same = now not in ("nothing", "None", "Tensor")
            elif expected == "number":
                same = now == repr(wanted.numbers[path])
            else:
                same = now == expected
            if not same:
                raise StateError(
                    f"call {index + 1} leaves {now} there in TorchScript, and {expected} in Python",
                    attribute=path,
                    hint=_HINT,
                )

    def first_numbers(self) -> dict[str, Any]:
        """Return the initial values of states that are Python numbers."""
        return {state.name: state.initial.item() for state in self.states[1:] if state.number}


def _words(structure: Structure, path: str) -> str:
    kind = structure.get(path)
    if kind is None:
        return "nothing"
    if kind == "number":
        return "number"
    return {"tensor": "Tensor", "constant": repr(kind[1])}.get(kind[0], "a container")


def _difference(one: Structure, other: Structure) -> str:
    return next(p for p in {**one, **other} if one.get(p) != other.get(p))


class InPhase(Reference):
    """The module in one phase, for a front end: its structure is laid by :meth:`on_loan`.

    ``left`` has, after a trace, the Python numbers of states that are the same after every call.

    Args:
        whole: The module.
        states: Its states, or those that are there in this phase.
        index: The phase.
        known: The Python numbers of states, where they are always the same in this phase.
    """

    def __init__(
        self,
        whole: PhasedReference,
        states: Sequence[StateDef],
        index: int,
        known: Mapping[str, Any],
    ) -> None:
        super().__init__(whole.module, states, whole.call, whole.axes, whole.scratch)
        self.index = index
        self._whole = whole
        self._known = dict(known)
        self.left: dict[str, Any] = {}

    @contextmanager
    def on_loan(self) -> Iterator[None]:
        """Lend the module in this phase; it is restored at the end."""
        with Snapshot(self.module):
            self._whole.phases[self.index].objects.restore()
            yield

    def lay(self, values: Tensors) -> None:
        """Put the states there, those that this phase has."""
        phase = self._whole.phases[self.index]
        for state in self._whole.states[1:]:
            held = self._whole.held_in(phase, state)
            if held is not None and state.name in self._known:
                for path in held.paths:
                    write(self.module, path, self._known[state.name])
            elif held is not None:
                put(self.module, held, values[state.name])

    def pick(self, before: Tensors) -> Tensors:
        """Return what the module holds as its states after a call.

        Raises:
            StateError: It does not have the structure that follows on this phase.
        """
        index = self._whole.current()
        if index != self.next:
            raise StateError(
                f"call {self.index + 1} leaves what call {index} left: what the module holds goes "
                "back to what it was",
                attribute=self._whole.first_difference(index, self.next),
                hint=_HINT,
            )
        found = self._whole.picked(index, before)
        self.left = {
            state.name: number
            for state in self._whole.states[1:]
            if state.number and type(number := self._read(state.name)) in (bool, int, float)
        }
        return found

    def _read(self, path: str) -> Any:
        return read(self.module, path) if path in self._whole.phases[self.next].numbers else None

    def numbers_after(self, numbers: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the Python numbers that a call has to leave, by path."""
        del numbers
        return self._whole.phases[self.next].numbers

    @property
    def next(self) -> int:
        """The phase after this one; the last stays."""
        return self._whole.after(self.index)

    def rollout(
        self,
        sizes: Mapping[str, int],
        inputs: Iterable[Tensors],
        reset_every: int | None = None,
    ) -> Generator[Step, None, None]:
        """Yield the steps of the whole module from this phase on; those before take like inputs."""
        given = list(inputs)
        for step in self._whole.rollout(sizes, [*given[:1] * self.index, *given], reset_every):
            if step.index >= self.index:
                yield step
