"""Small pieces of HTML: every text that comes in is escaped here, unless it is marked as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stateful_pipeline.report.verdict import show


class Html(str):
    """Text that is markup already, made by this package and not by a user."""


def cell(value: Any) -> str:
    """Return ``value`` as the inside of a table cell."""
    return value if isinstance(value, Html) else escape(show(value))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table that scrolls sideways on a narrow screen."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return Html(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def key_value_table(values: Mapping[str, Any]) -> Html:
    """Return a table of two columns without a head."""
    rows = "".join(
        f'<tr><th>{escape(str(key))}</th><td class="wide">{cell(value)}</td></tr>'
        for key, value in values.items()
    )
    return Html(f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>')


def pre(text: str) -> Html:
    """Return ``text`` as it is, line breaks kept."""
    return Html(f"<pre>{escape(text)}</pre>")


def verdict_mark(verdict: str, text: str | None = None) -> Html:
    """Return ``text`` (or the verdict itself) in the colour of the verdict."""
    return Html(
        f'<span class="{escape(verdict)}"><span class="verdict">'
        f"{escape(text or verdict)}</span></span>"
    )
