"""Logs from a process of its own, which loads MLflow while the stages before run.

Importing MLflow takes a second or two of pure Python, and a first database two more.  A thread
would take turns with the stages for the interpreter; a process uses another core, keeps MLflow's
threads and global state out of this one, and shows none of its chatter.

The parent writes one line of JSON to the worker's stdin: what to log.  The worker writes two lines
to its stdout: one when it is ready, one with the result.  ``__main__.py`` is the worker's side.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.log.result import LogResult
from stateful_pipeline.stages.log.store import resolve_store
from stateful_pipeline.stages.processes import environment


class LogWorker:
    """A process that is getting ready to log, or has.

    Use it as a context manager, or call :meth:`close`; it logs one run.

    Args:
        tracking_uri: As in :func:`~stateful_pipeline.stages.log.log_summary`.
        default_store: As there.
    """

    def __init__(self, tracking_uri: str | None, default_store: Path) -> None:
        self._shown = resolve_store(tracking_uri, default_store).shown
        where = {"tracking_uri": tracking_uri, "default_store": str(default_store)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(  # noqa: S603 - this module, by this interpreter
            [sys.executable, "-P", "-m", __package__, json.dumps(where)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(),
            process_group=0,  # Ctrl-C is for the pipeline, which then wants this logged
        )
        self._ready = False
        self._asked = False

    def __enter__(self) -> LogWorker:
        """Return the worker itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the worker."""
        self.close()

    @property
    def pid(self) -> int:
        """The id of the worker's process."""
        return self._process.pid

    def wait_ready(self, seconds: float) -> bool:
        """Wait until the worker rests, for at most ``seconds``; say whether it does.

        Whoever measures time wants it to: loading MLflow keeps a core busy.
        """
        if self._ready:
            return True
        out = self._process.stdout
        if out is None or not select.select([out], [], [], seconds)[0]:
            return False
        self._ready = out.readline().startswith(b"{")
        return self._ready

    def log(
        self, summary: Mapping[str, Any], folder: Path, *, experiment: str, required: bool = False
    ) -> LogResult:
        """Log ``summary`` as :func:`~stateful_pipeline.stages.log.log_summary` does.

        Returns:
            Where the run was logged; on failure its ``warning`` says why it was not.

        Raises:
            StageError: Logging failed and is ``required``.
        """
        request = {"summary": summary, "folder": str(folder), "experiment": experiment}
        answer = self._ask(json.dumps(request).encode() + b"\n")
        if "result" in answer:
            return LogResult(**answer["result"])
        problem = StageError(answer["message"], stage="log", hint=answer.get("hint"))
        if required:
            raise problem
        return LogResult(self._shown, warning=str(problem))

    def close(self) -> None:
        """End the worker; what it has begun to log it may finish, for a few seconds."""
        process = self._process
        if not self._asked:
            process.kill()  # safe: a new store is made under another name, an old one only read
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):  # it has ended already
                    pipe.close()
        for stop in (None, process.terminate, process.kill):
            if stop is not None:
                stop()
            try:
                process.wait(5)
                break
            except subprocess.TimeoutExpired:
                continue
        self._errors.close()

    def _ask(self, request: bytes) -> dict[str, Any]:
        process = self._process
        self._asked = True
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            lines = [b"{}"] if self._ready else [process.stdout.readline()]
            lines.append(process.stdout.readline())
            answer: dict[str, Any] = json.loads(lines[-1])
        except (OSError, ValueError):
            return {"message": f"the process that logs has ended{self._last_words()}"}
        self._ready = True
        return answer

    def _last_words(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace").strip()
        return f" with code {code}" + (f": {text[-1000:]}" if text else "")
