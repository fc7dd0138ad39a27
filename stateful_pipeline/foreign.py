"""Translates what the user's code, libraries and the disk raise into errors of this project."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.locate import user_place

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_NOT_WRITABLE = (*_NO_ROOM, errno.EROFS, errno.EIO)


def stage_error(error: BaseException, stage: str, folder: Path | None = None) -> StageError:
    """Return the error with which ``stage`` ends where ``error`` ended it.

    Args:
        error: Anything that is no :class:`~stateful_pipeline.errors.PipelineError`.
        stage: The stage's name.
        folder: The folder that the stage writes into, if it writes.
    """
    if folder is not None and isinstance(error, OSError) and _is_about(error, folder):
        return write_error(error, stage, folder)
    place: Place | None = user_place(error)
    found = StageError(f"{type(error).__name__}: {error}", stage=stage, place=place)
    found.__cause__ = error
    return found


def write_error(error: OSError, stage: str, folder: Path) -> StageError:
    """Return the error of a ``stage`` that could not write below ``folder``: path, and what to do.

    The system tells the path only of files that it cannot open; otherwise ``folder`` is named.
    Of a copy and a move it tells two, of which the second is written.
    """
    path, reason = error.filename2 or error.filename or folder, error.strerror or str(error)
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        (_, path, reason), *_ = error.args[0]
    hint = "choose another --out"
    if no_room(error):
        hint = "free some space or raise the limit (`df`, `quota`, `ulimit -f`), or " + hint
    found = StageError(f"cannot write {path}: {reason}", stage=stage, hint=hint)
    found.__cause__ = error
    return found


def no_room(error: OSError) -> bool:
    """Whether the disk is full, or a quota or the largest size of a file is reached."""
    return error.errno in _NO_ROOM


def _is_about(error: OSError, folder: Path) -> bool:
    """Whether ``error`` came from writing below ``folder``, not from the user's code."""
    if isinstance(error, shutil.Error):
        return True
    names = [Path(str(n)) for n in (error.filename, error.filename2) if n is not None]
    if names:
        return any(name.absolute().is_relative_to(folder) for name in names)
    place = user_place(error)
    return error.errno in _NOT_WRITABLE and (place is None or "site-packages" in place.file)
