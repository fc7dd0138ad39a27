"""Builds a target of OpenVINO: a model file whose states are inside, with their initial values.

What OpenVINO lacks is written out first, in a copy of the portable model.  States that it does not
compute as PyTorch does are refused, unless the spec takes them as they are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract
from stateful_pipeline.errors import ContractError, StageError, StateError
from stateful_pipeline.runtime import OpenVinoRunner
from stateful_pipeline.runtime.openvino_engine import (
    CONTRACT_PATH,
    PRECISION_PATH,
    import_openvino,
    openvino_core,
    openvino_says,
)
from stateful_pipeline.spec import OpenVinoTarget
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.build.openvino_states import notes_of, put_states_inside
from stateful_pipeline.stages.lowering import lower_file_for_openvino
from stateful_pipeline.stages.model_files import copy_initial_values, copy_model

MODEL = "model.xml"

_OTHERWISE = {
    "int16": "in 32 bits, without wrapping around at 2**15",
    "uint16": "in 32 bits, without wrapping around at 2**16",
    "uint32": "in 32 bits with a sign, up to 2**31 - 1",
    "int64": "in 32 bits, and it wraps around at 2**31",
    "uint64": "in 32 bits with a sign, up to 2**31 - 1",
    "float64": "in float32",
}
"""How OpenVINO holds and computes what it has no dtype for."""


def build(artifacts: Artifacts, target: TargetBuild) -> None:
    """Build ``target``, and note what is lowered and what is held in another dtype.

    Raises:
        TargetError: OpenVINO is not installed, or the processor lacks the precision.
        StateError: OpenVINO does not compute a state as PyTorch does.
        StageError: OpenVINO lacks an operator, or cannot load the model.
    """
    declared = artifacts.spec.targets[target.name]
    assert isinstance(declared, OpenVinoTarget)
    source, contract = artifacts.need("model", "build"), artifacts.need("contract", "build")
    openvino_core()
    _refuse_inexact(contract, declared, target.name)
    folder = artifacts.folder / "targets" / target.name
    lowered = write_model(source, contract, declared.precision, folder)
    notes = artifacts.notes.setdefault("build", {})
    if lowered:
        notes.setdefault("lowered", {})[target.name] = lowered
    held = notes_of(contract)
    if held:
        notes.setdefault("held", {})[target.name] = held
    target.artifact = folder / MODEL
    _load(declared, target.artifact)


def _refuse_inexact(contract: Contract, declared: OpenVinoTarget, name: str) -> None:
    """Refuse the first state that OpenVINO does not compute as PyTorch does.

    Raises:
        StateError: There is one, and the spec does not take its dtype.
    """
    found = [state for state in contract.states if state.dtype in _OTHERWISE]
    for state in found:
        if state.dtype not in declared.inexact:
            needed = sorted({other.dtype for other in found})
            raise StateError(
                f"it is {state.dtype}, which OpenVINO computes {_OTHERWISE[state.dtype]}",
                attribute=state.name,
                hint=f"where that is enough, `targets.{name}.inexact: [{', '.join(needed)}]`; "
                "a target of ONNX Runtime computes it as it is",
            )


def write_model(source: Path, contract: Contract, precision: str, folder: Path) -> tuple[str, ...]:
    """Write the model at ``source`` with its states inside to ``folder``.

    Returns:
        What was lowered, in words.

    Raises:
        StageError: OpenVINO cannot take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = copy_model(source, Path(scratch))
        copy_initial_values(source, folder)
        lowered = lower_file_for_openvino(copy, copy)
        _write_inside(copy, contract, precision, folder)
    return lowered


def _write_inside(copy: Path, contract: Contract, precision: str, folder: Path) -> None:
    """Write the lowered model at ``copy`` with its states inside to ``folder``.

    Raises:
        StageError: OpenVINO cannot take it, or cannot write it.
    """
    ov = import_openvino()
    try:
        model = openvino_core().read_model(copy)
        put_states_inside(model, contract, copy.parent)
        model.set_rt_info(contract.to_json(), CONTRACT_PATH)
        model.set_rt_info(precision, PRECISION_PATH)
        # The only one of the runner's settings that OpenVINO also reads from a file.
        model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    except RuntimeError as error:
        raise _refused(error) from error
    try:
        ov.serialize(model, folder / MODEL)
    except RuntimeError as error:
        raise StageError(
            f"OpenVINO cannot write {folder / MODEL}: {openvino_says(error)}",
            stage="build",
            hint="see whether there is room (`df`, `quota`, `ulimit -f`), or choose another --out",
        ) from error


def _refused(error: RuntimeError) -> StageError:
    """Return the error for a model that OpenVINO does not take."""
    said = openvino_says(error)
    _, found, rest = said.partition("No conversion rule found for operations: ")
    if not found:
        return StageError(f"OpenVINO cannot take the model: {said}", stage="build")
    return StageError(
        f"OpenVINO has no operator {rest.partition(' To facilitate')[0].strip()}",
        stage="build",
        hint="write the model with other operators, or let a target of ONNX Runtime run it",
    )


def _load(target: OpenVinoTarget, model: Path) -> Any:
    """Load the model once, so that a refusal shows here.

    Raises:
        TargetError: The processor lacks the precision.
        StageError: OpenVINO cannot compile the model.
    """
    try:
        return OpenVinoRunner(model, threads=target.threads)
    except ContractError as error:
        raise StageError(error.message, stage="build", hint=error.hint) from error
