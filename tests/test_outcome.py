"""What a run's end means to a scheduler."""

from pathlib import Path

import pytest

from stateful_pipeline.errors import PipelineError, SpecError, StageError, StateError, TargetError
from stateful_pipeline.outcome import Exit, Outcome, code_of, status_of, worst
from stateful_pipeline.spec import OnnxRuntimeTarget
from stateful_pipeline.stages.artifacts import TargetBuild

ABSENT = TargetError("no GPU")
BROKEN = StageError("no", stage="build")


def build(name="a", **more):
    return TargetBuild(name, **more)


def status(*builds, error=None, missed=(), optional=()):
    targets = {
        b.name: OnnxRuntimeTarget(runtime="onnxruntime", optional=b.name in optional)
        for b in builds
    }
    return status_of(error, {b.name: b for b in builds}, targets, missed)


def test_the_order_of_codes_is_3_2_1_4():
    ranks = [Exit.FAILED, Exit.WRONG, Exit.UNEQUAL, Exit.UNAVAILABLE, Exit.DONE]
    assert [int(code) for code in ranks] == [3, 2, 1, 4, 0]
    for index, code in enumerate(ranks):
        assert worst(ranks[index:][::-1]) is code
    assert worst([Exit.FAILED, Exit.INTERRUPTED]) is Exit.INTERRUPTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("no"), 2),
        (StateError("no"), 3),
        (BROKEN, 3),
        (PipelineError("no"), 3),
        (ABSENT, 4),
        (KeyboardInterrupt(), 130),
        (RuntimeError("no"), 3),
    ],
)
def test_an_error_has_a_code(error, code):
    assert code_of(error) == code


def test_only_what_was_checked_and_equal_has_passed():
    assert status(build(passed=True)) == "passed"
    assert status(build(passed=True), build("b", passed=False)) == "failed"
    assert status(build()) == "built"
    assert status(build(passed=True), build("b")) == "built"
    assert status(build(passed=True), missed=["slow"]) == "failed"
    assert status(build(passed=True), error=StateError("no")) == "refused"
    assert status(build(passed=True), error=KeyboardInterrupt()) == "interrupted"


def test_what_is_absent_counts_unless_it_is_optional():
    owed, absent = build("b", owed=["no GPU"]), build("b", error=ABSENT)
    for target in (owed, absent):
        assert status(build(passed=True), target) == "owed"
        assert status(build(passed=True), target, optional="b") == "passed"
        assert status(build(passed=False), target) == "failed"
    assert status(owed, optional="b") == "built"
    assert status(build(passed=True), build("b", error=BROKEN), optional="b") == "failed"


def test_a_required_target_whose_state_is_refused_is_the_runs_refusal():
    refused = build("b", error=StateError("no"))
    assert status(build(passed=True), refused) == "refused"
    assert status(build(passed=False), refused) == "refused"
    assert status(build(passed=True), refused, optional="b") == "failed"


def test_one_that_is_not_equal_outranks_one_that_is_absent():
    targets = {"a": build(passed=False), "b": build("b", error=ABSENT)}
    ended = Outcome("m", "failed", Path("f"), error=ABSENT, targets=targets)
    assert ended.exit_code is Exit.UNEQUAL
    assert Outcome("m", "failed", Path("f"), error=BROKEN, targets=targets).exit_code is Exit.FAILED


def test_an_infinite_error_is_a_string_in_json():
    verify = {"steps": 3, "max_abs_error": float("inf")}
    ended = Outcome("m", "failed", Path("f"), targets={"a": build(passed=False, verify=verify)})
    assert ended.line(Path("m.yaml"))["targets"]["a"]["max_abs_error"] == "inf"
