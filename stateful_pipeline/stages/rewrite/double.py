"""Runs a captured graph and its module in float64, to tell rounding from a wrong graph.

It is the very graph that runs, with wider numbers: its weights, constants, states and inputs are
float64.  Operators that name a float type are the one doubt: where the user's code named it, eager
float64 runs keep it; where the tracer wrote down what was implied, they do not.  So there are two
readings, ``as_written`` and widened, and a graph that is right in either is right.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from stateful_pipeline.model import jit
from stateful_pipeline.model.cpp_places import copied_module
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.holders import leaves, write
from stateful_pipeline.model.inputs import Input, InputPlan
from stateful_pipeline.model.phased_program import PaddedProgram, PhasedProgram
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import Reference, Tensors
from stateful_pipeline.model.script_program import ScriptProgram

_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def in_float64(reference: Reference, plan: InputPlan) -> tuple[Reference, InputPlan]:
    """Return a copy of the reference and the plan in float64; the values of inputs are the same."""
    module = copied_module(reference.module)
    _widen(module)
    states = [replace(state, initial=_wide(state.initial)) for state in reference.states]
    wide = InputPlan(
        [
            replace(value, dtype=torch.float64, sampler=_Widened(value))
            if value.dtype in _NARROW
            else value
            for value in plan.inputs
        ]
    )
    return reference.with_module(module, states, wide), wide


def _widen(module: nn.Module) -> None:
    """Make every float tensor that ``module`` holds, in whatever way, float64."""
    module.double()
    made: dict[int, torch.Tensor] = {}
    for leaf in list(leaves(module)):
        if isinstance(leaf.value, torch.Tensor) and leaf.value.dtype in _NARROW:
            write(module, leaf.path, made.setdefault(id(leaf.value), leaf.value.double()))


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.dtype in _NARROW
    return value.double() if narrow else value


@dataclass(frozen=True)
class _Widened:
    """The same values as another input's, in float64."""

    narrow: Input

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, step: int, generator: np.random.Generator
    ) -> torch.Tensor:
        """Draw what the narrow input would have drawn."""
        return self.narrow.sampler(shape, self.narrow.dtype, step, generator).to(dtype)


class Wide(Protocol):
    """A program whose weights and constants are float64."""

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run one step: ``(outputs, new states)``, both by name."""
        ...


def wide_program(program: Program, *, as_written: bool) -> Wide:
    """Return ``program`` with weights and constants in float64.

    Args:
        program: The program.
        as_written: Whether operators keep the float types that they name.
    """
    if isinstance(program, PhasedProgram):
        return _WidePhases(program, as_written=as_written)
    if isinstance(program, PaddedProgram):
        return _WidePadded(program, as_written=as_written)
    if isinstance(program, ScriptProgram):
        return WideScript(program, as_written=as_written)
    assert isinstance(program, ExportProgram)
    return WideProgram(program, as_written=as_written)


class _WidePhases:
    """A program with a graph for each phase, all of them float64."""

    def __init__(self, program: PhasedProgram, *, as_written: bool) -> None:
        self._phase = program.states[0]
        self._programs = [wide_program(p, as_written=as_written) for p in program.programs]

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run one step: ``(outputs, new states)``, both by name."""
        return self._programs[int(states[self._phase])].run(states, inputs)


class _WidePadded:
    """A program that gives some of the states, with weights and constants in float64."""

    def __init__(self, program: PaddedProgram, *, as_written: bool) -> None:
        self._padded = program
        self._wide = wide_program(program.program, as_written=as_written)

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run one step: ``(outputs, new states)``, both by name."""
        outputs, after = self._wide.run(states, inputs)
        return outputs, self._padded.complete(states, after)


class WideScript:
    """A program rewritten from TorchScript whose weights and constants are float64."""

    def __init__(self, program: ScriptProgram, *, as_written: bool) -> None:
        graph = jit.widened(program.graph, types_too=not as_written)
        weights = {name: _wide(value) for name, value in program.weights.items()}
        self._program = program.with_graph(graph, weights)

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run one step: ``(outputs, new states)``, both by name."""
        return self._program.run(
            {name: _wide(value) for name, value in states.items()},
            {name: _wide(value) for name, value in inputs.items()},
        )


class WideProgram:
    """A captured program whose weights and constants are float64.

    Args:
        program: The program.
        as_written: Whether operators keep the float types that they name.
    """

    def __init__(self, program: ExportProgram, *, as_written: bool) -> None:
        self._program = program
        graph_module = copy.deepcopy(program.exported.graph_module)
        for module in graph_module.modules():
            if isinstance(module, torch.fx.GraphModule) and not as_written:
                _widen_types(module)
        self._interpreter = torch.fx.Interpreter(graph_module)

    def run(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Run one step: ``(outputs, new states)``, both by name."""
        arguments = [_wide(value) for value in self._program.arguments(states, inputs)]
        with torch.no_grad():
            return self._program.named(self._interpreter.run(*arguments))


def _widen_types(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, _wide_type)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _wide_type)
    module.recompile()


def _wide_type(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
