"""Plans optimization profiles: the ranges of shapes that an engine is built for.

An engine of TensorRT is fast at the shapes that it was built for, and refuses others.  What a user
declares are ranges of *axes*; what a builder needs are the least, the usual and the largest shape
of every graph input, the states among them.  Everything here is a pure function of the contract and
of what was declared, so that no device is needed to know what will be built.

A dimension may be an expression over axes.  Its range comes from interval arithmetic
(:func:`~stateful_pipeline.dimensions.bounds`): it holds every size that the axes can give it, and
perhaps more, where an axis occurs twice in it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stateful_pipeline.contract import Axis, Contract
from stateful_pipeline.dimensions import Shape, axes_of, bounds, resolve
from stateful_pipeline.errors import SpecError

Range = tuple[int, int, int]
"""The least, the usual and the largest size of an axis."""

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The least, the usual and the largest shape of a graph input."""

DEFAULT = "default"
"""The name of the profile that is planned where none is declared."""


@dataclass(frozen=True)
class Profile:
    """One optimization profile.

    Attributes:
        name: Its name in the spec.
        axes: The range of each axis.
        ranges: The shapes of each graph input, states included, by the input's name.
    """

    name: str
    axes: Mapping[str, Range]
    ranges: Mapping[str, Shapes]

    def outside(self, sizes: Mapping[str, int]) -> str | None:
        """Return the first axis whose size lies outside this profile, or None."""
        for axis, size in sizes.items():
            low, _, high = self.axes.get(axis, (size, size, size))
            if not low <= size <= high:
                return axis
        return None


def plan_profiles(
    contract: Contract, declared: Mapping[str, Mapping[str, Iterable[int]]] | None = None
) -> tuple[Profile, ...]:
    """Return the profiles of an engine, in the order in which they were declared.

    Args:
        contract: The contract of the model; its axes have the ranges of ``dynamic_axes``.
        declared: Profile name to axis name to ``(min, opt, max)``; a name may be a pattern, such as
            ``past_*``, for the axes that have no entry of their own; an axis that is left out has
            the contract's range.  One profile with every axis's own range if None.

    Raises:
        SpecError: A profile names an axis that no input and no state has; an axis has no largest
            size; or a dimension would be negative.
    """
    used = _used_axes(contract)
    known = {axis.name: axis for axis in contract.axes}
    wanted = _checked(declared, used)
    for name, given in wanted.items():
        _refuse_endless([known.get(a, Axis(a)) for a in used if a not in given], name)
    return tuple(
        _profile(contract, name, {a: _range(a, known.get(a), given, name) for a in used})
        for name, given in wanted.items()
    )


def merged(profiles: Iterable[Profile], name: str = DEFAULT) -> Profile:
    """Return one profile that covers all of ``profiles``; the usual shapes are the first's."""
    first, *others = profiles
    axes, ranges = dict(first.axes), dict(first.ranges)
    for other in others:
        for axis, (low, _, high) in other.axes.items():
            old = axes[axis]
            axes[axis] = min(low, old[0]), old[1], max(high, old[2])
        for graph_input, (least, _, largest) in other.ranges.items():
            old_shapes = ranges[graph_input]
            ranges[graph_input] = (
                tuple(map(min, least, old_shapes[0])),
                old_shapes[1],
                tuple(map(max, largest, old_shapes[2])),
            )
    return Profile(name, axes, ranges)


@dataclass(frozen=True)
class Uncovered:
    """A step that no profile covers: its number, and an axis with its size."""

    step: int
    axis: str
    size: int


def first_uncovered(
    contract: Contract, profiles: Iterable[Profile], steps: Iterable[Mapping[str, int]]
) -> Uncovered | None:
    """Return the first step of a rollout from reset that no profile covers, or None.

    Args:
        contract: The contract of the model.
        profiles: What was planned.
        steps: The sizes of the axes at each step; those that grow are followed from the initial
            states.
    """
    profiles = tuple(profiles)
    grown = {
        dim: size
        for state in contract.states
        for dim, size in zip(state.shape, state.init.shape, strict=True)
        if state.grows and isinstance(dim, str)
    }
    for index, given in enumerate(steps):
        sizes = {**grown, **given}
        outside = [profile.outside(sizes) for profile in profiles]
        if all(outside):
            axis = outside[0]
            assert axis is not None
            return Uncovered(index, axis, sizes[axis])
        grown |= _after(contract, sizes)
    return None


