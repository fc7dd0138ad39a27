"""Compiles the explicit forms of the C++ objects that a ScriptModule holds.

The code of a ScriptModule calls the methods of a C++ class, and can be made to call nothing else.
So the rewrite, where it comes to such a call, goes on in the graph of the explicit form's method.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model import compiling, jit
from stateful_pipeline.model.cpp_forms import named_form, refuse_without_method
from stateful_pipeline.model.cpp_objects import (
    class_of,
    cpp_class,
    form_of,
)
from stateful_pipeline.model.cpp_places import cpp_objects, cpp_places
from stateful_pipeline.model.dropped import refuse_dropped_writes
from stateful_pipeline.model.seen_types import SeenTypes
from stateful_pipeline.model.shells import scriptable

_PYTHON_TYPES: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Tensor": torch.Tensor,
}


class ScriptedForms:
    """The explicit forms of a module's C++ objects, as TorchScript.

    Args:
        forms: By the first path of the object.
        places: The first path of each object, by each of its paths.
    """

    def __init__(
        self, forms: Mapping[str, torch.jit.ScriptModule], places: Mapping[str, str]
    ) -> None:
        self._forms, self.places = dict(forms), dict(places)
        self._graphs: dict[tuple[str, str], jit.Graph] = {}

    def at(self, path: str) -> torch.jit.ScriptModule | None:
        """Return the form of the object whose first path is ``path``, if one is there."""
        return self._forms.get(path)

    def graph(self, path: str, method: str) -> jit.Graph:
        """Return the graph of a method, calls inlined; its first input is the form itself."""
        if (path, method) not in self._graphs:
            graph = jit.inlined_graph(self._forms[path], method)
            graph = jit.with_python_powers(jit.with_python_remainders(graph))
            self._graphs[path, method] = graph
        return self._graphs[path, method]


NO_FORMS = ScriptedForms({}, {})


def scripted_forms(module: nn.Module, graph: jit.Graph) -> ScriptedForms:
    """Compile the explicit forms of the C++ objects of a ScriptModule.

    Args:
        module: The ScriptModule.
        graph: The graph of its entry point, which says what methods are called.

    Raises:
        StateError: A form lacks a method that is called.
        StageError: TorchScript cannot compile a form.
    """
    if not cpp_objects(module):
        return NO_FORMS
    called = _called(graph)
    return ScriptedForms(
        {
            path: _compiled(path, value, called.get(cpp_class(value), {}))
            for path, value in cpp_objects(module).items()
        },
        cpp_places(module),
    )


def _called(graph: jit.Graph) -> dict[str, dict[str, jit.Node]]:
    """Return the methods of C++ classes that a graph calls, with the first call of each."""
    found: dict[str, dict[str, jit.Node]] = {}
    for node in graph.findAllNodes("prim::CallMethod", recurse=True):
        name = class_of(node.inputsAt(0).type())
        if name is not None:
            found.setdefault(name, {}).setdefault(node.s("name"), node)
    return found


def _compiled(path: str, value: Any, called: Mapping[str, jit.Node]) -> torch.jit.ScriptModule:
    name = cpp_class(value)
    form = form_of(value)
    cls = type(form)
    for method, node in called.items():
        refuse_without_method(path, value, form, method, jit.place_of(node))
    try:
        with ExitStack() as stack:
            for method in called:
                stack.enter_context(_with_types(getattr(cls, method), value, method))
            stack.enter_context(compiling.exported(cls, tuple(called)))
            compiled: torch.jit.ScriptModule = _script(form)
    except PipelineError:
        raise
    except Exception as error:  # the compiler raises what it likes
        lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
        raise StageError(
            f"torch.jit.script refused {named_form(name)}: " + "\n".join(lines[:6]),
            stage="script",
        ) from error
    return compiled


def _script(form: Any) -> Any:
    holder = nn.Module()
    holder.form = form
    with scriptable(holder) as shells, compiling.own_compiler(SeenTypes(), shells.naming):
        shell = holder._modules["form"]
        assert shell is not None  # that of an object with attributes
        compiled = jit.script(shell)
        for method in compiled._c._method_names():
            refuse_dropped_writes(shell, method, jit.inlined_graph(compiled, method))
    return compiled


@contextmanager
def _with_types(function: Any, value: Any, method: str) -> Iterator[None]:
    """Give the parameters of a form's method the types that the C++ class has."""
    known = inspect.unwrap(function).__annotations__
    before = dict(known)
    names = list(inspect.signature(function).parameters)[1:]
    schema = value._get_method(method).schema
    for name, argument in zip(names, schema.arguments[1:], strict=False):
        kind = _PYTHON_TYPES.get(str(argument.type))
        if kind is not None:
            known.setdefault(name, kind)
    try:
        yield
    finally:
        known.clear()
        known.update(before)
