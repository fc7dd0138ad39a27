"""Small stateful modules, one per way that state hides in PyTorch code.

Each case is a plain ``nn.Module`` with no knowledge of this project.  Eager PyTorch is the
oracle: build the module, call it step after step on ``inputs(step)``, and every exported form
must give the same outputs when it carries its own state from its own previous step.

    for case in CASES:
        module = case.build()             # seeded, in eval mode
        for step in range(case.steps):
            expected = module(*case.inputs(step))

``states`` names what changes between calls (as a reader of the class would name it).
``kind`` is the way in which the state is held or changed.
``refuse`` marks the few modules for which a clear refusal is a right answer too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    module: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    states: tuple[str, ...]
    steps: int = 8
    dtype: torch.dtype = torch.float32
    refuse: bool = False

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.module().eval()

    def inputs(self, step: int) -> tuple[Tensor, ...]:
        gen = torch.Generator().manual_seed(1000 + step)
        return tuple(
            torch.randn(s, generator=gen, dtype=torch.float32).to(self.dtype) for s in self.shapes
        )


CASES: list[Case] = []


def case(kind: str, *shapes: tuple[int, ...], states: str, **more):
    def register(cls):
        CASES.append(Case(cls.__name__, kind, cls, shapes, tuple(states.split()), **more))
        return cls

    return register


@case("buffers reassigned; a 0-d float and a 0-d int64", (1, 3), states="h counter")
class Counter(nn.Module):
    def __init__(self, init_h: float = 3.0):
        super().__init__()
        self.register_buffer("h", torch.tensor(init_h))
        self.register_buffer("counter", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.h
        self.h = self.h + 1.0
        self.counter = self.counter + 1
        return out


@case("0-d int64 buffer changed by +=", (2, 3), states="n")
class AugmentedAssign(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.n


@case("first-in first-out window by cat", (1, 2), states="fifo")
class FifoByCat(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("fifo", torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.fifo = torch.cat([self.fifo[:, 2:], x], dim=1)
        return self.fifo.sum(dim=1)


@case("window shifted in place through slices", (1, 1, 3), states="window")
class SliceAssign(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(1, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.window[:, :-1] = self.window[:, 1:].clone()
        self.window[:, -1:] = x
        return self.window.mean(dim=1)


@case("key-value cache written at a position", (1, 4, 1, 8), states="k v pos", steps=12)
class KeyValueCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 4, 16, 8))
        self.register_buffer("v", torch.zeros(1, 4, 16, 8))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.k.index_copy_(2, self.pos, x)
        self.v.index_copy_(2, self.pos, x * 0.5)
        mask = torch.where(torch.arange(16) <= self.pos, 0.0, -1e9)
        weights = torch.softmax(x @ self.k.transpose(-1, -2) + mask, dim=-1)
        self.pos.add_(1)
        return weights @ self.v


@case("LSTM hidden and cell state", (1, 5, 4), states="h c")
class StreamingLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.register_buffer("h", torch.zeros(2, 1, 6))
        self.register_buffer("c", torch.zeros(2, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(x, (self.h, self.c))
        self.h = h
        self.c = c
        return y


class _Accumulate(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h * 0.5 + x
        return self.h


class _AccumulateInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.h.mul_(0.5).add_(x)
        return self.h * 1.0


@case("reassigned in submodules", (3,), states="a.h b.h")
class NestedReassign(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = _Accumulate()
        self.b = _Accumulate()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * 2.0 + self.b(torch.tanh(x))


@case("changed in place in a ModuleList", (3,), states="cells.0.h cells.1.h")
class NestedInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([_AccumulateInPlace(), _AccumulateInPlace()])

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x)
        return x


@case("one stateful submodule called twice a step", (3,), states="cell.h")
class SharedSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = _Accumulate()

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x) + self.cell(-0.3 * x)


@case("parent reads a child's state after calling it", (3,), states="cell.h")
class ParentReadsChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = _Accumulate()

    def forward(self, x: Tensor) -> Tensor:
        before = self.cell.h
        self.cell(x)
        return self.cell.h - before


@case("state changed in one branch of a data-dependent if", (3,), states="n h")
class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if bool(self.n > 2):
            self.h = self.h + x
        else:
            self.h = x * 2.0
        self.n = self.n + 1
        return self.h


@case("state carried through a loop over time", (4, 3), states="h")
class LoopOverTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for t in range(x.size(0)):
            self.h = torch.tanh(self.h + x[t])
            out[t] = self.h
        return out


@case("the changed buffer itself is returned", (3,), states="total")
class ReturnsState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.total.add_(x)


@case("the last statement is copy_", (3,), states="previous")
class TrailingCopy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("previous", torch.full((3,), 7.0))

    def forward(self, x: Tensor) -> Tensor:
        out = x - self.previous
        self.previous.copy_(x)
        return out


@case("an initial value that is not zero", (4,), states="table")
class NonZeroInit(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        self.table = self.table.roll(1, 0) + x
        return self.table


@case("an nn.Parameter used as state", (3,), states="h")
class ParameterState(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.h.copy_(torch.tanh(self.linear(x) + self.h))
        return self.h * 1.0


@case("a plain tensor attribute, never registered", (3,), states="h")
class PlainAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h * 0.9 + x
        return self.h


@case("a Python int that counts calls", (3,), states="step")
class PythonInt(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * self.step


@case("a two-slot delay line in a Python list", (3,), states="delay")
class ListState(nn.Module):
    def __init__(self):
        super().__init__()
        self.delay = [torch.zeros(3), torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.delay[0]
        self.delay = [self.delay[1], x]
        return out


@case("an Optional tensor, None before the first call", (2, 3), states="h")
class OptionalState(nn.Module):
    h: Tensor | None

    def __init__(self):
        super().__init__()
        self.h = None
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.h
        if h is None:
            h = torch.zeros_like(x)
        h = torch.tanh(self.linear(x) + h)
        self.h = h
        return h


@case("a ring buffer indexed modulo its length", (3,), states="ring head", steps=12)
class RingBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(5, 3))
        self.register_buffer("head", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.ring[self.head % 5] = x
        self.head = self.head + 1
        return self.ring.mean(dim=0)


@case("a cache that grows by cat from length zero", (1, 2, 1, 4), states="k")
class GrowingCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 0, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.k = torch.cat([self.k, x], dim=2)
        return torch.softmax(x @ self.k.transpose(-1, -2), dim=-1) @ self.k


@case("a boolean mask", (4,), states="seen")
class BoolState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen | (x > 0.5)
        return torch.where(self.seen, x, torch.zeros_like(x))


@case("running mean and variance", (6, 3), states="count mean m2")
class RunningNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("m2", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        n = float(x.shape[0])
        delta = x.mean(dim=0) - self.mean
        total = self.count + n
        self.m2 += x.var(dim=0, unbiased=False) * n + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count.copy_(total)
        return (x - self.mean) / torch.sqrt(self.m2 / self.count + 1e-5)


@case("GRU cells in a ModuleList", (2, 3), states="cells.0.h cells.1.h")
class StackedGRUCells(nn.Module):
    class Cell(nn.Module):
        def __init__(self, size_in: int, size: int):
            super().__init__()
            self.gru = nn.GRUCell(size_in, size)
            self.register_buffer("h", torch.zeros(2, size))

        def forward(self, x: Tensor) -> Tensor:
            self.h = self.gru(x, self.h)
            return self.h

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([self.Cell(3, 5), self.Cell(5, 5)])

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x)
        return x


@case("a Python dict of tensors", (3,), states="memory")
class DictState(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = {"fast": torch.zeros(3), "slow": torch.ones(3)}

    def forward(self, x: Tensor) -> Tensor:
        self.memory["fast"] = self.memory["fast"] * 0.5 + x
        self.memory["slow"] = self.memory["slow"] * 0.99 + x
        return self.memory["fast"] - self.memory["slow"]


@case("a helper object holds the very tensor that is a buffer", (1, 3), states="cache count")
class AliasedCache(nn.Module):
    class Cache:
        def __init__(self, keys: Tensor, count: Tensor):
            self.keys = keys
            self.count = count

        def update(self, x: Tensor) -> Tensor:
            self.keys.index_copy_(0, self.count, x)
            self.count.add_(1)
            return self.keys

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(16, 3))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        self.helper = self.Cache(self.cache, self.count)

    def forward(self, x: Tensor) -> Tensor:
        return self.helper.update(x).cumsum(dim=0)[-1]


@case("two states that trade places", (3,), states="a b")
class Swap(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.a, self.b = self.b, self.a + x
        return self.a


@case("buffers that never change must not become states", (2, 3, 8), states="n")
class ConstantBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.full((1, 3, 1), 2.0))
        self.register_buffer("n", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1.0
        return self.norm(x) * self.scale + self.n


@case("half-precision state beside float32 weights", (3,), states="h")
class HalfState(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("h", torch.zeros(3, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x) + self.h.float())
        self.h = y.half()
        return y


@case("randomness inside forward", (3,), states="h", refuse=True)
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h + torch.randn_like(x)
        return x + self.h


@case("streaming causal convolution with a left context", (1, 2, 4), states="context")
class CausalConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, kernel_size=5)
        self.register_buffer("context", torch.zeros(1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.cat([self.context, x], dim=2)
        self.context = padded[:, :, -4:]
        return self.conv(padded)


@case("overlap-add tail", (1, 4), states="tail")
class OverlapAdd(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("tail", torch.zeros(1, 4))
        self.synthesis = nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        frame = self.synthesis(x)
        out = frame[:, :4] + self.tail
        self.tail.copy_(frame[:, 4:])
        return out


@case("cache rows reordered by an index, as beam search does", (3, 2), states="cache")
class BeamReorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.arange(6, dtype=torch.float32).reshape(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        order = torch.argsort(x.sum(dim=1))
        self.cache = self.cache.index_select(0, order) + x
        return self.cache


if __name__ == "__main__":
    for c in CASES:
        module = c.build()
        with torch.no_grad():
            outs = [module(*c.inputs(s)) for s in range(c.steps)]
        print(f"{c.name:18s} {c.kind:58s} last |y| {outs[-1].float().abs().max():.4f}")
