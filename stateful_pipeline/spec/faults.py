"""Several faults, one exception; and the wording that all of them share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from stateful_pipeline.errors import SpecError

_LONGEST = 60


def raise_together(faults: Sequence[SpecError], first_file: str) -> NoReturn:
    """Raise the first of ``faults`` with the rest in ``others``.

    Faults of ``first_file`` come first, each file's are sorted by line.

    Args:
        faults: At least one fault.
        first_file: The file that the user named.
    """

    def order(fault: SpecError) -> tuple[bool, str, int, int]:
        place = fault.place
        if place is None:
            return True, "", 0, 0
        return place.file != first_file, place.file, place.line or 0, place.column or 0

    first, *others = sorted(faults, key=order)
    first.others = tuple(others)
    raise first


def did_you_mean(word: object, known: Iterable[str], what: str) -> str:
    """Return the hint for an unknown ``word``: the nearest of ``known``, or all of them.

    Args:
        word: What was found.
        known: What would be right.
        what: What those are, in the plural: ``"keys"``.
    """
    names = list(known)
    if not names:
        return f"there are no {what} here"
    lowered = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(word).lower(), lowered, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{lowered[near[0]]}`?"
    return f"the {what} are: {', '.join(names)}"


def show(value: Any) -> str:
    """Describe a YAML value in a few words: ``the string 'two'``, ``a list of 3``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            cut = value if len(value) <= _LONGEST else value[:_LONGEST] + "..."
            return f"the string {cut!r}"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case float() if value != value:
            return ".nan"
        case float() if value in (float("inf"), float("-inf")):
            return ".inf" if value > 0 else "-.inf"
    text = str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
