"""Runs a module from its own start, to see what its first calls create, and of which shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import PipelineError, StageError, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call, Reference, Tensors


@dataclass(frozen=True)
class Run:
    """What the module did from its own start: outputs and what it held at some paths, by call."""

    sizes: Mapping[str, int]
    inputs: list[Tensors]
    outputs: list[Tensors]
    held: list[dict[str, Any]]
    made: list[torch.Tensor]


_LARGE = 100
"""A size that is unlike the others, for axes that have no smaller maximum."""


def runs_of(
    module: nn.Module,
    paths: Sequence[str],
    call: Call,
    plan: InputPlan,
    axes: Sequence[Axis],
    least: Mapping[str, int],
    calls: int = 1,
) -> Iterator[Run]:
    """Yield runs at sizes at which the module runs from its own start.

    It does not at others where it holds another state of size 1 along an axis.

    Args:
        module: The module, as it was constructed; left as it was.
        paths: What to keep of what it holds after each call.
        call: Calls its entry point.
        plan: The inputs.
        axes: The dynamic axes.
        least: Sizes at which it runs.
        calls: After how many calls all of it is there.
    """
    steps = calls + 2
    fixed = [dim for value in plan.inputs for dim in value.shape if isinstance(dim, int)]
    tries = [probe_sizes(axes, fixed, variant) for variant in (0, 1)] if axes else []
    failure: PipelineError | None = None
    ran = False
    tries += [{a.name: min(_LARGE, a.max or _LARGE) for a in axes}] if axes else []
    for sizes in (*tries, least):
        try:
            yield from [
                _run(module, paths, call, plan.steps(sizes, seed, steps), sizes, calls)
                for seed in (0, 1)
            ]
            ran = True
        except PipelineError as error:
            failure = error
    if not ran and failure is not None:
        raise failure


def unlike_runs(
    module: nn.Module,
    paths: Sequence[str],
    call: Call,
    like: Sequence[Tensors],
    sizes: Mapping[str, int],
    calls: int = 1,
) -> Iterator[Run]:
    """Yield runs with other numbers than the inputs ``like``: small, large, and all alike."""
    for scale, shift in _OTHER_INPUTS:
        try:
            yield _run(module, paths, call, _others(like, scale, shift), sizes, calls)
        except StageError:  # it need not run on what is unlike the example
            continue


_OTHER_INPUTS = (
    *((scale, shift) for scale in (1e-3, 1.0, 30.0) for shift in (-1.0, 0.0, 1.0)),
    *((0.0, shift) for shift in (-300.0, -1.0, 0.0, 0.25, 1.0, 300.0)),
    *((0.0, shift) for shift in (-6e4, 6e4)),
)
"""Spreads and means of random floats, both in units of their own."""


def _others(like: Sequence[Tensors], scale: float, shift: float) -> list[Tensors]:
    """Return inputs of the shapes and dtypes of ``like`` with other numbers in them."""
    generator = torch.Generator().manual_seed(0)

    def other(value: torch.Tensor) -> torch.Tensor:
        if value.dtype == torch.bool:
            chosen = torch.rand(value.shape, generator=generator)
            return chosen > (0.5 if scale else float(shift < 0))
        if not value.is_floating_point():
            spread = torch.randint(-5, 6, value.shape, generator=generator) * (scale > 0)
            return (value.to(torch.int64) + spread + int(shift)).to(value.dtype)
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return (noise * scale + shift * max(scale, 1.0)).to(value.dtype)

    return [{name: other(value) for name, value in step.items()} for step in like]


def _run(
    module: nn.Module,
    paths: Sequence[str],
    call: Call,
    inputs: list[Tensors],
    sizes: Mapping[str, int],
    calls: int,
) -> Run:
    """Call the module from its own start, as it was constructed."""
    reference = Reference(module, (), call)
    watch = _Made()
    run = Run(sizes, inputs, [], [], watch.made)
    with reference.session() as session:
        for index, given in enumerate(run.inputs):
            with watch:
                run.outputs.append(session.step(given))
            watch.done = True
            run.held.append({path: _held(module, path, index + 1 < calls) for path in paths})
    return run


def _held(module: nn.Module, path: str, may_lack: bool) -> Any:
    try:
        value = read(module, path)
    except KeyError as error:
        if may_lack:
            return None
        raise StateError("is there after some calls only", attribute=path) from error
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


_FILLING = frozenset({"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"})
"""Functions that take a tensor for its form alone."""


class _Made(TorchFunctionMode):
    """Collects the tensors that the first call makes of numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.done = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and keep what it makes, if that has one value throughout."""
        result = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        of_numbers = not any(isinstance(value, torch.Tensor) for value in given)
        of_numbers = of_numbers or getattr(func, "__name__", "") in _FILLING
        if self.done or not of_numbers:
            return result
        if isinstance(result, torch.Tensor) and result.numel():
            first = result.detach().reshape(-1)[0]
            if bool((result.detach() == first).all()):
                self.made.append(result.detach().clone())
        return result


def shape_after(
    path: str, runs: Sequence[Run], axes: Sequence[Axis], declared: Shape | None, calls: int = 1
) -> Shape:
    """Return the shape of a state after some calls, with named axes; what grows has its own.

    Args:
        path: Where the module holds it.
        runs: Runs of the module at several sizes.
        axes: The dynamic axes.
        declared: Its shape as the user declared it, if that was done.
        calls: After how many calls it is there.

    Raises:
        StateError: It has none that is a function of the axes.
    """
    if declared is not None:
        return declared
    each = [[_shape_of(held[path]) for held in run.held[calls - 1 :]] for run in runs]
    if len({len(shape) for shapes in each for shape in shapes}) > 1:
        raise StateError("changes the number of its dimensions", attribute=path)
    named: list[Dim] = []
    for index in range(len(each[0][0])):
        sizes = [[shape[index] for shape in shapes] for shapes in each]
        if any(len(set(over_calls)) > 1 for over_calls in sizes):
            named.append(f"{path.replace('.', '_')}_{index}")
        else:
            named.append(_dim(path, index, [over_calls[0] for over_calls in sizes], runs, axes))
    return tuple(named)


def _dim(path: str, index: int, sizes: list[int], runs: Sequence[Run], axes: Sequence[Axis]) -> Dim:
    """Return the axis that one dimension follows, or its size if that is always the same."""
    if len(set(sizes)) == 1:
        return sizes[0]
    for axis in axes:
        if [run.sizes[axis.name] for run in runs] == sizes:
            return axis.name
    raise StateError(
        f"has sizes {', '.join(map(str, dict.fromkeys(sizes)))} along dimension {index} after the "
        "first call, which follow none of the dynamic axes",
        attribute=path,
        hint=f"declare it: `states: {{{path}: {{shape: [...], init: zeros}}}}`",
    )


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
