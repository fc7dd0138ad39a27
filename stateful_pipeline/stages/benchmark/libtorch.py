"""Times a target of LibTorch inside its own process, and eager PyTorch before and after it.

The two cannot take turns within one process; that half of eager's steps come before and half after
shows a slow moment of the machine in eager, too.  Starting the process and loading the model are
not timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.benchmark.eager import eager
from stateful_pipeline.stages.benchmark.timing import BLOCK, entry
from stateful_pipeline.stages.in_process import InProcess


def measure(artifacts: Artifacts, build: TargetBuild, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what a target's benchmark measured.

    Raises:
        PipelineError: The target cannot be run.
    """
    options = artifacts.spec.benchmark
    threads = artifacts.spec.targets[build.name].threads or torch.get_num_threads()
    given = artifacts.need("subject", "benchmark").plan.steps(sizes, 0, BLOCK)
    every = artifacts.spec.verify.reset_every
    with (
        torch_threads(threads),
        eager(artifacts, sizes, given) as theirs,
    ):
        target = InProcess(artifacts, build, "benchmark")
        theirs.take(options.warmup, timed=False)
        theirs.take(options.steps // 2, timed=True)
        steps = options.warmup + options.steps
        done = target.run(given, steps=steps, reset_every=every)
        theirs.take(options.steps - options.steps // 2, timed=True)
    ours = [count / 1e9 for count in done.nanoseconds[options.warmup :]]
    return entry(options, sizes, threads, ours, theirs.seconds)
