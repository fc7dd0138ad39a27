"""Optimization profiles: from ranges of axes to the shapes of every graph input."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.dimensions import axes_of, bounds, resolve
from stateful_pipeline.errors import ContractError, SpecError
from stateful_pipeline.profiles import first_uncovered, merged, plan_profiles

AXES = ("batch", "time")


def state(name, shape, out_shape=None, stored=None, dtype="float32"):
    stored = stored or tuple(dim if isinstance(dim, int) else 1 for dim in shape)
    initial = Initial("zeros", stored)
    return State(name, f"{name}_in", f"{name}_out", dtype, shape, initial, name, out_shape)


def contract(inputs, states=(), axes=None):
    axes = (Axis("batch", 1, 4, 16), Axis("time", 1, 20, 200)) if axes is None else axes
    values = tuple(Value(name, "float32", shape) for name, shape in inputs.items())
    return Contract(values, (), tuple(states), tuple(axes))


LSTM = contract(
    {"x": ("batch", "time", 40)}, [state("h", (2, "batch", 128)), state("c", (2, "batch", 128))]
)
CACHE = contract(
    {"token": ("batch", "time")},
    [state("k", ("batch", 2, "past", 4), ("batch", 2, "past + time", 4), (1, 2, 0, 4))],
    (Axis("batch", 1, 1, 2), Axis("time", 1, 1, 8), Axis("past", 0, None, None, grows=True)),
)


def test_without_a_declaration_there_is_one_profile_with_the_ranges_of_the_axes():
    (profile,) = plan_profiles(LSTM)
    assert profile.ranges["x"] == ((1, 1, 40), (4, 20, 40), (16, 200, 40))
    assert profile.ranges["h_in"] == profile.ranges["c_in"]
    assert profile.ranges["h_in"] == ((2, 1, 128), (2, 4, 128), (2, 16, 128))


def test_each_declared_profile_narrows_axes_for_inputs_and_states():
    declared = {
        "prefill": {"time": (1, 64, 200)},
        "decode": {"time": (1, 1, 1), "batch": (2, 2, 8)},
    }
    prefill, decode = plan_profiles(LSTM, declared)
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert prefill.ranges["x"] == ((1, 1, 40), (4, 64, 40), (16, 200, 40))
    assert decode.ranges["x"] == ((2, 1, 40), (2, 1, 40), (8, 1, 40))
    assert decode.ranges["c_in"] == ((2, 2, 128), (2, 2, 128), (2, 8, 128))


def test_states_of_no_dimension_and_fixed_ones_have_one_shape():
    (profile,) = plan_profiles(contract({"x": (3,)}, [state("calls", (), dtype="int64")]))
    assert profile.ranges == {"x": ((3,), (3,), (3,)), "calls_in": ((), (), ())}


def test_an_axis_that_grows_needs_a_range_which_may_begin_at_zero():
    with pytest.raises(SpecError, match="'past' grows without an end") as caught:
        plan_profiles(CACHE)
    assert "profiles: {default: {past: [0, " in caught.value.hint
    (profile,) = plan_profiles(CACHE, {"all": {"past": (0, 16, 64)}})
    assert profile.ranges["k_in"] == ((1, 2, 0, 4), (1, 2, 16, 4), (2, 2, 64, 4))


def test_a_pattern_gives_the_range_of_all_axes_that_have_none_of_their_own():
    caches = contract(
        {"x": ("batch", 1)},
        [state(f"k{i}", ("batch", f"past_{i}"), stored=(1, 0)) for i in range(3)],
        axes=(Axis("batch", 1, 1, 2), *(Axis(f"past_{i}", 0, grows=True) for i in range(3))),
    )
    with pytest.raises(SpecError, match=r"'past_0' grows .* \(and 2 others\)") as caught:
        plan_profiles(caches)
    assert "past_2: [0, 64, 1024]" in caught.value.hint
    (profile,) = plan_profiles(caches, {"all": {"past_*": (0, 4, 9), "past_1": (0, 2, 5)}})
    assert {axis: profile.axes[axis] for axis in ("batch", "past_0", "past_1", "past_2")} == {
        "batch": (1, 1, 2), "past_0": (0, 4, 9), "past_1": (0, 2, 5), "past_2": (0, 4, 9),
    }  # fmt: skip
    with pytest.raises(SpecError, match=r"'pats_\*', which no input and no state has"):
        plan_profiles(caches, {"all": {"pats_*": (0, 4, 9)}})


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"a": {"tiem": (1, 1, 1)}}, "'tiem', which no input and no state has"),
        ({"a": {"time": (3, 2, 4)}}, "sizes 3, 2, 4"),
        ({"a": {"time": (-1, 2, 4)}}, "sizes from -1 to 4"),
        ({"a": {"time": (0, 2, 4)}}, "sizes from 0 to 4, and the model is verified from 1 to 200"),
        ({"a": {"batch": (1, 2, 17)}}, "sizes from 1 to 17"),
    ],
)
def test_a_declaration_that_makes_no_profile_is_refused(declared, message):
    with pytest.raises(SpecError, match=message):
        plan_profiles(LSTM, declared)


def test_a_dimension_that_the_usual_sizes_make_negative_is_refused():
    odd = contract({"x": ("batch", "time")}, [state("h", ("time - 30",), stored=(1,))])
    with pytest.raises(SpecError, match="'time - 30', a dimension of 'h_in', would be -10"):
        plan_profiles(odd)


def test_an_axis_without_a_largest_size_is_refused():
    with pytest.raises(SpecError, match="'batch' has no largest size"):
        plan_profiles(contract({"x": ("batch",)}, axes=(Axis("batch"),)))


def test_the_first_step_that_no_profile_covers_is_named():
    profiles = plan_profiles(
        LSTM, {"prefill": {"time": (8, 64, 200)}, "decode": {"time": (1, 1, 1)}}
    )
    steps = [{"batch": 2, "time": time} for time in (1, 64, 200, 1, 4)]
    assert first_uncovered(LSTM, profiles, steps[:4]) is None
    found = first_uncovered(LSTM, profiles, steps)
    assert (found.step, found.axis, found.size) == (4, "time", 4)


def test_axes_that_grow_are_followed_from_the_initial_state():
    profiles = plan_profiles(CACHE, {"all": {"past": (0, 4, 8)}})
    steps = [{"batch": 1, "time": 3}] * 4
    found = first_uncovered(CACHE, profiles, steps)
    assert (found.step, found.axis, found.size) == (3, "past", 9)
    assert first_uncovered(CACHE, profiles, steps[:3]) is None


def test_merged_profiles_cover_what_each_covers():
    profiles = plan_profiles(LSTM, {"a": {"time": (8, 64, 200)}, "b": {"time": (1, 1, 4)}})
    one = merged(profiles)
    assert one.axes["time"] == (1, 64, 200)
    assert one.ranges["x"] == ((1, 1, 40), (4, 64, 40), (16, 200, 40))


expressions = st.recursive(
    st.sampled_from(AXES) | st.integers(0, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join).map("({})".format),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 5).map(str)).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(st.sampled_from(["Max", "Min"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    ),
    max_leaves=5,
)
ranges = st.tuples(*[st.integers(0, 6)] * 3).map(sorted).map(tuple)


@given(expressions, st.fixed_dictionaries(dict.fromkeys(AXES, ranges)))
def test_bounds_hold_every_size_and_are_tight_where_each_axis_occurs_once(dim, axes):
    low, high = bounds(dim, {name: (least, most) for name, (least, _, most) in axes.items()})
    spans = [range(axes[name][0], axes[name][2] + 1) for name in AXES]
    sizes = [resolve(dim, dict(zip(AXES, at, strict=True))) for at in itertools.product(*spans)]
    assert low <= min(sizes)
    assert max(sizes) <= high
    if all(dim.count(name) <= 1 for name in AXES) and "%" not in dim:
        assert (low, high) == (min(sizes), max(sizes))


def test_a_division_by_what_may_be_zero_has_no_bounds():
    with pytest.raises(ContractError, match="may divide by zero"):
        bounds("8 // time", {"time": (0, 2)})


@given(
    st.lists(expressions, min_size=1, max_size=4),
    st.fixed_dictionaries(dict.fromkeys(AXES, ranges)),
    st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(AXES, ranges)), max_size=3),
)
def test_every_planned_profile_is_consistent(dims, axes, declared):
    assume(all(axes_of(dim) for dim in dims))
    model = contract(
        {"x": AXES},
        [state(f"s{i}", (dim, 3), stored=(1, 3)) for i, dim in enumerate(dims)],
        [Axis(name, *sizes) for name, sizes in axes.items()],
    )
    names = {f"p{i}": given for i, given in enumerate(declared)}
    try:
        profiles = plan_profiles(model, names)
    except SpecError as error:
        assume("would be -" not in error.message and "is verified from" not in error.message)
        raise
    assert len(profiles) == max(len(declared), 1)
    for profile in profiles:
        assert profile.ranges.keys() == {"x", *(s.input for s in model.states)}
        for least, usual, largest in profile.ranges.values():
            assert len(least) == len(usual) == len(largest)
            assert all(0 <= a <= b <= c for a, b, c in zip(least, usual, largest, strict=True))
        # The same axis has the same sizes in every tensor, at the least, usual and largest shape.
        x = profile.ranges["x"]
        assert tuple(zip(*x, strict=True)) == tuple(profile.axes[name] for name in AXES)
        for corner in itertools.product(*(profile.axes[name] for name in AXES)):
            sizes = dict(zip(AXES, corner, strict=True))
            assert profile.outside(sizes) is None
            for held in model.states:
                least, _, largest = profile.ranges[held.input]
                size = resolve(held.shape[0], sizes)
                assert size < 0 or least[0] <= size <= largest[0]
