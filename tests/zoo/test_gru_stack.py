"""The GRU stack: the equations of its cells, its streams, and its way out of Python."""

import torch

from stateful_pipeline.zoo.gru_stack import GRUStack


def small() -> GRUStack:
    torch.manual_seed(0)
    return GRUStack(features=3, hidden=5, levels=2, bands=4).eval()


@torch.inference_mode()
def test_stream_of_frames_gives_what_the_equations_of_the_gru_give() -> None:
    model, frames = small(), torch.randn(7, 3)
    got = torch.cat([model(frame[None]) for frame in frames])
    sequence = frames
    for level in small().cells:
        gru, h, outputs = level.cell, torch.zeros(5), []
        for x in sequence:
            reset_in, update_in, new_in = (gru.weight_ih @ x + gru.bias_ih).chunk(3)
            reset_h, update_h, new_h = (gru.weight_hh @ h + gru.bias_hh).chunk(3)
            update = torch.sigmoid(update_in + update_h)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_h) * new_h)
            h = (1 - update) * new + update * h
            outputs.append(h)
        sequence = torch.stack(outputs)
    torch.testing.assert_close(got, torch.sigmoid(small().head(sequence)))


@torch.inference_mode()
def test_gains_lie_between_0_and_1_and_depend_on_earlier_frames() -> None:
    model, x = small(), torch.randn(1, 3)
    first, second = model(x), model(x)
    assert ((first > 0) & (first < 1)).all()
    assert (first - second).abs().max() > 1e-2


@torch.inference_mode()
def test_streams_of_a_batch_do_not_mix() -> None:
    frames, model = torch.randn(5, 4, 3), small()
    for level in model.cells:
        level.h = level.h.expand(4, -1)
    together = torch.stack([model(x) for x in frames])
    for row in range(4):
        alone = small()
        torch.testing.assert_close(
            torch.cat([alone(x[row : row + 1]) for x in frames]), together[:, row]
        )


@torch.inference_mode()
def test_reset_forgets_what_was_heard() -> None:
    model, x = small(), torch.randn(1, 3)
    first = model(x)
    model(x)
    model.reset_states()
    assert torch.equal(model(x), first)


def test_scripted_stack_equals_eager(script_equals_eager) -> None:
    script_equals_eager(small, torch.randn(5, 1, 3).unbind())


def test_exported_stack_has_a_state_for_each_level_and_equals_eager(runner_equals_eager) -> None:
    runner = runner_equals_eager(small, torch.randn(8, 4, 3).unbind(), {"x": {0: "batch"}})
    assert {state.name: state.shape for state in runner.contract.states} == {
        "cells.0.h": ("batch", 5),
        "cells.1.h": ("batch", 5),
    }
