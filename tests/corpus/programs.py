"""Random stateful modules with branches and loops, as files of Python that TorchScript can read.

A :class:`Program` is a tree of statements for ``forward`` of a module and of its submodule, which
is called at least twice.  :func:`source` gives the text of the module, :func:`build` writes and
imports it.  Each statement is a kind of store (``program_stores.py``) in a kind of block
(``BLOCKS``); :func:`executed` tells which pairs of them a run went through.

Every module gives the same outputs and buffers in eager mode and as TorchScript, bit for bit.

Loaded by path, as ``corpus_programs``, after ``corpus_program_stores``.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import corpus_program_stores as stores
import torch
from torch import nn

Pair = tuple[str, str]
"""A kind of store and a kind of block."""

STEPS = 5
DEPTH = 3
BLOCKS = (
    "top",
    "if",
    "else",
    "nested_if",
    "return",
    "loop_in_if",
    "for_size",
    "submodule",
    "for_const",
    "for_data",
    "while",
    "if_in_loop",
    "loop_in_loop",
    "break",
    "continue",
    "return_in_loop",
)
"""The block that holds a statement, by what is around it; each statement is in one kind."""

_EXITS = ("return", "break", "continue")

# {A} is a float buffer, {N} and {F} are 0-d buffers, self.t counts the calls: 1 at the first.
CLOCK_CONDITIONS = (
    "self.t % 2 == 0",
    "self.t % 2 == 1",
    "self.t % 3 != 0",
    "bool(self.t % 2 == 0) or int(self.t) == 3",
    "not bool(self.t % 3 == 0)",
)
"""Conditions that hold at some of the first five calls and not at others."""

INNER_CONDITIONS = ("self.t % 4 < 2", "int(self.t) in [1, 4]")
"""The same for those calls at which one of ``CLOCK_CONDITIONS`` holds."""

CONDITIONS = (
    *CLOCK_CONDITIONS,
    "{A}.sum() > 0.1234",
    "not bool({A}.max() > 0.7654)",
    "{A}[1, 1] < {F}",
    "{N} % 2 == 0",
    "int({N}) % 3 == 1",
    "{F} < 0.4321",
    "v.mean() > 0.0567",
    "x[0, 1] > 0.1234",
    "{A}.sum() > 0.1234 and {N} < 3",
    "{F} > 0.0321 or x.size(0) == 2",
)
LOOP_CONDITIONS = ("int({i}) == 1", "int({i}) % 2 == 1")

FIXED_HEADS = {
    "for_const": "for {c} in range(3):",
    "for_size": "for {c} in range(x.size(0)):",
    "for_data": "for {c} in range(int({N}) % 3 + 1):",
    "while": "{c} = 0\nwhile {c} < 2:\n    {c} += 1",
    "while_tensor": "{c} = torch.tensor(0)\nwhile {c} < 2:\n    {c} += 1",
}
"""Loops with at least one trip, by kind: the lines that begin them."""

HEADS = FIXED_HEADS | {
    "for_clock": "for {c} in range(int(self.t) % 3):",
    "while_value": "{c} = 0\n{e} = {V}.abs().sum()\nwhile {c} < 3 and {e} > 1.1234:\n"
    "    {c} += 1\n    {e} = 0.5 * {e}",
    "while_state": "{c} = 0\nwhile {c} < 2 and bool({A}.sum() < 2.4321):\n    {c} += 1",
}
_BLOCK_OF_HEAD = {
    "for_clock": "for_data",
    "while_tensor": "while",
    "while_value": "while",
    "while_state": "while",
}


@dataclass(frozen=True)
class Store:
    """One statement; numbers choose among what is there (a buffer, an operand, a view)."""

    kind: str
    target: int = 0
    operand: int = 0
    k: int = 0
    view: int = 0
    condition: str = CLOCK_CONDITIONS[0]


@dataclass(frozen=True)
class If:
    """A branch; ``exit`` is the last statement of its first block, or nothing."""

    condition: str
    then: Block
    other: Block = ()
    exit: str = ""


@dataclass(frozen=True)
class Loop:
    """A loop that begins with one of ``HEADS``."""

    head: str
    body: Block
    operand: int = 0


Block = tuple["Store | If | Loop", ...]
_PLAIN = Store("")


@dataclass(frozen=True)
class Program:
    """The statements of ``forward`` of a module and of its submodule."""

    main: Block
    sub: Block


@dataclass(frozen=True)
class Source:
    """The text of a program's module, and which lines of it are which pair."""

    text: str
    pairs: dict[int, Pair]


