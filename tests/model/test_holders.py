from __future__ import annotations

import collections
import functools
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from stateful_pipeline.model.holders import leaves, read, write

Pair = collections.namedtuple("Pair", "left right")


class Slotted:
    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = torch.zeros(1)


@dataclass
class Cache:
    keys: torch.Tensor
    length: int = 0


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("h", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.memory = {"a.b": torch.zeros(1), "c": [torch.zeros(2), (torch.ones(1), 3)]}
        self.pair = Pair(torch.zeros(1), torch.ones(1))
        self.queue = collections.deque([torch.zeros(1)], maxlen=2)
        self.slotted = Slotted()
        self.cache = Cache(torch.zeros(2))
        self.counts = np.zeros(2)
        self.seen = {1, 2}
        self.itself = self
        inner = torch.zeros(3)
        self.function = lambda x: x + inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_every_way_to_hold_a_tensor_is_found_with_its_path() -> None:
    found = {leaf.path: leaf.kind for leaf in leaves(Everything())}
    assert found == {
        "linear.weight": "parameter",
        "linear.bias": "parameter",
        "h": "buffer",
        "nothing": "buffer",
        "linear.in_features": "attribute",
        "linear.out_features": "attribute",
        "memory.a.b": "item",
        "memory.c.0": "item",
        "memory.c.1.0": "item",
        "memory.c.1.1": "item",
        "pair.0": "item",
        "pair.1": "item",
        "queue.0": "item",
        "slotted.level": "attribute",
        "cache.keys": "attribute",
        "cache.length": "attribute",
        "counts": "attribute",
        "seen": "attribute",
        "function.inner": "attribute",
    }


@pytest.mark.parametrize(
    "path",
    [
        "h",
        "linear.weight",
        "memory.a.b",
        "memory.c.0",
        "memory.c.1.0",
        "pair.1",
        "queue.0",
        "slotted.level",
        "cache.keys",
        "function.inner",
    ],
)
def test_what_is_written_is_read_back_and_nothing_else_moves(path: str) -> None:
    module = Everything()
    others = {leaf.path: leaf.value for leaf in leaves(module) if leaf.path != path}
    value = torch.full((2,), 5.0)
    write(module, path, value)
    assert read(module, path) is value
    assert all(read(module, other) is held for other, held in others.items())


def test_a_named_tuple_stays_one() -> None:
    module = Everything()
    write(module, "pair.0", 4)
    assert module.pair == Pair(4, torch.ones(1))
    assert type(module.pair) is Pair


@pytest.mark.parametrize("path", ["gone", "memory.zzz", "linear.weight.x", "queue.7"])
def test_a_path_that_leads_nowhere_is_a_key_error(path: str) -> None:
    with pytest.raises(KeyError):
        read(Everything(), path)


class Private:
    __slots__ = ("__level",)

    def __init__(self) -> None:
        self.__level = torch.zeros(1)


def holding(thing: object) -> nn.Module:
    module = nn.Module()
    module.thing = thing
    return module


def objects(value: object) -> np.ndarray:
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


@pytest.mark.parametrize(
    ("thing", "paths"),
    [
        (Private(), ["thing._Private__level"]),
        ({1: torch.zeros(1), "1": torch.ones(1)}, ["thing.[1]", "thing.1"]),
        ({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, ["thing.['a.b']", "thing.a.b"]),
        (objects(torch.zeros(1)), ["thing.0"]),
        (functools.partial(max, torch.zeros(1), key=None), ["thing.args.0", "thing.keywords.key"]),
        (threading.local(), []),
    ],
)
def test_each_place_has_a_path_of_its_own(thing: object, paths: list[str]) -> None:
    module = holding(thing)
    found = [leaf.path for leaf in leaves(module)]
    assert [path for path in found if path.startswith("thing.")] == paths
    for number, path in enumerate(paths):
        write(module, path, float(number))
    assert [read(module, path) for path in paths] == [float(n) for n in range(len(paths))]


def test_hooks_go_by_their_position() -> None:
    def module() -> nn.Module:
        linear, box = nn.Linear(1, 1), [torch.zeros(1)]
        linear.register_forward_hook(lambda *_: box[0])
        return linear

    module()  # it counts in a number of the whole process
    paths = {leaf.path for leaf in leaves(module())}
    assert "_forward_hooks.0.box.0" in paths
