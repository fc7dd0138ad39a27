"""The streaming convolutions: the same as whole sequences padded on the left, in any chunks."""

import pytest
import torch

from stateful_pipeline.zoo.causal_conv import CausalConvStack, StreamingConv1d


def small() -> CausalConvStack:
    torch.manual_seed(0)
    return CausalConvStack(features=2, channels=4, outputs=3, kernel=3, depth=3).eval()


def offline(model: CausalConvStack, x: torch.Tensor) -> torch.Tensor:
    """Return what the weights of ``model`` make of a whole sequence, padded layer by layer."""
    x = model.expand(x)
    skips = torch.zeros_like(x)
    for layer in model.layers:
        conv = layer.causal.conv
        left = (conv.kernel_size[0] - 1) * conv.dilation[0]
        values, gates = conv(torch.nn.functional.pad(x, (left, 0))).chunk(2, dim=1)
        z = torch.tanh(values) * torch.sigmoid(gates)
        x, skips = x + layer.residual(z), skips + layer.skip(z)
    return model.head(torch.relu(skips))


@torch.inference_mode()
def test_one_layer_in_chunks_is_the_convolution_of_the_sequence_padded_on_the_left() -> None:
    layer, x = StreamingConv1d(2, 3, kernel=4, dilation=5), torch.randn(1, 2, 40)
    got = torch.cat([layer(part) for part in x.split([1, 2, 20, 17], dim=2)], dim=2)
    torch.testing.assert_close(got, layer.conv(torch.nn.functional.pad(x, (15, 0))))


@pytest.mark.parametrize(
    "chunks", [[40], [1] * 40, [1, 7, 30, 2]], ids=["whole", "single", "mixed"]
)
@torch.inference_mode()
def test_stack_in_chunks_is_the_stack_of_the_sequence_padded_on_the_left(chunks) -> None:
    model, x = small(), torch.randn(1, 2, 40)
    got = torch.cat([model(part) for part in x.split(chunks, dim=2)], dim=2)
    assert got.shape == (1, 3, 40)
    torch.testing.assert_close(got, offline(model, x))


@torch.inference_mode()
def test_an_output_depends_on_as_many_samples_as_the_receptive_field_says() -> None:
    x = torch.randn(1, 2, 40)
    changed = x.clone()
    changed[:, :, 10] += 1
    differs = (small()(x) != small()(changed)).any(dim=1)[0].nonzero().flatten().tolist()
    assert small().receptive_field == 15
    assert (differs[0], differs[-1]) == (10, 10 + 15 - 1)


@torch.inference_mode()
def test_reset_forgets_what_was_seen() -> None:
    model, x = small(), torch.randn(1, 2, 9)
    first = model(x)
    assert not torch.equal(model(x), first)
    model.reset_states()
    assert torch.equal(model(x), first)


def test_convolution_of_one_tap_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel is 1"):
        StreamingConv1d(2, 3, kernel=1, dilation=1)


def test_scripted_stack_equals_eager(script_equals_eager) -> None:
    script_equals_eager(small, torch.randn(1, 2, 30).split([4, 1, 20, 5], dim=2))


def test_exported_stack_takes_chunks_of_any_length_and_equals_eager(runner_equals_eager) -> None:
    x = torch.randn(4, 2, 60)
    runner = runner_equals_eager(
        small, x.split([5, 1, 30, 1, 1, 22], dim=2), {"x": {0: "batch", 2: "time"}}
    )
    assert {state.name: state.shape for state in runner.contract.states} == {
        f"layers.{index}.causal.context": ("batch", 4, 2 * 2**index) for index in range(3)
    }
