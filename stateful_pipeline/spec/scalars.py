"""What a plain YAML scalar means, by the core schema of YAML 1.2 (its section 10.3).

PyYAML's own resolver follows YAML 1.1, where ``1e-5`` is a string, ``off`` is false, ``017`` is 15,
``2024_01`` is a number and ``2024-01-01`` a date.  Here a scalar is null, a boolean, an integer or
a float exactly when the core schema says so, and otherwise it is a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Scalar = None | bool | int | float | str

MAX_NUMBER = 200
"""The longest number, in characters: whatever is not longer fits a float."""

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")

_RULES: tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...] = (
    (_NULL, lambda text: None),
    (_TRUE, lambda text: True),
    (_FALSE, lambda text: False),
    (_INTEGER, lambda text: int(text, 10)),
    (_OCTAL, lambda text: int(text[2:], 8)),
    (_HEX, lambda text: int(text[2:], 16)),
    (_FLOAT, float),
    (_INFINITY, lambda text: float(text.replace(".", ""))),
    (_NAN, lambda text: float("nan")),
)

_CORE = "tag:yaml.org,2002:"


def resolve_plain(text: str) -> Scalar:
    """Return what the plain (unquoted) scalar ``text`` stands for.

    Raises:
        ValueError: A number longer than :data:`MAX_NUMBER` characters.
    """
    for pattern, convert in _RULES:
        if pattern.fullmatch(text):
            if len(text) > MAX_NUMBER:
                raise ValueError(f"a number of {len(text)} characters")
            return convert(text)
    return text


def resolve_tagged(text: str, tag: str) -> Scalar:
    """Return the scalar ``text`` under an explicit core-schema tag such as ``!!str``.

    Raises:
        LookupError: The tag is not one of the core schema's scalar tags.
        ValueError: The text does not fit its tag.
    """
    kind = tag.removeprefix(_CORE)
    if kind == tag or kind not in {"str", "null", "bool", "int", "float"}:
        raise LookupError(tag)
    if kind == "str":
        return text
    value = resolve_plain(text)
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value) is not {"null": type(None), "bool": bool, "int": int, "float": float}[kind]:
        raise ValueError(f"'{text[:40]}' is not of the type !!{kind}")
    return value
