"""Attention over a ring: the same as full attention that looks back a window, in any chunks."""

import pytest
import torch

from stateful_pipeline.zoo.window_attention import WindowAttention

WINDOW = 6


def small() -> WindowAttention:
    torch.manual_seed(0)
    return WindowAttention(features=8, heads=2, window=WINDOW).eval()


def offline(model: WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """Return what each sample of ``[time, features]`` gathers from the last ``WINDOW`` samples."""
    time, features = x.shape
    q, k, v = model.project(x).reshape(time, 3, 2, features // 2).unbind(1)
    slopes = torch.tensor([2.0**-4, 2.0**-8])
    rows = []
    for now in range(time):
        seen = range(max(0, now - WINDOW + 1), now + 1)
        distance = torch.tensor([now - past for past in seen])
        scores = torch.stack([(q[now] * k[past]).sum(-1) for past in seen]) / (features // 2) ** 0.5
        weights = (scores - distance[:, None] * slopes).softmax(0)
        rows.append((weights[..., None] * v[seen.start : seen.stop]).sum(0).flatten())
    return model.out(torch.stack(rows))


@pytest.mark.parametrize(
    "chunks",
    [[30], [1] * 30, [2, 1, 6, 5, 7, 9], [17, 13]],
    ids=["whole", "single", "mixed", "longer than the window"],
)
@torch.inference_mode()
def test_chunks_give_what_full_attention_over_the_window_gives(chunks) -> None:
    model, x = small(), torch.randn(1, 30, 8)
    got = torch.cat([model(part) for part in x.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(got[0], offline(model, x[0]))


@torch.inference_mode()
def test_a_sample_is_forgotten_after_a_window() -> None:
    x = torch.randn(1, 30, 8)
    changed = x.clone()
    changed[:, 10] += 1
    outputs = []
    for stream in (x, changed):
        model = small()
        outputs.append(torch.cat([model(part) for part in stream.split(1, dim=1)], dim=1))
    differs = (outputs[0] != outputs[1]).any(dim=2)[0].nonzero().flatten().tolist()
    assert differs == list(range(10, 10 + WINDOW))


@torch.inference_mode()
def test_streams_of_a_batch_do_not_mix() -> None:
    x, model = torch.randn(4, 15, 8), small()
    model.keys = model.keys.expand(4, -1, -1, -1).clone()
    model.values = model.values.expand(4, -1, -1, -1).clone()
    together = torch.cat([model(part) for part in x.split(4, dim=1)], dim=1)
    torch.testing.assert_close(together, torch.stack([offline(model, row) for row in x]))


@torch.inference_mode()
def test_reset_forgets_what_was_seen() -> None:
    model, x = small(), torch.randn(1, 9, 8)
    first = model(x)
    assert not torch.equal(model(x), first)
    model.reset_states()
    assert torch.equal(model(x), first)


def test_features_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="9 features"):
        WindowAttention(features=9, heads=2)


def test_scripted_attention_equals_eager(script_equals_eager) -> None:
    script_equals_eager(small, torch.randn(1, 25, 8).split([3, 1, 1, 6, 8, 6], dim=1))


def test_exported_attention_goes_round_the_ring_and_equals_eager(runner_equals_eager) -> None:
    chunks = [3, 1, 1, 1, 6, 4, 8, 1, 5]
    runner = runner_equals_eager(
        small, torch.randn(4, 30, 8).split(chunks, dim=1), {"x": {0: "batch", 1: "time"}}
    )
    assert {state.name: (state.shape, state.dtype) for state in runner.contract.states} == {
        "keys": (("batch", 2, WINDOW, 4), "float32"),
        "values": (("batch", 2, WINDOW, 4), "float32"),
        "position": ((), "int64"),
    }
