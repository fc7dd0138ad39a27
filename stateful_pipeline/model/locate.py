"""Says which line of the user's code did something: changed a state, or raised.

:func:`change_places` runs a call under ``sys.settrace`` and looks, after every line of the user's
code, whether a watched value is another object, has another version counter, or another value.
That finds the line for any style of change: assignment, in-place operator, helper object or hook.
Inside of a ScriptModule no line can be traced; there its graphs are read instead.
"""

from __future__ import annotations

import re
import sys
import traceback
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import Place
from stateful_pipeline.model.entries import PLAIN, entries
from stateful_pipeline.model.fingerprints import Same, fingerprint
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.scripted import is_scripted
from stateful_pipeline.model.scripted_places import place_of_store
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import reader
from stateful_pipeline.model.user_code import is_user_file

__all__ = ["change_places", "is_user_file", "node_place", "user_place"]


def user_place(error: BaseException) -> Place | None:
    """Return the innermost line of the user's code in the traceback of ``error``.

    What TorchScript raises has a traceback of its own in its message.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    found: Place | None = None
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found = _scripted_place(current)
        if found is not None:
            return found
        for frame in traceback.extract_tb(current.__traceback__):
            if is_user_file(frame.filename):
                found = Place(frame.filename, frame.lineno)
        if found is not None:
            return found
        current = current.__cause__ or current.__context__
    return found


def _scripted_place(error: BaseException) -> Place | None:
    _, mark, text = str(error).partition("Traceback of TorchScript")
    if not mark:
        return None
    text = text.rpartition("original code (most recent call last)")[2]
    files = re.findall(r'File "([^"]+)", line (\d+)', text)
    found = [Place(file, int(line)) for file, line in files if is_user_file(file)]
    return found[-1] if found else None


def node_place(node: torch.fx.Node) -> Place | None:
    """Return the user's line that made a graph node, from its recorded stack trace."""
    found = None
    for line in (node.meta.get("stack_trace") or "").splitlines():
        text = line.strip()
        if not text.startswith('File "'):
            continue
        filename, _, rest = text[6:].partition('", line ')
        number = rest.split(",")[0]
        if is_user_file(filename) and number.isdigit():
            found = Place(filename, int(number))
    return found


def change_places(
    module: nn.Module, call: Callable[[], Any], paths: Sequence[str]
) -> dict[str, Place]:
    """Call ``call`` and return, for each path, the first line after which its value differed.

    The module is left as it was.  A path whose change no line of code accounts for is left out.
    """
    inside = {path: part for path in paths if (part := scripted_part(module, path)) is not None}
    watch = _Watch(module, paths, inside)
    before = sys.gettrace()
    with Snapshot(module), torch.no_grad():
        sys.settrace(watch.enter)
        try:
            call()
        finally:
            sys.settrace(before)
    stored = {path: place_of_store(part, rest) for path, (part, rest) in inside.items()}
    return watch.found | {path: place for path, place in stored.items() if place is not None}


def scripted_part(module: nn.Module, path: str) -> tuple[nn.Module, str] | None:
    """Return the outermost ScriptModule on the way to ``path``, and the rest of the path."""
    names = path.split(".")
    for count in range(len(names)):
        try:
            part = read(module, ".".join(names[:count]))
        except KeyError:
            continue  # a name that itself holds dots
        if is_scripted(part):
            return part, ".".join(names[count:])
    return None


class _Watch:
    def __init__(self, module: nn.Module, paths: Sequence[str], inside: Collection[str]) -> None:
        self._inside = frozenset(inside)
        self._readers = {path: reader(module, path) for path in paths}
        self._marks = {path: self._mark(path) for path in paths}
        self.found: dict[str, Place] = {}
        self._lines: dict[int, int] = {}

    def _mark(self, path: str) -> object:
        try:
            value = self._readers[path]()
        except KeyError:
            return "absent"
        if isinstance(value, torch.Tensor):
            return (Same(value), 0 if value.is_inference() else value._version)
        # Containers inside of a ScriptModule are copies, other ones each time.
        fleeting = path in self._inside or isinstance(value, PLAIN) or entries(value) is None
        return (None if fleeting else Same(value), fingerprint(value))

    def enter(self, frame: types.FrameType, event: str, arg: object) -> Any:
        if not is_user_file(frame.f_code.co_filename):
            return None
        self._lines[id(frame)] = frame.f_lineno
        return self._line

    def _line(self, frame: types.FrameType, event: str, arg: object) -> Any:
        previous = self._lines.get(id(frame), frame.f_lineno)
        for path, mark in list(self._marks.items()):
            if path in self.found:
                continue
            if self._mark(path) != mark:
                self.found[path] = Place(frame.f_code.co_filename, previous)
        self._lines[id(frame)] = frame.f_lineno
        if event == "return":
            self._lines.pop(id(frame), None)
        return self._line
