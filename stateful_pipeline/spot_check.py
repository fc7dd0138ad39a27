"""Checks in a moment whether what an earlier build made still does what the module does.

The module and the models of an earlier build take a few free-running steps side by side, at the
usual sizes and with the spec's tolerances.  It proves nothing, as verification does, but it finds
what no key over code and values can know: that ``forward`` reads a file that was changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.arrays import to_arrays
from stateful_pipeline.model.copies import Copies
from stateful_pipeline.model.deployable import initial_module
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.reference import Step, Tensors
from stateful_pipeline.model.sizes import corner_sizes, usual_sizes
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.verify.compare import Array, Tolerance, compare

STEPS = 4
"""Steps that are compared."""

MOST = 3
"""Earlier builds that are tried; where the module differs from that many, a new one is needed."""


class SpotCheck:
    """Compares the models of earlier builds with this run's module.

    Args:
        artifacts: This run's; its ``discovery`` is left by the first comparison.
        stage: For whom it is done.

    Attributes:
        why_not: In what the first build that was tried differs from the module, in words.
    """

    def __init__(self, artifacts: Artifacts, stage: str) -> None:
        self._artifacts, self._stage = artifacts, stage
        self._tried = 0
        self.why_not: str | None = None

    def equals(self, build: Path) -> bool:
        """Whether the model in the folder ``build`` gives what the module gives."""
        if self._tried == MOST:
            return False
        self._tried += 1
        try:
            difference = next(self._differences(build), None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code: script will report it
            difference = error.message if isinstance(error, PipelineError) else repr(error)
        if difference is None:
            return True
        self.why_not = self.why_not or difference
        return False

    def _differences(self, build: Path) -> Iterator[str]:
        """Yield what differs, in words."""
        needed = self._artifacts.needed()
        if "scripted" in needed:
            yield from self._of_scripted(build / "script" / "model.pt")
        if "onnx" in needed:
            yield from self._of_exported(build)

    def _of_scripted(self, path: Path) -> Iterator[str]:
        """Yield in what a scripted module differs, at the first sizes at which the module runs."""
        subject = self._artifacts.need("subject", self._stage)
        with quiet_scripting():
            scripted: Any = torch.jit.load(path)  # type: ignore[no-untyped-call]
        theirs = Copies(scripted.eval(), subject.call.unchecked())
        every = self._artifacts.spec.verify.reset_every
        expected = self._steps_of_eager(subject, every)
        got = theirs.rollout({}, [step.inputs for step in expected], every)
        for step, found in zip(expected, got, strict=True):
            pair = to_arrays(step.outputs), to_arrays(found.outputs)
            for what in self._compare("output", *pair):
                yield f"{what} at step {step.index}"

    def _steps_of_eager(self, subject: Subject, every: int | None) -> list[Step]:
        """Return a few steps of the module, at the first sizes at which it runs."""
        eager = Copies(initial_module(subject), subject.call)
        errors: list[PipelineError] = []
        for sizes in corner_sizes(subject.axes):
            try:
                return list(eager.rollout(sizes, self._inputs(subject, sizes), every))
            except PipelineError as error:
                errors.append(error)
        raise errors[0]

    def _inputs(self, subject: Subject, sizes: Mapping[str, int]) -> list[Tensors]:
        options = self._artifacts.spec.verify
        return subject.plan.steps(sizes, options.seeds[0], min(STEPS, options.steps))

    def _of_exported(self, build: Path) -> Iterator[str]:
        """Yield in what an exported model differs."""
        spec = self._artifacts.spec
        subject = self._artifacts.need("subject", self._stage)
        if self._artifacts.discovery is None:
            self._artifacts.discovery = subject.discover()
        reference = self._artifacts.discovery.reference
        runner = StatefulRunner(build / "export" / "model.onnx", threads=1)
        mine, theirs = (
            {state.name for state in states}
            for states in (reference.states, runner.contract.states)
        )
        if mine != theirs:
            yield f"its states are {sorted(theirs)}, the module's {sorted(mine)}"
            return
        sizes, every = usual_sizes(subject.axes), spec.verify.reset_every
        for step in reference.rollout(sizes, self._inputs(subject, sizes), every):
            if every and step.index % every == 0:
                runner.reset()
            got = runner.run(to_arrays(step.inputs))
            for kind, expected, found in (
                ("output", to_arrays(step.outputs), got),
                ("state", to_arrays(step.after), runner.state),
            ):
                for what in self._compare(kind, expected, found):
                    yield f"{what} at step {step.index}"

    def _compare(
        self, kind: str, expected: dict[str, Array], got: dict[str, Array]
    ) -> Iterator[str]:
        for name, value in expected.items():
            if name not in got:
                yield f"{kind} '{name}' is missing"
                continue
            found = compare(value, got[name], self._tolerance())
            if not found.equal:
                yield f"{kind} '{name}' is {found.got}, and should be {found.expected}"

    def _tolerance(self) -> Tolerance:
        """Return the widest tolerance of a target: what this run may call equal."""
        spec = self._artifacts.spec
        chosen = [spec.tolerances(name) for name in self._artifacts.targets]
        atols, rtols = zip(*chosen, strict=True)
        return Tolerance(max(atols), max(rtols))
