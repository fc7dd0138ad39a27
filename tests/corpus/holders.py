"""Generates modules that hold state in every way, change it in every way, in every block.

A module has one to four states.  Each is drawn as a holder (where the state lives), a way of
changing it, and a block around the change; :func:`source` writes the module as a user would.  Every
module is deterministic, and its output depends on each of its states.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

SHAPE = (3, 4)

# How each holder is made in the constructor, and the expression under which forward finds it.
TENSORS = {
    "buffer": ('self.register_buffer("{n}", {v})', "self.{n}"),
    "transient buffer": ('self.register_buffer("{n}", {v}, persistent=False)', "self.{n}"),
    "parameter": ("self.{n} = nn.Parameter({v}, requires_grad=False)", "self.{n}"),
    "attribute": ("self.{n} = {v}", "self.{n}"),
    "submodule": ("self.{n} = Leaf({v})", "self.{n}.h"),
    "list": ("self.{n} = [{v}, torch.ones(2)]", "self.{n}[0]"),
    "tuple": ("self.{n} = (torch.ones(2), {v})", "self.{n}[1]"),
    "named tuple": ("self.{n} = Pair({v}, torch.ones(2))", "self.{n}.first"),
    "dict": ('self.{n} = {{"a": {v}}}', 'self.{n}["a"]'),
    "nested": ('self.{n} = {{"a": [{v}]}}', 'self.{n}["a"][0]'),
    "dataclass": ("self.{n} = Record({v})", "self.{n}.value"),
    "object": ("self.{n} = Helper({v})", "self.{n}.value"),
    "helper of a buffer": (
        'self.register_buffer("{n}", {v}); self.{n}_helper = Helper(self.{n})',
        "self.{n}_helper.value",
    ),
    "view of a flat buffer": (
        'self.register_buffer("{n}_flat", torch.cat([({v}).reshape(-1), ({v})[0]])); '
        "self.{n} = self.{n}_flat[:12].view(3, 4)",
        "self.{n}",
    ),
    "created": ("self.{n} = None", "self.{n}"),
    "begun by an input": ("self.{n} = None", "self.{n}"),
    "list that fills up": ("self.{n} = []", "self.{n}[0]"),
}
"""Holders of a tensor of ``SHAPE``."""
CREATED = {
    "created": ["if self.{n} is None:", "    self.{n} = torch.zeros(3, 4)"],
    "begun by an input": ["if self.{n} is None:", "    self.{n} = {new}"],
    "list that fills up": [
        "self.{n}.append({new})",
        "if len(self.{n}) > 2:",
        "    self.{n}.pop(0)",
    ],
}
"""What the first calls do to holders that have no tensor before them."""
NUMBERS = {
    "int": ("self.{n} = {v}", "self.{n}"),
    "float": ("self.{n} = {v}", "self.{n}"),
    "bool": ("self.{n} = {v}", "self.{n}"),
    "int in a list": ("self.{n} = [{v}, 5]", "self.{n}[0]"),
    "float in a dict": ('self.{n} = {{"a": {v}}}', 'self.{n}["a"]'),
    "int in an object": ("self.{n} = Helper({v})", "self.{n}.value"),
}
"""Holders of a Python number."""
DTYPES = ("float32", "float64", "int64", "int32", "bool")
ANY = {
    "reassign": ["{h} = torch.where(x > 0.5, {h}, {new})"],
    "copy_": ["{h}.copy_({new})"],
    "slice": ["{h}[1:] = {new}[:2]"],
    "index": ["{h}[1] = {new}[0]"],
    "mask": ["{h}[x > 0.3] = {new}[x > 0.3]"],
    "index_copy_": ["{h}.index_copy_(0, torch.tensor([2, 0]), {new}[:2])"],
    "shift": ["{h} = torch.cat([{h}[1:], {new}[:1]])"],
    "view": ["row_{n} = {h}[0]", "row_{n}.copy_({new}[1])"],
    "setattr": ["{set}"],
}
"""Ways of changing a tensor of any dtype; ``{new}`` is one of that dtype that depends on ``x``."""
ARITHMETIC = {
    "in place": ["{h}.mul_(2).add_({new})", "{h}.clamp_(-9, 9)"],
    "augmented": ["{h} += {new}", "{h}.clamp_(-9, 9)"],
    "reassigned sum": ["{h} = ({h} + {new}).clamp(-9, 9)"],
}
"""Ways of changing numbers in a tensor."""
COUNTS = {
    "int": {
        "count": ["{h} += 1"],
        "wrap": ["{h} = ({h} + 3) % 7"],
        "divide": ["{h} = 11 - {h} // 2"],
    },
    "float": {
        "decay": ["{h} = {h} * 0.9 + 0.1"],
        "divide": ["{h} = 1.0 / (1.0 + {h})"],
        "measure": ["{h} = 0.5 * {h} + float(x.mean())"],
    },
    "bool": {"toggle": ["{h} = not {h}"]},
}
"""Ways of changing a Python number, by its kind."""
REPLACED = {"tuple", "named tuple"}
"""Holders whose place cannot be assigned: the container is made anew."""
IN_PLACE_ONLY = {"helper of a buffer", "view of a flat buffer"}
"""Holders that are one tensor with another place: it is only written to in place."""
BLOCKS = ("straight", "if on a value", "for", "method", "if in for", "twice", "else", "nested if")


@dataclass(frozen=True)
class State:
    """One state: its holder, dtype or kind of number, the way it changes, and the block."""

    holder: str
    dtype: str
    way: str
    block: str


def ways_of(holder: str, dtype: str) -> list[str]:
    """Return the ways in which such a state can change."""
    if holder in NUMBERS:
        return list(COUNTS[dtype])
    ways = dict.fromkeys(ANY) | (dict.fromkeys(ARITHMETIC) if dtype != "bool" else {})
    if holder in IN_PLACE_ONLY | REPLACED | {"parameter"}:
        for way in ("reassign", "shift", "reassigned sum", "setattr"):
            ways.pop(way, None)
    if holder not in ("buffer", "attribute", "transient buffer"):
        ways.pop("setattr", None)
    if holder in REPLACED:
        ways.pop("augmented", None)
        ways |= {"made anew": None}
    return list(ways)


DECIDED = frozenset({"if on a value", "if in for", "else", "nested if"})
"""Blocks that depend on values, which torch.export refuses."""
LOOPS = frozenset({"for", "if in for"})


def is_scriptable(state: State) -> bool:
    """Whether TorchScript compiles such a change to what Python does."""
    if state.way == "setattr":
        return False
    if state.way == "made anew":
        return state.block not in LOOPS  # no tuple goes through a loop
    if state.holder in ("dict", "float in a dict") and state.way == "augmented":
        return False  # it makes a new tensor
    # It drops the assignment of an item of a list that is in a dict.
    return state.holder != "nested" or state.way not in ("reassign", "shift", "reassigned sum")


def is_refused(states: Sequence[State]) -> bool:
    """Whether no front end takes a module with these states."""
    decided = any(state.block in DECIDED or state.way == "measure" for state in states)
    return decided and not all(map(is_scriptable, states))


def every_state() -> list[State]:
    """Return each holder with each way in each block; dtypes take turns."""
    found = []
    for holder in (*TENSORS, *NUMBERS):
        dtypes = dtypes_of(holder)
        ways = dict.fromkeys(way for dtype in dtypes for way in ways_of(holder, dtype))
        for way, block in itertools.product(ways, BLOCKS):
            own = [dtype for dtype in dtypes if way in ways_of(holder, dtype)]
            found.append(State(holder, own[len(found) % len(own)], way, block))
    return found


def modules(each: int) -> list[tuple[State, ...]]:
    """Return modules of ``each`` states that together have every state that is not refused."""
    taken = [state for state in every_state() if not is_refused([state])]
    apart = [[s for s in taken if is_scriptable(s)], [s for s in taken if not is_scriptable(s)]]
    found: list[tuple[State, ...]] = []
    for states in apart:
        random.Random(0).shuffle(states)
        found += [tuple(states[i : i + each]) for i in range(0, len(states), each)]
    return found


def dtypes_of(holder: str) -> tuple[str, ...]:
    """Return the dtypes that such a state may have."""
    if holder in NUMBERS:
        return (holder.split()[0],)
    if holder == "created":
        return ("float32",)
    return ("float32", "float64") if holder == "parameter" else DTYPES


_START = {"int": ("2", "0"), "float": ("0.25", "1.0"), "bool": ("False", "True")}
_LINES = {
    "tuple": "{base} = ({base}[0], {value})",
    "named tuple": "{base} = Pair({value}, {base}.second)",
}


def _initial(state: State, index: int) -> str:
    if state.holder in NUMBERS:
        return _START[state.dtype][index % 2]
    values = f"torch.arange(12).reshape(3, 4) - {index + 3}"
    if state.dtype == "bool":
        return f"({values}) % 3 == 0"
    return f"({values}).to(torch.{state.dtype})"


def _new(state: State) -> str:
    if state.dtype == "bool":
        return "(x > 0)"
    return f"(x * 4).to(torch.{state.dtype})"


def _change(state: State, name: str) -> list[str]:
    make, where = (TENSORS | NUMBERS)[state.holder]
    del make
    held = where.format(n=name)
    if state.holder in NUMBERS:
        lines = COUNTS[state.dtype][state.way]
    elif state.way == "made anew":
        lines = [_LINES[state.holder].format(base=f"self.{name}", value="{new}")]
    else:
        lines = (ANY | ARITHMETIC)[state.way]
    setting = f'setattr(self, "{name}", {_new(state)})'
    return [line.format(h=held, new=_new(state), set=setting, n=name) for line in lines]


def _wrapped(state: State, change: list[str], name: str) -> list[str]:
    inner = [f"    {line}" for line in change]
    if state.block == "if on a value":
        return ["if x.sum() > 0:", *inner]
    if state.block == "else":
        return ["if x[0, 0] > 0.4:", "    y = y * 0.5", "else:", *inner]
    if state.block == "nested if":
        return [
            "if x.sum() > -1:",
            "    if x[0, 1] > 0:",
            *(f"    {line}" for line in inner),
            "    y = y + 1",
        ]
    if state.block == "for":
        return ["for _ in range(2):", *inner]
    if state.block == "if in for":
        return [
            "for k in range(3):",
            "    if x[k, 0] > 0:",
            *(f"    {line}" for line in inner),
        ]
    if state.block == "method":
        return [f"self.change_{name}(x)"]
    if state.block == "twice":
        return [f"self.change_{name}(x)", f"self.change_{name}(-x)"]
    return change


HEAD = '''"""A module with state in several places."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Record:
    value: torch.Tensor


