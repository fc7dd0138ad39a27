"""ONNX files with what lies beside them: weights and initial values."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from stateful_pipeline.contract import METADATA_KEY, Contract
from stateful_pipeline.errors import ContractError


def copy_model(model: Path, folder: Path) -> Path:
    """Copy a model with the files beside it into ``folder``, which is made; return the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(model.parent.glob(f"{model.name}*")):
        shutil.copyfile(file, folder / file.name)
    return folder / model.name


def copy_initial_values(model: Path, folder: Path) -> None:
    """Copy the initial values beside a model, which its contract names, into ``folder``."""
    for file in sorted(model.parent.glob(f"{model.name}*.npz")):
        shutil.copyfile(file, folder / file.name)


def contract_in(model: Path) -> Contract:
    """Return the contract in a model, without a session of any runtime.

    Raises:
        ContractError: There is none.
    """
    for entry in onnx.load(model, load_external_data=False).metadata_props:
        if entry.key == METADATA_KEY:
            return Contract.from_json(entry.value)
    raise ContractError.in_file(model, "the model has no state contract")
