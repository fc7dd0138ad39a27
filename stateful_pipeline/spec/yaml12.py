"""Reads YAML safely into a tree of values with positions.

PyYAML's parser gives events; everything after that is done here, so that a file can neither run
code nor exhaust the machine: scalars by the core schema of YAML 1.2 (``scalars.py``), no tags but
that schema's, no duplicate keys, no merge keys, aliases only as far as the written-out tree stays
under :data:`MAX_VALUES`, and bounds on size and depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stateful_pipeline.errors import Place, SpecError
from stateful_pipeline.spec.faults import raise_together, show
from stateful_pipeline.spec.scalars import Scalar, resolve_plain, resolve_tagged
from stateful_pipeline.spec.tree import Node

MAX_BYTES = 1 << 20
"""The largest file, in bytes."""
MAX_DEPTH = 64
"""The deepest nesting, with aliases written out."""
MAX_VALUES = 100_000
"""The most values (scalars, lists and mappings) in a file, with aliases written out."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufeff\uff00-\ufffd\U00010000-\U0010ffff]"
)
_COLLECTIONS = {"map": yaml.MappingStartEvent, "seq": yaml.SequenceStartEvent}


def read_file(path: Path, name: str | None = None) -> Node:
    """Read the YAML file at ``path``.

    Args:
        path: The file.
        name: What errors call the file; ``path`` as given if None.

    Raises:
        SpecError: It cannot be read, or breaks a rule of this module.
    """
    name = str(path) if name is None else name
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot be read: {reason}", place=Place(name)) from error
    if len(raw) > MAX_BYTES:
        raise SpecError(
            f"larger than {MAX_BYTES} bytes",
            place=Place(name),
            hint="a spec is a short text; put data into files and name them",
        )
    return read_text(_decode(raw, name), name, path.parent)


