"""Walks the stages of a run in order, and makes a build of what they leave.

A stage that fails stops those that need what it makes; ``log`` always runs, and says so.  What a
run ends with is one :class:`~stateful_pipeline.outcome.Outcome`.
"""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stateful_pipeline.builds import MANIFEST, SPEC, TIMINGS, new_build, status_of_linked, switch
from stateful_pipeline.errors import SpecError, StageError, TargetError
from stateful_pipeline.foreign import write_error
from stateful_pipeline.gates import missed_gates
from stateful_pipeline.identity import reuse_key, versions
from stateful_pipeline.outcome import Outcome, status_of
from stateful_pipeline.progress import Progress, Silent
from stateful_pipeline.report import plain_json, write_report
from stateful_pipeline.reuse import FRONT, needed_stages, nothing_to_reuse, take_over
from stateful_pipeline.spec import Gates, Spec
from stateful_pipeline.stage_runs import StageRuns
from stateful_pipeline.stages.artifacts import TargetBuild
from stateful_pipeline.stages.files import write_text
from stateful_pipeline.stages.log import LogResult, LogWorker
from stateful_pipeline.summary import manifest_of, summarize, timings_of

STAGES = ("script", "rewrite", "export", "build", "verify", "benchmark", "log")
"""The stages, in order; ``stages/<name>/run.py`` has the function ``run``.

But for ``log``, which always runs, and which the runner hands the finished summary itself.
"""

TAKEN = ("mlflow.db", "mlartifacts")
"""Names below the output folder that no spec can have."""


def run_spec(
    spec: Spec,
    *,
    out: Path = Path("build"),
    targets: Sequence[str] = (),
    first: str = STAGES[0],
    last: str = STAGES[-1],
    force: bool = False,
    gates: Gates | None = None,
    progress: Progress | None = None,
    worker: LogWorker | None = None,
) -> Outcome:
    """Run ``spec``'s stages and return how it ended.

    Args:
        spec: A loaded spec.
        out: The output folder.
        targets: Names of the targets to build; all of them if empty.
        first: Run from this stage on; what earlier ones made must be in an earlier build.
        last: Run up to this stage; ``log`` runs always.
        force: Reuse nothing; not with ``first``.
        gates: What must hold of every target beside equality.
        progress: Hears what happens.
        worker: Logs the run; made here if not given.

    Raises:
        SpecError: The spec, the call or the model's source is wrong.  Nothing is built.
    """
    chosen = _chosen(spec, targets)
    _check_call(spec, first, last, force=force)
    with ExitStack() as stack:
        if worker is None and spec.mlflow.enabled:
            store = (out / "mlflow.db").absolute()
            worker = stack.enter_context(LogWorker(spec.mlflow.tracking_uri, store))
        subject = importlib.import_module("stateful_pipeline.stages.script.subject").prepare(spec)
        key = reuse_key(spec, subject)
        folder = new_build(out, spec.name)
        run = _Run(spec, out, folder, key, progress or Silent(), worker)
        run.artifacts.subject = subject
        run.gates = gates or Gates()
        run.artifacts.targets = {name: TargetBuild(name) for name in chosen}
        try:
            return run.walk(first, last, force=force)
        except SpecError:
            shutil.rmtree(folder, ignore_errors=True)  # nothing was built: nothing to look at
            raise


def _check_call(spec: Spec, first: str, last: str, *, force: bool) -> None:
    """Check what can be checked before the model is constructed."""
    for stage in (first, last):
        if stage not in STAGES:
            raise SpecError(f"no stage '{stage}'", hint=f"the stages are: {', '.join(STAGES)}")
    if STAGES.index(first) > STAGES.index(last):
        raise SpecError(
            f"nothing to do: --from {first} comes after --to {last}",
            hint=f"the order is: {', '.join(STAGES)}",
        )
    if force and first != FRONT[0]:
        raise SpecError(
            f"--force reuses nothing, and --from {first} takes earlier stages from a build",
            hint="give one of them",
        )
    if spec.name in TAKEN:
        raise SpecError(
            f"name: '{spec.name}' is the name of a file of the MLflow store beside the builds",
            place=spec.place("name"),
            key="name",
            hint="choose another name",
        )


def _chosen(spec: Spec, targets: Sequence[str]) -> list[str]:
    for name in targets:
        if name not in spec.targets:
            raise SpecError(
                f"no target '{name}'",
                place=spec.place("targets"),
                hint=f"the targets are: {', '.join(spec.targets)}",
            )
    return [name for name in spec.targets if not targets or name in targets]


