"""Holds the profiles that a target declares against what verification will ask of its engine."""

from __future__ import annotations

from collections.abc import Sequence

from stateful_pipeline.contract import Contract
from stateful_pipeline.errors import SpecError
from stateful_pipeline.model.schedule import schedules
from stateful_pipeline.profiles import Profile, first_uncovered
from stateful_pipeline.spec import Spec
from stateful_pipeline.stages.artifacts import Artifacts


def refuse_uncovered(artifacts: Artifacts, contract: Contract, profiles: Sequence[Profile]) -> None:
    """Refuse profiles that leave out sizes at which the engine is to be verified.

    Raises:
        SpecError: There are some.
    """
    subject = artifacts.need("subject", "build")
    reference = artifacts.need("discovery", "build").reference
    verify = artifacts.spec.verify
    for schedule in schedules(subject.axes, reference.states):
        every = min(verify.steps, verify.reset_every or verify.steps)
        found = first_uncovered(contract, profiles, map(schedule.at, range(every)))
        if found is not None:
            ranges = ", ".join(
                f"{p.name}: {found.axis} {p.axes[found.axis][0]} to {p.axes[found.axis][2]}"
                for p in profiles
            )
            raise SpecError(
                f"no profile covers {found.axis}={found.size}, which verification reaches at step "
                f"{found.step} of the rollout at {schedule} ({ranges})",
                hint=f"widen `profiles`, or narrow `dynamic_axes.{found.axis}`",
                key="profiles",
            )


def of_target(error: SpecError, spec: Spec, name: str) -> SpecError:
    """Return an error whose key is one of a target's with its place in the spec."""
    key = f"targets.{name}" + (f".{error.key}" if error.key else "")
    place = spec.place(("targets", name, *(error.key or "").split(".")))
    return SpecError(error.message, place=place, hint=error.hint, key=key)
