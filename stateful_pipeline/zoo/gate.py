"""A voice gate: lets speech through, turns the noise of pauses down, and decides frame by frame.

What it does in a frame depends on what it heard before, by plain Python ``if`` and ``while`` on its
state, as such code is written.  With ``level`` the frame's mean power in dB:

* the *noise floor* falls at once to what is quieter, in steps of 1 dB, and rises slowly
  (``rise`` dB a frame): it follows the minimum of the level (the simplest form of R. Martin,
  *Noise Power Spectral Density Estimation Based on Optimal Smoothing and Minimum Statistics*,
  IEEE Transactions on Speech and Audio Processing 9(5), 2001);
* a frame ``threshold`` dB above the floor *opens* the gate;
* the gate stays open for ``hold`` quieter frames more, so that the ends of words, which are soft,
  are not cut off (as in the voice activity detector of the GSM codecs, ETSI EN 300 730);
* the gain moves to 1 or down to ``closed`` by a share of the way, fast (``attack``) or slowly
  (``release``), and within a frame sample by sample along a line: no clicks.

The branches depend on data, so that ``torch.export`` refuses this module; ``torch.jit.script``
takes it.
"""

import torch
from torch import nn


class VoiceGate(nn.Module):
    """Gate the channels of one recording together; speech in any of them counts for all.

    It is a gate for *one* stream: what its branches decide holds for the whole frame.  ``channels``
    are the microphones of one place, which must be gated alike or the image of the speaker would
    jump; there may be any number of them, as the state has no such axis.

    The states are ``floor`` (float32, 0-d, dB), ``is_open`` (bool, 0-d), ``hangover`` (int64, 0-d,
    frames that the gate stays open) and ``gain`` (float32, 0-d).

    Args:
        frame: Samples of a frame: 10 to 20 ms.
        start: The noise floor at first, in dB of full scale.
        threshold: By how many dB speech exceeds the noise floor.
        hold: Frames that the gate stays open after the last with speech.
        rise: By how many dB the noise floor rises in each frame.
        closed: The gain of a closed gate.
        attack: Share of the way to an open gate's gain that is taken in a frame.
        release: The same for a closing gate.
    """

    floor: torch.Tensor
    is_open: torch.Tensor
    hangover: torch.Tensor
    gain: torch.Tensor
    line: torch.Tensor

    def __init__(
        self,
        frame: int = 80,
        start: float = -30.0,
        threshold: float = 9.0,
        hold: int = 5,
        rise: float = 0.05,
        closed: float = 0.1,
        attack: float = 0.8,
        release: float = 0.3,
    ) -> None:
        super().__init__()
        self.start = start
        self.threshold = threshold
        self.hold = hold
        self.rise = rise
        self.closed = closed
        self.attack = attack
        self.release = release
        self.register_buffer("line", torch.arange(1, frame + 1) / frame, persistent=False)
        self.register_buffer("floor", torch.tensor(start))
        self.register_buffer("is_open", torch.tensor(False))
        self.register_buffer("hangover", torch.tensor(0))
        self.register_buffer("gain", torch.tensor(closed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the next frames of a recording.

        Args:
            x: Samples within -1 .. 1, float32 ``[channels, time, frame]``: ``time`` frames.

        Returns:
            The samples times the gate's gain, in the shape of ``x``.
        """
        y = torch.zeros_like(x)
        for index in range(x.shape[1]):
            frame = x[:, index]
            self.listen(frame)
            before = self.gain
            if bool(self.is_open):
                self.gain = before + self.attack * (1.0 - before)
            else:
                self.gain = before + self.release * (self.closed - before)
            y[:, index] = frame * (before + (self.gain - before) * self.line)
        return y

    def listen(self, frame: torch.Tensor) -> None:
        """Follow the noise floor, and open or close the gate.

        Args:
            frame: The samples of one frame, ``[channels, frame]``.
        """
        level = 10.0 * torch.log10(frame.square().mean() + 1e-7)
        self.floor = self.floor + self.rise
        while bool(self.floor > level):
            self.floor = self.floor - 1.0
        if bool(level > self.floor + self.threshold):
            self.is_open = torch.ones_like(self.is_open)
            self.hangover = torch.full_like(self.hangover, self.hold)
        elif bool(self.hangover > 0):
            self.hangover = self.hangover - 1
        else:
            self.is_open = torch.zeros_like(self.is_open)

    def reset_states(self) -> None:
        """Start again: the gate is closed, and the noise floor is where it was at first."""
        self.floor = torch.full_like(self.floor, self.start)
        self.is_open = torch.zeros_like(self.is_open)
        self.hangover = torch.zeros_like(self.hangover)
        self.gain = torch.full_like(self.gain, self.closed)