class _Run(StageRuns):
    """One run: what it reuses and runs, and the build that it leaves."""

    def __init__(
        self,
        spec: Spec,
        out: Path,
        folder: Path,
        key: str,
        progress: Progress,
        worker: LogWorker | None,
    ) -> None:
        super().__init__(spec, folder, STAGES, progress, worker)
        self.out, self.key = out, key
        self.gates = Gates()
        self.missed: list[str] = []

    def walk(self, first: str, last: str, *, force: bool) -> Outcome:
        wanted = [name for name in STAGES[: STAGES.index(last) + 1] if name != "log"]
        try:
            reused = self._reuse(first, force=force)
            if not reused:
                self.front([name for name in wanted if name in FRONT])
            for name in wanted:
                if name not in reused and name not in FRONT:
                    self.stage(name)
        except KeyboardInterrupt as interrupt:
            self.error = interrupt
            for name in wanted:
                if self.stages[name]["status"] == "not asked":
                    self.stages[name]["status"] = "skipped"
        return self._conclude()

    def _reuse(self, first: str, *, force: bool) -> tuple[str, ...]:
        """Take over what an earlier build made; return the stages that need not run."""
        if first in FRONT[1:]:
            self.artifacts.say(f"--from {first}: {', '.join(FRONT)} run together")
            return ()
        if force:
            return ()
        start = time.perf_counter()
        asked = FRONT if first == FRONT[0] else STAGES[: STAGES.index(first)]
        try:
            taken = take_over(self.artifacts, self.out, self.key, asked)
        except OSError as error:  # the files of an earlier build could not be read or copied
            self._end_at("reuse", write_error(error, "reuse", self.folder))
            return ()
        if taken.build is not None:
            self._tell_reused(asked, time.perf_counter() - start)
            return asked
        if first != FRONT[0]:
            raise nothing_to_reuse(first, self.spec.name, self.out, taken.why_not)
        return ()

    def _tell_reused(self, asked: Sequence[str], seconds: float) -> None:
        needed = needed_stages(asked, self.artifacts.needed())
        for name in asked:
            status = "reused" if name in needed else "not needed"
            self.stages[name] = {"status": status, "seconds": seconds, "error": None}
            self.progress.end(name, status, seconds, None)
            seconds = 0.0

    def _end_at(self, what: str, error: StageError) -> None:
        """Note that the run fails at ``what``, which is no stage."""
        self.error = self.error or error
        self.stages[what] = {"status": "failed", "seconds": 0.0, "error": str(error)}
        self.progress.end(what, "failed", 0.0, str(error))

    def _conclude(self) -> Outcome:
        """Write the build's descriptions, log it, and switch to it if it ended well."""
        self.missed = missed_gates(self.gates, self.artifacts.targets)
        try:
            summary = self._summary()
            write_text(self.folder / SPEC, plain_json(self.spec.content()))
            write_text(self.folder / TIMINGS, plain_json(timings_of(summary)))
            write_report(summary, self.folder)
        except OSError as error:
            self._end_at("report", write_error(error, "report", self.folder))
            summary = self._summary()
        log = self._log(summary)
        link = kept = None
        try:
            self._write_manifest(summary, log)
            link, kept = self._switch()
        except OSError as error:
            self._end_at("manifest", write_error(error, "manifest", self.folder))
        return Outcome(
            name=self.spec.name,
            status=self._status(),
            folder=self.folder,
            link=link,
            kept=kept,
            error=self.error if isinstance(self.error, Exception) else self._target_error(),
            targets=self.artifacts.targets,
            summary=summary,
            log=log,
            stages=self.stages,
            missed=self.missed,
        )

    def _summary(self) -> dict[str, Any]:
        summary = summarize(self.artifacts, self._status(), self.stages, versions())
        summary["missed_gates"] = self.missed
        return summary

    def _write_manifest(self, summary: dict[str, Any], log: LogResult | None) -> None:
        manifest = manifest_of(self.artifacts, self._status(), summary, self.key, log)
        write_text(self.folder / MANIFEST, plain_json(manifest))

    def _switch(self) -> tuple[Path | None, Path | None]:
        """Switch to a good build; return the link to it, or else the link that is kept.

        A build that was not verified takes the place of no verified one.
        """
        status = self._status()
        link = self.out / self.spec.name
        if status == "built" and status_of_linked(link) == "passed":
            return None, link
        return (switch(self.folder) if status in ("passed", "built") else None), None

    def _log(self, summary: dict[str, Any]) -> LogResult | None:
        if self.worker is None:
            self.stages["log"]["status"] = "not asked"
            return None
        self.progress.begin("log")
        start = time.perf_counter()
        options = self.spec.mlflow
        error: str | None = None
        try:
            return self.worker.log(
                summary, self.folder, experiment=options.experiment, required=options.required
            )
        except StageError as failure:
            error = str(failure)
            self.error = self.error or failure
            return None
        finally:
            seconds = time.perf_counter() - start
            status = "done" if error is None else "failed"
            self.stages["log"] = {"status": status, "seconds": seconds, "error": error}
            self.progress.end("log", status, seconds, error)

    def _target_error(self) -> Exception | None:
        """Return the error to end with: one that is absent here comes after one that is wrong."""
        errors = [t.error for t in self.artifacts.targets.values() if t.error is not None]
        return min(errors, key=lambda error: isinstance(error, TargetError), default=None)

    def _status(self) -> str:
        return status_of(self.error, self.artifacts.targets, self.spec.targets, self.missed)
