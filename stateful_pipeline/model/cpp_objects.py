"""C++ objects that a module holds (``torch::CustomClassHolder``), and what they hold.

Python sees no part of such an object but what its class gives to be pickled (``def_pickle``), and
puts nothing into it but by the way back.  That is enough: an object is a holder whose state is
copied out, and which another state is put into, by whoever holds it.

The *explicit form* of a C++ class is a Python class that does the same with tensors.  It is made
from a pickled state, gives one back by ``to_state``, and has the methods that models call::

    @stateful_pipeline.explicit_form("stateful.Counter")
    class Counter:
        def __init__(self, state):      # what __getstate__ of the C++ class gives
            self.count = torch.tensor(state)

        def to_state(self):             # what its __setstate__ takes
            return int(self.count)

        def add(self, value):
            self.count = self.count + value
            return self.count

What an instance of it holds are the paths of an object's state: ``counter.count``.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.cpp_instances import new_instance
from stateful_pipeline.model.equal_tensors import equal_tensors

_CLASSES = "__torch__.torch.classes."
_STATE_METHODS = ("__getstate__", "__setstate__")
Form = TypeVar("Form", bound=type)

_forms: dict[str, type] = {}
_declared: dict[str, type] = {}


def explicit_form(name: str) -> Callable[[Form], Form]:
    """Declare a Python class as the explicit form of a C++ class, from now on in this process.

    Args:
        name: The C++ class, by its name below ``torch.classes``: ``stateful.TensorRing``.
    """

    def register(form: Form) -> Form:
        _forms[name] = form
        _declared.pop(name, None)  # what is declared last counts
        return form

    return register


def declare_forms(forms: Mapping[str, type]) -> None:
    """Declare the explicit forms of the model that is at hand; they come before all others.

    Args:
        forms: By C++ class; the forms of the model before are forgotten.
    """
    _declared.clear()
    _declared.update(forms)


def form_class(name: str) -> type | None:
    """Return the explicit form of a C++ class, if it has one."""
    return _declared.get(name) or _forms.get(name)


def is_cpp_object(value: object) -> TypeGuard[Any]:
    """Whether ``value`` is an object of a C++ class that is bound to TorchScript."""
    return isinstance(value, torch.ScriptObject) and class_of(value._type()) is not None


def class_of(type_: Any) -> str | None:
    """Return the C++ class that a type of TorchScript is, if it is one."""
    name = str(type_.qualified_name()) if type_.kind() == "ClassType" else ""
    return name.removeprefix(_CLASSES) if name.startswith(_CLASSES) else None


def cpp_class(value: Any) -> str:
    """Return the name of an object's class, as in ``stateful.TensorRing`` for one of C++."""
    return str(value._type().qualified_name()).removeprefix(_CLASSES)


def cpp_methods(value: Any) -> tuple[str, ...]:
    """Return the schemas of an object's methods, as in ``push(Tensor) -> None``."""
    names = [name for name in value._method_names() if not name.startswith("__")]
    return tuple(_signature(value._get_method(name).schema) for name in names)


def _signature(schema: Any) -> str:
    takes = ", ".join(str(argument.type) for argument in schema.arguments[1:])
    gives = ", ".join(str(result.type) for result in schema.returns).replace("NoneType", "None")
    return f"{schema.name}({takes}) -> {gives}"


def is_pickled(value: Any) -> bool:
    """Whether the class of an object says how it is pickled."""
    return all(value._has_method(name) for name in _STATE_METHODS)


def state_type(value: Any) -> Any:
    """Return the type of what an object pickles, as TorchScript has it."""
    return value._get_method("__getstate__").schema.returns[0].type


def raw_state(value: Any) -> Any:
    """Return what an object pickles: it may be the very tensors and objects that it holds."""
    return value._get_method("__getstate__")()


def values_in(state: Any) -> Iterator[Any]:
    """Yield what is in a pickled state, containers taken apart."""
    if isinstance(state, list | tuple | dict):
        for item in state.values() if isinstance(state, dict) else state:
            yield from values_in(item)
    else:
        yield state


def state_of(value: Any) -> Any:
    """Return what an object pickles, as copies that share nothing with it."""
    with torch.no_grad():
        return own_copy(raw_state(value))


def put_state(value: Any, state: Any) -> None:
    """Give an object another state; everybody who holds it sees that.

    Raises:
        RuntimeError: Its class does not take such a state.
    """
    with torch.no_grad():
        value._get_method("__setstate__")(own_copy(state))


