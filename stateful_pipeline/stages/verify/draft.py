"""Rolls a freshly written model out beside eager PyTorch, before anybody relies on it.

An exporter can write another computation than the program's (batch norm of training as that of
inference, one reduction of ``scatter_reduce`` as another), and a runtime's kernel can differ; every
checker is content with that.  A few free-running and teacher-forced steps are not.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import ContractError, StageError
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import Reference
from stateful_pipeline.model.schedule import Schedule
from stateful_pipeline.model.tree import named_outputs
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.rollouts import TargetRollouts, roll_out

STEPS = 6
SEED = 0

_USUAL = Tolerance(1e-4, 1e-3, 1e-5)
_HALF = Tolerance(2e-2, 2e-2, 1e-2)


def check_draft(
    draft: Path,
    program: Program,
    reference: Reference,
    plan: InputPlan,
    schedules: Sequence[Schedule],
) -> None:
    """Compare the model at ``draft`` with ``reference`` over a few steps of each schedule.

    Floats may differ by what other kernels round, generously; integers must be the same.

    Args:
        draft: The model, contract inside, side files beside it.
        program: What it was exported from; equal to ``reference`` already.
        reference: The eager module.
        plan: The inputs.
        schedules: The sizes of the rollouts.

    Raises:
        StageError: The runner refuses the model or cannot run it, or a value differs; with step,
            tensor, both values and the user's line that makes the tensor.
    """
    try:
        target = TargetRollouts(partial(StatefulRunner, draft, threads=1), tolerance_for(program))
    except ContractError as error:
        raise StageError(
            f"the runner refuses the exported model: {error.message.removeprefix(f'{draft}: ')}",
            stage="export",
            hint="this is a fault of stateful-pipeline or of the exporter; please report it",
        ) from error
    reference = _renamed(reference, program.outputs)
    for schedule in schedules:
        roll_out(reference, plan, [target], schedule, SEED, STEPS, None)
        if target.error is not None:
            raise StageError(
                f"at {schedule}: {target.error.message.removeprefix('verify: ')}; "
                "eager PyTorch takes this step",
                stage="export",
                hint=target.error.hint,
            ) from target.error
        for record in target.records[-2:]:
            if record.first_bad is not None:
                raise _wrong(record.first_bad, program, schedule)


def _renamed(reference: Reference, outputs: Sequence[str]) -> Reference:
    """Return ``reference`` with the names of outputs that the caller gave."""

    def call(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = named_outputs(reference.call(module, inputs)).values()
        return dict(zip(outputs, made, strict=True))

    renamed = copy.copy(reference)
    renamed.call = call
    return renamed


def tolerance_for(program: Program) -> Tolerance:
    """Return what float kernels may differ by: more where the graph computes in 16 bits."""
    return _HALF if program.computes_in((torch.float16, torch.bfloat16)) else _USUAL


def _wrong(bad: dict[str, Any], program: Program, schedule: Schedule) -> StageError:
    names = [*program.outputs, *(f"state {name}" for name in program.states)]
    tensor = bad["tensor"] if bad["kind"] == "output" else f"state {bad['tensor']}"
    port = dict(zip(names, program.made(), strict=True)).get(tensor)
    index = f" at {bad['index']}" if bad["index"] else ""
    return StageError(
        f"the exported model is not equal to eager PyTorch: {bad['kind']} '{bad['tensor']}'{index} "
        f"of step {bad['step']} ({schedule}, {bad['mode']}) should be {_value(bad['expected'])} "
        f"and is {_value(bad['got'])}. The captured program is equal to eager, so this is a fault "
        "of PyTorch's ONNX exporter or of ONNX Runtime, or the module magnifies rounding (sign, "
        "round or argmax at a tie). Nothing was written",
        stage="export",
        place=None if port is None else port.place,
        hint="write what makes this tensor with other operators, and report the fault to them; "
        "where large values cancel, compute in float64",
    )


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
