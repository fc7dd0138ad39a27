"""Chooses the sizes of dynamic axes at which models are traced, checked and verified."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape

MAX_CORNERS = 8


def corner_sizes(axes: Sequence[Axis]) -> list[dict[str, int]]:
    """Return the corners of the axes' ranges, and the usual sizes: ``opt``, min, max, mixed.

    At most :data:`MAX_CORNERS` sets; each size of each axis among min, opt and max is in at least
    one.
    """
    ranges = [(axis.name, *_range(axis)) for axis in axes]
    sets = [
        {name: opt for name, _, opt, _ in ranges},
        {name: low for name, low, _, _ in ranges},
        {name: high for name, _, _, high in ranges},
    ]
    mixed = itertools.product(*(((name, low), (name, high)) for name, low, _, high in ranges))
    sets += [dict(corner) for corner in itertools.islice(mixed, 1, 64)]
    unique = list({tuple(sizes.items()): sizes for sizes in sets}.values())
    return unique[:MAX_CORNERS]


def fixed_sizes(axes: Sequence[Axis]) -> dict[str, int]:
    """Return the axes that have one size (min = max), with it."""
    return {axis.name: axis.min for axis in axes if axis.min == axis.max}


def fix_axes(shape: Shape, fixed: Mapping[str, int]) -> Shape:
    """Return ``shape`` with the axes in ``fixed`` as numbers."""
    return tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)


def usual_sizes(axes: Sequence[Axis]) -> dict[str, int]:
    """Return ``opt`` of each axis."""
    return {axis.name: _range(axis)[1] for axis in axes}


def _range(axis: Axis) -> tuple[int, int, int]:
    opt = axis.opt if axis.opt is not None else max(axis.min, 2)
    high = axis.max if axis.max is not None else opt + 1
    return axis.min, opt, high
