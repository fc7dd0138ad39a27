"""Captures a module with ``torch.export`` so that its states are inputs and outputs.

Method: a wrapper's ``forward(states, inputs)`` puts a clone of each given state into *every* place
where the module holds it, calls the entry point, reads back what is in these places afterwards,
and returns it beside the outputs.  Reassignment, in-place operators, writes through views and
helper objects that hold the same tensor all come out as they do in eager mode, because the tracer
runs the module's own Python.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim, ExportedProgram

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import PipelineError, StageError, StateError
from stateful_pipeline.model.data_access import DataAccess
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.guards import in_own_words, refuse_length_tests
from stateful_pipeline.model.holders import is_number, leaves, read, write
from stateful_pipeline.model.indexing import TensorIndices
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.python_math import traced_math
from stateful_pipeline.model.reference import (
    Reference,
    Tensors,
    exact_kernels,
)
from stateful_pipeline.model.sizes import fixed_sizes
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.torch_internals import (
    guards_of,
    require_supported,
    symbolic_shapes,
)
from stateful_pipeline.model.tree import named_outputs


class _Explicit(nn.Module):
    """The module as a function of its states and inputs, for the tracer alone."""

    def __init__(
        self,
        reference: Reference,
        names: Sequence[str],
        report: Callable[[tuple[str, ...]], None],
    ) -> None:
        super().__init__()
        self.module = reference.module
        self._reference = reference
        self._names = tuple(names)
        self._report = report

    def forward(
        self, states: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        module = self.module
        # Tensors are traced here: what holds them is put back, their bytes are not.
        held = Snapshot(module, bytes_too=False)
        try:
            names = [state.name for state in self._reference.states]
            before = {n: v.clone() for n, v in zip(names, states, strict=True)}
            self._reference.lay(before)
            for path in self._reference.scratch:
                write(module, path, read(module, path).clone())
            # The module may write to its arguments; the graph's inputs are nobody's to write to.
            given = {n: v.clone() for n, v in zip(self._names, inputs, strict=True)}
            numbers = self._numbers()
            with TensorIndices(), DataAccess(), traced_math(module):
                result = self._reference.call(module, given)
            outputs = named_outputs(result)
            after = self._reference.pick(before)
            self._refuse_others(numbers)
        finally:
            held.restore()
        self._report(tuple(outputs))
        return (*outputs.values(), *(after[name] for name in names))

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers that the module holds and that are no states, by path."""
        states = {path for state in self._reference.states for path in state.places}
        found = {leaf.path: leaf.value for leaf in leaves(self.module) if is_number(leaf.value)}
        return {path: value for path, value in found.items() if path not in states}

    def _refuse_others(self, before: Mapping[str, Any]) -> None:
        """Refuse a call that leaves another number where none was seen to change.

        Nothing tells the graph of it: it would read the number that was there at first.
        """
        states = {path for state in self._reference.states for path in state.places}
        for path, value in self._reference.numbers_after(before).items():
            if path in states:
                continue
            now = read(self.module, path)
            if type(now) is not type(value) or (now != value and now == now):
                raise StateError(
                    f"a call may change this {type(value).__name__}, although no call was seen to",
                    attribute=path,
                    hint="hold it in a 0-d tensor: self.register_buffer(name, torch.tensor(value))",
                )


def capture(reference: Reference, plan: InputPlan, sizes: Mapping[str, int]) -> ExportProgram:
    """Capture ``reference.module`` at ``sizes`` with its axes dynamic, and leave it as it was.

    Args:
        reference: The module, its states and its axes.
        plan: The inputs.
        sizes: The size of each axis to trace at, 2 or more unless the axis allows only 1.

    Raises:
        StateError: A state changes in a way that the graph cannot follow.
        StageError: ``torch.export`` refused; the message holds its reason and the user's line.
    """
    require_supported()
    module, names = reference.module, [value.name for value in plan.inputs]
    states = _warm_states(reference, plan, sizes)
    given = plan.step(sizes, 0, 0)
    # The tracer puts attributes back; what forward returned is reported past it.
    reports: list[tuple[str, ...]] = []
    wrapper = _Explicit(reference, names, reports.append)
    wrapper.training = module.training  # not train(), which would set it throughout the module
    arguments = (
        tuple(states[state.name] for state in reference.states),
        tuple(given[name] for name in names),
    )
    modes = {inner: inner.training for inner in module.modules()}
    try:
        with reference.on_loan(), torch.no_grad(), exact_kernels(), symbolic_shapes(), quiet():
            exported = _export(wrapper, arguments, reference, plan)
    finally:
        for inner, mode in modes.items():
            inner.training = mode
    outputs = reports[-1]
    refuse_length_tests(guards_of(exported), reference, plan)
    state_names = tuple(state.name for state in reference.states)
    program = ExportProgram(exported, tuple(names), outputs, state_names, {})
    return replace(program, symbols=_symbols(program, reference, plan))


