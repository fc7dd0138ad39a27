"""What is timed, and how it stands in the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stateful_pipeline.spec import BenchmarkOptions

BLOCK = 10
"""So many different inputs are made beforehand, and so many steps are taken in a block."""


class Contender:
    """Takes steps, and resets as often as verification does (a cache may be full by then).

    Args:
        step: Takes one step with one of ``inputs``.
        reset: Goes back to the initial state.
        inputs: What the steps are given in turn.
        reset_every: After how many steps it is reset.

    Attributes:
        seconds: How long each step took that was timed.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        reset: Callable[[], Any],
        inputs: Sequence[Any],
        reset_every: int | None,
    ) -> None:
        self._step, self._reset, self._inputs, self._every = step, reset, inputs, reset_every
        self._count = 0
        self.seconds: list[float] = []

    def take(self, steps: int, *, timed: bool) -> None:
        """Take ``steps`` steps; resets are not timed."""
        for _ in range(steps):
            if self._count == 0 or (self._every and self._count % self._every == 0):
                self._reset()
            inputs = self._inputs[self._count % len(self._inputs)]
            start = time.perf_counter()
            self._step(inputs)
            seconds = time.perf_counter() - start
            self._count += 1
            if timed:
                self.seconds.append(seconds)


def entry(
    options: BenchmarkOptions,
    sizes: Mapping[str, int],
    threads: int,
    ours: Sequence[float],
    eager: Sequence[float],
) -> dict[str, Any]:
    """Return what was measured, from the seconds of each step."""
    mine, theirs = _percentiles(ours), _percentiles(eager)
    return {
        "sizes": dict(sizes),
        "threads": threads,
        "steps": options.steps,
        "warmup": options.warmup,
        **mine,
        "eager": theirs,
        "ratio_p50": mine["p50_ms"] / theirs["p50_ms"],
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    p50, p95, p99 = np.percentile(np.array(seconds) * 1e3, [50, 95, 99])
    return {
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "mean_ms": float(np.mean(seconds) * 1e3),
    }
