"""Runs stages one after the other, with what they need, and notes how each ended.

script, rewrite and export lead to *artifacts*, of which each target needs one: ``onnx``, for which
there are several front ends, or ``scripted``.  One that cannot be made stops the targets that need
it, and no others.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import PipelineError, SpecError, StateError
from stateful_pipeline.foreign import stage_error
from stateful_pipeline.model.frontends import candidates, refused_by_all
from stateful_pipeline.progress import Progress
from stateful_pipeline.reuse import needed_stages
from stateful_pipeline.spec import Spec
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.log import LogWorker


class StageRuns:
    """The stages of one run.

    Args:
        spec: What to do.
        folder: The build's folder.
        names: The stages, in order.
        progress: Hears what happens.
        worker: Logs the run, if anything does.

    Attributes:
        artifacts: What stages have left.
        stages: Status, seconds and error of each stage.
        error: What has stopped the run, if anything did.
    """

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        names: Sequence[str],
        progress: Progress,
        worker: LogWorker | None,
    ) -> None:
        self.spec, self.folder, self.progress, self.worker = spec, folder, progress, worker
        self.artifacts = Artifacts(spec, folder, progress.say)
        self.stages: dict[str, dict[str, Any]] = {
            name: {"status": "not asked", "seconds": 0.0, "error": None} for name in names
        }
        self.error: BaseException | None = None

    def front(self, wanted: Sequence[str]) -> None:
        """Make the artifacts that the targets need; a target whose own fails gets the error."""
        needed = self.artifacts.needed()
        errors: dict[str, BaseException] = {}
        records = []
        for name in needed:
            error = self._make(name, wanted)
            records.append(self.stages["script"])
            if error is not None:
                errors[name] = error
        self.stages["script"] = _as_one(records)
        for name in wanted:
            if name not in needed_stages(wanted, needed):
                self.stages[name]["status"] = "not needed"
        self.error = None
        if len(errors) == len(needed):  # nothing is left that could be built
            self.error = min(errors.values(), key=lambda error: not isinstance(error, StateError))
        if len(needed) > 1:
            for name, target in self.artifacts.targets.items():
                found = errors.get(self.spec.targets[name].needs)
                target.error = found if isinstance(found, Exception) else None

    def _make(self, artifact: str, wanted: Sequence[str]) -> BaseException | None:
        """Make one artifact; return why that failed, if it did."""
        self.artifacts.make, self.error = artifact, None
        if artifact == "scripted":
            self.stage("script")
        else:
            self._capture(wanted)
        return self.error

    def _capture(self, wanted: Sequence[str]) -> None:
        """Run script, rewrite and export with the front ends that there are, until one does it."""
        artifacts = self.artifacts
        module = artifacts.need("subject", "script").module
        frontends, untried = candidates(self.spec.script.frontend, module)
        artifacts.refused = dict(untried)
        errors: dict[str, PipelineError] = {}
        for frontend in frontends:
            artifacts.frontend, self.error = frontend, None
            for name in wanted:
                self.stage(name, another=frontend != frontends[-1])
                if self.stages[name]["status"] == "refused":
                    break
            error = self._refusal()
            if error is None:
                return
            errors[frontend] = error
            artifacts.refused[frontend] = error.message
        self.error = refused_by_all(errors, untried)
        failed = next(name for name in wanted if self.stages[name]["status"] == "failed")
        self.stages[failed]["error"] = str(self.error)

    def _refusal(self) -> PipelineError | None:
        """Return the error by which a front end refused the model, if that is what happened."""
        return self.error if self._is_refusal(self.error) else None  # type: ignore[return-value]

    def _is_refusal(self, error: BaseException | None) -> bool:
        """Whether it is the front end that does not take the model: neither the spec nor a state.

        States are found before any front end is asked.
        """
        if self.artifacts.discovery is None or isinstance(error, SpecError):
            return False
        return isinstance(error, PipelineError)

    def stage(self, name: str, *, another: bool = False) -> None:
        """Run one stage, unless one before it failed.

        Args:
            name: The stage.
            another: Whether another front end can be tried if this one does not take the model.
        """
        if self.error is not None:
            self.stages[name]["status"] = "skipped"
            self.progress.end(name, "skipped", 0.0, None)
            return
        if name == "benchmark" and self.worker is not None:
            self.worker.wait_ready(10.0)  # so that loading MLflow does not disturb the timing
        shown = self._shown(name)
        self.progress.begin(shown)
        start = time.perf_counter()
        error: BaseException | None = None
        status = "done"
        try:
            importlib.import_module(f"stateful_pipeline.stages.{name}.run").run(self.artifacts)
        except PipelineError as failure:
            error = self._placed(failure)
        except KeyboardInterrupt as interrupt:
            error, status = interrupt, "interrupted"
            raise
        except BaseException as failure:  # noqa: BLE001 - the user's code may raise anything
            error = stage_error(failure, name, self.folder)
        finally:
            seconds = time.perf_counter() - start
            text = None
            if status != "interrupted" and error is not None:
                text = str(error) or type(error).__name__
                status = "refused" if another and self._is_refusal(error) else "failed"
            self.stages[name] = {"status": status, "seconds": seconds, "error": text}
            self.progress.end(shown, status, seconds, text)
        self.error = error

    def _placed(self, error: PipelineError) -> PipelineError:
        """Say where a key of the spec is written that only a stage could find to be wrong."""
        if isinstance(error, SpecError) and error.key is not None and error.place is None:
            error.place = self.spec.place(error.key)
        return error

    def _shown(self, name: str) -> str:
        """Return what a stage is called where it runs for one artifact and for another."""
        twice = name == "script" and len(self.artifacts.needed()) > 1
        return self.artifacts.make if twice and self.artifacts.make != "onnx" else name


def _as_one(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of a stage that has run for one artifact and then for another."""
    errors = [record["error"] for record in records if record["error"] is not None]
    failed = [record for record in records if record["status"] == "failed"]
    return {
        "status": (failed or records)[-1]["status"],
        "seconds": sum(record["seconds"] for record in records),
        "error": "\n".join(errors) or None,
    }
