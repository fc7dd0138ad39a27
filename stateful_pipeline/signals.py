"""Lets the signals that schedulers and terminals send end a run as Ctrl-C does.

Stages clean up after themselves, the build says ``interrupted``, and so does MLflow.

Python calls a handler between two of its own instructions, and so never while C++ code of a model
goes on and on.  But it writes the number of each signal into a pipe at once.  A thread reads these
and ends the process where no handler is called.  It cannot where that code holds Python's lock, as
what is called to pickle and to destroy an object does.

Code that crashes ends the process by a signal, too; Python says which line called it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import stat
import sys
import threading
import time
from types import FrameType
from typing import TextIO

from stateful_pipeline.outcome import Exit

_PATIENCE = 10.0
"""Seconds in which a handler is called, or else the process ends."""
_AT_ONCE = 1.0
"""Seconds within which Python may call a handler once for two signals."""


class _Called:
    """When a handler was called last, and whether somebody looks."""

    last = -float("inf")
    watched = False


def as_interrupts() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt``; one that is ignored stays so.

    ``nohup`` ignores SIGHUP on purpose.  The signals of crashes say where Python is.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(2, all_threads=False)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _interrupt)
    if not _Called.watched:
        _Called.watched = True
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=[read], name="signals", daemon=True).start()


def _watch(numbers: int) -> None:
    """End the process where a signal comes and Python does not call its handler."""
    while True:
        came = os.read(numbers, 1)[0]
        since = time.monotonic() - _AT_ONCE
        until = time.monotonic() + _PATIENCE
        while _waits(came, since):
            if time.monotonic() > until:
                _give_up()
            time.sleep(0.05)


def _waits(signum: int, since: float) -> bool:
    return signal.getsignal(signum) is _interrupt and _Called.last < since


def _give_up() -> None:
    said = (
        f"interrupted: C++ code, of a model or of a library, has not returned for {_PATIENCE:g} s;"
        " temporary files and the unfinished build stay\n"
    )
    try:
        os.write(2, said.encode())
    finally:
        os._exit(Exit.INTERRUPTED)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    _Called.last = time.monotonic()
    if signum == signal.SIGHUP:
        for stream in (sys.stdout, sys.stderr):
            _forget_if_gone(stream)
    raise KeyboardInterrupt


def _forget_if_gone(stream: TextIO) -> None:
    """Send nowhere what would go to a terminal that has hung up."""
    try:
        descriptor = stream.fileno()
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            return
        os.write(descriptor, b"\n")  # a terminal that is gone is no terminal: only writing tells
    except ValueError:  # no file behind it
        return
    except OSError:
        forget(stream)


def forget(stream: TextIO) -> None:
    """Send the rest nowhere: who read it has gone, and Python would complain on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
