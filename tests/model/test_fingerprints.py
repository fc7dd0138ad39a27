from __future__ import annotations

import array
import collections
import ctypes
import enum
import io
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from stateful_pipeline.model.equal_tensors import equal_tensors
from stateful_pipeline.model.fingerprints import fingerprint


class Mode(enum.Enum):
    IDLE = 0
    BUSY = 1


class Steps:
    def first(self) -> None: ...

    def second(self) -> None: ...


def numbers():
    while True:
        yield 1
        yield 2


MUTATIONS = {
    "list": ([1], lambda v: v.append(())),
    "deque": (collections.deque(), lambda v: v.append([])),
    "dict": ({"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
    "ordered": (collections.OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
    "set": ({1}, lambda v: v.add(2)),
    "array": (np.zeros(2), lambda v: v.__iadd__(1)),
    "bytearray": (bytearray(2), lambda v: v.append(1)),
    "plain array": (array.array("i", [0]), lambda v: v.append(1)),
    "view": (memoryview(bytearray(2)), lambda v: v.__setitem__(0, 1)),
    "c struct": (ctypes.c_int(0), lambda v: setattr(v, "value", 1)),
    "stream": (io.BytesIO(), lambda v: v.write(b"a")),
    "count": (itertools.count(), next),
    "cycle": (itertools.cycle([1, 2, 3]), next),
    "list iterator": (iter([1, 1]), next),
    "dict iterator": (iter({"a": 1}), next),
    "enumerate": (enumerate(iter([1, 1])), next),
    "generator": (numbers(), next),
    "random": (random.Random(0), lambda v: v.random()),
    "numpy generator": (np.random.default_rng(0), lambda v: v.random()),
    "numpy random state": (np.random.RandomState(0), lambda v: v.rand()),
    "torch generator": (torch.Generator(), lambda v: torch.rand(1, generator=v)),
    "modules": (nn.ModuleList([nn.Identity()]), lambda v: v.append(nn.Identity())),
    "mode": (nn.Identity(), lambda v: v.eval()),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_inside_is_seen_and_looking_changes_nothing(name: str) -> None:
    value, change = MUTATIONS[name]
    first, second = fingerprint(value), fingerprint(value)
    assert first == second
    change(value)
    assert fingerprint(value) != first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mode.IDLE, Mode.BUSY),
        (torch.float32, torch.float16),
        (torch.Size([1]), torch.Size([2])),
        (range(1), range(2)),
        (slice(1), slice(2)),
        (int, float),
        (torch.tanh, torch.sigmoid),
        (Steps().first, Steps().second),
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
    ],
)
def test_values_that_differ_have_different_fingerprints(one: object, other: object) -> None:
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


def test_nan_is_itself() -> None:
    assert fingerprint(float("nan")) == fingerprint(float("nan"))


def test_functions_that_are_made_anew_are_the_same() -> None:
    def make():
        return lambda x: x

    assert fingerprint(make()) == fingerprint(make())


def test_tensors_compare_by_bits_in_every_layout() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert equal_tensors(nan, nan.clone())
    assert not equal_tensors(torch.tensor([0.0]), torch.tensor([-0.0]))
    sparse = torch.eye(2).to_sparse()
    assert equal_tensors(sparse, torch.eye(2).to_sparse())
    assert not equal_tensors(sparse, (torch.eye(2) * 2).to_sparse())
