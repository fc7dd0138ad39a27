"""Normalise observations by the running mean and variance of their own stream.

Controllers trained by reinforcement learning expect observations of mean 0 and variance 1; which
mean and variance a sensor has is learned as they come (as ``VecNormalize`` of Stable-Baselines3 and
``NormalizeObservation`` of Gymnasium do).  With each observation ``x``, number ``n``:

    count = n
    delta = x - mean
    mean += delta / n
    m2   += delta * (x - mean)           # the new mean
    y     = clip((x - mean) / sqrt(m2 / n + eps))

``m2`` is the sum of squared deviations from the mean.  It is never a difference of large numbers,
as ``E[x^2] - E[x]^2`` is, so that it stays right in float32 for a sensor with a large offset
(B. P. Welford, *Note on a Method for Calculating Corrected Sums of Squares and Products*,
Technometrics 4(3), 1962).
"""

import torch
from torch import nn


class RunningNorm(nn.Module):
    """Normalise each feature of each stream by all that the stream has shown so far.

    The states are ``count`` (int64 ``[batch]``), ``mean`` and ``m2`` (each float32
    ``[batch, features]``), of each stream its own, so that one stream can be reset while the others
    go on.  They are made for one stream (``batch`` 1); for more, expand them along that axis before
    the first call.

    Args:
        features: Numbers in one observation.
        eps: Added to the variance, in squared units of the observation.
        clip: The largest absolute value that comes out, in standard deviations.
    """

    count: torch.Tensor
    mean: torch.Tensor
    m2: torch.Tensor

    def __init__(self, features: int, eps: float = 1e-8, clip: float = 10.0) -> None:
        super().__init__()
        self.eps = eps
        self.clip = clip
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(1, features))
        self.register_buffer("m2", torch.zeros(1, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next observation of each stream, count it in, and normalise it.

        Args:
            x: The observations, float32 ``[batch, features]``.

        Returns:
            The same in standard deviations from the mean, ``[batch, features]``, within ``clip``;
            all 0 for the first observation of a stream.
        """
        self.count = self.count + 1
        count = self.count.unsqueeze(1)
        delta = x - self.mean
        self.mean = self.mean + delta / count
        self.m2 = self.m2 + delta * (x - self.mean)
        y = (x - self.mean) / torch.sqrt(self.m2 / count + self.eps)
        return y.clamp(-self.clip, self.clip)

    def reset_states(self) -> None:
        """Forget all observations, for as many streams as there are."""
        self.count = torch.zeros_like(self.count)
        self.mean = torch.zeros_like(self.mean)
        self.m2 = torch.zeros_like(self.m2)
