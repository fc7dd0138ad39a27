"""A streaming stack of dilated causal convolutions: each layer keeps what it still needs.

A convolution with ``kernel`` taps that lie ``dilation`` samples apart looks back over
``(kernel - 1) * dilation`` samples.  Offline one pads that many zeros on the left; here they are
the state: what the layer saw last, put in front of the next chunk.  Chunks of any length, down to
one sample, give what the whole sequence gives at once, and no sample is computed twice.

Layers, gates, residual and skip connections are those of WaveNet (A. van den Oord et al., *WaveNet:
A Generative Model for Raw Audio*, 2016); keeping the contexts is the fast inference of T. Le Paine
et al., *Fast WaveNet Generation Algorithm*, 2016.  The weights are random: train them before use.
"""

import torch
from torch import nn


class StreamingConv1d(nn.Module):
    """A causal convolution over a stream that comes in chunks.

    The state is ``context``, float32 ``[batch, channels, (kernel - 1) * dilation]``: the samples
    before the next one, zeros at first.  It is made for one stream.

    Args:
        channels: Channels that come in.
        outputs: Channels that go out.
        kernel: Taps, at least 2.
        dilation: Samples from one tap to the next.
    """

    context: torch.Tensor

    def __init__(self, channels: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        if kernel < 2:
            raise ValueError(f"kernel is {kernel}: a convolution of one tap needs no context")
        self.conv = nn.Conv1d(channels, outputs, kernel, dilation=dilation)
        self.length = (kernel - 1) * dilation
        self.register_buffer("context", torch.zeros(1, channels, self.length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next samples, ``[batch, channels, time]``; return ``[batch, outputs, time]``."""
        x = torch.cat([self.context, x], dim=2)
        self.context = x[:, :, -self.length :]
        y: torch.Tensor = self.conv(x)
        return y

    def reset_states(self) -> None:
        """Forget, for as many streams as there are."""
        self.context = torch.zeros_like(self.context)


class GatedLayer(nn.Module):
    """One layer of the stack: a gated convolution, added to what came in and to the skip sum.

    ``z = tanh(f) * sigmoid(g)`` for the two halves ``f`` and ``g`` of a causal convolution.

    Args:
        channels: Channels of the residual stream and of the skip sum.
        kernel: Taps of the convolution.
        dilation: Samples from one tap to the next.
    """

    def __init__(self, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.causal = StreamingConv1d(channels, 2 * channels, kernel, dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor, skips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream and the skip sum, each ``[batch, channels, time]``."""
        values, gates = self.causal(x).chunk(2, dim=1)
        z = torch.tanh(values) * torch.sigmoid(gates)
        return x + self.residual(z), skips + self.skip(z)


class CausalConvStack(nn.Module):
    """Map a stream of samples to a stream of the same rate, looking back ``receptive_field``.

    The states are ``layers.0.causal.context``, ``layers.1.causal.context`` .., each float32
    ``[batch, channels, (kernel - 1) * dilation]``.  They are made for one stream (``batch`` 1); for
    more, expand them along that axis before the first call.

    Args:
        features: Numbers in one sample of the input.
        channels: Channels inside.
        outputs: Numbers in one sample of the output.
        kernel: Taps of each convolution.
        depth: Layers; their dilations are 1, 2, 4 ..

    Attributes:
        receptive_field: How many samples an output depends on, its own included.
    """

    def __init__(
        self,
        features: int = 1,
        channels: int = 16,
        outputs: int = 1,
        kernel: int = 3,
        depth: int = 6,
    ) -> None:
        super().__init__()
        dilations = [2**index for index in range(depth)]
        self.receptive_field = 1 + (kernel - 1) * sum(dilations)
        self.expand = nn.Conv1d(features, channels, 1)
        self.layers = nn.ModuleList(GatedLayer(channels, kernel, d) for d in dilations)
        self.head = nn.Conv1d(channels, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next samples of each stream.

        Args:
            x: The samples, float32 ``[batch, features, time]``, ``time`` 1 or more.

        Returns:
            One output for each of them, float32 ``[batch, outputs, time]``.
        """
        x = self.expand(x)
        skips = torch.zeros_like(x)
        for layer in self.layers:
            x, skips = layer(x, skips)
        y: torch.Tensor = self.head(torch.relu(skips))
        return y

    def reset_states(self) -> None:
        """Forget all that was seen, for as many streams as there are."""
        for layer in self.modules():
            if isinstance(layer, StreamingConv1d):
                layer.reset_states()