def _after(contract: Contract, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the axes that grow, after a step at ``sizes``."""
    after = {}
    for state in contract.states:
        for dim, then in zip(state.shape, state.out_shape or state.shape, strict=True):
            if isinstance(dim, str) and dim != then and axes_of(then) <= sizes.keys():
                after[dim] = resolve(then, sizes)
    return after


def _used_axes(contract: Contract) -> list[str]:
    shapes = [value.shape for value in contract.inputs] + [s.shape for s in contract.states]
    names = [name for shape in shapes for dim in shape for name in sorted(axes_of(dim))]
    return list(dict.fromkeys(names))


def _checked(
    declared: Mapping[str, Mapping[str, Iterable[int]]] | None, used: Iterable[str]
) -> Mapping[str, Mapping[str, Iterable[int]]]:
    """Return the declared profiles by the names of axes, or one that says nothing.

    Raises:
        SpecError: A profile names an axis that no input and no state has.
    """
    if not declared:
        return {DEFAULT: {}}
    names = list(used)
    profiles: dict[str, dict[str, Iterable[int]]] = {}
    for name, given in declared.items():
        profiles[name] = {axis: sizes for axis, sizes in given.items() if axis in names}
        for pattern, sizes in given.items():
            meant = [axis for axis in names if fnmatch.fnmatchcase(axis, pattern)]
            if not meant and pattern not in names:
                raise SpecError(
                    f"profile '{name}' gives sizes of the axis '{pattern}', which no input and no "
                    "state has",
                    hint=f"the axes are: {', '.join(names) or 'none'}",
                    key=f"profiles.{name}.{pattern}",
                )
            for axis in meant:
                profiles[name].setdefault(axis, sizes)
    return profiles


def _refuse_endless(axes: Iterable[Axis], profile: str) -> None:
    """Refuse axes of which neither the contract nor the profile says the largest size.

    Raises:
        SpecError: There are some.
    """
    endless = [axis for axis in axes if axis.max is None]
    if not endless:
        return
    first, count = endless[0], len(endless) - 1
    others = "" if not count else f" (and {count} {'others' if count > 1 else 'other'})"
    ranges = ", ".join(f"{axis.name}: [{axis.min}, 64, 1024]" for axis in endless)
    pattern = "; a name may be a pattern, such as `past_*`" if count else ""
    raise SpecError(
        f"axis '{first.name}' {'grows without an end' if first.grows else 'has no largest size'}, "
        f"and an engine is built for a range of sizes{others}",
        hint=f"give the range: `profiles: {{{profile}: {{{ranges}}}}}`{pattern}",
        key="profiles",
    )


def _range(
    axis: str, known: Axis | None, given: Mapping[str, Iterable[int]], profile: str
) -> Range:
    """Return the range of an axis in a profile.

    Raises:
        SpecError: Its sizes are not in order, or are never verified.
    """
    if axis in given:
        low, usual, high = given[axis]
        _refuse_wider(axis, known, (low, high), profile)
    else:
        assert known is not None  # without an end, it would have been refused
        assert known.max is not None
        low, high = known.min, known.max
        usual = high if known.opt is None else known.opt
    if not 0 <= low <= usual <= high:
        raise SpecError(
            f"profile '{profile}': axis '{axis}' has sizes {low}, {usual}, {high}",
            hint="min <= opt <= max",
            key=f"profiles.{profile}.{axis}",
        )
    return low, usual, high


def _refuse_wider(axis: str, known: Axis | None, given: tuple[int, int], profile: str) -> None:
    """Refuse sizes that nothing is verified at.

    Raises:
        SpecError: There are some.
    """
    if known is None or known.grows or known.max is None:
        return
    if given[0] < known.min or given[1] > known.max:
        raise SpecError(
            f"profile '{profile}' gives the axis '{axis}' sizes from {given[0]} to {given[1]}, and "
            f"the model is verified from {known.min} to {known.max}",
            hint=f"widen `dynamic_axes.{axis}`, or narrow the profile",
            key=f"profiles.{profile}.{axis}",
        )


def _profile(contract: Contract, name: str, axes: Mapping[str, Range]) -> Profile:
    shapes = {value.name: value.shape for value in contract.inputs}
    shapes |= {state.input: state.shape for state in contract.states}
    return Profile(
        name, axes, {given: _shapes(given, shape, name, axes) for given, shape in shapes.items()}
    )


def _shapes(given: str, shape: Shape, profile: str, axes: Mapping[str, Range]) -> Shapes:
    """Return the least, the usual and the largest shape of a graph input.

    Raises:
        SpecError: A dimension can only be negative.
    """
    limits = {axis: (low, high) for axis, (low, _, high) in axes.items()}
    usual = {axis: opt for axis, (_, opt, _) in axes.items()}
    rows = []
    for dim in shape:
        low, high = bounds(dim, limits)
        opt = resolve(dim, usual)
        if opt < 0:
            raise SpecError(
                f"profile '{profile}': '{dim}', a dimension of '{given}', would be {opt}",
                hint="give the axes in it sizes that fit together",
                key=f"profiles.{profile}",
            )
        rows.append((max(low, 0), opt, high))
    least, opts, largest = zip(*rows, strict=True) if rows else ((), (), ())
    return least, opts, largest
