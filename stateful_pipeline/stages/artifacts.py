"""What stages leave for each other, by name; the only thing that all of them import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stateful_pipeline.contract import Contract
from stateful_pipeline.errors import StageError
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.frontends import Captured
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.spec import Spec


@dataclass
class TargetBuild:
    """One target, from its build to its verdict.

    Attributes:
        name: The target's name in the spec.
        artifact: The engine or lowered model, None if it could not be built.
        passed: The verdict; None while owed.
        owed: What could not be checked here, with reasons.
        error: Why it could not be built or run.
        verify: What verification found, as in ``verify/report.json``.
        benchmark: What the benchmark measured.
    """

    name: str
    artifact: Path | None = None
    passed: bool | None = None
    owed: list[str] = field(default_factory=list)
    error: Exception | None = None
    verify: dict[str, Any] | None = None
    benchmark: dict[str, Any] | None = None


@dataclass
class Artifacts:
    """The state of one run.

    Attributes:
        spec: What to do.
        folder: The build's folder, complete and private to this run.
        say: Reports progress in one line.
        subject: The module; left by whoever prepares the run, since verification needs it too.
        make: What ``script`` is to make now: ``onnx``, which stands for what leads to it, or
            ``scripted``.
        scripted: The module as a TorchScript file, states inside; left by ``script``.
        frontend: The front end to capture it with.
        refused: The front ends that did not take it, with reasons.
        discovery: Its states; left by ``script``.
        captured: What the front end captured, in-place operators still in it; left by ``script``.
        functional: The same as a pure function; left by ``rewrite``.
        model: The portable ONNX file; left by ``export``.
        contract: Its contract; left by ``export``.
        targets: The targets to build; filled by ``build``, ``verify`` and ``benchmark``.
        notes: What stages want to have in the manifest, by stage.
    """

    spec: Spec
    folder: Path
    say: Callable[[str], None]
    subject: Subject | None = None
    make: str = "onnx"
    scripted: Path | None = None
    frontend: str = "export"
    refused: dict[str, str] = field(default_factory=dict)
    discovery: Discovery | None = None
    captured: Captured | None = None
    functional: Program | None = None
    model: Path | None = None
    contract: Contract | None = None
    targets: dict[str, TargetBuild] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def needed(self) -> tuple[str, ...]:
        """Return the artifacts that the targets are built from: ``scripted``, ``onnx`` or both."""
        needs = {self.spec.targets[name].needs for name in self.targets}
        return tuple(name for name in ("scripted", "onnx") if name in needs)

    def to_build(self) -> list[TargetBuild]:
        """Return the targets that nothing stands in the way of."""
        return [t for t in self.targets.values() if t.error is None and not t.owed]

    def need(self, name: str, stage: str) -> Any:
        """Return the artifact called ``name``, which ``stage`` cannot do without.

        Raises:
            StageError: No earlier stage left it.
        """
        value = getattr(self, name)
        if value is None:
            raise StageError(f"needs '{name}', which no earlier stage left", stage=stage)
        return value


class Stage(Protocol):
    """A stage is a module with this function."""

    def __call__(self, artifacts: Artifacts) -> None:
        """Read what earlier stages left in ``artifacts``, and leave one's own."""
        ...
