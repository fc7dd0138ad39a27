from __future__ import annotations

import collections
from dataclasses import dataclass

import pytest
import torch

from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.tree import named_outputs

T = torch.zeros(1)
Named = collections.namedtuple("Named", "mean scale")


@dataclass
class Result:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (T, ["output"]),
        ((T,), ["output_0"]),
        ([T, T], ["output_0", "output_1"]),
        ({"a": T, "b": (T, T)}, ["a", "b_0", "b_1"]),
        ((T, None, {"k": T}), ["output_0", "output_2.k"]),
        (Named(T, T), ["mean", "scale"]),
        (Result(T), ["logits"]),
        (((T, T), T), ["output_0_0", "output_0_1", "output_1"]),
        ({"a": {"b": T, "c": [T, {"d": T}]}}, ["a.b", "a.c_0", "a.c_1.d"]),
        ({1: T, "two": Named(T, None)}, ["1", "two.mean"]),
    ],
)
def test_outputs_have_names(value, names: list[str]) -> None:
    assert list(named_outputs(value)) == names


@pytest.mark.parametrize("value", [3, 2.5, "text", (T, 4), {"n": True}])
def test_what_is_no_tensor_is_refused(value) -> None:
    with pytest.raises(StateError, match="would freeze"):
        named_outputs(value)


@pytest.mark.parametrize("value", [{"a": {"b": T}, "a.b": T}, {"a": [T], "a_0": T}, {1: T, "1": T}])
def test_two_outputs_of_one_name_are_refused(value) -> None:
    with pytest.raises(StageError, match="two tensors that are called"):
        named_outputs(value)
