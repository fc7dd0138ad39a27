"""Sees which types the user's Python has while a module runs, for a compiler that needs to be told.

Three things have no type in Python's source that ``torch.jit.script`` could read: what
``tensor.item()`` and ``tensor.tolist()`` give, which the tensor's dtype and rank say; what a
parameter without an annotation is, which TorchScript takes for a tensor; and what will be in a list
that is empty at first, or in the place of None.  While :func:`watching` is active, calls of the
user's code show them.
"""

from __future__ import annotations

import collections
import inspect
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stateful_pipeline.model.user_code import is_user_file

Spot = tuple[str, int, int]
"""The end of a call in a file: the file, the line, the column in bytes."""

EMPTY = "empty"
"""What is seen of a list or a dict with nothing in it: not the type of its items."""
_CALLED_WITH = re.compile(
    r"([\w.]+)\(.*\) -> .*:\s+Expected a value of type 'Tensor \(inferred\)' for argument "
    r"'(\w+)' but instead found type '([A-Za-z][\w\[\], ]*)'"
)
_NUMBERS = (bool, int, float)
_READS = {torch.Tensor.item: "item", torch.Tensor.tolist: "tolist"}


@dataclass
class SeenTypes:
    """The types that were seen, as TorchScript writes them (``List[float]``).

    Attributes:
        results: What each call of ``item`` and ``tolist`` gave, by its end in the source.
        arguments: What each parameter of a function was, by its code and name.
        variables: What each variable of a function was when it returned, by its code and name.
        attributes: What attributes are that were None or empty before the call, by path.
        is_needed: Whether the source as it is would mean something else than in Python.
        created: What attributes are that were not there before the call, by path.
        told: What a compiler has found a parameter to be called with, by the function's name.
    """

    results: dict[Spot, set[str | None]] = field(default_factory=lambda: defaultdict(set))
    arguments: dict[tuple[types.CodeType, str], set[str | None]] = field(
        default_factory=lambda: defaultdict(set)
    )
    variables: dict[tuple[types.CodeType, str], set[str | None]] = field(
        default_factory=lambda: defaultdict(set)
    )
    attributes: dict[str, str] = field(default_factory=dict)
    is_needed: bool = False
    created: dict[str, str] = field(default_factory=dict)
    told: dict[tuple[str, str], str] = field(default_factory=dict)

    def result(self, spot: Spot) -> str | None:
        """Return the one type that the call that ends at ``spot`` was seen to give, or None."""
        return _one(self.results.get(spot, set()))

    def argument(self, function: types.FunctionType, name: str) -> str | None:
        """Return the one type that a parameter has; may be an ``Optional``."""
        seen = set(self.arguments.get((function.__code__, name), set()))
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None and (parameter.default is None or not seen):
            seen |= set() if parameter.default is parameter.empty else {type_of(parameter.default)}
        return _one(seen) if seen else self.told.get((function.__name__, name))

    def variable(self, function: types.FunctionType, name: str, *, none: bool) -> str | None:
        """Return the type of a variable that is empty at first, or None.

        Args:
            function: Its function.
            name: Its name.
            none: Whether it is None at first.
        """
        seen = self.variables.get((function.__code__, name), set()) - {"None"}
        return _one({*seen, "None"} if none else seen)

    def learn(self, message: str) -> bool:
        """Note what a compiler says of a parameter; return whether it says anything new.

        Args:
            message: Why it refused a call of a function of which no call was seen.
        """
        found = _CALLED_WITH.search(message)
        if found is None:
            return False
        key = found[1].rpartition(".")[2], found[2]
        new = key not in self.told
        self.told.setdefault(key, found[3])
        return new


def _one(seen: set[str | None]) -> str | None:
    """Return the type that covers what was seen, or None if TorchScript has none."""
    if None in seen:
        return None
    each = seen - {"None", EMPTY}
    if len(each) != 1:
        return None
    [kind] = each
    return f"Optional[{kind}]" if "None" in seen else kind


def type_of(value: Any) -> str | None:
    """Return the type of a value as TorchScript writes it, or None if it has none."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "Tensor"
    if type(value) in (*_NUMBERS, str):
        return type(value).__name__
    if type(value) in (list, dict) and not value:
        return EMPTY
    if type(value) is tuple and value:
        items = list(map(type_of, value))
        return None if {None, EMPTY} & set(items) else f"Tuple[{', '.join(map(str, items))}]"
    if type(value) is list:
        return _of_items("List[{}]", value)
    if type(value) is dict and set(map(type, value)) == {str}:
        return _of_items("Dict[str, {}]", list(value.values()))
    return None


def _of_items(form: str, values: list[Any]) -> str | None:
    kind = _one(set(map(type_of, values)))
    return None if kind is None else form.format(kind)


def type_of_both(before: Any, after: Any) -> str | None:
    """Return the type of an attribute that is ``before`` at first and ``after`` later.

    A list that is empty at first has the type of its later items.
    """
    lists = (list, collections.deque)
    if isinstance(before, lists) and isinstance(after, lists):
        return type_of([*before, *after])
    if isinstance(before, dict) and isinstance(after, dict):
        both = list(before.values()) + list(after.values())
        return (
            None if set(map(type, (*before, *after))) != {str} else _of_items("Dict[str, {}]", both)
        )
    return _one({type_of(before), type_of(after)})


@contextmanager
def watching() -> Iterator[SeenTypes]:
    """Note the types that the user's code shows."""
    seen = SeenTypes()
    before = sys.getprofile()
    sys.setprofile(_notes_variables(seen))
    try:
        with _Reads(seen):
            yield seen
    finally:
        _profile_again(before)


def _profile_again(before: Any) -> None:
    """Let what profiled before go on; Python's own profiler is an object that is enabled."""
    if before is None or callable(before):
        sys.setprofile(before)
    else:
        sys.setprofile(None)
        before.enable()


def _notes_variables(seen: SeenTypes) -> Callable[[types.FrameType, str, Any], None]:
    def note(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not is_user_file(code.co_filename):
            return
        count = code.co_argcount + code.co_kwonlyargcount
        called = event == "call"
        where = seen.arguments if called else seen.variables
        for name in code.co_varnames[:count] if called else code.co_varnames[count:]:
            if name in frame.f_locals:
                where[code, name].add(type_of(frame.f_locals[name]))

    return note


class _Reads(TorchFunctionMode):
    """Notes what the calls give that make Python numbers of tensors."""

    def __init__(self, seen: SeenTypes) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, and note what it gave if it is one of these calls."""
        result = func(*args, **(kwargs or {}))
        if func in _READS:
            spot = _caller(sys._getframe(1))
            if spot is not None:
                self._seen.results[spot].add(type_of(result))
        return result


def _caller(frame: types.FrameType) -> Spot | None:
    """Return where the call ends that ``frame`` is making, or None if the user did not write it."""
    code = frame.f_code
    if not is_user_file(code.co_filename):
        return None
    _, line, _, column = list(code.co_positions())[frame.f_lasti // 2]
    return None if line is None or column is None else (code.co_filename, line, column)
