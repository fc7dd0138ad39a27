"""Pictures of modules and of the process, to compare before and after.

Written without the package's own walk through modules, so that it sees what that one overlooks.
"""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import logging
import os
import random
import signal
import sys
import tempfile
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), range),
    *(torch.dtype, torch.device, torch.Size, torch.layout),
)
_LIBRARIES = ("torch", "numpy", "builtins", "abc", "typing", "logging", "_thread", "threading")
_OF_CLASSES = ("__dict__", "__weakref__", "__doc__", "_abc_impl", "__annotations__")


class Is:
    """Equals another one about the very same object, which it keeps alive."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"{type(self.value).__name__}@{id(self.value):x} {str(self.value)[:60]!r}"


class Inner:
    """A value that has a picture of its own."""

    def __init__(self, value: object) -> None:
        self.value = value


def picture(*roots: object) -> dict[str, object]:
    """Return, by path, which object is where, and what it is made of."""
    found: dict[str, object] = {}
    shared: dict[int, int] = {}
    seen: set[int] = set()
    pending = [(str(index), root) for index, root in enumerate(roots)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, _PLAIN):
            found[path] = (type(value), repr(value))
            continue
        # An iterator that was advanced cannot go back: a copy of it takes its place.
        found[path] = type(value) if _is_iterator(value) else Is(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        for name, part in _parts(value, shared):
            if isinstance(part, Inner):
                pending.append((f"{path}.{name}", part.value))
            else:
                found[f"{path}:{name}"] = part
    return found


def _is_iterator(value: object) -> bool:
    return hasattr(type(value), "__next__") and not isinstance(value, types.GeneratorType)


def _is_users(value: object) -> bool:
    cls = value if isinstance(value, type) else type(value)
    return cls.__module__.partition(".")[0] not in _LIBRARIES


def _parts(value: Any, shared: dict[int, int]) -> Iterator[tuple[str, object]]:
    if isinstance(value, torch.Tensor):
        yield from _tensor(value, shared)
        return
    for kinds, look in _LOOKS:
        if isinstance(value, kinds):
            yield from look(value)
            break
    if isinstance(value, nn.Module) or (_is_users(value) and not isinstance(value, type)):
        yield from _object(value)


def _object(value: Any) -> Iterator[tuple[str, object]]:
    yield "<class>", Inner(type(value))
    if hasattr(value, "__dict__") and not isinstance(value, types.FunctionType):
        yield "__dict__", Inner(vars(value))
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                yield name, Inner(getattr(value, name, "absent"))


def _tensor(value: torch.Tensor, shared: dict[int, int]) -> Iterator[tuple[str, object]]:
    form = (type(value), value.dtype, tuple(value.shape), value.layout)
    yield "form", (*form, value.requires_grad, value.is_leaf, Is(value.grad_fn))
    if value.layout == torch.strided:
        storage = value.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else id(value)
        yield "place", (value.stride(), value.storage_offset(), storage.nbytes())
        yield "memory", shared.setdefault(key, len(shared))  # the same number for views of one
        yield "bytes", bytes(storage.tolist())  # numpy() would fix the storage's size
    else:
        yield "elements", value.detach().to_dense().tolist()
    if value.is_leaf:
        yield "grad", Inner(value.grad)
    yield "hooks", Inner(value._backward_hooks)
    yield "__dict__", Inner(vars(value))


def _sequence(value: Any) -> Iterator[tuple[str, object]]:
    yield "length", (len(value), getattr(value, "maxlen", None))
    yield from ((str(index), Inner(item)) for index, item in enumerate(value))


def _dict(value: Any) -> Iterator[tuple[str, object]]:
    yield "keys", [key if isinstance(key, _PLAIN) else Is(key) for key in value]
    yield from ((str(key), Inner(item)) for key, item in value.items())


def _set(value: Any) -> Iterator[tuple[str, object]]:
    yield "members", {item if isinstance(item, _PLAIN) else Is(item) for item in value}


def _function(value: types.FunctionType) -> Iterator[tuple[str, object]]:
    yield "code", Is(value.__code__)
    for name in ("__defaults__", "__kwdefaults__", "__dict__"):
        yield name, Inner(getattr(value, name))
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            yield f"cell {name}", Inner(cell.cell_contents)
        except ValueError:
            yield f"cell {name}", "empty"
    if (value.__module__ or "").partition(".")[0] in _LIBRARIES:
        return
    for name in value.__code__.co_names:
        held = value.__globals__.get(name, "absent")
        if not isinstance(held, types.ModuleType):
            yield f"global {name}", Inner(held)


def _class(value: type) -> Iterator[tuple[str, object]]:
    if _is_users(value):
        own = {name: item for name, item in vars(value).items() if name not in _OF_CLASSES}
        yield from _dict(own)
        yield "annotations", dict(vars(value).get("__annotations__", {}))
        yield "bases", Inner(value.__bases__)


def _wrapper(*names: str) -> Any:
    return lambda value: ((name, Inner(getattr(value, name))) for name in names)


def _iterator(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, types.GeneratorType):
        yield "line", value.gi_frame and value.gi_frame.f_lasti
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, from 3.12 on
        yield "state", repr(value.__reduce__())


def _state(look: Any) -> Any:
    return lambda value: [("state", look(value))]


def _array(value: np.ndarray[Any, Any]) -> object:
    items = [Is(item) for item in value.flat] if value.dtype == object else value.tobytes()
    return (value.dtype, value.shape, value.strides, items)


_LOOKS: tuple[tuple[Any, Any], ...] = (
    (list | tuple | collections.deque, _sequence),
    (dict | types.MappingProxyType, _dict),
    (set | frozenset, _set),
    (types.FunctionType, _function),
    (type, _class),
    (classmethod | staticmethod, _wrapper("__func__")),
    (property, _wrapper("fget", "fset", "fdel")),
    (types.MethodType, _wrapper("__self__", "__func__")),
    (functools.partial, _wrapper("func", "args", "keywords", "__dict__")),
    (weakref.ref, lambda value: [("referent", Inner(value()))]),
    (np.ndarray, _state(_array)),
    (bytearray | array.array, _state(bytes)),
    (io.BytesIO | io.StringIO, _state(lambda value: (value.tell(), value.getvalue()))),
    (random.Random, _state(lambda value: value.getstate())),
    (torch.Generator, _state(lambda value: value.get_state().tolist())),
    (np.random.Generator, _state(lambda value: str(value.bit_generator.state))),
    (np.random.RandomState, _state(lambda value: str(value.get_state()))),
    (types.GeneratorType, _iterator),
    (type(iter([])) | type(iter(())) | type(iter(range(0))) | type(iter("")), _iterator),
)


def world() -> dict[str, object]:
    """Return what the process keeps: generators, settings, what others may have replaced, files."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [log for log in loggers if isinstance(log, logging.Logger)]
    found: dict[str, object] = {
        "generators": (
            torch.get_rng_state().tolist(),
            str(np.random.get_state()),
            random.getstate(),
        ),
        "dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "tracing": (torch.compiler.is_exporting(), torch.jit.is_tracing()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "fast path of attention": torch.backends.mha.get_fastpath_enabled(),
        "filters of warnings": list(warnings.filters),
        "showing warnings": Is(warnings.showwarning),
        "levels of logging": [log.level for log in loggers if log.level],
        "disabled loggers": [log.name for log in loggers if log.disabled],
        "handlers of logging": [Is(handler) for handler in logging.root.handlers],
        "streams": (Is(sys.stdin), Is(sys.stdout), Is(sys.stderr)),
        "tracers": (sys.gettrace(), sys.getprofile(), Is(sys.excepthook)),
        "paths": (list(sys.path), str(Path.cwd())),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "numpy": (np.geterr(), str(np.get_printoptions())),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "kernels": [dict(op.py_kernels) for op in (torch.ops.aten.lstm.input,)],
        "files": (_files(Path.cwd()), _files(Path(tempfile.gettempdir()))),
    }
    replaceable = (torch, torch.Tensor, nn.Module, nn.functional, torch.jit, torch._C, warnings)
    for space in replaceable:
        held = {name: Is(value) for name, value in vars(space).items() if callable(value)}
        found[f"functions of {space.__name__}"] = held
    return found


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Return what differs, in words; nothing but functions that were loaded since may be new."""
    paths = [*before, *(path for path in after if path not in before)]
    found: list[str] = []
    for path in paths:
        first, last = before.get(path, "absent"), after.get(path, "absent")
        if path.startswith("functions of"):
            last = {name: value for name, value in last.items() if name in first}
        if first != last and isinstance(first, dict) and isinstance(last, dict):
            found += [f"{path}: {line}" for line in differences(first, last)]
        elif first != last:
            found.append(f"{path}: {first} -> {last}"[:300])
    return found
