"""The stage ``rewrite``: make states explicit, and prove the result equal to eager in torch."""

from __future__ import annotations

from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.model.scripting import Scripted
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.rewrite import rewrite

STEPS = 6


def run(artifacts: Artifacts) -> None:
    """Leave ``functional``, and its code in ``rewrite/``.

    Raises:
        StateError: The program draws random numbers, or a state would be lost.
        StageError: The rewritten program is not equal to eager.
    """
    captured = artifacts.need("captured", "rewrite")
    subject = artifacts.need("subject", "rewrite")
    discovery = artifacts.need("discovery", "rewrite")
    hints = artifacts.notes["script"]["traced_at"]
    sizes = corner_sizes(subject.axes)[:2]
    steps = min(STEPS, artifacts.spec.verify.reset_every or STEPS)
    # A few steps at small sizes: with more threads, small operators mostly wait for each other.
    with torch_threads(1):
        functional, discovery = rewrite(captured, subject, discovery, hints)
        artifacts.discovery = discovery
        equality = check_equal(functional, discovery.reference, subject.plan, sizes, steps)
    artifacts.functional = functional
    artifacts.notes["rewrite"] = {
        "bitwise": equality.bitwise,
        "steps": equality.steps,
        "max_abs_error": equality.max_abs_error,
        "float64_error": equality.float64_error,
        "never_raised": [str(place) for place in functional.raises],
    }
    folder = artifacts.folder / "rewrite"
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(captured, Scripted):
        (folder / "before.py").write_text(captured.code("The module's code, calls inlined."))
    (folder / "graph.py").write_text(
        functional.code("A pure function: same inputs and states, same outputs and new states.")
    )
