"""More of the modules of ``deployed.py``: control, tracking, signals and policies.

Loaded by path, as ``corpus_deployed_control``, after ``corpus_deployed``.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from corpus_deployed import case, tokens, zeros
from torch import Tensor, nn


@case(
    "PID with anti-windup: integral and previous error are Python floats", (2,), scale=3.0, steps=16
)
class PidController(nn.Module):
    def __init__(self, kp: float = 1.2, ki: float = 0.8, kd: float = 0.05, dt: float = 0.1):
        super().__init__()
        self.kp, self.ki, self.kd, self.dt = kp, ki, kd, dt
        self.integral = 0.0
        self.previous_error = 0.0

    def forward(self, x: Tensor) -> Tensor:
        setpoint, measured = x.tolist()
        error = setpoint - measured
        derivative = (error - self.previous_error) / self.dt
        u = self.kp * error + self.ki * self.integral + self.kd * derivative
        saturated = max(-4.0, min(4.0, u))
        if u == saturated:
            self.integral += error * self.dt
        self.previous_error = error
        return torch.tensor([saturated])


@case(
    "PID with back-calculation in tensors, previous error None at first", (3,), scale=3.0, steps=16
)
class PidBackCalculation(nn.Module):
    def __init__(self):
        super().__init__()
        self.integral = torch.zeros(3)
        self.previous = None

    def forward(self, error: Tensor) -> Tensor:
        derivative = torch.zeros_like(error) if self.previous is None else error - self.previous
        u = 1.5 * error + self.integral + 0.2 * derivative
        out = u.clamp(-2.0, 2.0)
        self.integral = self.integral + 0.1 * error + 0.3 * (out - u)
        self.previous = error
        return out


@case(
    "model predictive control: the last plan, shifted, is where the next search starts",
    (2,),
    steps=12,
)
class WarmStartedMpc(nn.Module):
    def __init__(self, horizon: int = 5):
        super().__init__()
        a, b = torch.tensor([[1.0, 0.1], [0.0, 1.0]]), torch.tensor([0.005, 0.1])
        free = [torch.linalg.matrix_power(a, k + 1) for k in range(horizon)]
        forced = torch.zeros(horizon, 2, horizon)
        for k in range(horizon):
            for j in range(k + 1):
                forced[k, :, j] = torch.linalg.matrix_power(a, k - j) @ b
        self.register_buffer("free", torch.stack(free))
        self.register_buffer("forced", forced)
        self.plan = torch.zeros(horizon)

    def forward(self, state: Tensor) -> Tensor:
        plan = torch.cat([self.plan[1:], self.plan[-1:]])
        for _ in range(6):
            predicted = self.free @ state + self.forced @ plan
            gradient = torch.einsum("kis,ki->s", self.forced, predicted) + 0.02 * plan
            plan = (plan - 2.0 * gradient).clamp(-1.0, 1.0)
        self.plan = plan
        return plan[:1]


@case(
    "Kalman filter, Joseph form, float64; the inverse of a 2 by 2 written out",
    (2,),
    dtype=torch.float64,
    steps=14,
)
class JosephKalman(nn.Module):
    def __init__(self):
        super().__init__()
        eye = torch.eye(4, dtype=torch.float64)
        f = eye.clone()
        f[0, 2] = f[1, 3] = 0.1
        self.register_buffer("f", f)
        self.register_buffer("h", eye[:2].clone())
        self.x = torch.zeros(4, dtype=torch.float64)
        self.p = 5 * eye

    def forward(self, z: Tensor) -> Tensor:
        x = self.f @ self.x
        p = self.f @ self.p @ self.f.T + 0.01 * torch.eye(4, dtype=torch.float64)
        s = self.h @ p @ self.h.T + 0.4 * torch.eye(2, dtype=torch.float64)
        (a, b), (c, d) = s
        inverse = torch.stack([torch.stack([d, -b]), torch.stack([-c, a])]) / (a * d - b * c)
        k = p @ self.h.T @ inverse
        left = torch.eye(4, dtype=torch.float64) - k @ self.h
        self.x = x + k @ (z - self.h @ x)
        self.p = left @ p @ left.T + 0.4 * k @ k.T
        return self.x.clone()


@case("Kalman filter with torch.linalg.inv", (2,), steps=12)
class InverseKalman(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.zeros(2))
        self.register_buffer("p", torch.eye(2))

    def forward(self, z: Tensor) -> Tensor:
        p = self.p + torch.tensor([[0.02, 0.01], [0.01, 0.03]])
        k = p @ torch.linalg.inv(p + 0.5 * torch.eye(2))
        self.x = self.x + k @ (z - self.x)
        self.p = p - k @ p
        return self.x


class Estimate(NamedTuple):
    position: Tensor
    velocity: Tensor


@case("alpha-beta tracker: a NamedTuple that is replaced", (3,), steps=12)
class AlphaBeta(nn.Module):
    def __init__(self):
        super().__init__()
        self.estimate = Estimate(torch.zeros(3), torch.ones(3))

    def forward(self, z: Tensor) -> Tensor:
        predicted = self.estimate.position + 0.1 * self.estimate.velocity
        residual = z - predicted
        self.estimate = Estimate(
            position=predicted + 0.5 * residual,
            velocity=self.estimate.velocity + residual * 0.4,
        )
        return self.estimate.position


@case(
    "tracker of several targets: int32 ages, a bool mask, the nearest detection", (3, 2), steps=16
)
class CentroidTracker(nn.Module):
    def __init__(self, tracks: int = 4):
        super().__init__()
        self.register_buffer("centroids", torch.zeros(tracks, 2))
        self.register_buffer("missed", torch.zeros(tracks, dtype=torch.int32))
        self.register_buffer("alive", torch.zeros(tracks, dtype=torch.bool))

    def forward(self, detections: Tensor) -> Tensor:
        distance = (self.centroids[:, None] - detections[None]).norm(dim=-1)
        distance = distance.masked_fill(~self.alive[:, None], float("inf"))
        nearest = distance.min(dim=1)
        matched = self.alive & (nearest.values < 1.0)
        new = detections[nearest.indices]
        self.centroids = torch.where(matched[:, None], 0.5 * (self.centroids + new), self.centroids)
        self.missed = torch.where(matched, 0, self.missed + 1)
        self.alive &= self.missed < 4
        free = (~self.alive).int().argmax()
        fresh = detections[distance.amin(dim=0).argmax()]
        self.centroids[free] = torch.where(self.alive.all(), self.centroids[free], fresh)
        self.missed[free] = torch.where(self.alive.all(), self.missed[free], 0)
        self.alive[free] = True
        return torch.cat([self.centroids, self.missed[:, None].float()], dim=1)


@case("attitude: a quaternion from gyroscope and accelerometer", (3,), (3,), steps=14)
class ComplementaryFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.tensor([1.0, 0.0, 0.0, 0.0])

    def forward(self, gyro: Tensor, acceleration: Tensor) -> Tensor:
        w, x, y, z = self.q
        gravity = torch.stack([2 * (x * z - w * y), 2 * (w * x + y * z), 1 - 2 * (x * x + y * y)])
        measured = acceleration / (acceleration.norm() + 1e-6)
        gx, gy, gz = gyro + 0.5 * torch.linalg.cross(measured, gravity)
        rate = torch.stack(
            [
                -x * gx - y * gy - z * gz,
                w * gx + y * gz - z * gy,
                w * gy - x * gz + z * gx,
                w * gz + x * gy - y * gx,
            ]
        )
        q = self.q + 0.05 * rate
        self.q = q / q.norm()
        return self.q


@case("debouncer: a Python bool and a Python int, a branch on the input", (1,), steps=30)
class Debouncer(nn.Module):
    def __init__(self, hold: int = 2):
        super().__init__()
        self.hold = hold
        self.pressed = False
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        raw = bool(x[0] > 0)
        if raw != self.pressed:
            self.count += 1
            if self.count >= self.hold:
                self.pressed = raw
                self.count = 0
        else:
            self.count = 0
        return torch.tensor([self.pressed])


@case("toggle: a Python bool that turns at every call, without a branch", (3,))
class Toggle(nn.Module):
    def __init__(self):
        super().__init__()
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        self.on = not self.on
        return x * self.on


@case("rate limiter: the first sample is its first state", (2,), steps=12)
class RateLimiter(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None:
            self.last = x
        self.last = self.last + (x - self.last).clamp(-0.2, 0.2)
        return self.last


@case(
    "rate limiter, exported with an example within its limits",
    (2,),
    example=zeros(2),
    scale=3.0,
    steps=12,
)
class RateLimiterIdle(RateLimiter):
    pass


@case(
    "scale that takes its first reading for its tare, exported with zeros", (3,), example=zeros(3)
)
class TareScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = None

    def forward(self, x: Tensor) -> Tensor:
        if self.offset is None:
            self.offset = x.clone()
        return x - self.offset


@case("smoothing that begins with its first sample", (3,))
class SmoothedFromFirst(nn.Module):
    def __init__(self, alpha: float = 0.2):
        super().__init__()
        self.alpha = alpha
        self.average = None

    def forward(self, x: Tensor) -> Tensor:
        if self.average is None:
            self.average = x
        else:
            self.average = self.alpha * x + (1 - self.alpha) * self.average
        return self.average


@case("the same, exported with zeros", (3,), example=zeros(3))
class SmoothedFromFirstIdle(SmoothedFromFirst):
    pass


@case("thermal camera: what was hot in the first frame stays marked", (4,), scale=2.0, steps=12)
class HotAtStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.hot = None

    def forward(self, x: Tensor) -> Tensor:
        if self.hot is None:
            self.hot = x > 1.2
        self.hot = self.hot | (x < -4.0)
        return torch.where(self.hot, torch.zeros_like(x), x)


@case("smoothing with bias correction by a Python step counter (Adam)", (4,), steps=14)
class BiasCorrected(nn.Module):
    def __init__(self, b1: float = 0.9, b2: float = 0.99):
        super().__init__()
        self.b1, self.b2 = b1, b2
        self.t = 0
        self.m, self.v = torch.zeros(4), torch.zeros(4)

    def forward(self, g: Tensor) -> Tensor:
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        m = self.m / (1 - self.b1**self.t)
        v = self.v / (1 - self.b2**self.t)
        return m / (v.sqrt() + 1e-8)


@case(
    "warm-up: a learning rate of a Python step, min() and a square root", (3,), scale=2.0, steps=12
)
class WarmupRate(nn.Module):
    def __init__(self):
        super().__init__()
        self.step_num = 0
        self.w = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.step_num += 1
        rate = min(self.step_num**-0.5, self.step_num * 4**-1.5)
        self.w = self.w + rate * (x - self.w)
        return self.w


@case("running minimum and maximum, from infinities; normalises to 0..1", (4, 3), steps=12)
class MinMaxScaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.full((3,), float("inf")))
        self.register_buffer("high", torch.full((3,), float("-inf")))

    def forward(self, x: Tensor) -> Tensor:
        self.low = torch.minimum(self.low, x.amin(0))
        self.high = torch.maximum(self.high, x.amax(0))
        return (x - self.low) / (self.high - self.low + 1e-6)


@dataclass
class Statistics:
    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    m2: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))


@case(
    "observation normaliser of a policy: Welford in a dataclass with a Python count",
    (3,),
    scale=5.0,
    steps=14,
)
class ObservationNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.stats = Statistics()

    def forward(self, observation: Tensor) -> Tensor:
        s = self.stats
        s.count += 1
        delta = observation.double() - s.mean
        s.mean = s.mean + delta / s.count
        s.m2 = s.m2 + delta * (observation.double() - s.mean)
        std = torch.sqrt(s.m2 / max(s.count - 1, 1) + 1e-8)
        return ((observation - s.mean) / std).clamp(-5, 5).float()


@case("frame stack: the first frame fills a deque", (2, 2), steps=10)
class FrameStack(nn.Module):
    def __init__(self, frames: int = 3):
        super().__init__()
        self.frames = collections.deque(maxlen=frames)

    def forward(self, frame: Tensor) -> Tensor:
        while len(self.frames) < self.frames.maxlen - 1:
            self.frames.append(torch.zeros_like(frame))
        self.frames.append(frame)
        return torch.cat(list(self.frames))


@case(
    "recurrent policy: a bool input resets the rows of episodes that are over",
    make=lambda g: (torch.randn(3, 4, generator=g), torch.rand(3, generator=g) < 0.3),
    steps=14,
)
class RecurrentPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)
        self.head = nn.Linear(5, 2)
        self.hidden = (torch.zeros(3, 5), torch.zeros(3, 5))
        self.register_buffer("length", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: Tensor, done: Tensor) -> Tensor:
        keep = (~done).float()[:, None]
        h, c = (t * keep for t in self.hidden)
        self.hidden = self.cell(x, (h, c))
        self.length = (self.length + 1) * ~done
        return torch.tanh(self.head(self.hidden[0])) / (1 + self.length)[:, None]


@case("action chunking: a new chunk every fourth call, by a Python int", (3,), steps=14)
class ActionChunks(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(3, 8)
        self.chunk = torch.zeros(4, 2)
        self.index = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.index == 0:
            self.chunk = self.policy(x).view(4, 2)
        action = self.chunk[self.index]
        self.index = (self.index + 1) % 4
        return action


@case("temporal ensembling of action chunks: a table of what was predicted when", (3,), steps=12)
class TemporalEnsemble(nn.Module):
    def __init__(self, horizon: int = 4):
        super().__init__()
        self.policy = nn.Linear(3, horizon)
        self.register_buffer("table", torch.zeros(horizon, horizon))
        self.register_buffer("known", torch.zeros(horizon, horizon, dtype=torch.bool))
        self.register_buffer("weights", torch.exp(-0.3 * torch.arange(horizon)))

    def forward(self, x: Tensor) -> Tensor:
        row = self.policy(x)[None]
        older = torch.cat([self.table[:-1, 1:], torch.zeros(3, 1)], dim=1)
        valid = torch.cat([self.known[:-1, 1:], torch.zeros(3, 1, dtype=torch.bool)], dim=1)
        self.table = torch.cat([row, older])
        self.known = torch.cat([torch.ones_like(row, dtype=torch.bool), valid])
        weight = self.weights * self.known[:, 0]
        return (weight * self.table[:, 0]).sum(0, keepdim=True) / weight.sum()


@case("phase-locked loop: a Python float phase, sines of it, frequency in a tensor", (1,), steps=16)
class PhaseLockedLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = 0.0
        self.register_buffer("frequency", torch.tensor(0.4))

    def forward(self, x: Tensor) -> Tensor:
        reference = math.cos(self.phase)
        quadrature = math.sin(self.phase)
        error = x * quadrature
        self.frequency = self.frequency + 0.01 * error.mean()
        self.phase = math.fmod(self.phase + 0.4, 2 * math.pi)
        return x * reference + self.frequency


@case("change detector (CUSUM): int32 alarms, the sums fall back to zero", (4,), steps=20)
class Cusum(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("up", torch.zeros(4))
        self.register_buffer("down", torch.zeros(4))
        self.register_buffer("alarms", torch.zeros(4, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        self.up = (self.up + x - 0.2).clamp_min(0)
        self.down = (self.down - x - 0.2).clamp_min(0)
        alarm = (self.up > 1.5).logical_or(self.down > 1.5)
        self.alarms += alarm
        self.up.masked_fill_(alarm, 0.0)
        self.down[alarm] = 0.0
        return self.alarms + alarm.int() * 100


@case("online k-means: counts in int64, the nearest centroid moves", (2, 3), steps=14)
class OnlineKMeans(nn.Module):
    def __init__(self, clusters: int = 4):
        super().__init__()
        self.register_buffer("centroids", torch.randn(clusters, 3))
        self.register_buffer("counts", torch.zeros(clusters, dtype=torch.long))

    def forward(self, points: Tensor) -> Tensor:
        labels = []
        for point in points:
            k = ((self.centroids - point) ** 2).sum(1).argmin()
            self.counts[k] += 1
            self.centroids[k] += (point - self.centroids[k]) / self.counts[k]
            labels.append(k)
        return torch.cat([torch.stack(labels).float(), self.centroids.flatten()])


@case("histogram: int32 counts by scatter_add_, halved when a Python int says so", (6,), steps=14)
class DecayingHistogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = torch.zeros(8, dtype=torch.int32)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        bins = torch.bucketize(x, torch.linspace(-2, 2, 7))
        self.counts.scatter_add_(0, bins, torch.ones_like(bins, dtype=torch.int32))
        self.calls += 1
        if self.calls % 5 == 0:
            self.counts //= 2
        return self.counts.float() / self.counts.sum().clamp(min=1)


@case("background subtraction on uint8 frames, float16 model", make=tokens(256, 1, 4, 4), steps=12)
class BackgroundSubtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 4, 4), 128.0, dtype=torch.float16))
        self.register_buffer("variance", torch.full((1, 4, 4), 900.0))

    def forward(self, frame: Tensor) -> Tensor:
        pixels = frame.to(torch.uint8).float()
        delta = pixels - self.mean.float()
        foreground = delta.square() > 2.5 * self.variance
        rate = torch.where(foreground, 0.01, 0.2)
        self.mean = (self.mean.float() + rate * delta).half()
        self.variance.mul_(1 - rate).addcmul_(rate, delta.square()).clamp_(min=16.0)
        return foreground.to(torch.uint8) * 255


@case("a ring of Python floats, averaged", (2,), steps=12)
class FloatRing(nn.Module):
    def __init__(self, length: int = 4):
        super().__init__()
        self.ring = [0.0] * length
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        self.ring[self.at] = x.mean().item()
        self.at = (self.at + 1) % len(self.ring)
        return x - sum(self.ring) / len(self.ring)


@case("a shift register of Python floats", (2,), steps=12)
class FloatShift(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = [0.0, 0.0, 0.0]

    def forward(self, x: Tensor) -> Tensor:
        self.taps = [x.sum().item(), *self.taps[:-1]]
        return x + 0.5 * self.taps[1] - 0.25 * self.taps[2]


@case(
    "state machine: a transition table, an int64 state and int8 dwell times",
    make=tokens(3, 1),
    steps=20,
)
class StateMachine(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 2]]))
        self.register_buffer("state", torch.tensor(0))
        self.register_buffer("dwell", torch.zeros(3, dtype=torch.int8))

    def forward(self, event: Tensor) -> Tensor:
        self.state = self.table[self.state, event[0]]
        self.dwell[self.state] += 1
        return torch.cat([self.state.view(1).to(torch.int8), self.dwell])


@case(
    "multi-rate: a slow path at every third call, held between; state in a helper", (2,), steps=14
)
class MultiRate(nn.Module):
    class Held:
        def __init__(self):
            self.value, self.tick = torch.zeros(2), 0

    def __init__(self):
        super().__init__()
        self.slow = nn.Linear(2, 2)
        self.held = self.Held()

    def forward(self, x: Tensor) -> Tensor:
        due = self.held.tick % 3 == 0
        self.held.value = self.slow(x) if due else self.held.value
        self.held.tick += 1
        return x + self.held.value
