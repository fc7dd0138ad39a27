"""Closes the runs that a killed process left RUNNING.

Each run carries, as tags, the host and the process that writes it.  A process is told from a later
one with the same id by when it started, in clock ticks since boot: field 22 of
``/proc/<pid>/stat``.
"""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

HOST_TAG = "stateful_pipeline.host"
PID_TAG = "stateful_pipeline.pid"
_NO_PROC = "?"


def process_tags() -> dict[str, str]:
    """Return the tags that say which process writes a run."""
    pid = os.getpid()
    tags = {HOST_TAG: socket.gethostname(), PID_TAG: f"{pid}:{_started(pid) or _NO_PROC}"}
    with suppress(KeyError, OSError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    return tags


def reap(client: MlflowClient, experiment_id: str) -> list[str]:
    """Mark as KILLED the runs of this host whose process is gone; return their ids."""
    host = socket.gethostname().replace("'", "")
    running = client.search_runs(
        [experiment_id], f"attributes.status = 'RUNNING' and tags.`{HOST_TAG}` = '{host}'"
    )
    gone = [run.info.run_id for run in running if not _alive(run.data.tags.get(PID_TAG, ""))]
    for run_id in gone:
        client.set_terminated(run_id, status="KILLED")
    return gone


def _alive(tag: str) -> bool:
    """Say whether the process of a tag still runs; True where that cannot be told."""
    pid, _, started = tag.partition(":")
    if not pid.isdecimal():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and belongs to someone else: whether it is the same one is asked below
    now = _started(int(pid))
    return now is None or started in (_NO_PROC, now)


def _started(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
