"""Tries to load a library where it can do no harm: in a fork of this process.

A library registers its classes and operators while it is loaded, and PyTorch answers a name that
is taken by an exception that nobody can catch: the process aborts.  The fork knows every name that
this process knows, whoever registered it, and costs milliseconds, where a new process would cost
an import of torch and know nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch

from stateful_pipeline.unasked_exit import leave_at_once

_LONGEST = 60.0
"""Seconds that a library may take to load."""
_REFUSED, _BROKEN = 1, 2
_WHAT = re.compile(r"^  what\(\):  (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Trial:
    """How the trial ended.

    Attributes:
        refused: Why the dynamic linker refuses the library, or None.
        aborted: Why the library ended the process, or None.
    """

    refused: str | None = None
    aborted: str | None = None


def probe(path: Path) -> Trial:
    """Load the library ``path`` in a fork of this process, and return how that ended."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as loaded:
        with warnings.catch_warnings():
            # Python warns of threads that hold locks for ever in a fork; this one takes those of
            # the allocator and of the linker alone, which the C library frees.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _load_and_exit(path, said, loaded)
        status = _wait(pid)
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
        came_back = os.fstat(loaded.fileno()).st_size > 0
    if status is None:
        return Trial(aborted=f"it is not loaded after {_LONGEST:.0f} s")
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        thrown = _WHAT.search(text)
        reason = f"it crashes ({number.name}) {text}".strip() if thrown is None else thrown.group(1)
        return Trial(aborted=reason)
    code = os.WEXITSTATUS(status)
    if code == _REFUSED:
        return Trial(refused=text)
    if code == 0 and came_back:
        return Trial()
    return Trial(aborted=f"it ends the process with code {code} {text}".strip())


def _load_and_exit(path: Path, said: BinaryIO, loaded: BinaryIO) -> NoReturn:
    """Load the library, in the fork; what the process says goes to a file.

    To another one it writes when the library is loaded: code that runs meanwhile may end the
    process, with any code.
    """
    code = _BROKEN
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        leave_at_once()
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        os.write(loaded.fileno(), b"loaded")
        code = 0
    except OSError as error:
        os.write(2, str(error.__cause__ or error).encode())
        code = _REFUSED
    finally:
        os._exit(code)


def _wait(pid: int) -> int | None:
    """Return how a process ends, or None if it has to be ended."""
    ended = False
    try:
        until = time.monotonic() + _LONGEST
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended = True
                return status
            time.sleep(0.002)
        return None
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
