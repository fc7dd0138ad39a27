"""The smallest stateful module: two buffers that count its calls.

An exporter that compares a single call passes it; one that loses the state gives the first answer
for ever.
"""

from __future__ import annotations

import torch
from torch import nn


class Counter(nn.Module):
    """Add to the input a number that grows by one with each call.

    The state is ``h`` (float32, 0-d), the number to add, and ``counter`` (int64, 0-d), the calls so
    far.

    Args:
        init_h: What the first call adds.
    """

    h: torch.Tensor
    counter: torch.Tensor

    def __init__(self, init_h: float = 3.0) -> None:
        super().__init__()
        self.init_h = init_h
        self.register_buffer("h", torch.tensor(init_h, dtype=torch.float32))
        self.register_buffer("counter", torch.tensor(0, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x + h``, in the shape of ``x``; then count the call."""
        out = x + self.h
        self.h = self.h + 1
        self.counter = self.counter + 1
        return out

    def reset_states(self) -> None:
        """Start again: ``h`` is ``init_h``, no call has been made."""
        self.h = torch.full_like(self.h, self.init_h)
        self.counter = torch.zeros_like(self.counter)
