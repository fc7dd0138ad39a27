"""Says which line of the user's code did something: changed a state, or raised.

:func:`change_places` runs a call under ``sys.settrace`` and looks, after every line of the user's
code, whether a watched value is another object, has another version counter, or another value.
That finds the line for any style of change: assignment, in-place operator, helper object or hook.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import Place
from stateful_pipeline.model.entries import PLAIN, entries
from stateful_pipeline.model.fingerprints import Same, fingerprint
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import reader
from stateful_pipeline.model.user_code import is_user_file

__all__ = ["change_places", "is_user_file", "node_place", "user_place"]


def user_place(error: BaseException) -> Place | None:
    """Return the innermost line of the user's code in the traceback of ``error``."""
    seen: set[int] = set()
    current: BaseException | None = error
    found: Place | None = None
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        for frame in traceback.extract_tb(current.__traceback__):
            if is_user_file(frame.filename):
                found = Place(frame.filename, frame.lineno)
        if found is not None:
            return found
        current = current.__cause__ or current.__context__
    return found


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

    The module is left as it was.  A path whose change no line of Python accounts for is left out.
    """
    watch = _Watch(module, paths)
    before = sys.gettrace()
    with Snapshot(module), torch.no_grad():
        sys.settrace(watch.enter)
        try:
            call()
        finally:
            sys.settrace(before)
    return watch.found


class _Watch:
    def __init__(self, module: nn.Module, paths: Sequence[str]) -> None:
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
        holder = None if isinstance(value, PLAIN) or entries(value) is None else Same(value)
        return (holder, fingerprint(value))

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
