"""Attention over the last ``window`` samples of a stream, whose keys and values lie in a ring.

Memory and time per sample stay the same however long the stream runs: the key of sample ``p`` lies
in slot ``p % window`` and is overwritten by that of sample ``p + window``, just when nobody may see
it any more (the rolling buffer cache of A. Q. Jiang et al., *Mistral 7B*, 2023; sliding windows are
those of I. Beltagy et al., *Longformer*, 2020).  Nothing ever runs full.

With ``position`` samples seen, slot ``s`` holds the last sample before ``position`` that is
``s`` modulo ``window``::

    p(s) = position - 1 - (position - 1 - s) % window

which is negative for a slot that was never written.  A chunk is compared with the ring as it was
before the chunk and with itself, and then written to the ring: so chunks of any length give what
single samples give.

How far back a sample lies is told by a penalty that grows with the distance, steeper in some heads
than in others (ALiBi: O. Press et al., *Train Short, Test Long*, 2022).  The weights are random:
train them before use.
"""

import torch
from torch import nn


class WindowAttention(nn.Module):
    """Self-attention over a stream in which a sample sees the last ``window``, itself included.

    The states are ``keys`` and ``values`` (float32 ``[batch, heads, window, head_dim]``) and
    ``position`` (int64, 0-d), the samples so far.  They are made for one stream (``batch`` 1); for
    more, expand the rings along that axis before the first call.

    Args:
        features: Numbers in one sample, a multiple of ``heads``.
        heads: Heads.
        window: How many samples a sample sees.
    """

    keys: torch.Tensor
    values: torch.Tensor
    position: torch.Tensor
    slots: torch.Tensor
    slopes: torch.Tensor

    def __init__(self, features: int = 64, heads: int = 4, window: int = 32) -> None:
        super().__init__()
        if features % heads:
            raise ValueError(f"{features} features do not divide into {heads} heads")
        self.heads = heads
        self.head_dim = features // heads
        self.window = window
        self.project = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes.reshape(heads, 1, 1), persistent=False)
        self.register_buffer("slots", torch.arange(window), persistent=False)
        self.register_buffer("keys", torch.zeros(1, heads, window, self.head_dim))
        self.register_buffer("values", torch.zeros(1, heads, window, self.head_dim))
        self.register_buffer("position", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next samples of each stream.

        Args:
            x: The samples, float32 ``[batch, time, features]``, ``time`` 1 or more.

        Returns:
            What each of them gathers from its window, float32 ``[batch, time, features]``.
        """
        query, key, value = self.project(x).chunk(3, dim=2)
        query, key, value = self.split(query), self.split(key), self.split(value)
        now = self.position + torch.arange(x.shape[1], device=x.device)
        before = self.position - 1 - (self.position - 1 - self.slots) % self.window
        mixed = nn.functional.scaled_dot_product_attention(
            query,
            torch.cat([self.keys, key], dim=2),
            torch.cat([self.values, value], dim=2),
            attn_mask=self.mask(now, torch.cat([before, now])),
        )
        # Of a chunk longer than the window, the last samples alone are kept.
        slots = now[-self.window :] % self.window
        self.keys.index_copy_(2, slots, key[:, :, -self.window :])
        self.values.index_copy_(2, slots, value[:, :, -self.window :])
        self.position += x.shape[1]
        y: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y

    def mask(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return what is added to the scores: the penalty, or ``-inf`` for what is out of sight.

        Args:
            queries: Positions, int64 ``[time]``.
            keys: Positions, negative for a slot without a sample, int64 ``[window + time]``.

        Returns:
            float32 ``[heads, time, window + time]``.
        """
        distance = queries.unsqueeze(1) - keys
        seen = (distance >= 0) & (distance < self.window) & (keys >= 0)
        return (-self.slopes * distance).masked_fill(~seen, float("-inf"))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[batch, time, features]`` as ``[batch, heads, time, head_dim]``."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def reset_states(self) -> None:
        """Forget all that was seen, for as many streams as there are."""
        self.keys = torch.zeros_like(self.keys)
        self.values = torch.zeros_like(self.values)
        self.position = torch.zeros_like(self.position)
