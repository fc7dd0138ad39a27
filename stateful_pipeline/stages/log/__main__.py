"""The worker's side of ``worker.py``: get ready, log one run, end.

Its one argument says where to log, as JSON.  It ends when its stdin closes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.stages.log.log import log_summary, prepare


def main() -> None:
    """Be the worker."""
    signal.signal(signal.SIGTERM, _stop)
    gc.disable()  # a short life: a full collection takes 0.15 s and frees nothing
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what MLflow prints must not get between the answers
    where = json.loads(sys.argv[1])
    store = {"tracking_uri": where["tracking_uri"], "default_store": Path(where["default_store"])}
    try:
        prepare(**store)
    except Exception as error:  # noqa: BLE001 - logging meets it again, and reports it
        sys.stderr.write(f"not ready: {error}\n")
    out.write(b'{"ready": true}\n')
    out.flush()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    request = json.loads(line)
    try:
        result = log_summary(
            request["summary"],
            Path(request["folder"]),
            experiment=request["experiment"],
            required=True,  # the parent decides what a failure is
            **store,
        )
        answer: dict[str, Any] = {"result": asdict(result)}
    except PipelineError as error:
        answer = {"message": error.message.removeprefix("log: "), "hint": error.hint}
    out.write(json.dumps(answer).encode() + b"\n")
    out.flush()
    os._exit(0)  # everything is written; tearing MLflow down takes a while and serves nobody


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