def block_kind(path: Sequence[str]) -> str:
    """Return the kind of block, one of ``BLOCKS``, under the statements ``path``."""
    scope, *around = path
    if not around:
        return {"main": "top", "sub": "submodule"}[scope]
    *outer, inner = around
    in_loop = any(kind in HEADS for kind in outer)
    in_if = any(kind not in HEADS for kind in outer)
    if inner in HEADS:
        nested = {in_loop: "loop_in_loop", in_if: "loop_in_if"}
        return nested.get(True) or _BLOCK_OF_HEAD.get(inner, inner)
    if inner in _EXITS:
        return "return_in_loop" if in_loop and inner == "return" else inner
    if in_loop:
        return "if_in_loop"
    return "nested_if" if in_if else inner


@dataclass
class _Writer:
    """Writes one ``forward``; ``names`` are those of the module's float buffers."""

    scope: str
    names: tuple[str, str]
    lines: list[str] = field(default_factory=list)
    pairs: dict[int, Pair] = field(default_factory=dict)
    fresh: int = 0

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def put(self, indent: int, text: str) -> None:
        self.lines += [f"{'    ' * indent}{line}" for line in text.splitlines()]

    def operand(self, number: int) -> str:
        every = ["x", "v", "w", *(f"self.{name}" for name in self.names)]
        if self.scope == "main":
            every.append("self.inner.c")
        return every[number % len(every)]

    def fill(self, template: str, store: Store, loop: str) -> str:
        first, second = (f"self.{name}" for name in self.names)
        target, other = (first, second) if store.target % 2 == 0 else (second, first)
        operand = self.operand(store.operand)
        words = {
            "T": target,
            "U": other,
            "A": target,
            "N": "self.n",
            "F": "self.f",
            "O": operand,
            "V": f"torch.tanh({operand})",
            "L": "vw"[store.target % 2],
            "P": stores.VIEWS[store.view % len(stores.VIEWS)],
            "Q": stores.VIEWS_OF_VIEWS[store.view % len(stores.VIEWS_OF_VIEWS)],
            "k": store.k,
            "i": loop or "self.t",
        }
        words["C"] = store.condition.format(**words)
        return template.format(
            h=self.name("h"), g=self.name("g"), c=self.name("i"), e=self.name("e"), **words
        )

    def block(self, block: Block, path: tuple[str, ...], indent: int, loop: str = "") -> None:
        for node in block:
            match node:
                case Store():
                    self.store(node, path, indent, loop)
                case If():
                    self.branch(node, path, indent, loop)
                case Loop():
                    self.loop(node, path, indent)

    def store(self, store: Store, path: tuple[str, ...], indent: int, loop: str) -> None:
        kind = store.kind
        if (kind, "submodule") in stores.INFEASIBLE and self.scope == "sub":
            kind = "reassign"
        if kind == "item_looped" and not loop:
            kind = "item"
        self.pairs[len(self.lines)] = (kind, block_kind(path))
        self.put(indent, self.fill(stores.STORES[kind], store, loop))

    def branch(self, node: If, path: tuple[str, ...], indent: int, loop: str) -> None:
        leave = node.exit if loop or node.exit == "return" else ""
        self.put(indent, f"if {self.fill(node.condition, _PLAIN, loop)}:")
        self.block(node.then, (*path, leave or "if"), indent + 1, loop)
        if leave == "return":
            self.leave(indent + 1, "0.5 * v - w")
        elif leave or not node.then:
            self.put(indent + 1, leave or "pass")
        if node.other:
            self.put(indent, "else:")
            self.block(node.other, (*path, "else"), indent + 1, loop)

    def loop(self, node: Loop, path: tuple[str, ...], indent: int) -> None:
        begin = self.fill(HEADS[node.head], replace(_PLAIN, operand=node.operand), "")
        self.put(indent, begin)
        variable = begin.removeprefix("for ").split()[0]
        self.block(node.body, (*path, node.head), indent + 1, variable)
        if not node.body:
            self.put(indent + 1, "pass")

    def leave(self, indent: int, value: str) -> None:
        """Return from ``forward``; LEAVE marks the place of what lasting names need first."""
        self.put(indent, f"LEAVE\nreturn {value}")


_HEADER = '''\
"""A random stateful module."""

import torch
from torch import Tensor, nn


def blend(t: Tensor, v: Tensor) -> None:
    t.mul_(0.5)
    t[0].add_(0.25 * v[0])


def row(t: Tensor, k: int) -> Tensor:
    return t[k]
'''

_CLASS = """

class {name}(nn.Module):
    def __init__(self) -> None:
        super().__init__()
{buffers}

    def held(self) -> Tensor:
        return self.{first}

    def bump(self, value: Tensor) -> Tensor:
        self.{first}.mul_(0.5)
        self.{first} = self.{first} + 0.25 * value
        return self.{first}

    def forward(self, x: Tensor) -> Tensor:
"""

