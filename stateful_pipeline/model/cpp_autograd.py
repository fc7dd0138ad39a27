"""Finds C++ classes whose state takes part in autograd, where nobody asked for it.

State outlives a call.  A tensor that requires grad and is kept holds the graph of every call that
led to it: memory grows from step to step, and a backward pass reaches into calls that are long
over.  Two ways lead there: a differentiable factory (``torch::zeros(..., requires_grad(true))``;
``at::zeros`` makes what is not), and an argument that is kept without ``detach()``.  Exported
models have no gradients, but eager ones and those in a C++ process do unless they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.cpp_calls import Intercepted
from stateful_pipeline.model.cpp_objects import cpp_class, is_pickled, raw_state, values_in
from stateful_pipeline.model.cpp_places import copied_module, cpp_objects
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call
from stateful_pipeline.model.scripted import is_scripted

STEPS = 16

CONSTRUCTOR = "its constructor"


@dataclass(frozen=True)
class CarriedGraph:
    """State of a C++ object that requires grad.

    Attributes:
        path: Where the module holds the object.
        cpp_class: Its class.
        method: The method after which it does, or :data:`CONSTRUCTOR`.
        what: What was seen.
        hint: What to do about it.
    """

    path: str
    cpp_class: str
    method: str
    what: str
    hint: str

    def __str__(self) -> str:
        return (
            f"state '{self.path}', a C++ object of {self.cpp_class}: {self.method} {self.what}; "
            f"{self.hint}"
        )


def carried_graphs(
    module: nn.Module, call: Call, plan: InputPlan, sizes: Mapping[str, int]
) -> tuple[CarriedGraph, ...]:
    """Return which classes of the module's C++ objects carry graphs, and which methods do it.

    A copy of the module takes some steps with gradients on.  In a ScriptModule the calls of
    methods cannot be told apart: there, the method is its entry point.

    Args:
        module: The module; left as it was.
        call: Calls its entry point.
        plan: The inputs.
        sizes: A size of each axis.
    """
    objects = {p: v for p, v in cpp_objects(module).items() if is_pickled(v)}
    found: dict[str, CarriedGraph] = {}
    for path, value in objects.items():
        if _requires_grad(raw_state(value)):
            name = cpp_class(value)
            found[path] = CarriedGraph(path, name, CONSTRUCTOR, *_MADE)
    left = {path: value for path, value in objects.items() if path not in found}
    if left:
        find = _in_scripted if is_scripted(module) else _in_python
        found |= {graph.path: graph for graph in find(module, left, call, plan, sizes)}
    return tuple(found.values())


_MADE = (
    "makes state that requires grad",
    "make it with an at:: factory, or without requires_grad",
)
_KEPT = (
    "leaves state that requires grad: it keeps the graph of the call",
    "keep `value.detach()`, or copy into a tensor that does not require grad",
)
_GIVEN = (
    "returns what requires grad, of arguments that do not: the graph of earlier calls",
    "keep `value.detach()` of what the class is given",
)


def _requires_grad(state: Any) -> bool:
    tensors = (value for value in values_in(state) if isinstance(value, torch.Tensor))
    return any(tensor.requires_grad for tensor in tensors)


def _run(
    module: nn.Module, call: Call, plan: InputPlan, sizes: Mapping[str, int]
) -> Iterator[None]:
    """Take steps with gradients on, as far as the module goes so."""
    for inputs in plan.steps(sizes, 0, STEPS):
        with torch.enable_grad():
            given = {
                # No leaf: forward may write to its argument.
                name: v.clone().requires_grad_().clone() if v.is_floating_point() else v.clone()
                for name, v in inputs.items()
            }
            try:
                call(module, given)
            except Exception:  # noqa: BLE001 - a module need not run with gradients: no graph then
                return
        yield


def _in_python(
    module: nn.Module, objects: Mapping[str, Any], call: Call, plan: InputPlan, sizes: Any
) -> list[CarriedGraph]:
    found: dict[str, CarriedGraph] = {}

    class Watched(_Watched):
        graphs = found

    memo: dict[int, Any] = {id(value): Watched(path, value) for path, value in objects.items()}
    try:
        copied = copied_module(module, memo)
    except (RuntimeError, StateError):
        return []  # it holds a tensor with a graph, which is no state of an object, or is refused
    for _ in _run(copied, call, plan, sizes):
        pass
    return list(found.values())


def _in_scripted(
    module: nn.Module, objects: Mapping[str, Any], call: Call, plan: InputPlan, sizes: Any
) -> list[CarriedGraph]:
    copied = copied_module(module)
    theirs = cpp_objects(copied)
    method = f"'{getattr(call, 'method', 'forward')}'"
    found: dict[str, CarriedGraph] = {}
    for _ in _run(copied, call, plan, sizes):
        for path, value in objects.items():
            if _requires_grad(raw_state(theirs[path])):
                found.setdefault(path, CarriedGraph(path, cpp_class(value), method, *_KEPT))
    return list(found.values())


class _Watched(Intercepted):
    """Notes the first method after which the state of an object requires grad."""

    graphs: dict[str, CarriedGraph]

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method, and look at what it leaves and returns."""
        before = _requires_grad(raw_state(self.object))
        result = super().call(method, args, kwargs)
        after = _requires_grad(raw_state(self.object))
        given = _requires_grad([*args, *kwargs.values()])
        if after and not before:
            self._note(method, _KEPT)
        elif _requires_grad(result) and not given:
            self._note(method, _GIVEN)
        return result

    def _note(self, method: str, how: tuple[str, str]) -> None:
        found = CarriedGraph(self.path, self.name, f"'{method}'", *how)
        self.graphs.setdefault(self.path, found)
