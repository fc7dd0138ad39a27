"""Which types a run of the user's code shows."""

import cProfile
import sys

import pytest
import torch

from stateful_pipeline.model.seen_types import SeenTypes, type_of, type_of_both, watching


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (torch.zeros(2), "Tensor"),
        (True, "bool"),
        (1, "int"),
        (0.5, "float"),
        ("a", "str"),
        (None, "None"),
        ([1.0, 2.0], "List[float]"),
        ([[1], [2, 3], []], "List[List[int]]"),
        ([None, torch.zeros(1)], "List[Optional[Tensor]]"),
        ((torch.zeros(1), 3), "Tuple[Tensor, int]"),
        ({"a": 1, "b": 2}, "Dict[str, int]"),
        ([1, 2.0], None),
        ({"a": 1, "b": torch.zeros(1)}, None),
        ({1: 2}, None),
        ([range(2)], None),
        ((1, range(2)), None),
    ],
    ids=str,
)
def test_types_as_torchscript_writes_them(value, kind):
    assert type_of(value) == kind


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, torch.zeros(1), "Optional[Tensor]"),
        ([], [torch.zeros(1)], "List[Tensor]"),
        ([None, None], [None, 1.0], "List[Optional[float]]"),
        ({}, {"a": 1}, "Dict[str, int]"),
        ({}, {}, None),
        (None, None, None),
        (None, range(2), None),
    ],
    ids=str,
)
def test_what_is_empty_at_first_has_the_type_of_what_comes(before, after, kind):
    assert type_of_both(before, after) == kind


def reads(x):
    first, values = x[0].item(), []
    for value in x.tolist():
        values.append(value)  # noqa: PERF402 - a loop over what a call gives
    return first, values


def test_what_calls_give_is_known_by_where_they_end():
    with watching() as seen:
        reads(torch.ones(2))
    line = reads.__code__.co_firstlineno
    assert seen.result((__file__, line + 1, len("    first, values = x[0].item()"))) == "float"
    end = len("    for value in x.tolist()")
    assert seen.result((__file__, line + 2, end)) == "List[float]"
    with watching() as seen:
        reads(torch.ones(2))
        reads(torch.ones(2, dtype=torch.int64))
    assert seen.result((__file__, line + 2, end)) is None


def helper(x, n, bias=None, scale=2.0, unseen=3):
    made = []
    made.append(n)
    return made if bias is None else bias


def test_parameters_and_variables_have_the_types_of_all_calls():
    with watching() as seen:
        helper(torch.ones(1), 2)
        helper(torch.ones(1), 3, torch.ones(1))
    found = {name: seen.argument(helper, name) for name in ("x", "n", "bias", "scale", "unseen")}
    assert found == {
        "x": "Tensor",
        "n": "int",
        "bias": "Optional[Tensor]",
        "scale": "float",
        "unseen": "int",
    }
    assert seen.variable(helper, "made", none=False) == "List[int]"


def test_what_a_compiler_says_counts_where_nothing_was_seen():
    seen = SeenTypes()
    message = (
        "\nhelper(Tensor x, Tensor n) -> Tensor:\nExpected a value of type 'Tensor (inferred)' for "
        "argument 'n' but instead found type 'List[float]'.\n"
    )
    assert seen.argument(helper, "n") is None
    assert seen.learn(message)
    assert seen.argument(helper, "n") == "List[float]"
    assert not seen.learn(message)
    assert not seen.learn("something else")


def test_a_profiler_goes_on_after_it_was_watched():
    profiler = cProfile.Profile()
    with profiler:
        with watching():
            len("watched")
        sorted("profiled")
    names = {row.code for row in profiler.getstats()}
    assert any("sorted" in str(name) for name in names)
    assert sys.getprofile() is None
