"""Lets the signals that schedulers and terminals send end a run as Ctrl-C does.

Stages clean up after themselves, the build says ``interrupted``, and so does MLflow.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from types import FrameType
from typing import TextIO


def as_interrupts() -> None:
    """Make SIGTERM and SIGHUP raise ``KeyboardInterrupt``; one that is ignored stays so.

    ``nohup`` ignores SIGHUP on purpose.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
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
