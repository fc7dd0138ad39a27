"""Which axes stay bound between steps, and the sizes of all axes in one step.

An axis is one of three kinds:

- *kept*: a state's shape depends on it, as on ``batch``.  The first step after a reset binds it, or
  a state that is given with a size other than 1; another size later does not fit that state.
- *growing*: the dimension of a growing state that changes from step to step, as ``past`` in
  ``[past, 4] -> [past + time, 4]``.  Its size is that of the state at the moment.
- *free*: only inputs and outputs have it, as ``time`` of an LSTM fed in chunks of any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from stateful_pipeline.contract import Axis, Contract, State
from stateful_pipeline.dimensions import Dim, Shape, axes_of, resolve
from stateful_pipeline.errors import ContractError

Sizes = dict[str, int]
Shapes = Mapping[str, tuple[int, ...]]


def is_axis(dim: Dim) -> TypeGuard[str]:
    """Whether ``dim`` is the name of an axis, neither a number nor an expression."""
    return isinstance(dim, str) and dim.isidentifier()


class AxisRules:
    """The axes of a contract by kind.

    Raises:
        ContractError: An axis grows in one state, and another state depends on its size; or a
            state's rank changes.
    """

    def __init__(self, contract: Contract) -> None:
        for state in contract.states:
            if len(state.out_shape or state.shape) != len(state.shape):
                raise ContractError(f"state '{state.name}' changes its rank in a step")
        self._contract = contract
        self._limits = {axis.name: axis for axis in contract.axes}
        self.growing = frozenset(
            axis for state in contract.states for dim in _moving(state) for axis in _named(dim)
        )
        fixed = [dim for state in contract.states for dim in _fixed(state)]
        self.kept = frozenset(axis for dim in fixed for axis in axes_of(dim))
        if self.kept & self.growing:
            raise ContractError(
                f"axis '{min(self.kept & self.growing)}' grows in one state, "
                "and the size of another state depends on it"
            )
        shapes = [value.shape for value in (*contract.inputs, *contract.outputs)]
        shapes += [shape for s in contract.states for shape in (s.shape, s.out_shape or ())]
        self._expressions = {
            dim: axes_of(dim)
            for shape in shapes
            for dim in shape
            if isinstance(dim, str) and not is_axis(dim)
        }

    def step(self, inputs: Shapes, states: Shapes, bound: Mapping[str, int]) -> Sizes:
        """Return the sizes of one step: of every axis, and of every expression that has one.

        Args:
            inputs: Input name to shape.
            states: State name to its shape at the moment.
            bound: The axes that are bound already.

        Raises:
            ContractError: The inputs do not fit each other, the states or the bound axes, or an
                axis has a size that the model was not made for.
        """
        sizes = self._contract.bind(inputs)
        for axis, size in bound.items():
            if sizes.setdefault(axis, size) != size:
                raise ContractError(
                    f"axis '{axis}' is {size} since the last reset, and {sizes[axis]} now",
                    hint="call reset() before a step of another size",
                )
        self._add_states(sizes, states)
        for dim, axes in self._expressions.items():
            if axes <= sizes.keys():
                _add_expression(sizes, dim, axes)
        for axis, size in sizes.items():
            self._check_limits(axis, size)
        return sizes

    def bound_by(self, states: Shapes) -> Sizes:
        """Return the axes that these values of states bind: those of a size other than 1.

        Raises:
            ContractError: A rank or a fixed size is off, or two states disagree about an axis.
        """
        sizes: Sizes = {}
        for state in self._contract.states:
            check_rank_and_numbers(state, states[state.name])
            for dim, size in zip(state.shape, states[state.name], strict=True):
                if is_axis(dim) and (size != 1 or dim in self.growing):
                    _put(sizes, dim, size, state.name)
        return {axis: size for axis, size in sizes.items() if axis in self.kept}

    def known(self, shape: Shape, sizes: Sizes) -> tuple[int, ...] | None:
        """Return ``shape`` in numbers, or None where the sizes do not determine it."""
        if all(isinstance(dim, int) or dim in sizes for dim in shape):
            return tuple(resolve(dim, sizes) for dim in shape)
        return None

    def _add_states(self, sizes: Sizes, states: Shapes) -> None:
        for state in self._contract.states:
            for dim, size in zip(state.shape, states[state.name], strict=True):
                if is_axis(dim):
                    if dim in self.growing:
                        _put(sizes, dim, size, state.name)
                    else:
                        sizes.setdefault(dim, size)

    def _check_limits(self, axis: str, size: int) -> None:
        limits = self._limits.get(axis)
        if limits is None:
            return
        low = 0 if axis in self.growing else limits.min
        if size < low or (limits.max is not None and size > limits.max):
            raise ContractError(
                f"axis '{axis}' is {size}, the model was made for {_range(limits, low)}",
                hint="export the model again with a wider range in dynamic_axes",
            )


def fits(declared: Shape, shape: tuple[int, ...]) -> bool:
    """Whether ``shape`` has the declared rank, and the declared sizes where those are numbers."""
    return len(declared) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True)
    )


def check_rank_and_numbers(state: State, shape: tuple[int, ...]) -> None:
    """Check the rank of a state's value, and the sizes that are numbers in the contract.

    Raises:
        ContractError: They do not fit.
    """
    if not fits(state.shape, shape):
        wanted = ", ".join(str(dim) for dim in state.shape)
        raise ContractError(
            f"state '{state.name}' has shape [{wanted}], the value given has {list(shape)}"
        )


def _moving(state: State) -> list[Dim]:
    """The dimensions of a growing state that change."""
    after = state.out_shape or state.shape
    return [dim for dim, then in zip(state.shape, after, strict=True) if dim != then]


def _fixed(state: State) -> list[Dim]:
    after = state.out_shape or state.shape
    return [dim for dim, then in zip(state.shape, after, strict=True) if dim == then]


def _named(dim: Dim) -> tuple[str, ...]:
    return (dim,) if is_axis(dim) else ()


def _put(sizes: Sizes, axis: str, size: int, state: str) -> None:
    if sizes.setdefault(axis, size) != size:
        raise ContractError(
            f"axis '{axis}' is {size} in state '{state}' and {sizes[axis]} elsewhere",
            hint="give values that agree about the size of each axis",
        )


def _add_expression(sizes: Sizes, dim: str, axes: frozenset[str]) -> None:
    try:
        value = resolve(dim, {axis: sizes[axis] for axis in axes})
    except ArithmeticError as error:
        raise ContractError(f"'{dim}' has no value for {_show(sizes, axes)}: {error}") from error
    if value < 0:
        raise ContractError(f"'{dim}' is {value} for {_show(sizes, axes)}")
    if sizes.setdefault(dim, value) != value:
        raise ContractError(
            f"an input has size {sizes[dim]} along '{dim}', which is {value} for "
            f"{_show(sizes, axes)}"
        )


def _show(sizes: Sizes, axes: frozenset[str]) -> str:
    return ", ".join(f"{axis} = {sizes[axis]}" for axis in sorted(axes))


def _range(limits: Axis, low: int) -> str:
    return f"at least {low}" if limits.max is None else f"{low} to {limits.max}"
