from __future__ import annotations

import numpy as np
import pytest

from stateful_pipeline.stages.verify.compare import Tolerance, compare

EXACT = Tolerance(0.0, 0.0)
LOOSE = Tolerance(0.1, 0.0)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "equal"),
    [
        ([1.0, 2.0], [1.0, 2.05], LOOSE, True),
        ([1.0, 2.0], [1.0, 2.2], LOOSE, False),
        ([100.0], [101.0], Tolerance(0.0, 0.02), True),
        ([NAN, INF, -INF], [NAN, INF, -INF], EXACT, True),
        ([NAN], [1.0], LOOSE, False),
        ([1.0], [NAN], LOOSE, False),
        ([INF], [-INF], Tolerance(1.0, 1.0), False),
        ([INF], [1e30], Tolerance(1.0, 1.0), False),
        ([], [], EXACT, True),
    ],
)
def test_floats(expected, got, tolerance: Tolerance, equal: bool) -> None:
    assert compare(np.array(expected), np.array(got), tolerance).equal is equal


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "int32"])
def test_integers_are_exact_whatever_the_tolerance(dtype: str) -> None:
    a, b = np.array([0, 1], dtype), np.array([1, 1], dtype)
    assert compare(a, a, Tolerance(9.0, 9.0)).equal
    assert not compare(a, b, Tolerance(9.0, 9.0)).equal


def test_large_integers_that_float64_cannot_tell_apart() -> None:
    found = compare(np.array([2**53]), np.array([2**53 + 1]), EXACT)
    assert (found.equal, found.abs_error) == (False, 1.0)


def test_another_shape_or_dtype_is_never_equal() -> None:
    a = np.zeros((2, 1), np.float32)
    assert not compare(a, a.reshape(1, 2), LOOSE).equal
    assert not compare(a, a.astype(np.float64), LOOSE).equal


def test_the_worst_element_is_named() -> None:
    found = compare(np.zeros((2, 3)), np.array([[0, 0.5, 0], [0, 0, -2.0]]), LOOSE)
    assert (found.where, found.expected, found.got, found.abs_error) == ((1, 2), 0.0, -2.0, 2.0)


def test_what_cancels_to_nothing_may_be_off_by_a_share_of_the_largest() -> None:
    a, b = np.array([1e6, 0.0, np.inf]), np.array([1e6, 0.5, np.inf])
    assert not compare(a, b, Tolerance(1e-4, 1e-3)).equal
    assert compare(a, b, Tolerance(1e-4, 1e-3, of_largest=1e-6)).equal
    assert not compare(a, b, Tolerance(1e-4, 1e-3, of_largest=1e-7)).equal


def test_elements_that_are_not_finite_are_counted() -> None:
    assert compare(np.array([NAN, 1.0, INF]), np.array([NAN, 1.0, INF]), EXACT).non_finite == 2
    assert compare(np.array([1, 2]), np.array([1, 2]), EXACT).non_finite == 0
