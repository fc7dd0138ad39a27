"""The decoder: one text however it is cut, nothing from the future, and an end to its cache."""

import math

import numpy as np
import pytest
import torch

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.zoo.kv_decoder import CachedAttention, KVDecoder

AXES = {"tokens": {0: "batch", 1: "time"}}


def small() -> KVDecoder:
    torch.manual_seed(0)
    return KVDecoder(vocabulary=11, width=16, heads=2, layers=2, capacity=32).eval()


def text(batch: int, time: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, time), generator=torch.Generator().manual_seed(1))


def offline(model: KVDecoder, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of one whole text, ``[time, vocabulary]``, without a cache.

    Rotation by an angle is a product of complex numbers; each token is compared one by one with
    those up to itself.
    """
    x = model.embedding(tokens)
    time, width = x.shape
    heads, half = model.blocks[0].attention.heads, width // model.blocks[0].attention.heads // 2
    frequency = [10_000.0 ** (-index / half) for index in range(half)]
    angle = torch.arange(time)[:, None] * torch.tensor(frequency, dtype=x.dtype)
    turn = torch.polar(torch.ones_like(angle), angle)
    for block in model.blocks:
        q, k, v = block.attention.project(block.norm(x)).reshape(time, 3, heads, 2 * half).unbind(1)
        q, k = (torch.complex(y[..., :half], y[..., half:]) * turn[:, None] for y in (q, k))
        rows = []
        for now in range(time):
            past = k[: now + 1]
            scores = (q[now].conj() * past).real.sum(-1) / math.sqrt(2 * half)
            rows.append((scores.softmax(0)[..., None] * v[: now + 1]).sum(0).flatten())
        x = x + block.attention.out(torch.stack(rows))
        x = x + block.feed_forward(x)
    return model.norm(x) @ model.embedding.weight.T


@torch.inference_mode()
def test_whole_text_gives_what_attention_without_a_cache_gives() -> None:
    tokens, model = text(1, 20), small().double()
    torch.testing.assert_close(model(tokens)[0], offline(model, tokens[0]))


@pytest.mark.parametrize("chunks", [[1] * 20, [9, 1, 1, 7, 2]], ids=["by token", "mixed"])
@torch.inference_mode()
def test_text_cut_anywhere_gives_the_same_logits(chunks) -> None:
    tokens, model = text(1, 20), small()
    whole = small()(tokens)
    parts = torch.cat([model(part) for part in tokens.split(chunks, dim=1)], dim=1)
    assert whole.shape == (1, 20, 11)
    torch.testing.assert_close(parts, whole)


@torch.inference_mode()
def test_a_token_changes_the_logits_from_its_own_on() -> None:
    tokens = text(1, 20)
    other = tokens.clone()
    other[0, 7] = (other[0, 7] + 1) % 11
    difference = (small()(tokens) - small()(other)).abs().amax(dim=2)[0]
    assert (difference[:7] == 0).all()
    assert (difference[7:] > 1e-3).all()


@torch.inference_mode()
def test_streams_of_a_batch_do_not_mix() -> None:
    tokens, model = text(4, 12), small()
    for layer in model.modules():
        if isinstance(layer, CachedAttention):
            layer.keys = layer.keys.expand(4, -1, -1, -1).clone()
            layer.values = layer.values.expand(4, -1, -1, -1).clone()
    together = torch.cat([model(part) for part in tokens.split([5, 1, 6], dim=1)], dim=1)
    alone = torch.cat([small()(row[None]) for row in tokens])
    torch.testing.assert_close(together, alone)


@torch.inference_mode()
def test_reset_begins_a_new_text() -> None:
    model, tokens = small(), text(1, 6)
    first = model(tokens)
    assert not torch.equal(model(tokens), first)
    model.reset_states()
    assert torch.equal(model(tokens), first)


@torch.inference_mode()
def test_full_cache_raises_and_leaves_room_for_what_still_fits() -> None:
    model, tokens = small(), text(1, 32)
    model(tokens[:, :30])
    with pytest.raises(IndexError, match="out of bounds"):
        model(text(1, 3))
    last = model(tokens[:, 30:])
    torch.testing.assert_close(last, small()(tokens)[:, 30:])
    with pytest.raises(IndexError):
        model(text(1, 1))


def test_cache_and_constants_are_left_out_of_the_checkpoint() -> None:
    assert small().state_dict().keys() == dict(small().named_parameters()).keys()


def test_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 18"):
        KVDecoder(width=18, heads=4)


def test_scripted_decoder_equals_eager(script_equals_eager) -> None:
    script_equals_eager(small, text(1, 20).split([8, 1, 1, 10], dim=1))


def test_exported_decoder_prefills_and_decodes_as_eager_does(runner_equals_eager) -> None:
    steps = text(4, 24).split([2, 1, 1, 1, 9, 1, 9], dim=1)
    runner = runner_equals_eager(small, steps, AXES)
    caches = {
        f"blocks.{layer}.attention.{name}": (("batch", 2, 32, 8), "float32")
        for layer in range(2)
        for name in ("keys", "values")
    }
    found = {state.name: (state.shape, state.dtype) for state in runner.contract.states}
    assert found == {"position": ((), "int64"), **caches}


def test_exported_decoder_refuses_to_run_over_and_goes_on_from_what_was_saved(exported) -> None:
    tokens = text(1, 32)
    runner = exported(small(), text(2, 2), AXES)
    caches = {state.name for state in runner.contract.states if state.in_place}
    assert caches == {s.name for s in runner.contract.states} - {"position"}
    runner.run({"tokens": tokens[:, :30].numpy()})
    saved = runner.state
    with pytest.raises(PipelineError, match="idx=32"):
        runner.run({"tokens": text(1, 3).numpy()})
    with pytest.raises(PipelineError, match="the state is not known"):
        runner.run({"tokens": tokens[:, 30:].numpy()})
    runner.load_state(saved)
    got = runner.run({"tokens": tokens[:, 30:].numpy()})["output"]
    with torch.inference_mode():
        expected = small()(tokens)[:, 30:].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
