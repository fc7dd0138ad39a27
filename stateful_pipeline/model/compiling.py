"""Replaces parts of TorchScript's compiler while one module is compiled.

Two things are not as a caller would want them.  The compiler reads a function's syntax tree as it
is in the file, and refuses what it does not know: here it reads the tree that
:mod:`.source_forms` makes of it.  And it keeps what it has compiled for later calls, even what it
could not finish ("Can't redefine method: forward"): here it starts with nothing, and nothing of
what it makes is met by later calls of ``torch.jit.script``.

Tried on torch 2.13.  :func:`require_supported` fails clearly on versions where a part is missing.
"""

from __future__ import annotations

import ast
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.jit import _recursive, _script, _state, frontend

from stateful_pipeline.model import builtins_in_torchscript as written
from stateful_pipeline.model.seen_types import SeenTypes
from stateful_pipeline.model.source_expressions import (
    ANNOTATE,
    BUILTINS,
    NO_NAMING,
    PRESENT,
    UNBIND,
    Naming,
)
from stateful_pipeline.model.source_forms import rewrite_function
from stateful_pipeline.model.torch_internals import refuse_missing
from stateful_pipeline.model.user_code import is_user_file

_internal: Any = torch._jit_internal
_annotations: Any = torch.jit.annotations
_NEEDED: dict[Any, tuple[str, ...]] = {
    frontend: ("parse_def",),
    _recursive: ("ConcreteTypeStore", "concrete_type_store"),
    _script: ("_unwrap_optional",),
    _state: ("_jit_caching_layer",),
    _annotations: ("get_type_line",),
    _internal: ("createResolutionCallbackFromClosure",),
}

_MODIFIER = "_torchscript_modifier"


def require_supported() -> None:
    """Raise ``StageError`` if this torch lacks a private part that is used here."""
    missing = [
        f"{owner.__name__}.{name}"
        for owner, names in _NEEDED.items()
        for name in names
        if not hasattr(owner, name)
    ]
    refuse_missing(missing, "script")


@contextmanager
def exported(cls: type, names: Sequence[str]) -> Iterator[None]:
    """Let TorchScript compile the methods ``names`` of a class, whether forward calls them or not.

    What the user has marked stays as it is.
    """
    marked: list[Any] = []
    try:
        for name in names:
            function = getattr(cls, name, None)
            if isinstance(function, types.FunctionType) and not hasattr(function, _MODIFIER):
                torch.jit.export(function)
                marked.append(function)
        yield
    finally:
        for function in marked:
            delattr(function, _MODIFIER)


@contextmanager
def only_called(module: nn.Module, method: str) -> Iterator[None]:
    """Let TorchScript compile no method but ``method`` and what it calls, exported or not.

    What else a user exports is for programs that hold the whole module.

    Args:
        module: The module.
        method: Its entry point.
    """
    marked: list[tuple[Any, Any]] = []
    try:
        for cls in {base for inner in module.modules() for base in type(inner).__mro__}:
            for name, function in vars(cls).items():
                asked = name == method and isinstance(module, cls)
                if isinstance(function, types.FunctionType) and not asked:
                    marker = vars(function).get(_MODIFIER)
                    if marker is _internal.FunctionModifiers.EXPORT:
                        marked.append((function, marker))
                        delattr(function, _MODIFIER)
        yield
    finally:
        for function, marker in marked:
            setattr(function, _MODIFIER, marker)


@contextmanager
def own_compiler(seen: SeenTypes | None, naming: Naming = NO_NAMING) -> Iterator[None]:
    """Compile with changed trees, and apart from what was compiled before and will be.

    Args:
        seen: The types that were seen; None compiles the user's source as it is.
        naming: What names of attributes mean.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (_recursive, "concrete_type_store", _recursive.ConcreteTypeStore()),
        (_state, "_jit_caching_layer", weakref.WeakKeyDictionary()),
    ]
    if seen is not None:
        parse, names = frontend.parse_def, _internal.createResolutionCallbackFromClosure  # type: ignore[attr-defined]
        replaced += [
            (frontend, "parse_def", lambda function: _parsed(parse, function, seen, naming)),
            (_internal, "createResolutionCallbackFromClosure", lambda fn: _names(names(fn))),
        ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _parsed(parse: Callable[[Any], Any], function: Any, seen: SeenTypes, naming: Naming) -> Any:
    """Return what ``parse`` gives for a function, its tree changed if the user wrote it."""
    parsed = parse(function)
    own = inspect.unwrap(function)
    code = getattr(own, "__code__", None)
    [tree] = parsed.ast.body
    if code is not None and isinstance(tree, ast.FunctionDef) and is_user_file(code.co_filename):
        first, *_ = parsed.source.splitlines()
        start = parsed.file_lineno - 1, len(first) - len(first.lstrip())
        has_types = _annotations.get_type_line(parsed.source) is not None
        rewrite_function(
            tree, inspect.unwrap(function), seen, start=start, has_types=has_types, naming=naming
        )
    return parsed


def _names(lookup: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a lookup of names that knows those that changed trees use."""
    own: dict[str, Any] = {ANNOTATE: torch.jit.annotate, UNBIND: torch.unbind}
    own[PRESENT] = _script._unwrap_optional
    own |= {new: getattr(written, f"python_{old}") for old, new in BUILTINS.items()}
    return lambda name: own[name] if name in own else lookup(name)
