from __future__ import annotations

import array
import collections
import functools
import io
import itertools
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from stateful_pipeline.model.fingerprints import fingerprint
from stateful_pipeline.model.holders import Leaf, leaves, read
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.survey import survey


class Slotted:
    __slots__ = ("late", "level")

    def __init__(self) -> None:
        self.level = torch.ones(2)


class Restless(nn.Module):
    """Changes everything it has in every way, and can be told to stop after some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("h", torch.arange(4.0))
        self.register_buffer("view", self.h[1:3])
        self.register_buffer("empty", torch.zeros(0))
        self.plain = torch.ones(3)
        self.count = 0
        self.items = [torch.zeros(2), 1]
        self.table = {"a": torch.zeros(2), "b": 2}
        self.queue = collections.deque([1, 2, 3], maxlen=3)
        self.slotted = Slotted()
        self.array = np.zeros(3)
        self.names = {"x"}
        self.raw = bytearray(b"abc")
        self.numbers = array.array("i", [1, 2])
        self.partial = functools.partial(max, [1])
        self.iterator = iter([1, 2])
        self.random = random.Random(0)
        self.local = threading.local()
        self.stream = io.StringIO("ab")

    def changes(self):
        yield lambda: self.h.add_(1)
        yield lambda: setattr(self, "h", self.h + 1)
        yield lambda: self.view.mul_(3)
        yield lambda: self.plain.resize_(7).fill_(2)
        yield lambda: setattr(self.linear.weight, "data", torch.zeros(2, 2, dtype=torch.float64))
        yield lambda: self.linear.bias.data.zero_()
        yield lambda: self.linear.requires_grad_(False)
        yield lambda: self.empty.resize_(3)
        yield lambda: setattr(self, "count", self.count + 1)
        yield lambda: setattr(self, "new", torch.zeros(1))
        yield lambda: self.items.append(4)
        yield lambda: self.items.__setitem__(0, None)
        yield lambda: self.table.pop("a")
        yield lambda: self.queue.append(9)
        yield lambda: setattr(self.slotted, "late", 5)
        yield lambda: self.slotted.level.sub_(1)
        yield lambda: self.array.__iadd__(1)
        yield lambda: self.names.add("y")
        yield lambda: self.raw.extend(b"d")
        yield lambda: self.numbers.append(3)
        yield lambda: self.partial.args[0].append(2)
        yield lambda: self.partial.keywords.update(key=len)
        yield lambda: next(self.iterator)
        yield lambda: self.random.random()
        yield lambda: setattr(self.local, "new", 1)
        yield lambda: self.stream.write("xyz")
        yield lambda: random.random()
        yield lambda: np.random.rand()
        yield lambda: torch.rand(1)
        yield lambda: self.register_buffer("another", torch.zeros(1))
        yield lambda: delattr(self, "linear")
        yield lambda: self.train(not self.training)
        yield lambda: self.register_forward_hook(lambda *_: None)

    def forward(self, stop: int) -> None:
        with torch.no_grad():
            for number, change in enumerate(self.changes()):
                if number == stop:
                    raise KeyboardInterrupt
                change()


CHANGES = len(list(Restless().changes()))


def picture(module: nn.Module) -> dict[str, object]:
    """Which object is where, and its bits."""
    found: dict[str, object] = {"training": module.training, "keys": sorted(module.__dict__)}
    for leaf in leaves(module):
        value = leaf.value
        if isinstance(value, torch.Tensor):
            layout = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
            bits = value.detach().clone().contiguous().numpy().tobytes()
            found[leaf.path] = (id(value), layout, bits, value.requires_grad)
        else:
            found[leaf.path] = (id(value), repr(value))
    inner = {leaf.path: fingerprint(leaf.value) for leaf in survey(module).leaves if fits(leaf)}
    return {**found, "inside": inner}


def fits(leaf: Leaf) -> bool:
    """Whether what is inside the value is to come back although its identity need not."""
    return not isinstance(leaf.value, torch.Tensor | nn.Module)


@pytest.mark.parametrize("stop", range(CHANGES + 1))
def test_nothing_is_left_of_a_call_that_was_interrupted_anywhere(stop: int) -> None:
    module = Restless()
    before = picture(module)
    if stop < CHANGES:
        with pytest.raises(KeyboardInterrupt), Snapshot(module):
            module(stop)
    else:
        with Snapshot(module):
            module(stop)
    assert picture(module) == before
    assert not module._forward_hooks


def test_a_view_still_shares_memory_with_its_base() -> None:
    module = Restless()
    with Snapshot(module):
        module.h = module.h * 2
        module.view.add_(1)
        module.view = module.view + 1
    module.h.fill_(8)
    assert module.view.tolist() == [8.0, 8.0]


def test_gradients_come_back() -> None:
    module = nn.Linear(2, 1)
    module(torch.ones(2)).sum().backward()
    kept = module.weight.grad
    with Snapshot(module):
        module.zero_grad()
    assert module.weight.grad is kept


def test_without_bytes_only_objects_come_back() -> None:
    module = Restless()
    held = module.plain
    with Snapshot(module, bytes_too=False):
        module.plain = torch.zeros(1)
        held.add_(1)
    assert read(module, "plain") is held
    assert held.tolist() == [2.0, 2.0, 2.0]


def test_iterators_stand_where_they_stood() -> None:
    module = nn.Module()
    module.count, module.items = itertools.count(3), iter([5, 6, 7])
    next(module.items)
    untouched = module.untouched = iter([1])
    with Snapshot(module):
        next(module.count)
        list(module.items)
    assert next(module.count) == 3
    assert list(module.items) == [6, 7]
    assert module.untouched is untouched


def test_a_module_gets_its_class_back():
    class Before(nn.Module):
        pass

    class After(nn.Module):
        pass

    module = nn.Sequential(Before())
    with Snapshot(module):
        module[0].__class__ = After
    assert type(module[0]) is Before
