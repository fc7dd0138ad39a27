"""More small stateful modules, of the kinds that streaming and decoding code is made of.

They are registered like those in ``cases.py``; every one must come out right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stream:
    name: str
    module: Callable[[], nn.Module]
    make: Callable[[torch.Generator], tuple[Tensor, ...]]
    steps: int = 6
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.module().eval()

    def inputs(self, step: int) -> tuple[Tensor, ...]:
        return self.make(torch.Generator().manual_seed(500 + step))


STREAMS: list[Stream] = []


def stream(
    *shapes: tuple[int, ...], make=None, dtype=torch.float32, **more
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def normal(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    def register(cls: type[nn.Module]) -> type[nn.Module]:
        STREAMS.append(Stream(cls.__name__, cls, make or normal, **more))
        return cls

    return register


class _CausalLayer(nn.Module):
    def __init__(self, channels: int, dilation: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.register_buffer("context", torch.zeros(1, channels, 2 * dilation), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.cat([self.context, x], dim=2)
        self.context = padded[:, :, -self.context.shape[2] :]
        return torch.relu(self.conv(padded)) + x


@stream((1, 4, 6), dynamic={"x": {0: "batch", 2: "time"}})
class ConvStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[_CausalLayer(4, 2**i) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@stream((1, 5, 3), dynamic={"x": {0: "batch", 1: "time"}})
class GRUWithHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 2)
        self.register_buffer("h", torch.zeros(2, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        y, self.h = self.gru(x, self.h)
        return self.head(y)


@stream((1, 2, 3, 4), dynamic={"x": {2: "time"}}, steps=5)
class CacheInChunks(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 32, 4))
        self.register_buffer("pos", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        at = self.pos + torch.arange(x.shape[2])
        self.k.index_copy_(2, at, x)
        mask = torch.arange(32) <= at[:, None]
        scores = (x @ self.k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        self.pos += x.shape[2]
        return torch.softmax(scores, -1) @ self.k


@stream(
    (4, 3), make=lambda g: (torch.randn(4, 3, generator=g), torch.randint(0, 4, (4,), generator=g))
)
class BeamSearchCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 6, 3))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, parents: Tensor) -> Tensor:
        self.cache.copy_(self.cache[parents])
        self.cache[:, self.step % 6] = x
        self.step.add_(1)
        return self.cache.sum(dim=1)


@stream((2, 3), dynamic={"x": {0: "batch"}})
class MovingAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(1, 3))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.average = torch.lerp(self.average, x, 0.1)
        self.weight.mul_(0.9).add_(0.1)
        return self.average / self.weight


@stream((8,), steps=8)
class Biquad(nn.Module):
    """A second-order section, transposed direct form II, sample by sample."""

    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.tensor([0.2, 0.4, 0.2], dtype=torch.float64))
        self.register_buffer("a", torch.tensor([-0.5, 0.3], dtype=torch.float64))
        self.register_buffer("z", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        samples = []
        for value in x.double():
            y = self.b[0] * value + self.z[0]
            self.z[0] = self.b[1] * value - self.a[0] * y + self.z[1]
            self.z[1] = self.b[2] * value - self.a[1] * y
            samples.append(y)
        return torch.stack(samples).float()


@stream((2,), steps=10)
class Kalman(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("f", torch.tensor([[1.0, 0.1], [0.0, 1.0]]))
        self.register_buffer("x", torch.zeros(2))
        self.register_buffer("p", torch.eye(2))

    def forward(self, z: Tensor) -> Tensor:
        for i in range(2):
            self.x = self.f @ self.x
            self.p = self.f @ self.p @ self.f.T + 0.01 * torch.eye(2)
            gain = self.p[:, i] / (self.p[i, i] + 0.5)
            self.x = self.x + gain * (z[i] - self.x[i])
            self.p = self.p - gain[:, None] * self.p[i][None, :]
        return self.x


@stream((3, 4), steps=8)
class Int8Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("q", torch.zeros(8, 3, 4, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(8, 3, 1))
        self.register_buffer("head", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127 + 1e-6
        self.q[self.head] = torch.round(x / scale).clamp(-127, 127).to(torch.int8)
        self.scale[self.head] = scale
        self.head = (self.head + 1) % 8
        return (self.q.float() * self.scale).mean(0)


@stream((2,), steps=12)
class RingByTwoIndices(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(3, 4, 2))
        self.register_buffer("n", torch.tensor(0, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        row, column = self.n // 4 % 3, self.n % 4
        self.ring[row, column] = x
        self.n = self.n + 1
        return self.ring[-1, column] + self.ring.sum((0, 1))


@stream((5,))
class VisitedMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("visited", torch.zeros(5, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        scores = x.masked_fill(self.visited & ~self.visited.all(), float("-inf"))
        best = scores.argmax()
        self.visited.logical_or_(torch.arange(5) == best)
        return best + (~self.visited).sum()


class _Reader(nn.Module):
    def __init__(self, memory: Tensor):
        super().__init__()
        self.register_buffer("memory", memory)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.memory


@stream((3,))
class OneBufferInTwoModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.ones(3))
        self.first, self.second = _Reader(self.memory), _Reader(self.memory)

    def forward(self, x: Tensor) -> Tensor:
        self.memory.mul_(0.5).add_(x)
        y = self.first(x)
        self.memory.add_(1.0)
        return y + self.second(x)


@stream((3,))
class NestedContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = {"slow": [torch.zeros(3), torch.ones(3)], "a.b": (torch.zeros(3),)}

    def forward(self, x: Tensor) -> Tensor:
        slow = self.memory["slow"]
        slow[0] = slow[0] * 0.9 + x
        slow[1].add_(slow[0])
        self.memory["a.b"] = (self.memory["a.b"][0] + slow[1],)
        return self.memory["a.b"][0]


@stream((3,))
class WrittenThroughViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("buf", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.buf[0].add_(x)
        self.buf.view(-1)[4:7] = x * 2
        self.buf[2:].t()[0].mul_(0.5).add_(1.0)
        first, *_ = self.buf.unbind(1)
        first.sub_(0.25)
        return self.buf.sum(0)


@stream((3,), steps=8)
class WrittenAtAPosition(nn.Module):
    """``self.ring[self.head]`` is a view in eager mode, and written through."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, 2, 3))
        self.register_buffer("head", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        slot = self.ring[self.head % 4]
        slot[0].copy_(x)
        slot[1] += slot[0] * 0.5
        torch.add(slot[1], 1.0, out=slot[1])
        self.ring[self.head % 4, 1].mul_(0.9)
        self.head += 1
        return self.ring.sum((0, 1))


@stream((2,))
class RolledInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.window.copy_(torch.roll(self.window, -2))
        self.window[-2:] = x
        torch.mul(self.window, 0.9, out=self.window)
        return self.window.cumsum(0)


@stream((3,))
class DataAssigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.zeros(3))
        self.register_buffer("count", torch.zeros(2, 1))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x) + self.h)
        self.h.data.copy_(y)
        self.count.data = self.count + 1
        self.count.data[0] += 0.5
        return y * self.count


