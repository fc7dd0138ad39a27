"""Writes the model with its contract, checks it, and only then puts it in place.

Everything is written under a temporary name in the same folder and moved when all checks have
passed: ``onnx.checker`` with full inference of shapes, and a real run whose output shapes are
compared with the declared ones.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from stateful_pipeline.contract import METADATA_KEY, Contract
from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.lowering import is_lowered, lower_file

EXTERNAL_DATA_THRESHOLD = 1 << 30
"""Models whose initializers have more bytes than this keep them in ``<model>.data``."""


def write_model(
    model: ir.Model,
    contract: Contract,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    path: Path,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    *,
    check: Callable[[Path], None],
) -> list[Path]:
    """Write ``model`` to ``path``, with sidecar files beside it; return all files written.

    Args:
        model: The model, complete but for the contract.
        contract: The contract to carry.
        arrays: Initial values that live in the sidecar ``<model>.states.npz``.
        path: Where to write; existing files are replaced only when all checks have passed.
        external_data_threshold: Bytes of initializers above which they go to ``<model>.data``.
        check: Called with the draft before it is put in place, or with a lowered copy of it where
            ONNX Runtime has no kernel for some of it; raises to refuse it.

    Raises:
        StageError: ``onnx.checker`` refuses the model, or it cannot be written.
    """
    model.metadata_props[METADATA_KEY] = contract.to_json()
    new = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_folder(path) as folder:
            return _write_checked(model, arrays, path, external_data_threshold, folder, check)
    except OSError as error:
        raise StageError(
            f"cannot write the model: {error}", stage="export", hint=f"is {path.parent} writable?"
        ) from error
    finally:
        if not path.exists():
            for made in new:  # the innermost first
                with suppress(OSError):
                    made.rmdir()


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside ``path``, gone at the end, also if an interrupt comes while it goes."""
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _write_checked(
    model: ir.Model,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    path: Path,
    external_data_threshold: int,
    folder: Path,
    check: Callable[[Path], None],
) -> list[Path]:
    """Write everything to ``folder``, check it, and move it to where ``path`` is."""
    draft = folder / path.name
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    external = f"{path.name}.data" if weights > external_data_threshold else None
    ir.save(model, draft, external_data=external)
    if external and not (folder / external).stat().st_size:
        (folder / external).unlink()  # the smallest weights stay inside
    if arrays:
        _write_arrays(folder / sidecar_name(path), arrays)
    _check(draft)
    _check_running(model, draft, check)
    written = sorted(folder.iterdir())
    for file in written:
        os.replace(file, path.parent / file.name)
    _remove_stale(path, {file.name for file in written})
    return [path.parent / file.name for file in written]


def _check_running(model: ir.Model, draft: Path, check: Callable[[Path], None]) -> None:
    """Check the draft, or a copy of it that ONNX Runtime can run, in the same folder."""
    if is_lowered(model):
        check(draft)
        return
    lowered = draft.with_name(f"lowered.{draft.name}")
    lower_file(draft, lowered)
    check(lowered)
    lowered.unlink()


def sidecar_name(path: Path) -> str:
    """Return the name of the file with initial values that belongs to the model at ``path``."""
    return f"{path.name}.states.npz"


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _remove_stale(path: Path, written: set[str]) -> None:
    """Remove side files of an earlier model at ``path`` that this one does not have."""
    for name in (f"{path.name}.data", sidecar_name(path)):
        if name not in written:
            (path.parent / name).unlink(missing_ok=True)


def _check(path: Path) -> None:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise StageError(
            f"onnx.checker refuses the model: {error}",
            stage="export",
            hint="this is a fault of stateful-pipeline or of the exporter; please report it",
        ) from error
