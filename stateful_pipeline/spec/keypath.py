"""Paths of keys as people write them: ``targets.cpu.threads``, ``states["cells.0.h"].init``.

A name that holds a dot, a bracket or a space is quoted in brackets; a number in brackets is an
index into a list.
"""

from __future__ import annotations

import json
import re

from stateful_pipeline.spec.tree import Part, Parts

_NAME = r"[^.\[\]=\s\"']+"
_STEP = re.compile(
    rf"(?P<dot>\.?)(?P<name>{_NAME})|\[(?P<index>[0-9]{{1,9}})\]"
    r"|\[(?P<double>\"(?:[^\"\\]|\\.)*\")\]|\['(?P<single>[^']*)'\]"
)
_BARE = re.compile(_NAME)


def parse_prefix(text: str) -> tuple[Parts, str]:
    """Split a key path off the front of ``text``; return it and the rest.

    The path is empty where ``text`` does not start with one.
    """
    parts: list[Part] = []
    position = 0
    while match := _STEP.match(text, position):
        if match["name"] is not None and (match["dot"] == ".") != bool(parts):
            break
        quoted = match["single"] if match["double"] is None else _unquote(match["double"])
        if match["index"] is not None:
            parts.append(int(match["index"]))
        else:
            parts.append(match["name"] if quoted is None else quoted)
        position = match.end()
    return tuple(parts), text[position:]


def _unquote(text: str) -> str:
    """Read a double-quoted name: JSON's escapes, or the characters themselves."""
    try:
        return str(json.loads(text, strict=False))
    except json.JSONDecodeError:
        return text[1:-1]


def parse(text: str) -> Parts:
    """Return the parts of the key path ``text``.

    Raises:
        ValueError: It is not a key path.
    """
    parts, rest = parse_prefix(text)
    if rest or not parts:
        raise ValueError(f"'{text}' is not a path of keys such as targets.cpu.threads")
    return parts


def render(parts: Parts) -> str:
    """Return ``parts`` in the form that :func:`parse` reads."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _BARE.fullmatch(part) and part.isprintable():
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text
