"""Stateful modules as people deploy them, and as they write state: sound and speech.

``deployed_models.py`` has networks and caches, ``deployed_control.py`` control and signals; they
register into the same ``DEPLOYED``, and are loaded after this file.  Each module is written as its
author would write it, not as an exporter would like it: Python numbers that count, state that the
first call creates, deques, dataclasses, helper objects, hooks.  Eager PyTorch is the oracle.

A module is exported with ``example()``, which is none of the inputs that it is then run with: zeros
for some, since that is what many people export with.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
from torch import Tensor, nn

Make = Callable[[torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Deployed:
    """One module.

    Attributes:
        name: The name of the class.
        kind: What it is, and how it holds its state.
        module: Makes the module.
        make: Makes the inputs of one call.
        steps: How many calls are compared.
        sample: Makes the inputs that it is exported with, if those are not like the others.
    """

    name: str
    kind: str
    module: Callable[[], nn.Module]
    make: Make
    steps: int = 10
    sample: Make | None = None

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.module().eval()

    def inputs(self, step: int) -> tuple[Tensor, ...]:
        return self.make(torch.Generator().manual_seed(9000 + step))

    def example(self) -> tuple[Tensor, ...]:
        return (self.sample or self.make)(torch.Generator().manual_seed(8999))


DEPLOYED: list[Deployed] = []


def case(
    kind: str,
    *shapes: tuple[int, ...],
    make: Make | None = None,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    steps: int = 10,
    example: Make | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a module; without ``make`` its inputs are normal, and of size ``scale``."""

    def normal(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple((scale * torch.randn(s, generator=generator)).to(dtype) for s in shapes)

    def register(cls: type[nn.Module]) -> type[nn.Module]:
        DEPLOYED.append(Deployed(cls.__name__, kind, cls, make or normal, steps, example))
        return cls

    return register


def zeros(*shape: int) -> Make:
    """Return what makes one tensor of zeros."""
    return lambda generator: (torch.zeros(shape),)


def tokens(high: int, *shape: int) -> Make:
    """Return what makes whole numbers below ``high``."""
    return lambda generator: (torch.randint(0, high, shape, generator=generator),)


@case("conformer block: attention and convolution caches, buffers reassigned", (1, 4, 8))
class ConformerChunk(nn.Module):
    def __init__(self, size: int = 8, heads: int = 2, left: int = 6, kernel: int = 5):
        super().__init__()
        self.heads, self.left = heads, left
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(4))
        self.feed_in = nn.Sequential(nn.Linear(size, 16), nn.SiLU(), nn.Linear(16, size))
        self.feed_out = nn.Sequential(nn.Linear(size, 16), nn.SiLU(), nn.Linear(16, size))
        self.q, self.kv = nn.Linear(size, size), nn.Linear(size, 2 * size)
        self.pointwise = nn.Conv1d(size, 2 * size, 1)
        self.depthwise = nn.Conv1d(size, size, kernel, groups=size)
        self.register_buffer("att_cache", torch.zeros(1, left, size))
        self.register_buffer("att_valid", torch.zeros(1, left, dtype=torch.bool))
        self.register_buffer("conv_cache", torch.zeros(1, size, kernel - 1))

    def attend(self, x: Tensor) -> Tensor:
        context = torch.cat([self.att_cache, x], dim=1)
        valid = torch.cat([self.att_valid, torch.ones(x.shape[:2], dtype=torch.bool)], dim=1)
        self.att_cache = context[:, -self.left :]
        self.att_valid = valid[:, -self.left :]
        k, v = self.kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None])
        return y.transpose(1, 2).flatten(2)

    def convolve(self, x: Tensor) -> Tensor:
        gated = F.glu(self.pointwise(x.transpose(1, 2)), dim=1)
        padded = torch.cat([self.conv_cache, gated], dim=2)
        self.conv_cache = padded[:, :, -self.conv_cache.size(2) :]
        return F.silu(self.depthwise(padded)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_in(self.norms[0](x))
        x = x + self.attend(self.norms[1](x))
        x = x + self.convolve(self.norms[2](x))
        return self.norms[3](x + 0.5 * self.feed_out(x))


@case("RNN-T predictor: hidden tuple None before the first call; blanks keep it", make=tokens(6, 1))
class RnntPredictor(nn.Module):
    def __init__(self, vocabulary: int = 6, size: int = 5):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.lstm = nn.LSTM(size, size, num_layers=2, batch_first=True)
        self.hidden = None

    def forward(self, token: Tensor) -> Tensor:
        if self.hidden is None:
            self.hidden = (torch.zeros(2, 1, 5), torch.zeros(2, 1, 5))
        y, (h, c) = self.lstm(self.embed(token)[None], self.hidden)
        blank = token == 0
        self.hidden = (
            torch.where(blank, self.hidden[0], h),
            torch.where(blank, self.hidden[1], c),
        )
        return torch.where(blank, torch.zeros_like(y), y)


@case("stateless RNN-T predictor: its last two tokens, int64", make=tokens(6, 2))
class TwoTokenPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.conv = nn.Conv1d(4, 4, 2, groups=4, bias=False)
        self.register_buffer("context", torch.full((2, 2), 0, dtype=torch.long))

    def forward(self, token: Tensor) -> Tensor:
        self.context = torch.stack([self.context[:, 1], token], dim=1)
        return F.relu(self.conv(self.embed(self.context).transpose(1, 2))).squeeze(2)


@case("voice activity with a hangover: a Python int and a branch on energy", (1, 20), steps=24)
class VadHangover(nn.Module):
    def __init__(self, threshold: float = 1.1, hold: int = 3):
        super().__init__()
        self.threshold, self.hold = threshold, hold
        self.hangover = 0

    def forward(self, x: Tensor) -> Tensor:
        energy = x.pow(2).mean()
        if energy > self.threshold:
            self.hangover = self.hold
        elif self.hangover > 0:
            self.hangover -= 1
        return torch.tensor([float(self.hangover > 0), float(self.hangover)])


@case("voice activity with hysteresis: a 0-d bool beside a noise floor", (1, 16), steps=20)
class VadHysteresis(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("floor", torch.tensor(0.7))
        self.register_buffer("active", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        energy = x.square().mean()
        ratio = energy / self.floor
        self.active = torch.where(self.active, ratio > 0.9, ratio > 1.3)
        rate = torch.where(self.active, 0.01, 0.3)
        self.floor.lerp_(energy, rate)
        return torch.stack([self.active.float(), self.floor])


@case("echo canceller (NLMS), sample by sample, float64", (6,), (6,), dtype=torch.float64)
class EchoCanceller(nn.Module):
    def __init__(self, taps: int = 4, rate: float = 0.5):
        super().__init__()
        self.rate = rate
        self.register_buffer("weights", torch.zeros(taps, dtype=torch.float64))
        self.register_buffer("history", torch.zeros(taps, dtype=torch.float64))

    def forward(self, far: Tensor, near: Tensor) -> Tensor:
        residual = torch.empty_like(near)
        for i in range(far.shape[0]):
            self.history[1:] = self.history[:-1].clone()
            self.history[0] = far[i]
            error = near[i] - self.weights @ self.history
            step = self.rate * error / (self.history.square().sum() + 1e-3)
            self.weights += step * self.history
            residual[i] = error
        return residual


@case("automatic gain control with attack and release; a Python float envelope", (8,), steps=16)
class AutomaticGain(nn.Module):
    def __init__(self, attack: float = 0.6, release: float = 0.05):
        super().__init__()
        self.attack, self.release = attack, release
        self.envelope = 1.0

    def forward(self, x: Tensor) -> Tensor:
        peak = float(x.abs().max())
        rate = self.attack if peak > self.envelope else self.release
        self.envelope += rate * (peak - self.envelope)
        return x / max(self.envelope, 1e-4)


@case("the same gain control in tensors, per channel", (3, 8), steps=16)
class AutomaticGainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("envelope", torch.ones(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for frame in x.split(4, dim=1):
            peak = frame.abs().amax(dim=1, keepdim=True)
            rate = torch.where(peak > self.envelope, 0.6, 0.05)
            self.envelope += rate * (peak - self.envelope)
            out.append(frame / self.envelope.clamp(min=1e-4))
        return torch.cat(out, dim=1)


@case("streaming STFT in real arithmetic, a framing buffer", (1, 4))
class StreamingStft(nn.Module):
    def __init__(self, size: int = 12):
        super().__init__()
        n = torch.arange(size, dtype=torch.float64)
        angle = (
            2 * math.pi * torch.outer(torch.arange(size // 2 + 1, dtype=torch.float64), n) / size
        )
        window = torch.hann_window(size, dtype=torch.float64)
        self.register_buffer("cosines", (torch.cos(angle) * window).float())
        self.register_buffer("sines", (-torch.sin(angle) * window).float())
        self.register_buffer("frame", torch.zeros(1, size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.frame = torch.cat([self.frame[:, x.shape[1] :], x], dim=1)
        return torch.stack([self.frame @ self.cosines.T, self.frame @ self.sines.T], dim=-1)


@case("spectral gate: torch.fft there and back, overlap-add, a noise floor per bin", (8,), steps=12)
class SpectralGate(nn.Module):
    def __init__(self, size: int = 16):
        super().__init__()
        self.size, self.hop = size, size // 2
        self.register_buffer("window", torch.hann_window(size).sqrt())
        self.register_buffer("past", torch.zeros(self.hop))
        self.register_buffer("tail", torch.zeros(self.hop))
        self.register_buffer("noise", torch.full((size // 2 + 1,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(torch.cat([self.past, x]) * self.window)
        power = spectrum.real**2 + spectrum.imag**2
        self.noise = torch.minimum(self.noise * 1.05 + 1e-4, 0.9 * self.noise + 0.1 * power)
        gain = (1 - self.noise / (power + 1e-6)).clamp(0.1, 1.0)
        frame = torch.fft.irfft(spectrum * gain, n=self.size) * self.window
        out = frame[: self.hop] + self.tail
        self.past = x.clone()
        self.tail = frame[self.hop :]
        return out


@case("streaming iSTFT: overlap-add and the running sum of windows", (1, 7, 2))
class StreamingIstft(nn.Module):
    def __init__(self, size: int = 12, hop: int = 4):
        super().__init__()
        self.hop = hop
        k = torch.arange(size // 2 + 1)
        angle = 2 * math.pi * torch.outer(k, torch.arange(size)) / size
        weight = torch.full((size // 2 + 1, 1), 2.0 / size)
        weight[0] = weight[-1] = 1.0 / size
        window = torch.hann_window(size)
        self.register_buffer("basis_re", weight * torch.cos(angle) * window)
        self.register_buffer("basis_im", -weight * torch.sin(angle) * window)
        self.register_buffer("square", window**2)
        self.ola = torch.zeros(1, size)
        self.norm = torch.zeros(size)

    def forward(self, spec: Tensor) -> Tensor:
        self.ola += spec[..., 0] @ self.basis_re + spec[..., 1] @ self.basis_im
        self.norm += self.square
        out = self.ola[:, : self.hop] / self.norm[: self.hop].clamp(min=1e-3)
        self.ola = F.pad(self.ola[:, self.hop :], (0, self.hop))
        self.norm = F.pad(self.norm[self.hop :], (0, self.hop))
        return out


@dataclass
class _ConvState:
    previous: Tensor
    calls: int = 0


class _StreamingConv(nn.Module):
    def __init__(self, size_in: int, size_out: int, kernel: int, stride: int):
        super().__init__()
        self.conv = nn.Conv1d(size_in, size_out, kernel, stride)
        self.keep = kernel - stride
        self._state: _ConvState | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._state is None:
            self._state = _ConvState(x.new_zeros(x.shape[0], x.shape[1], self.keep))
        x = torch.cat([self._state.previous, x], dim=2)
        self._state.previous = x[:, :, -self.keep :]
        self._state.calls += 1
        return F.elu(self.conv(x))


@case("neural codec, encoder: strided convolutions with a lazily made dataclass", (1, 1, 8))
class CodecEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            _StreamingConv(1, 4, 4, 2), _StreamingConv(4, 4, 3, 1), _StreamingConv(4, 6, 8, 4)
        )
        self.codebook = nn.Parameter(torch.randn(16, 6) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layers(x).transpose(1, 2)
        return torch.cdist(z, self.codebook[None]).argmin(dim=-1)


class _StreamingUpsample(nn.Module):
    def __init__(self, size_in: int, size_out: int, stride: int):
        super().__init__()
        self.conv = nn.ConvTranspose1d(size_in, size_out, 2 * stride, stride)
        self.stride = stride
        self.streaming_state = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if "partial" in self.streaming_state:
            partial = self.streaming_state["partial"]
            y[..., : self.stride] += partial - self.conv.bias[:, None]
        self.streaming_state["partial"] = y[..., -self.stride :]
        return y[..., : -self.stride]


@case(
    "neural codec, decoder: overlap kept in a dict that the first call fills", make=tokens(16, 1, 2)
)
class CodecDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 6)
        self.up = nn.Sequential(_StreamingUpsample(6, 4, 4), nn.ELU(), _StreamingUpsample(4, 1, 2))

    def forward(self, codes: Tensor) -> Tensor:
        return torch.tanh(self.up(self.embed(codes).transpose(1, 2)))


@case("reverb: a comb filter whose delay line has a Python write pointer", (2,), steps=14)
class CombReverb(nn.Module):
    def __init__(self, delay: int = 5, feedback: float = 0.6):
        super().__init__()
        self.feedback = feedback
        self.line = torch.zeros(delay)
        self.pos = 0

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for sample in x:
            delayed = self.line[self.pos].clone()
            self.line[self.pos] = sample + self.feedback * delayed
            self.pos = (self.pos + 1) % self.line.numel()
            out.append(delayed)
        return torch.stack(out)


@case("flanger: a fractional delay swept by a Python float phase", (4,), steps=16)
class Flanger(nn.Module):
    def __init__(self, rate: float = 0.37, depth: float = 3.0):
        super().__init__()
        self.rate, self.depth = rate, depth
        self.phase = 0.0
        self.register_buffer("past", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        delay = self.depth * (1.0 + math.sin(self.phase))
        self.phase = (self.phase + self.rate) % (2 * math.pi)
        line = torch.cat([self.past, x])
        at = torch.arange(8, 8 + x.numel()) - delay
        low = at.floor()
        mix = at - low
        index = low.long()
        self.past = line[-8:]
        return x + 0.7 * torch.lerp(line[index], line[index + 1 - (mix == 0).long()], mix)


@case("pitch smoother: median over a deque of tensors", (3,), scale=40.0, steps=12)
class PitchSmoother(nn.Module):
    def __init__(self, window: int = 5):
        super().__init__()
        self.recent = collections.deque([torch.zeros(3)] * window, maxlen=window)

    def forward(self, pitch: Tensor) -> Tensor:
        self.recent.append(pitch.abs())
        return torch.stack(list(self.recent)).median(dim=0).values


@case("pitch smoother whose deque is empty at first", (3,), scale=40.0, steps=12)
class PitchSmootherFromEmpty(nn.Module):
    def __init__(self, window: int = 5):
        super().__init__()
        self.recent = collections.deque(maxlen=window)

    def forward(self, pitch: Tensor) -> Tensor:
        self.recent.append(pitch.abs())
        return torch.stack(list(self.recent)).median(dim=0).values


@case("minimum statistics: a ring of minima, turned every third frame (Python int)", (6,), steps=20)
class MinimumStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.minima = torch.full((4, 6), float("inf"))
        self.frame = 0

    def forward(self, x: Tensor) -> Tensor:
        power = x.square()
        if self.frame % 3 == 0:
            self.minima = torch.roll(self.minima, 1, 0)
            self.minima[0] = power
        else:
            self.minima[0] = torch.minimum(self.minima[0], power)
        self.frame += 1
        return (power - 1.5 * self.minima.amin(dim=0)).clamp(min=0)


@case(
    "beat tracker: onset history, autocorrelation, a phase that a Python int counts", (5,), steps=20
)
class BeatTracker(nn.Module):
    def __init__(self, history: int = 24):
        super().__init__()
        self.register_buffer("onsets", torch.zeros(history))
        self.register_buffer("spectrum", torch.zeros(5))
        self.register_buffer("since", torch.tensor(0, dtype=torch.int32))
        self.frame = 0

    def forward(self, spectrum: Tensor) -> Tensor:
        flux = (spectrum - self.spectrum).relu().sum()
        self.spectrum.copy_(spectrum)
        self.onsets = torch.cat([self.onsets[1:], flux[None]])
        centred = self.onsets - self.onsets.mean()
        lags = torch.stack([(centred[k:] * centred[:-k]).sum() for k in range(2, 10)])
        period = lags.argmax() + 2
        beat = (self.since >= period) | (flux > 3 * self.onsets.mean() + 1)
        self.since = torch.where(beat, 0, self.since + 1)
        self.frame += 1
        return torch.stack([beat.float(), period.float(), flux * (self.frame > 4)])


@case("dither by a linear congruential generator in int64", (6,), steps=12)
class DitheredQuantizer(nn.Module):
    def __init__(self, levels: int = 8):
        super().__init__()
        self.levels = levels
        self.register_buffer("seed", torch.tensor(12345, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        noise = []
        for _ in range(x.shape[0]):
            self.seed = (self.seed * 1103515245 + 12345) & 0x7FFFFFFF
            noise.append((self.seed >> 16).float() / 32768.0 - 0.5)
        q = torch.round(x * self.levels + torch.stack(noise))
        return q.clamp(-32, 31).to(torch.int8)


@case("keyword spotter: a posterior window and a cool-down in Python", (1, 4), scale=2.0, steps=24)
class KeywordSpotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = []
        self.cooldown = 0

    def forward(self, logits: Tensor) -> Tensor:
        self.window.append(torch.softmax(logits, dim=-1))
        if len(self.window) > 4:
            self.window.pop(0)
        score = torch.stack(self.window).mean(dim=0)[0, 1]
        fired = bool(score > 0.3) and self.cooldown == 0
        self.cooldown = 5 if fired else max(self.cooldown - 1, 0)
        return torch.tensor([float(fired), float(score)])


@case("WaveNet: a queue per dilated layer, by setattr", (1, 2), steps=14)
class FastWavenet(nn.Module):
    def __init__(self, layers: int = 3):
        super().__init__()
        self.layers = layers
        self.now = nn.ModuleList(nn.Linear(2, 4) for _ in range(layers))
        self.then = nn.ModuleList(nn.Linear(2, 4, bias=False) for _ in range(layers))
        for i in range(layers):
            setattr(self, f"queue_{i}", torch.zeros(2**i, 2))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.layers):
            queue = getattr(self, f"queue_{i}")
            z = self.now[i](x) + self.then[i](queue[:1])
            setattr(self, f"queue_{i}", torch.cat([queue[1:], x]))
            x = x + torch.tanh(z[:, :2]) * torch.sigmoid(z[:, 2:])
        return x
