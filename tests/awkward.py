"""Modules that hold state in every kind of place and change it in ways that are hard to undo."""

from __future__ import annotations

import array
import collections
import functools
import io
import itertools
import random
import types
import weakref
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn


class Awkward(nn.Module):
    """Changes some states, calls a submodule in which tests may raise, and changes the rest."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        self.middle = nn.Identity()

    def forward(self, x):
        self.change(x)
        self.h = self.middle(self.h * 0.5 + x)
        self.change(x)
        return self.h + self.more(x)

    def change(self, x):
        pass

    def more(self, x):
        return 0


class Buffers(Awkward):
    def __init__(self):
        super().__init__()
        self.register_buffer("passing", torch.zeros(1, 3), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("strided", torch.arange(12.0).reshape(3, 4).t()[1:, ::2])
        self.register_buffer("short", torch.ones(2, dtype=torch.float16))
        self.register_buffer("flags", torch.tensor([True, False]))

    def change(self, x):
        self.passing.add_(1)
        self.strided.mul_(0.5)
        self.short = self.short + 1
        self.flags.logical_not_()

    def more(self, x):
        return self.passing + self.strided.sum() + self.short.sum() + self.flags.sum()


class Parameters(Awkward):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.linear.train()
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.attribute = torch.ones(3, requires_grad=True)
        (self.linear(torch.ones(2, 3)).sum() + self.attribute.sum()).backward()
        self.linear.weight.grad.note = "a gradient's"

    def change(self, x):
        self.frozen.mul_(0.9)

    def more(self, x):
        return self.linear(x) * self.frozen + self.attribute.detach()


class Numbers(Awkward):
    def __init__(self):
        super().__init__()
        self.count, self.level, self.flag = 0, 0.5, False
        self.tensor = torch.ones(1, 3)

    def change(self, x):
        self.count += 1
        self.level = self.level * 0.5
        self.flag = not self.flag
        self.tensor = self.tensor + x

    def more(self, x):
        return self.tensor + self.count + self.level


class Containers(Awkward):
    def __init__(self):
        super().__init__()
        self.list = [torch.zeros(1, 3), 3, [torch.zeros(3)]]
        self.tuple = (torch.zeros(3), torch.ones(1, 3))
        self.dict = {"a": torch.zeros(3), "b": {"n": 1}}
        self.ordered = collections.OrderedDict(z=torch.zeros(3), a=torch.zeros(3))
        self.queue = collections.deque([torch.zeros(1, 3), torch.ones(1, 3)], maxlen=2)

    def change(self, x):
        self.list[0] = self.list[0] + x
        self.list[2][0].add_(1)
        self.tuple = (self.tuple[0] + 1, self.tuple[1])
        self.dict["b"]["n"] += 1
        self.ordered["z"].sub_(1)
        self.queue.append(self.h.clone())

    def more(self, x):
        return self.list[0] + self.list[2][0] + self.tuple[0] + self.dict["b"]["n"] + self.queue[0]


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


@dataclass
class Record:
    value: torch.Tensor
    count: int = 0


class Slotted:
    __slots__ = ("late", "value")

    def __init__(self):
        self.value = torch.zeros(3)


class Objects(Awkward):
    def __init__(self):
        super().__init__()
        self.pair = Pair(torch.zeros(3), 1)
        self.record = Record(torch.zeros(3))
        self.slotted = Slotted()
        self.space = types.SimpleNamespace(value=torch.zeros(3))
        self.again = self.record

    def change(self, x):
        self.pair = self.pair._replace(first=self.pair.first + 1)
        self.record.value.add_(1)
        self.record.count += 1
        self.slotted.value = self.slotted.value + 1
        self.space.value = self.space.value + 1

    def more(self, x):
        return self.pair.first + self.again.value + self.again.count + self.space.value


class Views(Awkward):
    def __init__(self):
        super().__init__()
        self.register_buffer("flat", torch.zeros(9))
        self.head, self.tail = self.flat[:3], self.flat[3:].view(2, 3)
        self.whole = self.helped = Record(self.flat)

    def change(self, x):
        self.head.add_(1)
        self.tail[0] = self.head
        self.whole.value.mul_(0.9)

    def more(self, x):
        return self.head + self.tail[0]


class Created(Awkward):
    def __init__(self):
        super().__init__()
        self.first = None
        self.register_buffer("cache", torch.zeros(1, 0, 3))

    def change(self, x):
        if self.first is None:
            self.first, self.new = torch.zeros_like(x), torch.zeros(3)
        self.first, self.new = self.first + 1, self.new + 1
        self.cache = torch.cat([self.cache, self.h[:1, None]], 1)

    def more(self, x):
        return self.first + self.new + self.cache.sum(1)


class Hooked(Awkward):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.linear.register_forward_hook(self.look)
        self.register_forward_pre_hook(lambda module, arguments: module.seen.add_(1) and None)
        self.linear.register_full_backward_hook(lambda *_: None)
        self.linear.weight.register_hook(lambda grad: grad)

    def look(self, module, arguments, output):
        self.seen += 1
        return output

    def more(self, x):
        return self.linear(x) + self.seen


def closure():
    held, calls = torch.zeros(3), 0

    def count():
        nonlocal calls
        calls += 1
        held.add_(1)
        return held

    return count


class Enclosing(Awkward):
    def __init__(self):
        super().__init__()
        self.count = closure()
        self.partial = functools.partial(torch.add, torch.ones(3), alpha=2)

    def change(self, x):
        self.count()

    def more(self, x):
        return self.partial(x)


calls = 0
TABLE = {"n": torch.zeros(3)}


class Outside(Awkward):
    total = 0
    shared = torch.zeros(3)
    log: ClassVar[list[int]] = []

    def change(self, x, seen=[]):  # noqa: B006 - a place that holds state
        global calls
        calls += 1
        TABLE["n"] = TABLE["n"] + 1
        seen.append(1)
        type(self).total += 1
        type(self).fresh = 1
        self.shared.add_(1)
        self.log.append(1)


class Rare(Awkward):
    def __init__(self):
        super().__init__()
        self.array, self.objects = np.zeros(3), np.array([1, "a"], dtype=object)
        self.raw, self.numbers = bytearray(b"abc"), array.array("d", [1.0])
        self.items, self.counter, self.stream = (
            iter(range(99)),
            itertools.count(),
            io.BytesIO(b"ab"),
        )
        self.members, self.me, self.cycle = {1}, weakref.ref(self), [self]
        self.python, self.numpy = random.Random(1), np.random.default_rng(0)
        self.generator, self.sparse = torch.Generator(), torch.eye(3).to_sparse()

    def change(self, x):
        self.array += 1
        self.objects[0] = 2
        self.raw.append(1)
        self.numbers.append(2.0)
        self.stream.write(b"x")
        self.members.add(9)
        for draw in (torch.rand(1), next(self.items), next(self.counter), np.random.rand()):
            self.last = draw
        self.python.random()
        self.numpy.random()
        torch.rand(1, generator=self.generator)


class Replacing(Awkward):
    def __init__(self):
        super().__init__()
        self.part, self.tensor = nn.Linear(3, 3), torch.ones(3)
        self.weight, self.leaf = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
        self.leaf.grad = torch.ones(2)

    def change(self, x):
        self.leaf.grad.add_(1)
        self.leaf.grad = self.leaf.detach().clone()
        self.leaf.requires_grad_(False)
        self.weight.data = torch.zeros(4, dtype=torch.float64)
        self.tensor.resize_(7).fill_(2)
        self.part.requires_grad_(False)
        self.part = nn.ReLU()
        self.register_buffer(f"new{len(self._buffers)}", torch.zeros(3))
        self.more = lambda x: 1
        self.register_forward_hook(lambda *_: None)
        self.train(not self.training)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(True)


AWKWARD = (
    *(Buffers, Parameters, Numbers, Containers, Objects, Views, Created, Hooked, Enclosing),
    *(Outside, Rare, Replacing),
)


class Random(Awkward):
    def more(self, x):
        return torch.rand(3)


class OtherText(Awkward):
    def __init__(self):
        super().__init__()
        self.text = ""

    def change(self, x):
        self.text += "|"


class OtherShape(Awkward):
    def __init__(self):
        super().__init__()
        self.late = torch.zeros(2)

    def change(self, x):
        self.late = torch.zeros(2 + self.late.shape[0] % 3)


class Decided(Awkward):
    def more(self, x):
        return (lambda v: v)(x) if self.h.sum().item() > 0 else x


class NoForm(Awkward):
    def more(self, x):
        return torch.special.bessel_j0(self.h)


class Impure(Awkward):
    """Gives something else while it is traced."""

    def more(self, x):
        return self.h if torch.compiler.is_exporting() else self.h * 2


class Uncopied(Created):
    def __deepcopy__(self, memo):
        self.h.add_(5)
        self.first = 3
        raise RuntimeError("there is one of me")