def read_text(text: str, name: str, folder: Path, *, positions: bool = True) -> Node:
    """Read YAML from ``text``.

    Args:
        text: One document.
        name: What errors call it.
        folder: The folder against which relative paths in it are resolved.
        positions: Whether lines and columns mean anything to the reader of an error.

    Raises:
        SpecError: The text breaks a rule of this module.
    """
    composer = _Composer(name, folder, positions)
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        place = composer.at(
            text.count("\n", 0, bad.start()), bad.start() - text.rfind("\n", 0, bad.start()) - 1
        )
        raise SpecError(f"bad YAML: character U+{ord(bad[0]):04X} is not allowed", place=place)
    try:
        return composer.document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name) if mark is None else composer.at(mark.line, mark.column)
        raise SpecError(_syntax(error), place=place, hint=_remedy(error)) from error
    except yaml.YAMLError as error:
        raise SpecError(f"bad YAML: {error}", place=Place(name)) from error


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = Place(name, before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        what = (
            "UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else f"byte 0x{raw[error.start]:02x}"
        )
        raise SpecError(
            f"not UTF-8 text: found {what}", place=place, hint="save the file as UTF-8"
        ) from error


def _syntax(error: yaml.MarkedYAMLError) -> str:
    context = f" ({error.context})" if error.context else ""
    return f"bad YAML: {error.problem or 'it cannot be parsed'}{context}"


def _remedy(error: yaml.MarkedYAMLError) -> str | None:
    problem = error.problem or ""
    if "cannot start any token" in problem:
        return "indent with spaces, not tabs; quote a text that starts with @, ` or %"
    if "mapping values are not allowed" in problem:
        return "check the indentation; quote a text that holds ': '"
    if "expected <block end>" in problem or "did not find expected" in problem:
        return "check the indentation, and that every bracket and quote is closed"
    return None


class _Composer:
    """Builds the tree from events; collects faults that need not stop the reading."""

    def __init__(self, name: str, folder: Path, positions: bool) -> None:
        self.name = name
        self.folder = folder
        self.positions = positions
        self.anchors: dict[str, Node | None] = {}
        self.faults: list[SpecError] = []
        self.values = 0
        self.events: Iterator[Any] = iter(())

    def at(self, line: int, column: int) -> Place:
        return Place(self.name, line + 1, column + 1) if self.positions else Place(self.name)

    def place(self, event: Any) -> Place:
        return self.at(event.start_mark.line, event.start_mark.column)

    def document(self, events: Iterator[Any]) -> Node:
        """Return the only document of the stream."""
        self.events = events
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            raise SpecError("the file is empty", place=self.at(0, 0), hint="`pipeline init NAME`")
        root = self.node(next(events), 1)
        next(events)
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise SpecError(
                "a second document begins here; a file holds one",
                place=self.place(after),
                hint="remove the line `---`, or write two files",
            )
        if self.faults:
            raise_together(self.faults, self.name)
        return root

    def node(self, event: Any, level: int) -> Node:
        """Return the node that begins with ``event``, at nesting ``level``."""
        if level > MAX_DEPTH:
            raise SpecError(f"nested deeper than {MAX_DEPTH} levels", place=self.place(event))
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, level)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            node = Node(self.scalar(event), self.place(event), self.folder)
        else:
            self.check_tag(event)
            is_map = isinstance(event, yaml.MappingStartEvent)
            node = self.mapping(event, level) if is_map else self.sequence(event, level)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def count(self, values: int, event: Any) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise SpecError(
                f"more than {MAX_VALUES} values once its aliases are written out",
                place=self.place(event),
                hint="remove the aliases (*name)",
            )

    def alias(self, event: Any, level: int) -> Node:
        place = self.place(event)
        if event.anchor not in self.anchors:
            raise SpecError(f"alias *{event.anchor} has no anchor above it", place=place)
        node = self.anchors[event.anchor]
        if node is None:
            raise SpecError(f"alias *{event.anchor} stands inside its own anchor", place=place)
        self.count(node.size, event)
        if level + node.depth - 1 > MAX_DEPTH:
            raise SpecError(f"nested deeper than {MAX_DEPTH} levels", place=place)
        return node

    def scalar(self, event: Any) -> Scalar:
        text: str = event.value
        try:
            if event.tag not in (None, "!"):
                return resolve_tagged(text, event.tag)
            return resolve_plain(text) if event.implicit[0] and event.tag is None else text
        except LookupError:
            self.refuse_tag(event)
        except ValueError as error:
            self.faults.append(SpecError(f"bad YAML: {error}", place=self.place(event)))
        return text

    def check_tag(self, event: Any) -> None:
        if event.tag in (None, "!"):
            return
        kind = _COLLECTIONS.get(event.tag.removeprefix("tag:yaml.org,2002:"))
        if kind is None or not isinstance(event, kind):
            self.refuse_tag(event)

    def refuse_tag(self, event: Any) -> None:
        self.faults.append(
            SpecError(
                f"the tag {event.tag} is not allowed: a spec holds plain values only",
                place=self.place(event),
                hint="remove the tag; quote a text that starts with `!`",
            )
        )

    def sequence(self, event: Any, level: int) -> Node:
        items: list[Node] = []
        while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(inner, level + 1))
        return self.collection(items, items, event)

    def mapping(self, event: Any, level: int) -> Node:
        items: dict[str, Node] = {}
        while not isinstance(inner := next(self.events), yaml.MappingEndEvent):
            key = self.key(inner, level)
            place = self.place(inner)
            value = self.node(next(self.events), level + 1)
            if key is not None and key in items:
                first = items[key].key_place
                self.faults.append(
                    SpecError(
                        f"duplicate key '{key}', written first at {first}",
                        place=place,
                        key=key,
                        hint="keep one of the two",
                    )
                )
            elif key is not None:
                items[key] = replace(value, key_place=place)
        return self.collection(items, list(items.values()), event)

    def collection(
        self, value: dict[str, Node] | list[Node], children: list[Node], event: Any
    ) -> Node:
        size = 1 + sum(child.size for child in children)
        depth = 1 + max((child.depth for child in children), default=0)
        return Node(value, self.place(event), self.folder, size=size, depth=depth)

    def key(self, event: Any, level: int) -> str | None:
        node = self.node(event, level + 1)
        value, hint = node.value, 'write it in quotes, as in "1": ...'
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<":
            what = "merge keys (<<) are not part of YAML 1.2"
            hint = "use `extends`, or an alias for the whole value"
        elif isinstance(value, str):
            return value
        elif isinstance(value, (dict, list)):
            what, hint = f"a key must be a string, found {show(node.plain())}", "write a plain name"
        else:
            what = f"a key must be a string, found {show(value)}"
        self.faults.append(SpecError(f"bad YAML: {what}", place=self.place(event), hint=hint))
        return None
