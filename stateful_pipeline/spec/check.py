"""Checks what a spec names, without importing, loading or constructing any of it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.spec.faults import did_you_mean, raise_together
from stateful_pipeline.spec.keypath import render
from stateful_pipeline.spec.locate import find_module, names_in
from stateful_pipeline.spec.model import Spec
from stateful_pipeline.spec.source import Importable
from stateful_pipeline.spec.states import InitFile


def check_spec(spec: Spec) -> None:
    """Check that every file, array and class that ``spec`` names is there.

    No code of the user's runs: modules are found by walking the import path, and classes by parsing
    their source.

    Args:
        spec: A loaded spec.

    Raises:
        SpecError: A file or an array is missing; ``others`` has what else is.
        SourceError: The model's module, file or class is missing.
    """
    faults = [*_source(spec), *_arrays(spec)]
    if faults:
        raise_together(faults, spec._origin.name)


def _source(spec: Spec) -> Iterator[SpecError]:
    source = spec.source
    program = source.exported_program or source.torchscript or source.onnx
    if program is None:
        yield from _importable(spec, ("source",), source)
    else:
        yield from _missing(spec, source.key, program, SourceError)
    if source.weights is not None:
        yield from _missing(spec, "source.weights.file", source.weights.file)
    for name, form in spec.classes.items():
        yield from _importable(spec, ("classes", name), form)


def _importable(spec: Spec, base: tuple[str, ...], named: Importable) -> Iterator[SpecError]:
    """Look for a class that is imported or in a file."""
    key = (*base, named.kind)
    if named.python is not None:
        yield from _module(spec, key, named)
    elif named.file_path is not None:
        yield from _missing(spec, render(key), named.file_path, SourceError)
        if named.file_path.is_file():
            yield from _class(spec, key, named, named.file_path)


def _missing(
    spec: Spec, key: str, path: Path, error: type[SpecError] = SpecError
) -> Iterator[SpecError]:
    if path.is_file():
        return
    what = "is a folder, not a file" if path.is_dir() else "no such file"
    hint = "the path is relative to the file that it is written in"
    if path.parent.is_dir():
        hint = did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir())[:200], "files")
        hint = hint if hint.startswith("did") else "the path is relative to the file it is in"
    yield error(f"{key}: {what}: {path}", place=spec.place(key), key=key, hint=hint)


def _module(spec: Spec, parts: tuple[str, ...], named: Importable) -> Iterator[SpecError]:
    found = find_module(named.module_name or "", spec.folder)
    key = render(parts)
    if found.missing is not None:
        yield SourceError(
            f"{key}: there is no module '{found.missing}'",
            place=spec.place(parts),
            key=key,
            hint="install it, run from its folder, put it beside this file, or use "
            "`file: path.py:Class`",
        )
    elif found.source is not None:
        yield from _class(spec, parts, named, found.source)


def _class(
    spec: Spec, parts: tuple[str, ...], named: Importable, source: Path
) -> Iterator[SpecError]:
    key, place = render(parts), spec.place(parts)
    try:
        names = names_in(source)
    except SyntaxError as error:
        where = f"{source}:{error.lineno}" if error.lineno else str(source)
        yield SourceError(f"{key}: {where} is not valid Python: {error.msg}", place=place, key=key)
        return
    except OSError as error:
        yield SourceError(f"{key}: {source} cannot be read: {error}", place=place, key=key)
        return
    wanted = (named.class_name or "").partition(".")[0]
    if not names.open and wanted not in names.all:
        hint = did_you_mean(wanted, names.callables, "classes")
        if names.callables and not hint.startswith("did"):
            hint = f"it has: {', '.join(names.callables)}"
        yield SourceError(
            f"{key}: there is no class '{wanted}' in {source}", place=place, key=key, hint=hint
        )


def _arrays(spec: Spec) -> Iterator[SpecError]:
    for name, item in spec.inputs.items():
        if item.data is not None:
            base = ("inputs", name, "data")
            yield from _array(spec, (*base, "npz"), (*base, "key"), item.data.npz, item.data.key)
    for name, state in spec.states.items():
        if isinstance(state.init, InitFile):
            base = ("states", name, "init")
            yield from _array(
                spec, (*base, "file"), (*base, "key"), state.init.file, state.init.key
            )


def _array(
    spec: Spec, file_key: tuple[str, ...], name_key: tuple[str, ...], path: Path, name: str
) -> Iterator[SpecError]:
    """Look for the array ``name`` in the list of files of the .npz archive, reading none of it."""
    key = render(file_key)
    if not path.is_file():
        yield from _missing(spec, key, path)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = [entry.removesuffix(".npy") for entry in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        yield SpecError(
            f"{key}: {path} is not an .npz archive: {error}",
            place=spec.place(key),
            key=key,
            hint="write it with numpy.savez",
        )
        return
    if name not in arrays:
        key = render(name_key)
        yield SpecError(
            f"{key}: there is no array '{name}' in {path}",
            place=spec.place(key),
            key=key,
            hint=did_you_mean(name, arrays, "arrays"),
        )
