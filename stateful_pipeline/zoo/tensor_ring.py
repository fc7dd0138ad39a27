"""A streaming denoiser whose past lies in a C++ object: a ring of the last frames.

The C++ class is ``torch.classes.stateful.TensorRing``, whose library a spec names under
``source.libraries``.
"""

from __future__ import annotations

import torch
from torch import nn


class RingDenoiser(nn.Module):
    """Removes what a frame has in common with the mean of the last ones, then maps it.

    One call takes a frame of float32 [features] and returns one of [outputs].

    Args:
        features: Values per frame.
        outputs: Values of a result.
        capacity: Frames that are remembered.
    """

    def __init__(self, features: int = 24, outputs: int = 16, capacity: int = 8) -> None:
        super().__init__()
        self.ring = torch.classes.stateful.TensorRing(capacity, features)
        self.gate = nn.Linear(features, features)
        self.output = nn.Linear(features, outputs)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        """Take the next frame."""
        floor = self.ring.mean()
        self.ring.push(frame)
        clean = frame - torch.sigmoid(self.gate(frame)) * floor
        result: torch.Tensor = self.output(torch.tanh(clean))
        return result

    @torch.jit.export
    def reset(self) -> None:
        """Forget all frames."""
        self.ring.reset()


class ExplicitTensorRing:
    """The C++ class ``stateful.TensorRing`` with its state in tensors: its explicit form.

    Attributes:
        buffer: The frames, float32 [capacity, features].
        head: The row that is written next, int64.
        count: How many rows hold a frame, int64.
    """

    def __init__(self, state: tuple[torch.Tensor, int, int]) -> None:
        self.buffer, head, count = state
        self.head, self.count = torch.tensor(head), torch.tensor(count)

    def to_state(self) -> tuple[torch.Tensor, int, int]:
        """Return what the C++ class pickles."""
        return self.buffer, int(self.head), int(self.count)

    def push(self, frame: torch.Tensor) -> None:
        """Add a frame in place of the oldest one."""
        capacity = self.buffer.size(0)
        self.buffer = self.buffer.index_copy(0, self.head.reshape(1), frame.unsqueeze(0))
        self.head = (self.head + 1) % capacity
        self.count = torch.clamp(self.count + 1, max=capacity)

    def mean(self) -> torch.Tensor:
        """Return the mean of the frames held; zeros where there are none."""
        # Rows that hold no frame are zeros.
        return self.buffer.sum(0) / torch.clamp(self.count, min=1)

    def reset(self) -> None:
        """Forget all frames."""
        self.buffer = torch.zeros_like(self.buffer)
        self.head, self.count = torch.zeros_like(self.head), torch.zeros_like(self.count)
