"""States on disk: an ``.npz`` file with one array per state, written whole or not at all.

bfloat16, which the format lacks, is stored as its 16-bit patterns; the contract tells it apart.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import DAMAGED, Contract, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import Array


def write_snapshot(path: Path, values: Mapping[str, Array]) -> None:
    """Write the states to ``path``; a file that is there already is replaced at the end.

    Raises:
        ContractError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            with temporary.open("xb") as stream:
                _write(stream, values)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ContractError.in_file(path, f"the states cannot be written: {error}") from error


def read_snapshot(path: Path, contract: Contract) -> dict[str, Array]:
    """Read what :func:`write_snapshot` wrote: state name to array, names not yet checked.

    Raises:
        ContractError: The file is missing, or is not a file of arrays.
    """
    half = {state.name for state in contract.states if state.dtype == "bfloat16"}
    try:
        with zipfile.ZipFile(path) as archive:
            values = {
                member.removesuffix(".npy"): _read(archive, member) for member in archive.namelist()
            }
    except DAMAGED as error:
        raise ContractError.in_file(path, f"the states cannot be read: {error}") from error
    for name in half & values.keys():
        if values[name].dtype == np.uint16:
            values[name] = values[name].view(numpy_dtype("bfloat16"))
    return values


def _write(stream: Any, values: Mapping[str, Array]) -> None:
    # Not np.savez: it takes names as keyword arguments, so that a state cannot be called "file".
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, value in values.items():
            bits = value.view(np.uint16) if value.dtype.name == "bfloat16" else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, bits, allow_pickle=False)


def _read(archive: zipfile.ZipFile, member: str) -> Array:
    info = archive.getinfo(member)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{member}' is compressed in a way that numpy does not write")
    with archive.open(info) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array