_BUFFERS = {
    "t": "torch.tensor(0)",
    "n": "torch.tensor(1)",
    "f": "torch.tensor(0.375)",
    "a": "torch.linspace(-1, 1, 12).reshape(3, 4)",
    "b": "torch.full((3, 4), 0.5)",
    "c": "torch.linspace(0.5, -0.75, 12).reshape(3, 4)",
    "d": "torch.zeros(3, 4)",
}


def source(program: Program) -> Source:
    """Return the text of ``program``: the class ``Program`` and, for its submodule, ``Inner``."""
    text, pairs = _HEADER, {}
    for name, scope, names, block in (
        ("Inner", "sub", ("c", "d"), program.sub),
        ("Program", "main", ("a", "b"), program.main),
    ):
        writer = _forward(scope, names, block)
        body = "\n".join(writer.lines) + "\n"
        used = [n for n in ("t", "n", "f", *names) if f"self.{n}" in body or n == names[0]]
        made = [f'self.register_buffer("{n}", {_BUFFERS[n]})' for n in used]
        if scope == "main":
            made.append("self.inner = Inner()")
        head = _CLASS.format(
            name=name, first=names[0], buffers="\n".join(f"        {line}" for line in made)
        )
        start = (text + head).count("\n") + 1
        pairs |= {start + line: pair for line, pair in writer.pairs.items()}
        text += head + body
    return Source(text, pairs)


def _forward(scope: str, names: tuple[str, str], block: Block) -> _Writer:
    """Write the body of ``forward``: what every program has, around ``block``."""
    inside = _Writer(scope, names)
    inside.block(block, (scope,), 2)
    kinds = {kind for kind, _ in inside.pairs.values()}
    lists, lasting = any("rows" in line for line in inside.lines), "lasting_name" in kinds
    first, second = (f"self.{name}" for name in names)
    begin = ["self.t += 1", "v = x * 1.0", "w = torch.tanh(x)"]
    begin += ["rows = [x[0]]"] * lists + ["p = x * 0.5"] * lasting
    end = ["p.mul_(0.5)", "v = 0.5 * v + p"] * lasting
    end += [f"{first} = {first} * 1.0", f"{second} = {second} * 1.0"] * ("lasting_share" in kinds)
    result = ["v = 0.5 * v + torch.stack(rows).sum(0)"] * lists
    if scope == "main":
        begin.append("v = v + self.inner(w)")
        result.append("v = v - self.inner(torch.tanh(v))")
    writer = _Writer(scope, names, fresh=inside.fresh)
    writer.put(2, "\n".join(begin))
    _append(writer, inside, end)
    writer.put(2, "\n".join([*result, *end, f"return 0.5 * v + w + {first}"]))
    return writer


def _append(writer: _Writer, inside: _Writer, end: list[str]) -> None:
    """Append the lines of ``inside``, with ``end`` in front of each early return."""
    for number, line in enumerate(inside.lines):
        if number in inside.pairs:
            writer.pairs[len(writer.lines)] = inside.pairs[number]
        if line.strip() == "LEAVE":
            writer.put((len(line) - len(line.lstrip())) // 4, "\n".join(end))
        else:
            writer.lines.append(line)


def build(program: Program, folder: Path) -> Callable[[], nn.Module]:
    """Write ``program`` into ``folder`` and return its class, importable and in a file."""
    text = source(program).text
    name = f"program_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # inspect finds a class's file through its module
    spec.loader.exec_module(module)
    return module.Program


def inputs(steps: int = STEPS) -> list[torch.Tensor]:
    """Return the inputs of ``steps`` calls."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(stores.SHAPE, generator=generator) for _ in range(steps)]


def rollout(module: nn.Module, xs: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Call ``module`` on each of ``xs``; return the outputs and buffers after each call."""
    steps = []
    with torch.no_grad():
        for x in xs:
            output = module(x.clone())
            held = {
                name: value.clone() for name, value in module.named_buffers(remove_duplicate=False)
            }
            steps.append({"output": output.clone(), **held})
    return steps


def steady(module: nn.Module, xs: Sequence[torch.Tensor]) -> bool:
    """Return whether ``module`` does in float64 what it does in float32.

    Where rounding decides (a sum that a condition compares with a number lies next to it),
    a difference between two runtimes shows nothing.
    """
    wide = rollout(copy.deepcopy(module).double(), [x.double() for x in xs])
    return all(
        torch.allclose(step[name].double(), value.double(), atol=1e-6, rtol=1e-5)
        for step, same in zip(rollout(copy.deepcopy(module), xs), wide, strict=True)
        for name, value in same.items()
    )


def executed(module: nn.Module, program: Program, xs: Sequence[torch.Tensor]) -> set[Pair]:
    """Call eager ``module`` on each of ``xs``; return the pairs whose lines were executed."""
    pairs, path = source(program).pairs, inspect.getfile(type(module))
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        rollout(module, xs)
    finally:
        sys.settrace(before)
    return {pairs[line] for line in lines & pairs.keys()}