class Helper:
    def __init__(self, value: Any):
        self.value = value


class Leaf(nn.Module):
    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.register_buffer("h", value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.h + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
'''


def source(states: tuple[State, ...]) -> str:
    """Return the code of a module ``Model`` with these states."""
    init: list[str] = []
    forward: list[str] = ["y = x * 1.0"]
    methods: list[str] = []
    for index, state in enumerate(states):
        name = f"s{index}"
        make, where = (TENSORS | NUMBERS)[state.holder]
        init += make.format(n=name, v=_initial(state, index)).split("; ")
        change = _change(state, name)
        forward += [line.format(n=name, new=_new(state)) for line in CREATED.get(state.holder, ())]
        forward += _wrapped(state, change, name)
        if state.block in ("method", "twice"):
            methods += ["", f"    def change_{name}(self, x: torch.Tensor) -> None:"]
            methods += [f"        {line}" for line in change]
        held = where.format(n=name)
        weight = f"{index + 1}.5"
        if state.holder in NUMBERS and state.dtype == "bool":
            forward += [f"y = y + torch.where(torch.tensor({held}), x, -x)"]
        elif state.holder in NUMBERS:
            forward += [f"y = y + {weight} * {held}"]
        else:
            forward += [f"y = y + {weight} * {held}.to(torch.float32)"]
    body = [f"        {line}" for line in init]
    run = [f"        {line}" for line in forward]
    return (
        HEAD
        + "\n".join(body)
        + "\n"
        + "\n".join(methods)
        + "\n\n    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
        + "\n".join(run)
        + "\n        return y\n"
    )