def _export(
    wrapper: _Explicit, arguments: tuple[Any, ...], reference: Reference, plan: InputPlan
) -> ExportedProgram:
    """Trace with the axes' ranges; where size 1 is in the way, with ranges from 2.

    Many operators ask whether a size is 1 (to broadcast, to choose a layout), and the tracer then
    refuses the range although the operators of the graph give the same for 1.  That they do is
    proven afterwards: the rewrite is compared with eager at the smallest sizes too.
    """
    refused: Exception | None = None
    for least in (1, 2):
        dims = _Dims(reference.axes, least)
        dynamic = {
            "states": tuple(dims.of(state.shape, state.grows) for state in reference.states),
            "inputs": tuple(dims.of(value.shape) for value in plan.inputs),
        }
        try:
            return torch.export.export(wrapper, arguments, dynamic_shapes=dynamic, strict=False)
        except PipelineError:
            raise
        except UserError as error:
            refused = refused or error
            if error.error_type is not UserErrorType.CONSTRAINT_VIOLATION:
                break
        except Exception as error:
            raise _refusal(error, reference, plan) from error
    assert refused is not None  # the loop returned or raised otherwise
    raise _refusal(refused, reference, plan) from refused


def _warm_states(reference: Reference, plan: InputPlan, sizes: Mapping[str, int]) -> Tensors:
    """Return states to trace with: initial ones, or some steps later where a state grows."""
    if not any(state.grows for state in reference.states):
        return reference.initial(sizes)
    last: Tensors = {}
    for step in reference.rollout(sizes, plan.steps(sizes, 0, 5)):
        last = step.after
        if all(
            last[state.name].shape[index] >= 2
            for state in reference.states
            for index, dim in enumerate(state.shape)
            if dim in state.grows
        ):
            break
    return last


class _Dims:
    """``torch.export`` dimensions by axis name."""

    def __init__(self, axes: Sequence[Axis], least: int) -> None:
        self._dims = {
            axis.name: Dim(axis.name, min=max(axis.min, least), max=axis.max)
            for axis in axes
            if axis.min != axis.max
        }
        self._fixed = fixed_sizes(axes)

    def of(self, shape: Shape, grows: frozenset[str] = frozenset()) -> dict[int, Any]:
        return {
            index: Dim.AUTO if dim in grows else self._dims[dim]
            for index, dim in enumerate(shape)
            if isinstance(dim, str) and dim not in self._fixed
        }


def _symbols(program: ExportProgram, reference: Reference, plan: InputPlan) -> dict[str, str]:
    """Return symbol to axis name; an axis that was traced as a number is an error."""
    given, _ = program.user_nodes()
    shapes: list[tuple[str, Shape]] = [(state.name, state.shape) for state in reference.states]
    shapes += [(value.name, value.shape) for value in plan.inputs]
    fixed = fixed_sizes(reference.axes)
    symbols: dict[str, str] = {}
    for node, (name, shape) in zip(given, shapes, strict=True):
        for dim, traced in zip(shape, node.meta["val"].shape, strict=True):
            if not isinstance(dim, str) or dim in fixed:
                continue
            if isinstance(traced, int) or traced.node.expr.is_Integer:
                raise StageError(
                    f"axis '{dim}' of '{name}' was specialized to {int(traced)}: the module's "
                    "code depends on that size",
                    stage="script",
                    hint=f"fix the size in the spec, or avoid Python code that depends on '{dim}'",
                )
            symbols.setdefault(str(traced.node.expr), dim)
    return symbols


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what ``torch.export`` says of its internals and of attributes that are put back.

    Where it fails it also logs, and prints the graph so far to stderr; the error that it raises
    says the same with the user's line.
    """
    names = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
    logs = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    try:
        for log in logs:
            log.setLevel(logging.CRITICAL)
        with _quiet_warnings(), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for log, level in logs.items():
            log.setLevel(level)


@contextmanager
def _quiet_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"The tensor attributes? .* (was|were) assigned")
        warnings.filterwarnings(
            "ignore", category=FutureWarning, module=r"torch\.|copyreg|.*eval_with"
        )
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.|copyreg")
        yield


def _is_internal(line: str) -> bool:
    return any(mark in line for mark in ("TORCH_LOGS", "Caused by: (", "Suggested fixes:"))


def _refusal(error: Exception, reference: Reference, plan: InputPlan) -> PipelineError:
    """Translate a failure of ``torch.export``, with the user's line where there is one."""
    text = str(error).split("\nThe error above occurred")[0].split("\nFor extended logs")[0]
    lines = [line for line in text.strip().splitlines() if line and not _is_internal(line)]
    lines = [in_own_words(line, reference, plan) for line in lines]
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in text:
        hint = (
            "for branches and loops on tensor values there is `frontend: torchscript`; or compute "
            "both and choose with torch.where; where a slice is bounded by a tensor, use "
            "index_copy_ or index_select with torch.arange"
        )
    elif isinstance(error, UserError):
        hint = (
            "the module's code depends on these sizes: narrow the axis's range (in a spec, "
            "`dynamic_axes: {time: {min: 1, opt: 4, max: 8}}`), or fix its size"
        )
    else:
        hint = None
    return StageError(
        f"torch.export refused: {kind}: " + "\n".join(lines[:12]),
        stage="script",
        place=user_place(error),
        hint=hint,
    )
