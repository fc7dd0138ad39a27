"""A program with one graph for each phase of its module (see :mod:`.phases`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.program import Port, Program
from stateful_pipeline.model.reference import StateDef, Tensors
from stateful_pipeline.model.script_program import ScriptProgram
from stateful_pipeline.model.sizes import fix_axes


@dataclass(frozen=True)
class PhasedProgram:
    """A module with explicit states, of which the first says which graph is next.

    Attributes:
        programs: What a front end made of each phase, in order.  All take and give all states.
    """

    programs: tuple[Any, ...]

    @property
    def frontend(self) -> str:
        """Which front end made the graphs."""
        return str(self.programs[-1].frontend)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the module's inputs."""
        return tuple(self.programs[-1].inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the module's outputs."""
        return tuple(self.programs[-1].outputs)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states, the phase first."""
        return tuple(self.programs[-1].states)

    @property
    def raises(self) -> tuple[Place, ...]:
        """Lines of the module that raise under a condition; the program goes on there."""
        return tuple(dict.fromkeys(place for p in self.programs for place in p.raises))

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        return self._last.given()

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        return self._last.made()

    @property
    def _last(self) -> Program:
        program: Program = self.programs[-1]
        return program

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether a value of a graph has one of ``dtypes``."""
        return any(program.computes_in(dtypes) for program in self.programs)

    def code(self, title: str) -> str:
        """Return the graphs as readable Python, one after the other."""
        texts = [p.code(f"{title} Phase {i}.") for i, p in enumerate(self.programs)]
        return "\n\n".join(texts)

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the graph of the phase in torch: ``(outputs, new states)``, both by name."""
        phase = int(states[self.states[0]])
        result: tuple[Tensors, Tensors] = self.programs[phase].run(states, inputs)
        return result

    def with_outputs(self, names: tuple[str, ...]) -> PhasedProgram:
        """Return the same with other names of outputs."""
        return self.mapped(lambda program: program.with_outputs(names))

    def mapped(self, change: Callable[[Any], Any]) -> PhasedProgram:
        """Return the same with ``change`` made to what there is for each phase."""
        return replace(self, programs=tuple(change(program) for program in self.programs))

    def checked(self) -> PhasedProgram:
        """Return it, if all phases return the same.

        Raises:
            StageError: Their outputs have other names, dtypes or numbers of dimensions.
        """
        for index, program in enumerate(self.programs):
            if _form(program) != _form(self._last):
                raise StageError(
                    f"call {index + 1} returns {_text(program)}, later calls return "
                    f"{_text(self._last)}",
                    stage="rewrite",
                    hint="return the same kind of tensors from every call",
                )
        return self


@dataclass(frozen=True)
class PaddedProgram:
    """A program with further states: the phase, and those that are not there in its phase.

    Attributes:
        program: Takes some of the states, and gives some.
        definitions: All of them, the phase first.
        next: The phase after a call.
        fixed: The axes that have one size, with it.
    """

    program: ScriptProgram
    definitions: tuple[StateDef, ...]
    next: int
    fixed: Mapping[str, int]

    @property
    def frontend(self) -> str:
        """Which front end made the graph."""
        return self.program.frontend

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the module's inputs."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the module's outputs."""
        return self.program.outputs

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states, the phase first."""
        return tuple(state.name for state in self.definitions)

    @property
    def raises(self) -> tuple[Place, ...]:
        """Lines of the module that raise under a condition; the program goes on there."""
        return self.program.raises

    def given(self) -> list[Port]:
        """Describe the states before a call, then the inputs."""
        ports = self.program.given()
        count = len(self.program.states)
        own = dict(zip(self.program.states, ports[:count], strict=True))
        return [*self._padded(own), *ports[count:]]

    def made(self) -> list[Port]:
        """Describe the outputs, then the states after a call."""
        ports = self.program.made()
        count = len(self.outputs)
        own = dict(zip(self.program.states_after, ports[count:], strict=True))
        return [*ports[:count], *self._padded(own)]

    def _padded(self, own: Mapping[str, Port]) -> list[Port]:
        return [
            own.get(state.name) or Port(state.initial.dtype, fix_axes(state.shape, self.fixed))
            for state in self.definitions
        ]

    def computes_in(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether a value of the graph has one of ``dtypes``."""
        return self.program.computes_in(dtypes)

    def code(self, title: str) -> str:
        """Return the graph as readable Python."""
        return self.program.code(title)

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run the graph in torch: ``(outputs, new states)``, both by name."""
        outputs, after = self.program.run(states, inputs)
        return outputs, self.complete(states, after)

    def complete(self, before: Tensors, after: Tensors) -> Tensors:
        """Return all states after a call, of which the program gives ``after``."""
        phase = {self.states[0]: torch.full((), self.next, dtype=torch.int64)}
        return {**before, **phase, **after}

    def with_outputs(self, names: tuple[str, ...]) -> PaddedProgram:
        """Return the same with other names of outputs."""
        return replace(self, program=self.program.with_outputs(names))


def _form(program: Program) -> list[tuple[str, torch.dtype, int]]:
    ports = program.made()[: len(program.outputs)]
    return [(n, p.dtype, len(p.shape)) for n, p in zip(program.outputs, ports, strict=True)]


def _text(program: Program) -> str:
    found = [f"{name} ({str(dtype)[6:]}, {rank}-d)" for name, dtype, rank in _form(program)]
    return ", ".join(found) or "nothing"
