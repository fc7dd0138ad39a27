"""Says in words where two pickled states of a C++ class differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def first_difference(want: Any, have: Any, same: Callable[[Any, Any], bool]) -> str:
    """Return where ``have`` is another value than ``want``, and both values there.

    Args:
        want: A value of TorchScript: a tensor, a number, a tuple of such.
        have: Another one.
        same: Whether two values are the same.

    Returns:
        As in ``[1] is float64[2] [0.0, 0.0] instead of float32[2] [0.0, 0.0]``.
    """
    at = ""
    while (deeper := _first_within(want, have, same)) is not None:
        key, want, have = deeper
        at += f"[{key!r}]"
    return f"{at or 'it'} is {in_short(have)} instead of {in_short(want)}"


def _first_within(
    want: Any, have: Any, same: Callable[[Any, Any], bool]
) -> tuple[Any, Any, Any] | None:
    """Return the first element in which two containers of one kind and size differ, if any."""
    keys: Iterable[Any] = ()
    if isinstance(want, dict) and isinstance(have, dict) and want.keys() == have.keys():
        keys = want
    elif isinstance(want, list | tuple) and isinstance(have, list | tuple):
        keys = range(len(want)) if len(want) == len(have) else ()
    return next(((k, want[k], have[k]) for k in keys if not same(want[k], have[k])), None)


def in_short(value: Any) -> str:
    """Return a value in a few words, a tensor with its dtype, shape and first elements."""
    if isinstance(value, torch.Tensor):
        text = " ".join(str(value.tolist()).split())
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind}{list(value.shape)} {text[:40]}{'..' if len(text) > 40 else ''}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(in_short, value))})"[:200]
    return repr(value)[:80]
