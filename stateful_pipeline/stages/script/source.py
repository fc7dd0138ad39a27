"""Constructs the module that a spec's ``source`` names: class, seed, weights, reset.

Everything here is the user's code or data, so that whatever it raises becomes a
:class:`SourceError` at the spec's line.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, SourceError
from stateful_pipeline.libraries import build, default_cache, load, registered_classes
from stateful_pipeline.model.cpp_objects import declare_forms
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.scripted import class_name, is_scripted, methods
from stateful_pipeline.spec import Spec, Weights
from stateful_pipeline.spec.faults import did_you_mean
from stateful_pipeline.spec.keypath import parse, render
from stateful_pipeline.spec.source import Importable
from stateful_pipeline.stages.script.explicit_source import load_explicit

_NOT_REGISTERED = re.compile(
    r"instantiate class '[\w.]+', but it does not exist"
    r"|Unknown type name '__torch__\.torch\.classes"
)


def construct(spec: Spec) -> nn.Module:
    """Return the module of ``spec``, in eval mode, in its initial state.

    Raises:
        SourceError: It cannot be imported, constructed or loaded.
    """
    source = spec.source
    _load_libraries(spec)
    _declare_classes(spec)
    torch.manual_seed(source.seed)
    try:
        module = _made(spec)
    except SourceError as error:
        _refuse_unregistered(spec)
        if _NOT_REGISTERED.search(error.message):
            error.hint = "name the library that registers the class under `source.libraries`"
        raise
    _refuse_unregistered(spec)  # not before: the model's own code may load libraries, too
    if not isinstance(module, nn.Module):
        raise _error(spec, source.key, f"gives a {type(module).__name__}, not a torch.nn.Module")
    if source.weights is not None:
        _load_weights(spec, module, source.weights)
    _check_method(spec, module)
    if source.exported_program is None:
        module.eval()
    if source.reset is not None:
        reset = getattr(module, source.reset, None)
        if not callable(reset):
            hint = "decorate it with @torch.jit.export" if is_scripted(module) else None
            message = f"{class_name(module)} has no '{source.reset}'"
            raise _error(spec, "source.reset", message, hint)
        with torch.no_grad():
            _call(spec, "source.reset", f"calling {source.reset}() on", reset)
    return module


def _made(spec: Spec) -> Any:
    """Return what the source gives."""
    source = spec.source
    if source.exported_program is not None:
        return _exported_program(spec, source.exported_program)
    if source.torchscript is not None:
        return _torchscript(spec, source.torchscript)
    if source.onnx is not None:
        return load_explicit(spec, source.onnx)
    factory = _factory(spec)
    return _call(spec, source.key, "constructing", factory, *source.args, **source.kwargs)


def _refuse_unregistered(spec: Spec) -> None:
    """Raise ``SourceError`` for a form of a C++ class that there is not."""
    known = registered_classes() if spec.classes else set()
    for name in spec.classes:
        if name not in known:
            hint = "name the library that does under `source.libraries`"
            near = did_you_mean(name, sorted(known), "classes of libraries")
            if known and near.startswith("did"):
                hint = near
            key = render(("classes", name))
            message = f"{key}: no library registers the C++ class {name}"
            raise SourceError(message, place=spec.place(key), key=key, hint=hint)


def _load_libraries(spec: Spec) -> None:
    """Load the C++ classes and operators that the model uses; projects are built first."""
    for index, source in enumerate(spec.source.libraries):
        try:
            for library in build(source, default_cache()).libraries:
                load(library)
        except PipelineError as error:
            if error.place is None:
                error.place = spec.place(f"source.libraries[{index}]")
            raise


def _declare_classes(spec: Spec) -> None:
    """Declare the explicit forms of C++ classes that the spec names."""
    forms: dict[str, type] = {}
    for name, named in spec.classes.items():
        key = render(("classes", name, named.kind))
        form = _named(spec, key, named)
        if not inspect.isclass(form):
            raise _error(spec, key, f"is a {type(form).__name__}, not a class")
        forms[name] = form
    declare_forms(forms)


def _error(spec: Spec, key: str, message: str, hint: str | None = None) -> SourceError:
    parts = parse(key)
    source: Any = spec.classes[str(parts[1])] if parts[0] == "classes" else spec.source
    text = getattr(source, source.kind)
    return SourceError(f"{key}: {text}: {message}", place=spec.place(key), key=key, hint=hint)


def _call(
    spec: Spec, key: str, doing: str, function: Callable[..., Any], *args: Any, **kw: Any
) -> Any:
    try:
        return function(*args, **kw)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = user_place(error)
        at = f" at {place}" if place is not None else ""
        raise _error(spec, key, f"{doing} it raised {type(error).__name__}: {error}{at}") from error


def _factory(spec: Spec) -> Callable[..., Any]:
    value = _named(spec, spec.source.key, spec.source)
    if not callable(value):
        what = f"'{spec.source.class_name}' is a {type(value).__name__}, not a class"
        raise _error(spec, spec.source.key, what)
    return value  # type: ignore[no-any-return]


def _named(spec: Spec, key: str, named: Importable) -> Any:
    """Return the class that a key of the spec names."""
    name = named.class_name or ""
    if named.python is not None:
        module = _import(spec, key, named.module_name or "")
    else:
        module = _import_file(spec, key, Path(str(named.file_path)))
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is None:
        base = nn.Module if key == spec.source.key else object
        own = [n for n, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, base)]
        kind = "modules" if base is nn.Module else "classes"
        hint = f"its {kind} are: {', '.join(own)}" if own else None
        raise _error(spec, key, f"has no '{name}'", hint)
    return value


def _import(spec: Spec, key: str, name: str) -> Any:
    folder = str(spec.folder)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _error(
            spec,
            key,
            f"cannot be imported: {type(error).__name__}: {error}",
            f"the module is looked for on sys.path and in {spec.folder.name}/, the spec's folder",
        ) from error


class _Uncached(importlib.machinery.SourceFileLoader):
    """Compiles a file anew: Python's cache takes one of the same second and size for the same."""

    def path_stats(self, path: Any) -> Any:
        """Raise OSError, upon which there is no cache."""
        raise OSError(path)


