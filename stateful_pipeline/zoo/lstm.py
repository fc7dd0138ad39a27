"""A streaming forecaster: an LSTM that keeps ``h`` and ``c`` in buffers between calls.

Feeding a series sample by sample, or in chunks of any length, gives the same forecasts: that is
what its state is for.  The weights in ``data/lstm.safetensors`` come from
:mod:`stateful_pipeline.zoo.train_lstm`.
"""

from __future__ import annotations

import torch
from torch import nn


class StreamingLSTM(nn.Module):
    """Forecast from a stream of samples; what was seen is remembered across calls.

    The state is ``h`` and ``c``, each float32 ``[layers, batch, hidden]``.  It is made for one
    stream (``batch`` 1); for more, expand it along that axis before the first call.

    Args:
        features: Numbers in one sample of the input.
        hidden: Units of each layer.
        layers: Layers of the LSTM.
        outputs: Numbers in one forecast.
    """

    h: torch.Tensor
    c: torch.Tensor

    def __init__(
        self, features: int = 6, hidden: int = 64, layers: int = 2, outputs: int = 4
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)
        self.register_buffer("h", torch.zeros(layers, 1, hidden))
        self.register_buffer("c", torch.zeros(layers, 1, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next samples of each stream, and forecast after each of them.

        Args:
            x: The samples, float32 ``[batch, time, features]``.

        Returns:
            The forecasts, float32 ``[batch, time, outputs]``.
        """
        hidden, (h, c) = self.lstm(x, (self.h, self.c))
        self.h = h
        self.c = c
        forecast: torch.Tensor = self.head(hidden)
        return forecast

    def reset_states(self) -> None:
        """Forget all that was seen, for as many streams as there are."""
        self.h = torch.zeros_like(self.h)
        self.c = torch.zeros_like(self.c)
