"""Proves a rewritten program equal to eager PyTorch over free-running rollouts, in torch.

Both sides feed themselves.  Every output and every state of every step must be the same bit for
bit; where floats differ, the module and this graph are compared again in float64, and a difference
below 1e-10 there shows that it is rounding (another kernel, another order of summation), which is
recorded.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.cpp_forms import named_form, with_explicit_forms
from stateful_pipeline.model.cpp_objects import cpp_class
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.reference import Reference, Tensors, exact_kernels
from stateful_pipeline.model.schedule import changing
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.stages.rewrite.double import (
    Wide,
    in_float64,
    wide_program,
)

FLOAT64_TOLERANCE = 1e-10
CLASS_TOLERANCE = 1e-5
"""Relative to the largest element; where a C++ class, whose code has one dtype, is compared."""


@dataclass(frozen=True)
class Equality:
    """What the comparison found.

    Attributes:
        steps: Number of steps compared, over all rollouts.
        bitwise: Whether all of them agreed bit for bit.
        max_abs_error: The largest difference, where they did not.
        float64_error: The largest difference in float64, where that was needed.
    """

    steps: int
    bitwise: bool
    max_abs_error: float = 0.0
    float64_error: float | None = None


@dataclass(frozen=True)
class _Difference:
    step: int
    tensor: str
    sizes: Mapping[str, int]
    error: float
    exact_type: bool
    largest: float = 0.0


def check_equal(
    program: Program,
    reference: Reference,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
    steps: int,
    seed: int = 0,
) -> Equality:
    """Compare ``program`` with ``reference`` over ``steps`` steps at each of ``sizes``.

    Raises:
        StageError: They differ by more than rounding; the message names step and tensor.
    """
    reference = with_explicit_forms(reference, plan)
    steps += reference.transient
    differences = _compare(program, reference, plan, sizes, steps, seed)
    total = steps * len(sizes)
    if not differences:
        return Equality(total, bitwise=True)
    worst = max(differences, key=lambda found: (found.exact_type, found.error))
    if worst.exact_type:
        raise _unequal(reference.module, differences[0])
    if cpp_objects(reference.module):  # their classes compute in one dtype
        if all(d.error <= CLASS_TOLERANCE * max(d.largest, 1.0) for d in differences):
            return Equality(total, False, worst.error)
        raise _unequal(reference.module, worst)
    error64 = _float64_error(program, reference, plan, sizes, steps, seed, differences[0])
    return Equality(total, False, worst.error, error64)


def _compare(
    program: Program | Wide,
    reference: Reference,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
    steps: int,
    seed: int,
) -> list[_Difference]:
    found: list[_Difference] = []
    for at, inputs in _streams(reference, plan, sizes, steps, seed):
        states = reference.initial(at)
        for step in reference.rollout(at, inputs):
            with exact_kernels():
                outputs, states = _run(program, states, step.inputs)
            if step.outputs.keys() != outputs.keys():
                raise StageError(
                    f"forward returns {', '.join(step.outputs)} at step {step.index}; when it was "
                    f"captured it returned {', '.join(outputs)}",
                    stage="rewrite",
                    hint="return the same tensors from every call",
                )
            expected = {**step.outputs, **{f"state {k}": v for k, v in step.after.items()}}
            got = {**outputs, **{f"state {k}": v for k, v in states.items()}}
            found += _differences(step.index, at, expected, got)
    return found


def _run(program: Program | Wide, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    try:
        return program.run(states, inputs)
    except PipelineError:
        raise
    except RuntimeError as error:  # what was captured holds for some numbers and sizes alone
        raise StageError(
            f"the captured program does not run where the module does: {error}",
            stage="rewrite",
            hint="forward may depend on Python numbers in a way that cannot be traced; try "
            "`frontend: torchscript`",
        ) from error


def _streams(
    reference: Reference,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
    steps: int,
    seed: int,
) -> Iterator[tuple[Mapping[str, int], list[Tensors]]]:
    """Yield sizes and inputs of each rollout; the last varies the size of its chunks, if any may.

    A module that itself raises on such a stream need not be equal there.
    """
    for at in sizes:
        yield at, plan.steps(at, seed, steps)
    schedule = changing(reference.axes, reference.states)
    if schedule is not None:
        inputs = [plan.step(schedule.at(step), seed, step) for step in range(steps)]
        try:
            collections.deque(reference.rollout(schedule.at(0), inputs), maxlen=0)
        except StageError:
            return
        yield schedule.at(0), inputs


def _differences(
    step: int, sizes: Mapping[str, int], expected: Tensors, got: Tensors
) -> list[_Difference]:
    found = []
    for name, want in expected.items():
        have = got[name]
        same_kind = have.dtype == want.dtype and have.shape == want.shape
        if same_kind and torch.equal(_bits(have), _bits(want)):
            continue
        floating = same_kind and want.is_floating_point()
        error = _max_error(have, want) if floating else float("inf")
        if error > 0.0:
            largest = _max_error(want, torch.zeros_like(want)) if floating else 0.0
            found.append(_Difference(step, name, sizes, error, not floating, largest))
    return found


def _bits(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() and flat.dtype != torch.bool else flat


def _max_error(have: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest absolute difference; NaN equals NaN, and an infinity itself."""
    a, b = have.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, torch.zeros_like(a), (a - b).abs())
    return float(error.nan_to_num(float("inf"), float("inf")).max()) if error.numel() else 0.0


def _float64_error(
    program: Program,
    reference: Reference,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
    steps: int,
    seed: int,
    first: _Difference,
) -> float:
    """Return by how much ``program`` is off in float64, which must be next to nothing."""
    worst = float("inf")
    try:
        # A copy of a module shares what its functions enclose with the module itself.
        with Snapshot(reference.module):
            double, plan64 = in_float64(reference, plan)
            for as_written in (True, False):
                wide = wide_program(program, as_written=as_written)
                differences = _compare(wide, double, plan64, sizes, steps, seed)
                worst = min(worst, max((found.error for found in differences), default=0.0))
                if worst <= FLOAT64_TOLERANCE:
                    return worst
    except Exception as error:  # the user's module may not run in float64
        reason = f"the comparison in float64 failed: {type(error).__name__}: {error}"
        raise _unequal(reference.module, first, reason) from error
    note = f"in float64 they differ by {worst:.3g} too, so it is not rounding"
    raise _unequal(reference.module, first, note)


def _unequal(module: nn.Module, difference: _Difference, note: str | None = None) -> StageError:
    at = ", ".join(f"{axis}={size}" for axis, size in difference.sizes.items()) or "fixed sizes"
    text = (
        f"the rewritten graph differs from eager at step {difference.step}, {difference.tensor}, "
        f"{at}, by {difference.error:.3g}"
    )
    return StageError(
        text + (f" ({note})" if note else ""),
        stage="rewrite",
        hint=_what_to_look_at(module),
    )


def _what_to_look_at(module: nn.Module) -> str:
    """Return the likely cause of a difference."""
    classes = sorted({cpp_class(value) for value in cpp_objects(module).values()})
    if classes:
        forms = " and ".join(map(named_form, classes))
        return (
            "calls of C++ objects in a ScriptModule are not compared one by one: most likely, a "
            f"method of {forms} does something else than in C++"
        )
    return (
        "forward may depend on what the module does not hold (a global, a file, a clock, a "
        "random generator), or branch on Python values that change"
    )
