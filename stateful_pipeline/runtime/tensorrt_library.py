"""The libraries that run engines, and what they log.

``tensorrt`` (10 and 11) and ``tensorrt_rtx`` have the same Python interface under two names.  They
log errors, and their calls then give False or None.  The logger that a process gives first is used
for all that comes later, so that there is one for each library.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from typing import Any

from stateful_pipeline.errors import TargetError


def import_library(name: str) -> Any:
    """Return the module ``tensorrt`` or ``tensorrt_rtx``, imported on the first call.

    Raises:
        TargetError: It is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # what is imported may raise anything
        extra = name.replace("_", "-")
        raise TargetError(
            f"{name} cannot be imported: {str(error) or type(error).__name__}",
            hint=f"pip install 'stateful-pipeline[{extra}]', or where engines only run, the "
            "library and cuda-bindings",
        ) from error


class ErrorLog:
    """The last errors that a library logged; ``logger`` is the object that it logs to."""

    def __init__(self, library: Any) -> None:
        self._messages: deque[str] = deque(maxlen=8)
        severe = (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR)
        messages = self._messages

        class Logger(library.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                library.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity in severe:
                    messages.append(message)

        self.logger = Logger()

    def clear(self) -> None:
        """Forget what was logged before."""
        self._messages.clear()

    def text(self) -> str:
        """Return what was logged since :meth:`clear`, in one line."""
        return "; ".join(" ".join(message.split()) for message in self._messages) or "no reason"


@functools.cache
def error_log(library: Any) -> ErrorLog:
    """Return the log of a library, one for the process."""
    return ErrorLog(library)
