"""Says which gates of a job a run missed."""

from __future__ import annotations

from collections.abc import Mapping

from stateful_pipeline.spec import Gates
from stateful_pipeline.stages.artifacts import TargetBuild

_VERIFIED = ("max_abs_error",)


def missed_gates(gates: Gates, targets: Mapping[str, TargetBuild]) -> list[str]:
    """Return a line for each gate that a target missed, or that nothing measured.

    Args:
        gates: The largest values allowed.
        targets: The targets, verified and timed.
    """
    missed = []
    for key, limit in gates.model_dump(exclude_none=True).items():
        for name, target in targets.items():
            measured = target.verify if key in _VERIFIED else target.benchmark
            value = (measured or {}).get(key)
            if value is None:
                missed.append(f"{name}: {key} must be at most {limit:g}, but was not measured")
            elif not float(value) <= limit:
                missed.append(f"{name}: {key} is {float(value):.3g}, at most {limit:g} is allowed")
    return missed