def _import_file(spec: Spec, key: str, path: Path) -> Any:
    name = f"_stateful_pipeline_source_{path.stem}"
    loader = _Uncached(name, str(path))
    found = importlib.util.spec_from_file_location(name, path, loader=loader)
    if found is None or found.loader is None:
        raise _error(spec, key, "is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        found.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        text = f"cannot be imported: {type(error).__name__}: {error}"
        raise _error(spec, key, text) from error
    return module


def _exported_program(spec: Spec, path: Path) -> nn.Module:
    program = _call(spec, "source.exported_program", "loading", torch.export.load, path)
    return program.module()  # type: ignore[no-any-return]


def _torchscript(spec: Spec, path: Path) -> nn.Module:
    try:
        with quiet_scripting():
            module = _call(
                spec, spec.source.key, "loading", torch.jit.load, path, map_location="cpu"
            )
    except SourceError as error:
        error.hint = "it is for what torch.jit.save wrote; a .pt2 is an `exported_program`"
        raise
    return module  # type: ignore[no-any-return]


def _check_method(spec: Spec, module: nn.Module) -> None:
    """Check that the module has the entry point."""
    method = spec.source.method
    if is_scripted(module):
        found = methods(module)
        there = method in found
        hint = f"its methods are: {', '.join(found)}" if found else None
    else:
        there = callable(getattr(module, method, None))
        if method == "forward":  # every module has one, which raises where the class has none
            there = type(module).forward is not nn.Module.forward or "forward" in vars(module)
        found = _own_methods(type(module))
        hint = did_you_mean(method, found, "methods") if found else None
    if not there:
        key = "source.method" if "method" in spec.source.model_fields_set else spec.source.key
        raise _error(spec, key, f"{class_name(module)} has no '{method}'", hint)


def _own_methods(cls: type) -> list[str]:
    """Return the public methods that a class has beyond those of every module."""
    names = [name for name, _ in inspect.getmembers(cls, inspect.isfunction)]
    own = [n for n in names if getattr(cls, n) is not getattr(nn.Module, n, None)]
    return [name for name in own if not name.startswith("_")]


def _load_weights(spec: Spec, module: nn.Module, weights: Weights) -> None:
    path = Path(weights.file)
    loaded = _call(spec, "source.weights", "loading weights for", _read_weights, path)
    ignored = set(weights.ignore)
    own = module.state_dict()
    given = {name: value for name, value in loaded.items() if name not in ignored}
    problems = [f"'{n}' is not in the model" for n in given if n not in own]
    problems += [f"'{n}' is not in the file" for n in own if n not in given and n not in ignored]
    problems += [
        f"'{n}' is {list(v.shape)} in the file and {list(own[n].shape)} in the model"
        for n, v in given.items()
        if n in own and v.shape != own[n].shape
    ]
    if problems:
        raise _error(
            spec,
            "source.weights",
            f"{path.name} does not fit the model: {'; '.join(problems[:6])}",
            "list what may differ: `weights: {file: ..., ignore: [h, c]}`",
        )
    module.load_state_dict(given, strict=False)


def _read_weights(path: Path) -> Mapping[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(
            "the file is none of torch.save, or holds objects beside tensors and numbers, which "
            "could run code: save `module.state_dict()` alone, or as .safetensors"
        ) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict):
        raise TypeError(f"holds a {type(loaded).__name__}, not a state dict")
    return loaded
