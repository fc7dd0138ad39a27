"""Sees that code which ends the process on its own does not end it as if all were done.

C++ that calls ``exit(0)`` ends the process with 0 wherever it is, and no ``finally`` of Python's
runs.  What runs are the handlers of the C library.  So, while commands go on, one of them says
what has happened and ends the process with the code of a failure.  It is called and taken away
again before Python ends, since it is written in Python.

``_exit`` and ``quick_exit`` ask nobody: only another process could tell.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stateful_pipeline.errors import Place

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_registering: list[Callable[[], None]] = []


@contextmanager
def unasked_exits_fail(code: int, say: Callable[[Place | None], None]) -> Iterator[None]:
    """End the process with ``code`` where something else than Python ends it.

    Args:
        code: The exit code.
        say: Says what has happened; takes the line of the user's code that was running.
    """
    library: Any = ctypes.CDLL(None)
    owner, going_on = os.getpid(), True

    def at_exit(_: int | None) -> None:
        if not going_on or os.getpid() != owner:  # a fork ends as it likes
            return
        try:
            say(_line_that_runs())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    handler = _HANDLER(at_exit)
    name = ctypes.c_void_p(ctypes.cast(handler, ctypes.c_void_p).value)  # of this handler alone

    def register() -> None:
        library.__cxa_atexit(handler, None, name)

    register()
    _registering.append(register)
    try:
        yield
    finally:
        going_on = False
        _registering.remove(register)
        library.__cxa_finalize(name)  # calls it, and takes it away


def come_first() -> None:
    """Be asked before what has been loaded since, whose objects would be destroyed at first."""
    for register in _registering:
        register()


def leave_at_once() -> None:
    """Let ``exit`` end this process, a fork, before it waits for threads, which it does not have.

    The code of the exit stays what it is.
    """
    library: Any = ctypes.CDLL(None)
    library.on_exit(library._exit, None)  # the GNU C library's; it hands the code on


def _line_that_runs() -> Place | None:
    """Return the innermost line of the user's code that this thread is in."""
    known: Any = sys.modules.get("stateful_pipeline.model.user_code")  # with what runs such code
    frame = None if known is None else sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") != "__main__" and known.is_user_file(file):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return None
