"""Tells the user's code from that of torch, of the standard library and of this package."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parent.parent
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(torch.__file__).parent, Path(os.__file__).parent, _PACKAGE)
)
_OWN_MODELS = f"{_PACKAGE / 'zoo'}{os.sep}"


def is_user_file(filename: str) -> bool:
    """Whether ``filename`` is neither torch's, nor the standard library's, nor this package's."""
    if filename.startswith(_OWN_MODELS):
        return True
    if filename.startswith("<") or "site-packages" + os.sep + "torch" + os.sep in filename:
        return False
    return not filename.startswith(_LIBRARIES) or "site-packages" in filename
