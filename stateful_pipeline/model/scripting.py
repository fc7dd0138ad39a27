"""Scripts a module with ``torch.jit.script``, and says what the graph of its method takes."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, Place, StageError
from stateful_pipeline.model import compiling, jit
from stateful_pipeline.model.cpp_scripts import NO_FORMS, ScriptedForms, scripted_forms
from stateful_pipeline.model.dropped import refuse_dropped_writes
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.reference import Reference, Step, exact_kernels, put
from stateful_pipeline.model.scripted import class_name, methods
from stateful_pipeline.model.seen_attributes import before_call, note_attributes
from stateful_pipeline.model.seen_types import SeenTypes, watching
from stateful_pipeline.model.shells import Shells, scriptable
from stateful_pipeline.model.user_code import is_user_file

_WATCHED_STEPS = 4
_UNIT = re.compile(r" \(of Python compilation unit at: \w+\)")
_OBJECT_PUT = re.compile(
    r"Wrong type for attribute assignment\. Expected (?!__torch__\.torch\.classes\.)\S+ "
    r"but got __torch__\.torch\.classes\.([\w.]*\w)"
)
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Parameter:
    """A parameter of a scripted method, with its default (None if it has none)."""

    name: str
    default: Any = None


@dataclass(frozen=True)
class Scripted:
    """A module's TorchScript.

    Attributes:
        module: The scripted module; its tensors are those of the module that it was made from.
        graph: The graph of the entry point, calls inlined.
        parameters: What the entry point takes, without ``self``.
        outputs: Names of what it returns.
        text: Its code, calls inlined.
        python: Whether eager runs Python's code, which TorchScript compiles to something that is
            not the same everywhere.
        paths: The first path of each submodule, by each path that it has.
        limits: The most items that a deque keeps, by its path; to TorchScript, it is a list.
        forms: The explicit forms of the C++ objects that it holds.
    """

    module: torch.jit.ScriptModule
    graph: jit.Graph
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    text: str
    python: bool
    paths: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    forms: ScriptedForms = NO_FORMS

    def code(self, title: str) -> str:
        """Return the code with ``title`` as its first line, a comment."""
        return f"# {title}\n{self.text}"


def script(reference: Reference, plan: InputPlan, sizes: Mapping[str, int]) -> Scripted:
    """Script ``reference.module``, and leave it as it was.

    Args:
        reference: The module with its states found.
        plan: The inputs.
        sizes: A size of each axis, at which forward is called once to see what it returns.

    Raises:
        StageError: TorchScript cannot compile the module; the message holds its reason and the
            user's line.
    """
    jit.require_supported()
    compiling.require_supported()
    method = getattr(reference.call, "method", "forward")
    first, seen = _first_call(reference, plan, sizes)
    try:
        with reference.on_loan(), exact_kernels():
            for state in reference.states:
                if state.number:  # an attribute that is 0 and will be 0.5 has the type of 0.0
                    put(reference.module, state, state.initial)
            with (
                compiling.only_called(reference.module, method),
                scriptable(reference.module, seen) as shells,
            ):
                module = compiled(reference.module, seen, shells)
                refuse_uncompiled(reference.module, module, method)
                graph = jit.inlined_graph(module, method)
                text = jit.code_of(module, method)
                python = not isinstance(reference.module, torch.jit.ScriptModule)
                if python:
                    refuse_dropped_writes(reference.module, method, graph)
            if python:
                graph = jit.with_python_powers(jit.with_python_remainders(graph))
            forms = scripted_forms(reference.module, graph)
    except PipelineError:
        raise
    except Exception as error:  # the compiler raises what it likes, and runs the user's code
        raise refusal(error) from error
    schema = getattr(module, method).schema
    parameters = tuple(Parameter(a.name, a.default_value) for a in schema.arguments[1:])
    outputs = tuple(first.outputs)
    return Scripted(
        module, graph, parameters, outputs, text, python, shells.paths, shells.limits, forms
    )


def _first_call(
    reference: Reference, plan: InputPlan, sizes: Mapping[str, int]
) -> tuple[Step, SeenTypes]:
    """Call the module once; return what that gave, and the types that it showed."""
    with reference.on_loan():
        before = before_call(reference.module)
    steps = reference.rollout(sizes, plan.steps(sizes, 0, _WATCHED_STEPS))
    with closing(steps) as rollout, watching() as seen:
        step = next(rollout)
        # The module is as that call left it until the rollout goes on.
        note_attributes(seen, before, reference.module)
        with suppress(StageError):  # it has been observed before, and may be at its end
            deque(rollout, maxlen=0)
    return step, seen


def compiled(module: nn.Module, seen: SeenTypes, shells: Shells) -> torch.jit.ScriptModule:
    """Return a module's TorchScript, of its source as it is if no other form of it compiles."""
    try:
        with compiling.own_compiler(seen, shells.naming):
            return jit.script(module)
    except PipelineError:  # what has no form that means the same
        raise
    except Exception as error:
        if seen.learn(str(error)):
            return compiled(module, seen, shells)
        if seen.is_needed:
            raise
        try:
            with compiling.own_compiler(None):
                return jit.script(module)
        except Exception:  # noqa: BLE001 - what it says of the first form holds for both
            raise error from None


def refuse_uncompiled(module: nn.Module, scripted: torch.jit.ScriptModule, method: str) -> None:
    """Raise ``StageError`` where TorchScript has left out the method that is asked for."""
    if method in methods(scripted):
        return
    raise StageError(
        f"torch.jit.script did not compile '{method}' of {class_name(module)}: of methods that "
        "forward does not call, it takes those alone that are exported",
        stage="script",
        place=_place_of_function(getattr(type(module), method, None)),
        hint=f"decorate {method} with @torch.jit.export",
    )


def _place_of_function(function: Any) -> Place | None:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return None if code is None else Place(code.co_filename, code.co_firstlineno)


def refusal(error: Exception) -> StageError:
    """Return the error for what TorchScript's compiler has raised: its reason, the user's line."""
    text = _UNIT.sub("", str(error))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    put = _OBJECT_PUT.search(text)
    return StageError(
        f"torch.jit.script refused: {type(error).__name__}: " + "\n".join(lines[:6]),
        stage="script",
        place=_place(text) or user_place(error),
        hint=None
        if put is None
        else f"no engine but libtorch can put another object of the C++ class {put.group(1)} "
        "there: keep the object, and call a method that takes it back to its first state",
    )


def _place(text: str) -> Place | None:
    """Return the last line of the user's code that a compiler's message names."""
    found = [Place(file, int(line)) for file, line in _PLACE.findall(text) if is_user_file(file)]
    return found[0] if found else None
