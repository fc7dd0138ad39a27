"""The one word that a run or a target ends with, and how its numbers are written.

``PASSED`` is said only of what was checked and found equal.  ``OWED`` is what was built but could
not be checked here, ``UNCHECKED`` what nobody asked to check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_RUN_VERDICTS = {
    "passed": "PASSED",
    "built": "UNCHECKED",
    "failed": "FAILED",
    "refused": "FAILED",
    "owed": "OWED",
    "interrupted": "INTERRUPTED",
}


def run_verdict(summary: Mapping[str, Any]) -> str:
    """Return ``PASSED``, ``FAILED``, ``OWED``, ``UNCHECKED`` or ``INTERRUPTED``.

    A status that is not known has FAILED.
    """
    return _RUN_VERDICTS.get(str(summary.get("status")), "FAILED")


def target_verdict(target: Mapping[str, Any]) -> str:
    """Return ``PASSED``, ``FAILED``, ``OWED`` or ``UNCHECKED`` for one entry of ``targets``."""
    if target.get("error") or target.get("passed") is False:
        return "FAILED"
    if target.get("passed") is True:
        return "PASSED"
    return "OWED" if target.get("owed") else "UNCHECKED"


def as_number(value: Any) -> float | None:
    """Return ``value`` as a float, also from ``"nan"`` and ``"inf"``; None if it is no number."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def show(value: Any) -> str:
    """Write a value for a person: three significant digits, ``yes`` and ``no``, a dash for None."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case list() | tuple():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case dict():
            return ", ".join(f"{key}={show(item)}" for key, item in value.items())
    return str(value)


def scientific(value: float) -> str:
    """Write an error with two digits: ``2.1e-3``."""
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def show_sizes(sizes: Mapping[str, Any] | str | None) -> str:
    """Write the sizes of axes: ``batch=4``, and ``time=(1, 20, 200 in turn)`` where one varies."""
    if isinstance(sizes, str):
        return sizes
    written = (
        f"{axis}=({size})" if isinstance(size, str) else f"{axis}={show(size)}"
        for axis, size in (sizes or {}).items()
    )
    return ", ".join(written) or "fixed sizes"


def show_non_finite(fractions: Mapping[str, Any]) -> str:
    """Write which part of each tensor was NaN or infinite: ``output: 25 %``; all of it first."""
    numbers = {name: as_number(value) or 0.0 for name, value in fractions.items()}
    ordered = sorted(numbers.items(), key=lambda item: -item[1])
    return ", ".join(f"{name}: {_percent(fraction)}" for name, fraction in ordered)


def _percent(fraction: float) -> str:
    """Write a fraction so that only all is 100 %, and only nothing 0 %."""
    if fraction >= 1:
        return "all of it"
    if fraction < 0.001:
        return "less than 0.1 %"
    return f"{min(fraction * 100, 99.9):.3g} %"


def plain_json(value: Any) -> str:
    """Return ``value`` as indented strict JSON: NaN and infinities become strings."""
    return json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
