"""Puts explicit forms in the places of a module's C++ objects."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import Place, StateError
from stateful_pipeline.model.cpp_differences import first_difference
from stateful_pipeline.model.cpp_instances import place_of_class
from stateful_pipeline.model.cpp_objects import (
    cpp_class,
    cpp_methods,
    form_class,
    form_of,
    is_pickled,
    make_form,
    put_state,
    same_state,
    state_of,
    state_type,
)
from stateful_pipeline.model.cpp_places import copied_module, cpp_objects
from stateful_pipeline.model.holders import leaves
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import scripted_part, user_place
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.model.scripted import is_scripted

_explicit: weakref.WeakKeyDictionary[Reference, Reference] = weakref.WeakKeyDictionary()


def refuse_without_form(path: str, value: Any) -> None:
    """Refuse a C++ object that cannot be made explicit, and say what to write.

    Raises:
        StateError: Its class is not pickled, has no explicit form, or one that loses its state.
    """
    name = cpp_class(value)
    if not is_pickled(value):
        raise StateError(
            f"is an object of the C++ class {name}, which does not say what it holds",
            attribute=path,
            hint=f"add .def_pickle(get_state, set_state) where {name} is registered",
        )
    kind = str(state_type(value))
    if form_class(name) is None:
        raise StateError(
            f"is an object of the C++ class {name}, whose state ({kind}) an engine would freeze: "
            "the class has no explicit form",
            attribute=path,
            hint=_no_strings(kind) or _what_to_write(name, value, kind),
        )
    _check_round_trip(path, name, value)


def _no_strings(kind: str) -> str | None:
    if "str" not in kind:
        return None
    return "no engine but libtorch holds strings: let a target with `runtime: libtorch` run it"


def _what_to_write(name: str, value: Any, kind: str) -> str:
    methods = ", ".join(cpp_methods(value))
    where = f"`classes: {{{name}: {{python: package.module:Class}}}}`"
    return (
        f"write a Python class with __init__(self, state) for that {kind}, to_state(self), and "
        f"those of its methods that the model calls: {methods}; declare it in the spec, {where}, "
        f'or by @stateful_pipeline.explicit_form("{name}")'
    )


def _check_round_trip(path: str, name: str, value: Any) -> None:
    state = state_of(value)
    form = make_form(name, state)
    copied = copy.deepcopy(value)
    hint = f"to_state() has to give the {state_type(value)} that the constructor takes"
    try:
        put_state(copied, form.to_state())
    except Exception as error:  # the user's class may raise anything
        first = str(error).partition("\n")[0]
        message = f"what {named_form(name)} gives by to_state() is not taken back: {first}"
        raise StateError(message, attribute=path, place=user_place(error), hint=hint) from error
    given = state_of(copied)
    if not same_state(given, state):
        what = first_difference(state, given, same_state)
        raise StateError(
            f"{named_form(name)} does not give back the state that it is made from: after the "
            f"class has taken to_state(), {what}",
            attribute=path,
            place=place_of_class(type(form)),
            hint=hint,
        )


def refuse_without_method(
    path: str, value: Any, form: Any, method: str, place: Place | None = None
) -> None:
    """Refuse a form that lacks a method that the model calls, and say what to write.

    Args:
        path: Where the module holds the object.
        value: The object.
        form: An instance of the explicit form of its class.
        method: The method.
        place: Where the model calls it, if that is known.

    Raises:
        StateError: The form has no such method, or hides it behind an attribute.
    """
    written = callable(getattr(type(form), method, None))
    if written and callable(getattr(form, method)):
        return
    name = cpp_class(value)
    if written:
        raise StateError(
            f"{named_form(name)} has an attribute '{method}', which hides its method of that name",
            attribute=path,
            place=place_of_class(type(form)),
            hint=f"give the attribute another name, as in self._{method}",
        )
    signatures = (text for text in cpp_methods(value) if text.startswith(f"{method}("))
    raise StateError(
        f"{named_form(name)} has no method '{method}', which the model calls",
        attribute=path,
        place=place,
        hint=f"write {next(signatures, method)}",
    )


def named_form(name: str) -> str:
    """Return in words what the explicit form of a C++ class is called."""
    form = form_class(name)
    assert form is not None  # whoever has none was refused
    return f"the explicit form {form.__name__} of the C++ class {name}"


# --- the module with explicit forms ----------------------------------------------------------


def with_explicit_forms(reference: Reference, plan: InputPlan) -> Reference:
    """Return the same for a copy of the module that holds explicit forms instead of C++ objects.

    Its tensors are those of the module.  ScriptModules in it keep their C++ objects, whose class
    their code knows.  A module without C++ objects, and a ScriptModule, come back as they are.

    Raises:
        StateError: The module cannot be copied, or an object is where nothing else can be put.
    """
    objects = cpp_objects(reference.module)
    if not objects or is_scripted(reference.module):
        return reference
    if reference not in _explicit:
        places = {id(value): copy.deepcopy(form_of(value)) for value in objects.values()}
        module = copied_with(reference.module, places)
        _register(module, {id(form) for form in places.values()})
        _refuse_left(module)
        _explicit[reference] = reference.with_module(module, reference.states, plan)
    return _explicit[reference]


def _refuse_left(module: nn.Module) -> None:
    for path, value in cpp_objects(module).items():
        if scripted_part(module, path) is None:
            raise StateError(
                f"is an object of the C++ class {cpp_class(value)} that a function holds, where "
                "the explicit form of its class cannot take its place",
                attribute=path,
                hint="hold it in an attribute of the module",
            )


def _register(module: nn.Module, forms: set[int]) -> None:
    """Make submodules of the forms that are modules."""
    for inner in list(module.modules()):
        for name, value in list(vars(inner).items()):
            if isinstance(value, nn.Module) and id(value) in forms:
                del vars(inner)[name]
                inner._modules[name] = value


def copied_with(module: nn.Module, places: Mapping[int, Any]) -> nn.Module:
    """Return a copy of a module, tensors shared, with other values in the places of some."""
    memo: dict[int, Any] = dict(places)
    for leaf in leaves(module):
        if isinstance(leaf.value, torch.Tensor):
            memo[id(leaf.value)] = leaf.value
    try:
        return copied_module(module, memo)
    except Exception as error:  # whatever the module holds may refuse
        raise StateError(
            f"the module, which holds C++ objects, cannot be copied: {error}",
            hint="let copy.deepcopy(module) work",
        ) from error
