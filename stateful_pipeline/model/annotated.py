"""Lets annotations be types while TorchScript reads them.

Under ``from __future__ import annotations`` those of a class are strings, and those of a named
tuple are forward references.  The compiler resolves them in signatures only.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def resolved_annotations(classes: Iterable[type]) -> Iterator[None]:
    """Let the annotations of ``classes``, and of the named tuples beside them, be types."""
    every = dict.fromkeys(classes)
    for cls in list(every):
        space = vars(sys.modules.get(cls.__module__, typing))
        every |= dict.fromkeys(value for value in space.values() if is_named_tuple(value))
    held: dict[type, dict[str, Any]] = {}  # the very dicts, which are put back
    for cls in every:
        own = inspect.get_annotations(cls)
        if any(isinstance(annotation, str | typing.ForwardRef) for annotation in own.values()):
            held[cls] = vars(cls)["__annotations__"]
    try:
        for cls, own in held.items():
            cls.__annotations__ = {name: resolved(cls, text) for name, text in own.items()}
        yield
    finally:
        for cls, own in held.items():
            cls.__annotations__ = own


def is_named_tuple(cls: object) -> bool:
    """Whether ``cls`` is a class of named tuples with annotations."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def resolved(cls: type, annotation: Any) -> Any:
    """Return the type that a string names in the module of ``cls``, or the string itself."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    space = {**vars(typing), **vars(sys.modules[cls.__module__])}
    try:
        return eval(text, space, dict(vars(cls)))  # noqa: S307 - the user's own source text
    except Exception:  # noqa: BLE001 - the compiler says what is wrong with it
        return annotation


def annotations_of(cls: type) -> dict[str, Any]:
    """Return the annotations of ``cls`` and of its bases, as types."""
    return {
        name: resolved(base, annotation)
        for base in reversed(cls.__mro__)
        for name, annotation in inspect.get_annotations(base).items()
    }


def is_optional(kind: Any) -> bool:
    """Whether a type is that of something or None."""
    return type(None) in typing.get_args(kind)


def named_type(kind: str) -> Any:
    """Return the type that a text such as ``List[Tensor]`` names."""
    space = {**vars(typing), "Tensor": torch.Tensor}
    return eval(kind, space)  # noqa: S307 - a text that :func:`.seen_types.type_of` made
