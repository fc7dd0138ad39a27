"""More of the modules of ``deployed.py``: networks and caches.

Loaded by path, as ``corpus_deployed_models``, after ``corpus_deployed``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
from corpus_deployed import case, tokens
from torch import Tensor, nn


@case("Mamba block, one token: rolled convolution state and selective scan state", (2, 6))
class MambaStep(nn.Module):
    def __init__(self, size: int = 6, inner: int = 8, states: int = 4, kernel: int = 3):
        super().__init__()
        self.in_proj = nn.Linear(size, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel, groups=inner)
        self.x_proj = nn.Linear(inner, 1 + 2 * states, bias=False)
        self.dt_proj = nn.Linear(1, inner)
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
        self.d = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, size, bias=False)
        self.register_buffer("conv_state", torch.zeros(2, inner, kernel))
        self.register_buffer("ssm_state", torch.zeros(2, inner, states))

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.in_proj(x).chunk(2, dim=-1)
        self.conv_state.copy_(torch.roll(self.conv_state, shifts=-1, dims=-1))
        self.conv_state[:, :, -1] = u
        u = F.silu((self.conv_state * self.conv.weight[:, 0]).sum(-1) + self.conv.bias)
        dt, b, c = self.x_proj(u).split([1, 4, 4], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.a_log))
        drive = (dt * u).unsqueeze(-1) * b.unsqueeze(1)
        self.ssm_state.copy_(self.ssm_state * decay + drive)
        y = torch.einsum("bds,bs->bd", self.ssm_state, c) + self.d * u
        return self.out_proj(y * F.silu(z))


@case("S4D: a complex diagonal recurrence as real and imaginary parts, float64", (4, 3))
class DiagonalStateSpace(nn.Module):
    def __init__(self, channels: int = 3, modes: int = 4):
        super().__init__()
        radius, angle = torch.rand(2, channels, modes, dtype=torch.float64)
        self.a = (0.5 + 0.45 * radius, math.pi * angle)
        self.c = nn.Parameter(torch.randn(2, channels, modes, dtype=torch.float64))
        self.h_re = torch.zeros(channels, modes, dtype=torch.float64)
        self.h_im = torch.zeros(channels, modes, dtype=torch.float64)

    def forward(self, u: Tensor) -> Tensor:
        radius, angle = self.a
        a_re, a_im = radius * torch.cos(angle), radius * torch.sin(angle)
        out = []
        for t in range(u.shape[0]):
            drive = u[t].double()[:, None]
            self.h_re, self.h_im = (
                a_re * self.h_re - a_im * self.h_im + drive,
                a_re * self.h_im + a_im * self.h_re,
            )
            out.append((self.c[0] * self.h_re - self.c[1] * self.h_im).sum(-1))
        return torch.stack(out).to(u.dtype)


@case("RWKV time mixing: numerator, denominator and a running maximum from -1e38", (5,), steps=12)
class RwkvTimeMix(nn.Module):
    def __init__(self, size: int = 5):
        super().__init__()
        self.k, self.v = nn.Linear(size, size), nn.Linear(size, size)
        self.decay = nn.Parameter(-torch.rand(size) - 0.2)
        self.bonus = nn.Parameter(torch.rand(size))
        self.state = torch.zeros(3, size)
        self.state[2] = -1e38

    def forward(self, x: Tensor) -> Tensor:
        k, v = 3 * self.k(x), self.v(x)
        a, b, p = self.state
        q = torch.maximum(p, self.bonus + k)
        e1, e2 = torch.exp(p - q), torch.exp(self.bonus + k - q)
        out = (e1 * a + e2 * v) / (e1 * b + e2)
        q = torch.maximum(p + self.decay, k)
        e1, e2 = torch.exp(p + self.decay - q), torch.exp(k - q)
        self.state = torch.stack([e1 * a + e2 * v, e1 * b + e2, q])
        return out


@case("retention: a matrix state per head, decay by head", (1, 6))
class Retention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18, bias=False)
        self.register_buffer("gamma", 1 - 2.0 ** (-2 - torch.arange(2.0)).view(2, 1, 1))
        self.kv = torch.zeros(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(3, 2, 1, 3)
        self.kv = self.gamma * self.kv + k.transpose(1, 2) @ v
        return (q @ self.kv).flatten()


class _StaticCache:
    def __init__(self, layers: int, heads: int, length: int, size: int):
        self.keys = [torch.zeros(1, heads, length, size) for _ in range(layers)]
        self.values = [torch.zeros(1, heads, length, size) for _ in range(layers)]
        self.seen_tokens = 0

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer == 0:
            self.seen_tokens += k.shape[2]
        position = torch.arange(self.seen_tokens - k.shape[2], self.seen_tokens)
        self.keys[layer].index_copy_(2, position, k)
        self.values[layer].index_copy_(2, position, v)
        return self.keys[layer], self.values[layer]


class _CachedAttention(nn.Module):
    def __init__(self, layer: int):
        super().__init__()
        self.layer = layer
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: _StaticCache) -> Tensor:
        q, k, v = self.qkv(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = cache.update(self.layer, k, v)
        query = torch.arange(cache.seen_tokens - x.shape[1], cache.seen_tokens)
        mask = torch.arange(k.shape[2]) <= query[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


@case("static cache of two layers: an object with lists of tensors and a Python int", (1, 2, 8))
class StaticCacheDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_CachedAttention(i) for i in range(2))
        self.cache = _StaticCache(2, 2, 24, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x, self.cache)
        return x


@case(
    "sliding-window cache: rolled in place, a Python int says how much is filled",
    (1, 1, 4),
    steps=12,
)
class SlidingWindowCache(nn.Module):
    def __init__(self, window: int = 5):
        super().__init__()
        self.window, self.filled = window, 0
        self.register_buffer("k", torch.zeros(1, window, 4))
        self.register_buffer("v", torch.zeros(1, window, 4))
        self.kv = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        for cache, new in ((self.k, k), (self.v, v)):
            cache[:, :-1] = cache[:, 1:].clone()
            cache[:, -1:] = new
        self.filled = min(self.filled + 1, self.window)
        mask = torch.arange(self.window) >= self.window - self.filled
        scores = (x @ self.k.mT / 2).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ self.v


@case("left context that grows from nothing and is cut to its longest (WeNet)", (1, 2, 4), steps=12)
class CappedCache(nn.Module):
    def __init__(self, required: int = 6):
        super().__init__()
        self.required = required
        self.cache = torch.zeros(1, 0, 4)

    def forward(self, x: Tensor) -> Tensor:
        keys = torch.cat([self.cache, x], dim=1)
        self.cache = keys[:, -self.required :]
        return torch.softmax(x @ keys.transpose(1, 2), dim=-1) @ keys


@case("int8 cache with a scale and a uint8 zero point for each row; a Python position", (1, 6))
class QuantizedCache(nn.Module):
    def __init__(self, length: int = 16):
        super().__init__()
        self.q = torch.zeros(length, 6, dtype=torch.int8)
        self.scale = torch.zeros(length, 1)
        self.zero = torch.zeros(length, 1, dtype=torch.uint8)
        self.pos = 0

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.amin(-1), x.amax(-1)
        scale = (high - low) / 255 + 1e-8
        zero = torch.round(-low / scale).clamp(0, 255)
        code = torch.round(x / scale[:, None] + zero[:, None]).clamp(0, 255) - 128
        self.q[self.pos] = code[0].to(torch.int8)
        self.scale[self.pos] = scale
        self.zero[self.pos] = zero.to(torch.uint8)
        self.pos += 1
        rows = (self.q.float() + 128 - self.zero.float()) * self.scale
        live = torch.arange(rows.shape[0]) < self.pos
        return torch.softmax((x @ rows.T).masked_fill(~live, -1e9), -1) @ rows


@case(
    "attention sinks: the first two rows stay, the rest slides; rotary positions", (1, 4), steps=14
)
class SinkCache(nn.Module):
    def __init__(self, sinks: int = 2, window: int = 6):
        super().__init__()
        self.sinks, self.window = sinks, window
        self.register_buffer("k", torch.zeros(window, 4))
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("frequency", torch.tensor([1.0, 0.1]))

    def rotated(self, x: Tensor, position: Tensor) -> Tensor:
        angle = position[:, None] * self.frequency
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        slid = torch.cat([self.k[: self.sinks], self.k[self.sinks + 1 :], x])
        written = self.k.clone()
        written[self.n.clamp(max=self.window - 1)] = x[0]
        self.k = torch.where(self.n < self.window, written, slid)
        self.n += 1
        count = self.n.clamp(max=self.window)
        keys = self.rotated(self.k, torch.arange(self.window))
        scores = self.rotated(x, (count - 1)[None]) @ keys.T
        masked = scores.masked_fill(torch.arange(self.window) >= count, float("-inf"))
        return masked.softmax(-1) @ self.k


@case(
    "speculative decoding: drafts are written, then only the accepted ones are kept",
    make=lambda g: (torch.randn(3, 4, generator=g), torch.randint(0, 4, (), generator=g)),
)
class SpeculativeCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(40, 4))
        self.register_buffer("length", torch.zeros((), dtype=torch.int64))

    def forward(self, draft: Tensor, accepted: Tensor) -> Tensor:
        self.cache[self.length + torch.arange(3)] = draft
        seen = torch.arange(40)[None] <= (self.length + torch.arange(3))[:, None]
        scores = (draft @ self.cache.T).masked_fill(~seen, float("-inf"))
        self.length += accepted
        return scores.softmax(-1) @ self.cache


@case(
    "beam search: growing (k, v) per layer, None at first, reordered by parent",
    make=lambda g: (torch.randn(3, 1, 4, generator=g), torch.randint(0, 3, (3,), generator=g)),
)
class BeamCaches(nn.Module):
    def __init__(self, layers: int = 2):
        super().__init__()
        self.kv = nn.ModuleList(nn.Linear(4, 8) for _ in range(layers))
        self.past = [None] * layers

    def forward(self, x: Tensor, parents: Tensor) -> Tensor:
        for i, layer in enumerate(self.kv):
            k, v = layer(x).chunk(2, dim=-1)
            if self.past[i] is not None:
                past_k, past_v = self.past[i]
                k = torch.cat([past_k.index_select(0, parents), k], dim=1)
                v = torch.cat([past_v.index_select(0, parents), v], dim=1)
            self.past[i] = (k, v)
            x = x + torch.softmax(x @ k.transpose(1, 2), -1) @ v
        return x


@case(
    "incremental state in a dict of dicts that is filled in the first call (fairseq)",
    (2, 1, 6),
    steps=8,
)
class IncrementalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.incremental_state = {}

    def forward(self, x: Tensor) -> Tensor:
        saved = self.incremental_state.get("attn_state", {})
        k, v = self.k(x), self.v(x)
        if "prev_key" in saved:
            k = torch.cat([saved["prev_key"], k], dim=1)
            v = torch.cat([saved["prev_value"], v], dim=1)
        self.incremental_state["attn_state"] = {"prev_key": k, "prev_value": v}
        return torch.softmax(self.q(x) @ k.transpose(1, 2), dim=-1) @ v


@case(
    "repetition penalty: int32 counts, a Python dict of statistics",
    make=lambda g: (2 * torch.randn(1, 8, generator=g),),
    steps=14,
)
class RepetitionPenalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = torch.zeros(1, 8, dtype=torch.int32)
        self.stats = {"tokens": 0, "repeats": 0}

    def forward(self, logits: Tensor) -> Tensor:
        seen = self.counts > 0
        penalised = torch.where(logits > 0, logits / 1.5, logits * 1.5)
        logits = torch.where(seen, penalised, logits) - 0.1 * self.counts
        token = logits.argmax(dim=-1, keepdim=True)
        self.stats["tokens"] += 1
        self.counts.scatter_add_(1, token, torch.ones_like(token, dtype=torch.int32))
        return torch.cat([token, self.counts], dim=-1) * self.stats["tokens"]


@case("diffusion sampler (PLMS): a list of noise predictions, up to four", (1, 4), steps=9)
class PlmsSampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
        self.ets = []

    def forward(self, sample: Tensor) -> Tensor:
        noise = self.net(sample)
        self.ets = self.ets[-3:]
        self.ets.append(noise)
        if len(self.ets) == 1:
            noise = self.ets[-1]
        elif len(self.ets) == 2:
            noise = (3 * self.ets[-1] - self.ets[-2]) / 2
        elif len(self.ets) == 3:
            noise = (23 * self.ets[-1] - 16 * self.ets[-2] + 5 * self.ets[-3]) / 12
        else:
            e = self.ets
            noise = (55 * e[-1] - 59 * e[-2] + 37 * e[-3] - 9 * e[-4]) / 24
        return sample - 0.1 * noise


@case(
    "diffusion sampler (DPM-Solver++ 2M): the last prediction and a Python step index",
    (1, 4),
    steps=8,
)
class MultistepSampler(nn.Module):
    def __init__(self, steps: int = 8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.register_buffer("sigmas", torch.linspace(3.0, 0.1, steps + 1))
        self.model_outputs = [None, None]
        self.step_index = 0

    def forward(self, sample: Tensor) -> Tensor:
        sigma, after = self.sigmas[self.step_index], self.sigmas[self.step_index + 1]
        self.model_outputs[0] = self.model_outputs[1]
        self.model_outputs[1] = self.net(sample / (1 + sigma**2).sqrt())
        h = torch.log(sigma / after)
        if self.step_index == 0:
            denoised = self.model_outputs[1]
        else:
            h_last = torch.log(self.sigmas[self.step_index - 1] / sigma)
            r = h_last / h
            denoised = (1 + 1 / (2 * r)) * self.model_outputs[1]
            denoised = denoised - (1 / (2 * r)) * self.model_outputs[0]
        self.step_index += 1
        return (after / sigma) * sample - torch.expm1(-h) * denoised


@case(
    "Adams-Bashforth step with zeros as history and coefficients chosen by a tensor index", (2, 3)
)
class AdamsBashforth(nn.Module):
    def __init__(self):
        super().__init__()
        table = [[1.0, 0.0, 0.0], [1.5, -0.5, 0.0], [23 / 12, -16 / 12, 5 / 12]]
        self.register_buffer("table", torch.tensor(table))
        self.register_buffer("slopes", torch.zeros(3, 2, 3))
        self.register_buffer("order", torch.tensor(0))
        self.register_buffer("y", torch.zeros(2, 3))

    def forward(self, force: Tensor) -> Tensor:
        self.slopes[1:] = self.slopes[:-1].clone()
        self.slopes[0] = force - 0.5 * self.y
        self.y += 0.1 * torch.einsum("k,kbs->bs", self.table[self.order], self.slopes)
        self.order = torch.clamp(self.order + 1, max=2)
        return self.y.clone()


@case("temporal shift: a slice of the features of the frame before, per stage", (1, 4, 3, 3))
class TemporalShift(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.shifted = [torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3)]

    def forward(self, x: Tensor) -> Tensor:
        for i, stage in enumerate(self.stages):
            kept = x[:, :1].clone()
            x = x + F.relu(stage(torch.cat([self.shifted[i], x[:, 1:]], dim=1)))
            self.shifted[i] = kept
        return x


class _Memory(NamedTuple):
    h: Tensor
    c: Tensor
    steps: int


@case("ConvLSTM over video: a NamedTuple of tensors and a Python int, None at first", (1, 2, 4, 4))
class ConvLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Conv2d(5, 12, 3, padding=1)
        self.memory = None

    def forward(self, x: Tensor) -> Tensor:
        if self.memory is None:
            zeros = x.new_zeros(x.shape[0], 3, *x.shape[2:])
            self.memory = _Memory(zeros, zeros, 0)
        h, c, steps = self.memory
        i, f, o, g = self.gates(torch.cat([x, h], dim=1)).tensor_split([3, 6, 9], dim=1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        self.memory = _Memory(h, c, steps + 1)
        return h / (steps + 1)


@case(
    "echo state network: a leaky reservoir, its readout trained by recursive least squares",
    (2,),
    (1,),
    steps=12,
)
class EchoState(nn.Module):
    def __init__(self, size: int = 6):
        super().__init__()
        self.register_buffer("w", torch.randn(size, size) * 0.3)
        self.register_buffer("w_in", torch.randn(size, 2))
        self.register_buffer("x", torch.zeros(size))
        self.register_buffer("p", torch.eye(size) * 10)
        self.readout = nn.Parameter(torch.zeros(size))

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        self.x = 0.7 * self.x + 0.3 * torch.tanh(self.w @ self.x + self.w_in @ u)
        y = self.readout @ self.x
        gain = self.p @ self.x / (1 + self.x @ self.p @ self.x)
        self.p -= torch.outer(gain, self.x @ self.p)
        self.readout.data += gain * (target - y)
        return y[None]


@case(
    "spiking layer: the membrane is the float 0.0 until the first call makes it a tensor",
    (2, 4),
    scale=1.5,
    steps=12,
)
class LeakyIntegrateAndFire(nn.Module):
    def __init__(self, tau: float = 2.0):
        super().__init__()
        self.tau = tau
        self.v = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.v, float):
            self.v = torch.full_like(x, self.v)
        self.v = self.v + (x - self.v) / self.tau
        spike = (self.v >= 0.5).to(x)
        self.v = self.v * (1 - spike)
        return spike


class _Leaky(nn.Module):
    def __init__(self, beta: float):
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mem"):
            self.mem = torch.zeros_like(x)
            self.refractory = torch.zeros_like(x, dtype=torch.int32)
        free = self.refractory == 0
        self.mem = torch.where(free, self.beta * self.mem + x, self.mem)
        spike = self.mem > 0.4
        self.mem = self.mem - 0.4 * spike
        self.refractory = torch.where(spike, 2, (self.refractory - 1).clamp(min=0)).int()
        return spike.to(x.dtype)


@case("spiking network: membranes and refractory counters by hasattr", (1, 4), steps=12)
class SpikingNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), _Leaky(0.9), nn.Linear(6, 3), _Leaky(0.8))
        self.spikes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.spikes += 1
        return self.net(x) + self.spikes * 0.01


@case("GRU layer called for two streams in turn, hidden states in a nested dict", (1, 3), (1, 3))
class TwoStreams(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.cache = {"left": {"h": torch.zeros(1, 4)}, "right": {"h": torch.zeros(1, 4)}}

    def step(self, name: str, x: Tensor) -> Tensor:
        self.cache[name]["h"] = self.cell(x, self.cache[name]["h"])
        return self.cache[name]["h"]

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.step("left", left) - 0.5 * self.step("right", right)


@case("transformer-XL memory: a list of hidden states per layer, made in the first call", (1, 2, 4))
class SegmentMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 12) for _ in range(2))
        self.mems = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.mems:
            self.mems = [torch.zeros(1, 3, 4) for _ in self.layers]
        new = []
        for layer, mem in zip(self.layers, self.mems, strict=True):
            context = torch.cat([mem, x], dim=1)
            new.append(context[:, -3:].detach())
            q, k, v = layer(context).chunk(3, dim=-1)
            x = x + torch.softmax(q[:, -2:] @ k.mT, dim=-1) @ v
        self.mems = new
        return x


@case("activation observer: running ranges in a dict, filled by a forward hook", (2, 4), steps=8)
class ActivationObserver(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.ranges = {}
        for name, layer in self.body.named_children():
            layer.register_forward_hook(self.observer(name))

    def observer(self, name: str):
        def observe(module: nn.Module, arguments: tuple, output: Tensor) -> None:
            low, high = self.ranges.get(name, (torch.zeros(()), torch.zeros(())))
            self.ranges[name] = (torch.min(low, output.min()), torch.max(high, output.max()))

        return observe

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        low, high = self.ranges["2"]
        return (y - low) / (high - low + 1e-3)


@case(
    "retrieval memory: uint8 keys, int64 ages, the oldest row is replaced",
    make=tokens(256, 4),
    steps=14,
)
class OldestReplaced(nn.Module):
    def __init__(self, rows: int = 5):
        super().__init__()
        self.register_buffer("keys", torch.zeros(rows, 4, dtype=torch.uint8))
        self.register_buffer("ages", torch.arange(rows))

    def forward(self, key: Tensor) -> Tensor:
        row = self.ages.argmax()
        self.keys[row] = key.to(torch.uint8)
        self.ages += 1
        self.ages[row] = 0
        return (self.keys.long() - key).abs().sum(dim=1)
