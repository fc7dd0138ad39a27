from __future__ import annotations

from stateful_pipeline.gates import missed_gates
from stateful_pipeline.spec import Gates
from stateful_pipeline.stages.artifacts import TargetBuild

MEASURED = {
    "cpu": TargetBuild(
        "cpu", passed=True, verify={"max_abs_error": 2e-6}, benchmark={"p50_ms": 0.5}
    )
}


def test_gates_that_hold_are_not_mentioned():
    assert missed_gates(Gates(max_abs_error=1e-5, p50_ms=0.5), MEASURED) == []


def test_a_missed_gate_names_target_value_and_limit():
    (line,) = missed_gates(Gates(max_abs_error=1e-6), MEASURED)
    assert line == "cpu: max_abs_error is 2e-06, at most 1e-06 is allowed"


def test_a_gate_on_what_was_not_measured_is_missed():
    (line,) = missed_gates(Gates(ratio_p50=2.0), MEASURED)
    assert "was not measured" in line


def test_an_error_that_is_no_number_misses_its_gate():
    target = TargetBuild("cpu", passed=False, verify={"max_abs_error": float("nan")})
    assert missed_gates(Gates(max_abs_error=1.0), {"cpu": target})
