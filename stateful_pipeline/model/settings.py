"""Keeps what is set for the whole process: PyTorch's settings, loggers' levels, warnings' filters.

Each place that changes one of them puts it back.  But a signal's handler may raise between the two,
also inside of PyTorch's own code, so that what a user calls keeps all of them once more.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
)
"""Getters and setters."""


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put everything back at the end, however that comes."""
    settings = [(read, change, read()) for read, change in _SETTINGS]
    loggers = [
        (logger, logger.level)
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)
    ]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for read, change, value in settings:
            if read() != value:
                change(value)
        for logger, level in loggers:
            if logger.level != level:
                logger.setLevel(level)
