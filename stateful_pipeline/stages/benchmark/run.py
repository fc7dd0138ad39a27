"""The stage ``benchmark``: time a step of each target beside eager PyTorch, in the same run.

Contenders take turns in blocks, so that a slow moment of the machine hits both; inputs are made
beforehand and differ from step to step, and states are warm (filled by the warm-up steps).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.arrays import to_arrays
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Reference, Tensors, torch_threads
from stateful_pipeline.model.sizes import usual_sizes
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild

BLOCK = 10


def run(artifacts: Artifacts) -> None:
    """Fill ``benchmark`` of each target that was built and runs."""
    options = artifacts.spec.benchmark
    if options.steps == 0:
        return
    subject = artifacts.need("subject", "benchmark")
    reference = artifacts.need("discovery", "benchmark").reference
    sizes = usual_sizes(subject.axes)
    for name, build in artifacts.targets.items():
        if build.artifact is None or build.error is not None or build.owed:
            continue
        target = artifacts.spec.targets[name]
        threads = target.threads or torch.get_num_threads()
        artifacts.say(f"timing {name}")
        try:
            runner = StatefulRunner(
                build.artifact, provider=target.provider, threads=target.threads
            )
        except PipelineError as error:
            build.error = error
            continue
        _measure(artifacts, build, runner, reference, subject.plan, sizes, threads)


def _measure(
    artifacts: Artifacts,
    build: TargetBuild,
    runner: StatefulRunner,
    reference: Reference,
    plan: InputPlan,
    sizes: Mapping[str, int],
    threads: int,
) -> None:
    options = artifacts.spec.benchmark
    every = artifacts.spec.verify.reset_every
    given = plan.steps(sizes, 0, BLOCK)
    arrays = [to_arrays(step) for step in given]
    with torch_threads(threads), reference.session(exact=False) as session:
        eager = _Contender(
            lambda inputs: reference.call(reference.module, inputs),
            lambda: session.load(reference.initial(sizes)),
            given,
            every,
        )
        ours = _Contender(runner.run, runner.reset, arrays, every)
        for contender in (eager, ours):
            contender.take(options.warmup, timed=False)
        while len(ours.seconds) < options.steps:
            count = min(BLOCK, options.steps - len(ours.seconds))
            for contender in (eager, ours):
                contender.take(count, timed=True)
    mine, theirs = _percentiles(ours.seconds), _percentiles(eager.seconds)
    build.benchmark = {
        "sizes": dict(sizes),
        "threads": threads,
        "steps": options.steps,
        "warmup": options.warmup,
        **mine,
        "eager": theirs,
        "ratio_p50": mine["p50_ms"] / theirs["p50_ms"],
    }


class _Contender:
    """Takes steps, and resets as often as verification does (a cache may be full by then)."""

    def __init__(
        self,
        step: Callable[[Any], Any],
        reset: Callable[[], Any],
        inputs: list[Any] | list[Tensors],
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


def _percentiles(seconds: list[float]) -> dict[str, float]:
    p50, p95, p99 = np.percentile(np.array(seconds) * 1e3, [50, 95, 99])
    return {
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "mean_ms": float(np.mean(seconds) * 1e3),
    }
