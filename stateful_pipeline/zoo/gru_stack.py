"""A recurrent noise suppressor: GRU cells in a ``ModuleList``, each of which keeps its own state.

Called once per frame of audio, it says how much of each frequency band to let through, as the
recurrent network of RNNoise does (J.-M. Valin, *A Hybrid DSP/Deep Learning Approach to Real-Time
Full-Band Speech Enhancement*, MMSP 2018: 42 features in, 22 band gains out).  The cell is the gated
recurrent unit of K. Cho et al., *Learning Phrase Representations using RNN Encoder-Decoder*, 2014,
in PyTorch's form (:class:`torch.nn.GRUCell`).  The weights are random: train them before use.
"""

import torch
from torch import nn


class Level(nn.Module):
    """One level of the stack: a GRU cell and what it remembers.

    The state is ``h``, float32 ``[batch, hidden]``, made for one stream.

    Args:
        features: Numbers that come in per call.
        hidden: Units of the cell.
    """

    h: torch.Tensor

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)
        self.register_buffer("h", torch.zeros(1, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take ``[batch, features]``; return the new ``h``, ``[batch, hidden]``."""
        self.h = self.cell(x, self.h)
        return self.h

    def reset_states(self) -> None:
        """Forget, for as many streams as there are."""
        self.h = torch.zeros_like(self.h)


class GRUStack(nn.Module):
    """Band gains from a stream of frames; each level of the stack has its state in a buffer.

    The states are ``cells.0.h``, ``cells.1.h`` .., each float32 ``[batch, hidden]``.  They are made
    for one stream (``batch`` 1); for more, expand them along that axis before the first call.

    Args:
        features: Numbers that describe one frame.
        hidden: Units of each level.
        levels: Levels of the stack.
        bands: Frequency bands, one gain for each.
    """

    def __init__(
        self, features: int = 42, hidden: int = 64, levels: int = 3, bands: int = 22
    ) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            Level(hidden if index else features, hidden) for index in range(levels)
        )
        self.head = nn.Linear(hidden, bands)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next frame of each stream.

        Args:
            x: The frames' features, float32 ``[batch, features]``.

        Returns:
            How much of each band to let through, float32 ``[batch, bands]``, between 0 and 1.
        """
        for level in self.cells:
            x = level(x)
        return torch.sigmoid(self.head(x))

    def reset_states(self) -> None:
        """Forget all that was heard, for as many streams as there are."""
        for level in self.modules():
            if isinstance(level, Level):
                level.reset_states()