def own_copy(value: Any) -> Any:
    """Return a copy of a pickled state that shares no tensor with it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return type(value)(own_copy(item) for item in value)
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    return copied_object(value) if isinstance(value, torch.ScriptObject) else value


def copied_object(value: Any) -> Any:
    """Return a copy of an object that shares nothing with it.

    Pickling alone is no copy: a class may give its own tensors and take those that it is given.
    """
    copied = copy.deepcopy(value)
    if is_cpp_object(copied):
        put_state(copied, state_of(value))
    return copied


def same_state(one: Any, other: Any) -> bool:
    """Whether two values of TorchScript are equal, bit for bit; objects by what they pickle."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and equal_tensors(one, other) is not False
    if isinstance(one, torch.ScriptObject):
        return same_state(_pickled(one), _pickled(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _pickled(value: Any) -> Any:
    """Return what an object pickles; None for one of a TorchScript class, which has no secrets."""
    return value.__getstate__()[0] if value._has_method("__getstate__") else None


# --- the explicit form of an object ----------------------------------------------------------


@dataclass
class _View:
    """An object's explicit form, as it is now.

    Attributes:
        object: The object.
        form: An instance of the explicit form.
        state: The state that both have.
        written: Whether the form was written to, and the object does not have that yet.
    """

    object: weakref.ref[Any]
    form: Any
    state: Any
    written: bool = False


_views: dict[int, _View] = {}


def form_of(value: Any) -> Any:
    """Return an instance of the explicit form that holds what an object holds now.

    It stays the same one, and what it holds the same objects, as long as the state is the same.

    Args:
        value: The object, whose class has an explicit form.

    Raises:
        StateError: The form cannot be made from the state.
    """
    name = cpp_class(value)
    form = form_class(name)
    view = _views.get(id(value))
    if view is None or view.object() is not value or type(view.form) is not form:
        state = state_of(value)
        view = _views[id(value)] = _View(_reference(value), make_form(name, state), state)
    elif not view.written:
        state = state_of(value)
        if not same_state(state, view.state):
            before, view.form, view.state = view.form, make_form(name, state), state
            _keep_what_is_same(before, view.form)
    return view.form


def _reference(value: Any) -> weakref.ref[Any]:
    key = id(value)
    return weakref.ref(value, lambda _: _views.pop(key, None))


def usable_form(value: Any) -> Any:
    """Return what :func:`form_of` does, or None where there is no form, or none can be made.

    Those who need it are told why by :func:`make_form`.
    """
    if form_class(cpp_class(value)) is None:
        return None
    try:
        return form_of(value)
    except StateError:
        return None


def make_form(name: str, state: Any) -> Any:
    """Return a new instance of the explicit form of a class.

    Raises:
        StateError: The form cannot be made from the state, or cannot change what it holds.
    """
    form = form_class(name)
    assert form is not None  # whoever has none was refused
    return new_instance(name, form, own_copy(state))


def _keep_what_is_same(before: Any, after: Any) -> None:
    """Put the tensors of an earlier form into a new one, where they are the same."""
    for ours, theirs in zip(_spaces(before), _spaces(after), strict=True):
        for name, value in ours.items():
            now = theirs.get(name)
            if not isinstance(value, torch.Tensor) or not isinstance(now, torch.Tensor):
                continue
            if equal_tensors(value, now):
                theirs[name] = value


def _spaces(form: Any) -> list[dict[str, Any]]:
    """Return the dicts in which a form keeps its attributes."""
    registered: list[Any] = []
    if isinstance(form, nn.Module):
        registered = [form._parameters, form._buffers]
    return [getattr(form, "__dict__", {}), *registered]


def written(value: Any) -> None:
    """Give an object what was written to its explicit form.

    Parts of a state that fit one another only together come one after the other: what a class does
    not take waits for the others, until :func:`give_written`.
    """
    view = _views[id(value)]
    view.written = True
    try:
        _give(value, view)
    except (RuntimeError, TypeError, ValueError):
        return


def give_written() -> None:
    """Give all objects what was written to their explicit forms; before a module is called.

    Raises:
        StateError: A class does not take the state that its explicit form gives.
    """
    for view in [view for view in _views.values() if view.written]:
        value = view.object()
        if value is not None:
            try:
                _give(value, view)
            except (RuntimeError, TypeError, ValueError) as error:
                del _views[id(value)]  # what was written is lost: the object is as it was
                first = str(error).partition("\n")[0]
                raise StateError(
                    f"the C++ class {cpp_class(value)} does not take the state that its explicit "
                    f"form {type(view.form).__name__} gives: {first}",
                    hint=f"to_state() has to give a {state_type(value)}",
                ) from error


def _give(value: Any, view: _View) -> None:
    put_state(value, view.form.to_state())
    view.state, view.written = state_of(value), False


def restore_state(value: Any, state: Any) -> None:
    """Put an object's state back to what :func:`state_of` gave."""
    view = _views.get(id(value))
    if view is not None and view.written:
        del _views[id(value)]
    if not same_state(state_of(value), state):
        put_state(value, state)
