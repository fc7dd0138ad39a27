"""The stage ``rewrite``: make states explicit, and prove the result equal to eager in torch."""

from __future__ import annotations

from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.functional import make_functional

STEPS = 6


def run(artifacts: Artifacts) -> None:
    """Leave ``functional``, and its code in ``rewrite/``.

    Raises:
        StateError: The program draws random numbers, or a state would be lost.
        StageError: The rewritten program is not equal to eager.
    """
    program = artifacts.need("program", "rewrite")
    subject = artifacts.need("subject", "rewrite")
    reference = artifacts.need("discovery", "rewrite").reference
    functional = make_functional(program, reference.states)
    sizes = corner_sizes(subject.axes)[:2]
    steps = min(STEPS, artifacts.spec.verify.reset_every or STEPS)
    equality = check_equal(functional, reference, subject.plan, sizes, steps)
    artifacts.functional = functional
    artifacts.notes["rewrite"] = {
        "bitwise": equality.bitwise,
        "steps": equality.steps,
        "max_abs_error": equality.max_abs_error,
        "float64_error": equality.float64_error,
    }
    folder = artifacts.folder / "rewrite"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.py").write_text(
        functional.code("A pure function: same inputs and states, same outputs and new states.")
    )
