"""The proof that a state may share one buffer between input and output."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.stages.export.in_place import in_place_states


def proven(text: str) -> bool:
    """Read a graph of ``k_in``, ``i``, ``u`` in onnx's text form and ask about k."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[4, 3] k_in, int64[1, 1] i, float[1, 3] u, bool c) => (float[4, 3] k_out, float y)
        {{ {text} }}"""
    )
    return in_place_states(model, [("k_in", "k_out")]) == {"k_in"}


SCATTER = "k_out = ScatterND(k_in, i, u)"
SUM = "y = ReduceSum<keepdims=0>"


@pytest.mark.parametrize(
    "text",
    [
        f"{SCATTER} {SUM}(k_out)",
        f"s = Shape(k_in) f = Cast<to=1>(s) {SUM}(f) {SCATTER}",
        f"g = GatherND(k_in, i) v = Add(g, u) k_out = ScatterND(k_in, i, v) {SUM}(k_out)",
    ],
    ids=["no other reader", "its shape is read", "read before, by an ancestor"],
)
def test_proven(text: str) -> None:
    assert proven(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{SCATTER} {SUM}(k_in)",
        f"g = GatherND(k_in, i) {SCATTER} {SUM}(g)",
        f"k_out = ScatterND(u2, i, u) u2 = Identity(k_in) {SUM}(k_out)".replace(
            "k_out = ScatterND(u2, i, u) u2 = Identity(k_in)",
            "u2 = Identity(k_in) k_out = ScatterND(u2, i, u)",
        ),
        f"k_out = Add(k_in, u) {SUM}(k_out)",
        f"""y = If (c) <then_branch = a () => (float t) {{ t = ReduceSum<keepdims=0>(k_in) }},
                       else_branch = b () => (float e) {{ e = Constant<value_float=0.0>() }}>
            {SCATTER}""",
    ],
    ids=["read after", "read beside", "not the operand", "no scatter", "read in a subgraph"],
)
def test_not_proven(text: str) -> None:
    assert not proven(text)


def test_a_view_that_hands_the_buffer_on_forbids_if_it_is_read_later() -> None:
    # a runtime may give `flat` the very buffer of k_in; its sum would see what was written
    later = f"""z = Constant<value_ints=[12]>() flat = Reshape(k_in, z)
        g = ReduceMax<keepdims=0>(flat) v = Add(g, u) k_out = ScatterND(k_in, i, v) {SUM}(flat)"""
    assert not proven(later)
    one = "one = Constant<value_float=1.0>() same = Mul(k_in, one)"
    assert not proven(
        f"{one} g = GatherND(same, i) v = Add(g, u) k_out = ScatterND(k_in, i, v) {SUM}(same)"
    )


class Cache(nn.Module):
    def __init__(self, reads_old: bool) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(8, 3))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))
        self.reads_old = reads_old

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.k.clone()
        self.k.index_copy_(0, self.pos, x)
        self.pos.add_(1)
        return self.k.sum(0) + (old.mean(0) if self.reads_old else 0.0)


@pytest.mark.parametrize("reads_old", [False, True])
def test_the_runner_is_right_with_and_without_sharing(reads_old: bool, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(Cache(reads_old).eval(), (torch.ones(1, 3),), path)
    assert contract.state("k").in_place is not reads_old
    assert contract.state("pos").in_place is False
    runner, eager = sp.StatefulRunner(path), Cache(reads_old).eval()
    for step in range(6):
        x = torch.full((1, 3), float(step + 1))
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x).numpy())
        np.testing.assert_array_equal(runner.state["k"], eager.k.numpy())
