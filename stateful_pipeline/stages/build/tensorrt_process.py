"""The process in which an engine of TensorRT is built, as the pipeline sees it.

:mod:`.tensorrt_worker` is what runs there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import PipelineError, SpecError, StageError, TargetError
from stateful_pipeline.stages.processes import environment

_WORKER = "stateful_pipeline.stages.build.tensorrt_worker"


def ask_worker(request: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Let a process of its own build the engine; return its answer.

    The process ends when this one does, however that ends: its stdin closes.

    Raises:
        PipelineError: What the process found.
        StageError: The process died, or could write no file.
    """
    written = scratch / "request.json"
    written.write_text(json.dumps(request), encoding="utf-8")
    command = [sys.executable, "-P", "-m", _WORKER, str(written)]
    with (
        (scratch / "said").open("w+b") as said,
        subprocess.Popen(  # noqa: S603 - this package, by this interpreter
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment()
        ) as process,
    ):
        code = process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    answer = Path(request["answer"])
    if code == os.EX_IOERR:
        raise _unwritten(text.strip())
    if code != 0 or not answer.is_file():
        raise _died(request["library"], code, text)
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        raise _error(found["error"], scratch)
    return found


def _error(found: Mapping[str, Any], scratch: Path) -> PipelineError:
    """Return what the process found, as the error that it was there."""
    if found["kind"] == OSError.__name__:
        return _unwritten(f"{found['path'] or scratch}: {found['reason']}")
    message, hint = found["message"], found["hint"]
    if found["kind"] == "SpecError":
        return SpecError(message, hint=hint, key=found["key"])
    if found["kind"] == "TargetError":
        return TargetError(message, hint=hint)
    return StageError(message.removeprefix("build: "), stage="build", hint=hint)


def _unwritten(what: str) -> StageError:
    """Return the error for a file that the process could not write."""
    hint = (
        "free some space or raise the limit (`df`, `quota`, `ulimit -f`), or choose another --out"
    )
    return StageError(f"cannot write {what}", stage="build", hint=hint)


def _died(library: str, code: int, text: str) -> StageError:
    """Return the error for a process that ended without an answer."""
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    said = text.strip().splitlines()
    return StageError(
        f"the process in which {library} builds the engine ended {how}"
        + (f": {said[-1][:400]}" if said else ""),
        stage="build",
        hint=f"see whether `python -c 'import {library}'` works here; if it does, an operator "
        "crashes this version of the library: leave parts of the model out to find it",
    )
