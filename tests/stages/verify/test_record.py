"""What a rollout's record says: the first difference, the worst, and whether it proves anything."""

from __future__ import annotations

import numpy as np
import pytest

from stateful_pipeline.model.schedule import Schedule
from stateful_pipeline.stages.verify.compare import Tolerance
from stateful_pipeline.stages.verify.record import RolloutRecord

LOOSE = Tolerance(0.1, 0.0)
NAN = float("nan")


def test_a_record_keeps_the_first_bad_and_the_worst_of_each_step() -> None:
    record = RolloutRecord("free-running", Schedule({"batch": 2}), seed=3)
    for step, off in enumerate([0.0, 0.05, 0.5, 0.7]):
        record.add(step, "output", {"y": np.zeros(2)}, {"y": np.full(2, off)}, LOOSE)
    summary = record.summary()
    assert summary["per_step"] == [0.0, 0.05, 0.5, 0.7]
    assert summary["first_bad"]["step"] == 2
    assert summary["first_bad"]["sizes"] == {"batch": 2}
    assert summary["max_abs_error"] == 0.7
    assert summary["passed"] is False


def test_the_first_bad_has_the_sizes_of_its_step() -> None:
    schedule = Schedule({"time": 5}, {"time": (1, 5, 9, 5)})
    record = RolloutRecord("free-running", schedule, seed=0)
    for step in range(3):
        record.add(
            step, "state", {"h": np.zeros(1)}, {"h": np.full(1, step / 2)}, Tolerance(0.6, 0)
        )
    bad = record.summary()["first_bad"]
    assert (bad["step"], bad["sizes"]) == (2, {"time": 9})
    assert bad["rollout"] == {"time": "1, 5, 9 in turn"}
    assert record.summary()["sizes"] == {"time": 5}
    assert record.summary()["turns"] == {"time": [1, 5, 9, 5]}


@pytest.mark.parametrize(
    ("values", "passed"),
    [
        ([1.0], True),
        ([NAN], None),
        ([1.0] + [NAN] * 8, True),
        ([1.0] + [NAN] * 10, None),  # finite in less than a tenth of the steps
    ],
)
def test_a_tensor_that_is_next_to_never_finite_proves_nothing(values, passed) -> None:
    record = RolloutRecord("free-running", Schedule({}), seed=0)
    for step, value in enumerate(values):
        tensors = {"y": np.array([value])}
        record.add(step, "output", tensors, tensors, LOOSE)
    assert record.passed is passed


def test_tensors_without_elements_and_integers_are_finite() -> None:
    record = RolloutRecord("free-running", Schedule({}), seed=0)
    tensors = {"none": np.zeros(0), "count": np.array([3])}
    record.add(0, "output", tensors, tensors, LOOSE)
    assert record.passed is True


def test_a_difference_beside_what_is_never_finite_is_a_difference() -> None:
    record = RolloutRecord("free-running", Schedule({}), seed=0)
    expected = {"y": np.array([NAN]), "z": np.zeros(1)}
    record.add(0, "output", expected, {**expected, "z": np.ones(1)}, LOOSE)
    assert record.passed is False
