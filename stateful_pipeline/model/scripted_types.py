"""Fits constants to the types that compiled code declares, as a call of it would."""

from __future__ import annotations

from typing import Any

from torch import nn

from stateful_pipeline.model.scripted import core

_KINDS: dict[str, tuple[type, ...]] = {
    "BoolType": (bool,),
    "FloatType": (float,),
    "IntType": (int,),
    "NoneType": (type(None),),
    "StringType": (str,),
}


def fitted_argument(module: nn.Module, method: str, name: str, value: Any) -> Any:
    """Return ``value`` as the parameter ``name`` of a compiled method takes it: 3 becomes 3.0.

    Args:
        module: The ScriptModule.
        method: Its method.
        name: One of its parameters.
        value: A number, a string, a flag, None, or a list of them.

    Raises:
        TypeError: It takes no such value; the message has the type that it takes.
    """
    schema = core(module)._c._get_method(method).schema
    type_ = next(a.type for a in schema.arguments if a.name == name)
    try:
        return _fitted(type_, value)
    except TypeError:
        raise TypeError(str(type_)) from None


def _fitted(type_: Any, value: Any) -> Any:
    kind = type_.kind()
    if kind == "OptionalType":
        return None if value is None else _fitted(type_.getElementType(), value)
    if kind == "ListType" and isinstance(value, list | tuple):
        return [_fitted(type_.getElementType(), item) for item in value]
    if kind == "TupleType" and isinstance(value, list | tuple):
        types = type_.elements()
        if len(types) == len(value):
            return tuple(map(_fitted, types, value))
    if kind == "FloatType" and type(value) is int:
        return float(value)
    if kind in ("TensorType", "ListType", "TupleType", "DictType", "ClassType"):
        raise TypeError
    if type(value) not in _KINDS.get(kind, (type(value),)):
        raise TypeError
    return value
