"""Says whether an earlier build is still what this run would make: the *reuse key*.

The key covers all that decides the exported model: the part of the spec that does, the versions of
the libraries, this package's own code, the user's code, and every value that the constructed
module holds.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stateful_pipeline import __version__
from stateful_pipeline.libraries import build, default_cache
from stateful_pipeline.model.cpp_objects import (
    cpp_class,
    form_class,
    is_cpp_object,
    is_pickled,
    state_of,
)
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.holders import leaves
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.spec import Spec
from stateful_pipeline.spec.locate import find_module
from stateful_pipeline.stages.files import sha256

_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "openvino", "tensorrt",
             "tensorrt-rtx-cu13", "numpy", "mlflow")  # fmt: skip
_LIBRARIES = {"stateful_pipeline", "torch", "numpy"}
_DECIDES = (
    *("source", "classes", "inputs", "dynamic_axes"),
    *("states", "script", "export", "attributes"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of the libraries that matter."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "stateful-pipeline": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def reuse_key(spec: Spec, subject: Subject) -> str:
    """Return the key, as 64 hexadecimal digits."""
    content = spec.content()
    identity = {
        "spec": {name: content.get(name) for name in _DECIDES},
        "versions": versions(),
        "code": _code(spec, subject.module),
        "module": _module_digest(subject.module),
        "data": {str(p): sha256(p) for p in _data_files(spec)},
        "libraries": [sha256(path) for path in _libraries(spec)],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _code(spec: Spec, module: nn.Module) -> list[tuple[str, str]]:
    """Return the names and digests of this package's files and of the user's."""
    files = set(Path(__file__).parent.rglob("*.py")) | _of_model(spec, module) | _loaded(spec)
    return sorted((path.name, sha256(path)) for path in files if path.is_file())


def _of_model(spec: Spec, module: nn.Module) -> set[Path]:
    """Return the files of the model's classes, and what they import, directly or not."""
    folders = [spec.folder]
    files: set[Path] = set()
    if spec.source.file_path is not None:
        folders.append(spec.source.file_path.parent)
        files.add(spec.source.file_path)
    for cls in {base for inner in module.modules() for base in type(inner).__mro__}:
        try:
            file = inspect.getsourcefile(cls)
        except (OSError, TypeError):
            continue
        if file is not None and not cls.__module__.startswith(("torch.", "builtins")):
            files.add(Path(file))
    files |= _of_forms(module)
    waiting = list(files)
    while waiting:
        for found in _imported_by(waiting.pop(), folders):
            if found not in files:
                files.add(found)
                waiting.append(found)
    return files


def _of_forms(module: nn.Module) -> set[Path]:
    """Return the files of the explicit forms of the module's C++ objects."""
    forms = (form_class(cpp_class(value)) for value in cpp_objects(module).values())
    found = (inspect.getsourcefile(form) for form in forms if form is not None)
    return {Path(file) for file in found if file is not None}


def _imported_by(source: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that ``source`` imports anywhere in it, libraries left out."""
    if not _is_users(source):
        return
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, (node.module, a.name))) for a in node.names]
            if node.level:
                folder = source.parents[node.level - 1]
                for name in names:
                    yield from _below(folder, name.split("."))
                continue
        else:
            continue
        for name in names:
            yield from _named(name, folders)


def _below(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the files of the relative import of ``parts`` from the package ``folder``."""
    yield from (p for p in (folder / "__init__.py",) if p.is_file())
    for part in parts:
        file = folder / f"{part}.py"
        folder = folder / part
        yield from (p for p in (file, folder / "__init__.py") if p.is_file())


def _named(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of the module ``name`` and of the packages that it is in."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] in _LIBRARIES:
        return
    for end in range(1, len(parts) + 1):
        for folder in folders:
            source = find_module(".".join(parts[:end]), folder).source
            if source is not None and _is_users(source):
                yield source


def _is_users(file: Path) -> bool:
    return not {"site-packages", "dist-packages"} & set(file.parts)


def _loaded(spec: Spec) -> set[Path]:
    """Return the loaded files near the spec or in the model's package: imported in other ways."""
    files: set[Path] = set()
    top = (spec.source.module_name or "").split(".")[0]
    folders = [spec.folder]
    if spec.source.file_path is not None:
        folders.append(spec.source.file_path.parent)
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file is None or not file.endswith(".py"):
            continue
        near = any(Path(file).is_relative_to(folder) for folder in folders)
        if (top and name.split(".")[0] == top) or (near and "site-packages" not in file):
            files.add(Path(file))
    return files


def _module_digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for path, held in cpp_objects(module).items():
        digest.update(f"{path}:{_text(state_of(held)) if is_pickled(held) else ''}".encode())
    for leaf in leaves(module):
        digest.update(f"{leaf.path}:{leaf.kind}:".encode())
        value: Any = leaf.value
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}{_digest(value)}".encode())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _text(state: Any) -> str:
    """Return a pickled state as text: its parts, and of tensors the digest."""
    if isinstance(state, torch.Tensor):
        return f"tensor {state.dtype} {tuple(state.shape)} {_digest(state)}"
    if isinstance(state, list | tuple):
        return f"{type(state).__name__}({', '.join(map(_text, state))})"
    if isinstance(state, dict):
        return f"dict({', '.join(f'{key!r}: {_text(value)}' for key, value in state.items())})"
    return _text(state_of(state)) if is_cpp_object(state) else repr(state)


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.sha256(content).hexdigest()


def _libraries(spec: Spec) -> list[Path]:
    """Return the libraries of the model's C++ classes and operators, which its source has built."""
    return [
        path
        for source in spec.source.libraries
        for path in build(source, default_cache()).libraries
    ]


def _data_files(spec: Spec) -> list[Path]:
    paths = [Path(value.data.npz) for value in spec.inputs.values() if value.data is not None]
    programs = (spec.source.torchscript, spec.source.exported_program, spec.source.onnx)
    paths += [Path(file) for file in programs if file is not None]
    for state in spec.states.values():
        file = getattr(state.init, "file", None)
        if file is not None:
            paths.append(Path(file))
    return [path for path in paths if path.is_file()]
