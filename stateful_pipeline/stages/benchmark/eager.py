"""Eager PyTorch, beside which targets are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from stateful_pipeline.model.copies import Copies
from stateful_pipeline.model.deployable import initial_module
from stateful_pipeline.model.reference import Tensors
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.benchmark.timing import Contender


@contextmanager
def eager(
    artifacts: Artifacts, sizes: Mapping[str, int], given: list[Tensors]
) -> Iterator[Contender]:
    """Lend the module for stepping with ``given``, or copies of it where no state is known."""
    subject, every = artifacts.need("subject", "benchmark"), artifacts.spec.verify.reset_every
    if artifacts.discovery is None:
        copies = Copies(initial_module(subject), subject.call)
        with torch.no_grad():
            yield Contender(copies.call, copies.reset, given, every)
        return
    reference = artifacts.discovery.reference
    with reference.session(exact=False) as session:
        yield Contender(
            lambda inputs: reference.call(reference.module, inputs),
            lambda: session.load(reference.initial(sizes)),
            given,
            every,
        )
