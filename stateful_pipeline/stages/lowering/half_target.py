"""Half precision as a target of the spec asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import Spec
from stateful_pipeline.stages.lowering.half import half_file


class HalfTarget(Protocol):
    """A target that says what it computes in, and which states it holds in that."""

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """What floats are computed in."""
        ...

    @property
    def half_states(self) -> tuple[str, ...]:
        """States that are held in it, too, by name or pattern."""
        ...


def half_target(spec: Spec, name: str, target: HalfTarget, model: Path) -> tuple[str, ...]:
    """Rewrite the model of a target in place so that it computes in the target's precision.

    Args:
        spec: The spec.
        name: The name of the target in it.
        target: The target.
        model: Its copy of the portable model, with the files beside it.

    Returns:
        What :func:`~.half.half_file` returns; nothing for a target in float32.

    Raises:
        SpecError: ``half_states`` names no float32 state, or one whose initial value is too large;
            with the place in the file.
        ContractError: The model has no contract, or a file beside it cannot be read.
    """
    if target.precision == "fp32":
        return ()
    try:
        threshold = spec.export.external_data_threshold
        return half_file(model, model, target.precision, target.half_states, threshold)
    except SpecError as error:
        parts = ("targets", name, "half_states")
        raise SpecError(
            f"targets.{name}.{error.message}",
            place=spec.place(parts),
            hint=error.hint,
            key=".".join(parts),
        ) from error
