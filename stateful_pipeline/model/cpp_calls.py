"""Stands between a module and its C++ objects, to look at every call of a method."""

from __future__ import annotations

from typing import Any

from stateful_pipeline.model.cpp_objects import copied_object, cpp_class, is_cpp_object


class Intercepted:
    """Stands for a copy of a C++ object, whose methods it calls.

    Args:
        path: Where the module holds the object.
        value: The object.

    Attributes:
        object: The copy.
        name: Its C++ class.
    """

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.object, self.name = path, copied_object(value), cpp_class(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Intercepted:
        return type(self)(self.path, self.object)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__") or not self.object._has_method(method):
            raise AttributeError(f"the C++ class {self.name} has no method '{method}'")
        return lambda *args, **kwargs: self.call(method, args, kwargs)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; what it takes and returns of C++ objects has another one in its place."""
        given = [_as_object(value) for value in args]
        named = {name: _as_object(value) for name, value in kwargs.items()}
        result = self.object._get_method(method)(*given, **named)
        if is_cpp_object(result):
            return type(self)(f"{self.path}.{method}()", result)
        return result


def _special(name: str) -> Any:
    """Return the method by which Python does what ``len`` and brackets ask for."""

    def call(self: Intercepted, *args: Any) -> Any:
        if not self.object._has_method(name):
            raise TypeError(f"the C++ class {self.name} has no method '{name}'")
        return self.call(name, args, {})

    return call


for _name in ("__len__", "__contains__", "__getitem__", "__setitem__", "__call__"):
    setattr(Intercepted, _name, _special(_name))


def _as_object(value: Any) -> Any:
    return value.object if isinstance(value, Intercepted) else value