@stream((3,))
class OneOfManyIsStateful(nn.Module):
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("v", torch.zeros(3))
            self.register_buffer("unused", None)

        def forward(self, x: Tensor) -> Tensor:
            self.v = self.v * 0.8 + x
            spikes = (self.v > 0.5).float()
            self.v = self.v - spikes * 0.5
            return spikes

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), self.Leaky(), nn.Linear(3, 3), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@stream((1, 3, 4))
class LayerCalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = _CausalLayer(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).flip(2))


@stream((1, 2, 3))
class TransposedOverlapAdd(nn.Module):
    def __init__(self):
        super().__init__()
        self.synthesis = nn.ConvTranspose1d(2, 1, kernel_size=6, stride=3, bias=False)
        self.register_buffer("tail", torch.zeros(1, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.synthesis(x)
        y[:, :, :3] += self.tail
        self.tail = y[:, :, -3:]
        return y[:, :, :-3]


@stream((1, 3, 8), dynamic={"x": {0: "batch"}}, steps=5)
class ChunkedAttention(nn.Module):
    """Attention of a chunk to itself and six frames before, with relative positions."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.relative = nn.Parameter(torch.randn(3, 9) * 0.1)
        self.register_buffer("past", torch.zeros(1, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.cat([self.past, x], dim=1)
        self.past = frames[:, -6:].detach()
        q, k, v = self.qkv(frames).chunk(3, dim=-1)
        q = q[:, -3:].unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / 2.0 + self.relative
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


@stream((1, 1, 8), steps=5)
class MultiheadWithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("seen", torch.zeros(1, 6, 8))
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.index_copy_(1, self.n.view(1), x)
        ignored = (torch.arange(6) > self.n)[None]
        self.n = self.n + 1
        y, _ = self.attention(x, self.seen, self.seen, key_padding_mask=ignored)
        return y


@stream((1, 2, 8), steps=5)
class TransformerLayerWithMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.register_buffer("memory", torch.zeros(1, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(torch.cat([self.memory, x], dim=1))
        self.memory.copy_(y[:, -4:])
        return y[:, -2:]


class _Gate:
    __slots__ = ("level",)

    def __init__(self):
        self.level = torch.zeros(())


@stream((3,))
class StateInAHook(nn.Module):
    """A forward hook, an object with slots and a closure each hold a state."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.gate = _Gate()
        total = torch.zeros(3)

        def remember(module, arguments, output):
            total.add_(output)
            return output + total

        self.linear.register_forward_hook(remember)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.gate.level = self.gate.level * 0.5 + y.mean()
        return y * self.gate.level


@stream((1, 3, 4), dynamic={"x": {0: "batch", 1: "time"}})
class ElmanBothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.register_buffer("h", torch.zeros(4, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        y, self.h = self.rnn(x, self.h)
        return y


@stream((1, 2, 3), dynamic={"x": {0: "batch", 1: "time"}}, steps=7)
class CacheWrittenBySlice(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 64, 3))
        self.register_buffer("pos", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        end = self.pos + x.shape[1]
        self.cache[:, self.pos : end] = x
        self.pos = end
        live = torch.arange(64) < self.pos
        scores = (x @ self.cache.transpose(1, 2)).masked_fill(~live, float("-inf"))
        return torch.softmax(scores, -1) @ self.cache
