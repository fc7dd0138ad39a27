"""Checks what is read back from JSON: which fields there are, and what each of them holds.

A table gives every field of a mapping its :class:`Kind`; what does not fit is told with its key.
This is for what a deployment reads, which needs numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stateful_pipeline.errors import ContractError


@dataclass(frozen=True)
class Kind:
    """What a field may hold.

    Attributes:
        words: What that is, after "should be".
        holds: Whether a value is of this kind.
        optional: Whether the field may be missing, or null.
    """

    words: str
    holds: Callable[[Any], bool]
    optional: bool = False


TEXT = Kind("a text", lambda value: isinstance(value, str))
NAME = Kind("a text that is not empty", lambda value: isinstance(value, str) and value != "")
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
SIZE = Kind("a whole number from 0 on", lambda value: type(value) is int and value >= 0)
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))


def optional(kind: Kind) -> Kind:
    """Return ``kind`` for a field that may be missing."""
    return replace(kind, optional=True)


def one_of(names: Sequence[str]) -> Kind:
    """Return the kind of a text that is one of ``names``."""
    return Kind(
        f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names
    )


def list_of(*kinds: Kind) -> Kind:
    """Return the kind of a list each of whose elements is of one of ``kinds``."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and all(any(k.holds(v) for k in kinds) for v in value)

    return Kind(f"a list, each of it {' or '.join(kind.words for kind in kinds)}", holds)


def read_json(text: str) -> Any:
    """Return what ``text`` holds.

    Raises:
        ContractError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from error


def other_schema(data: Any, known: int) -> int | None:
    """Return the number of the schema of ``data`` where it is another than the ``known`` one."""
    schema = data.get("schema") if isinstance(data, dict) else None
    return schema if type(schema) is int and schema != known else None


def checked(item: Any, fields: Mapping[str, Kind], where: str = "") -> dict[str, Any]:
    """Return ``item`` as the mapping that the table ``fields`` describes; null fields are left out.

    Args:
        item: A value that :func:`read_json` gave, or a part of it.
        fields: Each field's kind.
        where: The path to ``item`` in the whole, as ``states.0``.

    Raises:
        ContractError: It is no mapping, or a field is missing, unknown or of another kind.
    """
    if not isinstance(item, dict):
        raise ContractError(f"{where or 'all of it'} is {_found(item)}, and should be a mapping")
    prefix = f"{where}." if where else ""
    for key in item:
        if key not in fields:
            raise ContractError(f"{prefix}{key} is unknown, there are: {', '.join(fields)}")
    found = {
        key: value for key, value in item.items() if value is not None or not fields[key].optional
    }
    for key, kind in fields.items():
        if key not in found and not kind.optional:
            raise ContractError(f"{prefix}{key} is missing")
        if key in found and not kind.holds(found[key]):
            raise ContractError(
                f"{prefix}{key} is {_found(found[key])}, and should be {kind.words}"
            )
    return found


def _found(value: Any) -> str:
    """Return what a value is, in a few words: scalars as JSON has them."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."
