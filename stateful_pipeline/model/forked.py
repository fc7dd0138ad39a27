"""Runs what would change something for good in a fork of this process, and brings back its values.

A fork has all that this process has, down to what C++ objects share with one another, which no
copy of them would.  What it does to that ends with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.unasked_exit import leave_at_once

_LONGEST = 120.0
"""Seconds that one value may take."""
_RAISED, _BROKEN = 1, 2


@dataclass(frozen=True)
class Forked:
    """What was made in a fork.

    Attributes:
        values: The values, up to where an exception was raised.
        raised: The exception, in words, or None.
    """

    values: list[Any]
    raised: str | None = None


def values_in_fork(make: Callable[[], Iterable[Any]]) -> Forked:
    """Return the values that ``make()`` gives in a fork of this process, with one thread.

    Args:
        make: Gives tensors, or dicts of them, one after the other.  What it prints is dropped.

    Raises:
        StageError: It ends the process, or goes on for too long.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with tempfile.TemporaryFile() as results:
        with warnings.catch_warnings():
            # Python warns of threads that hold locks for ever in a fork; this one has no others.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _make_and_exit(make, results)
        status = _wait(pid, results)
        results.seek(0)
        values = _values(results)
    if status is None:
        raise _ended(len(values), f"takes more than {_LONGEST:.0f} s")
    if os.WIFSIGNALED(status):
        raise _ended(len(values), f"crashes ({signal.Signals(os.WTERMSIG(status)).name})")
    if not values or values[-1][0] not in ("end", "raised"):
        code = os.WEXITSTATUS(status)
        raise _ended(len(values), f"ends the process that it runs in, with code {code},")
    kind, last = values.pop()
    return Forked([value for _, value in values], last if kind == "raised" else None)


def _ended(step: int, how: str) -> StageError:
    return StageError(
        f"in a fork of this process, the module {how} at step {step}",
        stage="script",
        hint="C++ code of a model reports an error by an exception, such as TORCH_CHECK throws",
    )


def _make_and_exit(make: Callable[[], Iterable[Any]], results: BinaryIO) -> NoReturn:
    """Write the values to a file, in the fork."""
    code = _BROKEN
    try:
        faulthandler.disable()
        leave_at_once()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        torch.set_num_threads(1)  # others did not come along
        try:
            for value in make():
                _write(results, "value", value)
            _write(results, "end", None)
            code = 0
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            _write(results, "raised", f"{type(error).__name__}: {error}")
            code = _RAISED
    finally:
        os._exit(code)


def _write(results: BinaryIO, kind: str, value: Any) -> None:
    buffer = io.BytesIO()
    torch.save((kind, value), buffer)
    pickle.dump(buffer.getvalue(), results)
    results.flush()


def _values(results: BinaryIO) -> list[tuple[str, Any]]:
    """Return what was written, but for what was not written to its end."""
    found = []
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            saved = io.BytesIO(pickle.load(results))  # noqa: S301 - this process's own file
            found.append(torch.load(saved, weights_only=True))
    return found


def _wait(pid: int, results: BinaryIO) -> int | None:
    """Return how a process ends, or None if it has to be ended."""
    ended, size, until = False, 0, time.monotonic() + _LONGEST
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended = True
                return status
            now = os.fstat(results.fileno()).st_size
            if now != size:
                size, until = now, time.monotonic() + _LONGEST
            time.sleep(0.002)
        return None
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
