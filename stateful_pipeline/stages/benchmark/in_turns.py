"""Times a target that runs in this process and eager PyTorch, in turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stateful_pipeline.model.arrays import to_arrays
from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.benchmark.eager import eager
from stateful_pipeline.stages.benchmark.timing import BLOCK, Contender, entry
from stateful_pipeline.stages.runners import open_runner


def measure(artifacts: Artifacts, build: TargetBuild, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what a target's benchmark measured.

    Raises:
        PipelineError: The target cannot be run.
    """
    subject = artifacts.need("subject", "benchmark")
    artifacts.need("discovery", "benchmark")
    target, options = artifacts.spec.targets[build.name], artifacts.spec.benchmark
    assert build.artifact is not None
    runner = open_runner(target, build.artifact)
    threads = target.threads or torch.get_num_threads()
    every = artifacts.spec.verify.reset_every
    given = subject.plan.steps(sizes, 0, BLOCK)
    arrays = [to_arrays(step) for step in given]
    with torch_threads(threads), eager(artifacts, sizes, given) as theirs:
        ours = Contender(runner.run, runner.reset, arrays, every)
        for contender in (theirs, ours):
            contender.take(options.warmup, timed=False)
        while len(ours.seconds) < options.steps:
            count = min(BLOCK, options.steps - len(ours.seconds))
            for contender in (theirs, ours):
                contender.take(count, timed=True)
    return entry(options, sizes, threads, ours.seconds, theirs.seconds)
