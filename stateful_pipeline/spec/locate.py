"""Finds the source of a module, and the classes in it, without importing anything.

``importlib.util.find_spec("a.b")`` imports ``a``.  Here only the first name goes to the import
system's finders, which import nothing for a plain name; the rest is looked up in the folders of
what was found.  Python can put modules and names in place in ways that no reading of files can see
(extension modules, a package's ``__path__``, ``import *``, a module's ``__getattr__``).  Where such
a way is open, the answer is "unknown", never "not there".
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_DYNAMIC_PACKAGE = ("__path__", "sys.modules", "meta_path")
_DYNAMIC_NAMES = {"__getattr__", "globals", "exec", "eval", "setattr", "vars"}


@dataclass(frozen=True)
class Found:
    """The outcome of looking for a module.

    Attributes:
        source: Its source file, where there is one to read.
        missing: The first dotted name that is certainly not there, or None.
    """

    source: Path | None = None
    missing: str | None = None


def find_module(name: str, folder: Path) -> Found:
    """Look for the module ``name`` on ``sys.path``, and then in ``folder``.

    Args:
        name: A dotted name.
        folder: Where a spec's own modules lie.
    """
    importlib.invalidate_caches()
    first, *rest = name.split(".")
    spec = _find_top(first, folder)
    if spec is None:
        return Found(missing=first)
    so_far = first
    for part in rest:
        so_far += f".{part}"
        inner = _find_in(so_far, spec)
        if inner is None:
            return Found(missing=so_far if _is_static(spec) else None)
        spec = inner
    return Found(source=_source(spec))


def _find_top(name: str, folder: Path) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # loaded without a spec, as __main__ can be
        module_file = getattr(sys.modules.get(name), "__file__", None)
        return ModuleSpec(name, None, origin=module_file)
    return spec if spec is not None else PathFinder.find_spec(name, [str(folder)])


def _find_in(name: str, package: ModuleSpec) -> ModuleSpec | None:
    folders = package.submodule_search_locations
    return None if folders is None else PathFinder.find_spec(name, list(folders))


def _source(spec: ModuleSpec) -> Path | None:
    origin = None if spec.origin is None else Path(spec.origin)
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _is_static(spec: ModuleSpec) -> bool:
    """Return whether what a package holds can be told from its folder."""
    source = _source(spec)
    if source is None:
        return False
    text = source.read_text(encoding="utf-8", errors="replace")
    return not any(word in text for word in _DYNAMIC_PACKAGE)


@dataclass(frozen=True)
class Names:
    """The names that a source file defines at its top level.

    ``callables`` are its classes, and after them its functions, in the order of the file; with
    ``open`` there may be more than ``all``.
    """

    all: frozenset[str]
    callables: tuple[str, ...]
    open: bool


def names_in(source: Path) -> Names:
    """Return the names that the Python file ``source`` defines.

    Raises:
        SyntaxError: It is not Python; also for a null byte or a wrong encoding in it.
        OSError: It cannot be read.
    """
    with tokenize.open(source) as file:
        try:
            text = file.read()
            tree = ast.parse(text, filename=str(source))
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error)) from error
    found: set[str] = set()
    classes: list[str] = []
    functions: list[str] = []
    for node in _statements(tree.body):
        found.update(_bound(node))
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.FunctionDef):
            functions.append(node.name)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    is_open = "*" in found or bool(_DYNAMIC_NAMES & (found | used)) or "sys.modules" in text
    return Names(frozenset(found), tuple(dict.fromkeys([*classes, *functions])), is_open)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, branches included."""
    for node in body:
        yield node
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, block, []))
        for handler in getattr(node, "handlers", []) + getattr(node, "cases", []):
            yield from _statements(handler.body)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    else:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
