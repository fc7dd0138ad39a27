"""Drives the eager module as the oracle: fresh states for any sizes, then free-running steps.

The module's own tensors are never written to for good: everything happens inside a
:class:`~stateful_pipeline.model.snapshot.Snapshot`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.contract import Axis, expand_initial
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import ContractError, PipelineError, StageError, StateError
from stateful_pipeline.model.holders import read, write
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.parts import Part
from stateful_pipeline.model.python_state import as_number, as_tensor
from stateful_pipeline.model.snapshot import Snapshot
from stateful_pipeline.model.tree import named_outputs

Tensors = dict[str, torch.Tensor]
Call = Callable[[nn.Module, Mapping[str, torch.Tensor]], Any]


@dataclass(frozen=True)
class StateDef:
    """A state of the eager module: where it is held, its shape with named axes, its initial value.

    Attributes:
        name: The state's name.
        paths: Every path under which the module holds it.
        shape: Its shape before a step, with named axes.
        initial: Its initial value; size 1 along a named axis is expanded.
        grows: The names of the axes that change from step to step.
        exercised: Whether its value was seen to change.
        kind: How it is held: ``buffer``, ``parameter``, ``attribute`` or ``item``.
        out_shape: Its shape after a step, where the user declared it.
        number: Whether the module holds a Python number, which is carried as a 0-d tensor.
        parts: Tensors of the module that are views of it.
    """

    name: str
    paths: tuple[str, ...]
    shape: Shape
    initial: torch.Tensor
    grows: frozenset[str] = frozenset()
    exercised: bool = True
    kind: str = "buffer"
    out_shape: Shape | None = None
    number: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Every path under which the module holds it, or a part of it."""
        return self.paths + tuple(path for part in self.parts for path in part.paths)

    def initial_at(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """Return the initial value as a new tensor, expanded to ``sizes``.

        Raises:
            StateError: It has another size than 1 along a named axis, and not the one wanted.
        """
        kept = {axis: size for axis, size in sizes.items() if axis not in self.grows}
        array = torch.empty(self.initial.shape, dtype=torch.int8).numpy()
        try:
            shape = expand_initial(self.name, array, self.shape, kept).shape
        except ContractError as error:
            raise StateError(error.message, attribute=self.name, hint=error.hint) from error
        return self.initial.expand(shape).clone()


@dataclass(frozen=True)
class Step:
    """One call of the reference: what went in, what came out, the states before and after it."""

    index: int
    inputs: Tensors
    outputs: Tensors
    before: Tensors
    after: Tensors


class Reference:
    """The eager module with its states found.

    Args:
        module: The module, in the mode in which it is to be exported.
        states: Its states.
        call: Takes the module and the inputs by name, and calls the entry point.
        axes: The dynamic axes.
        scratch: Paths of tensors that change and that nobody reads: not carried from step to step.
    """

    def __init__(
        self,
        module: nn.Module,
        states: Sequence[StateDef],
        call: Call,
        axes: Sequence[Axis] = (),
        scratch: Sequence[str] = (),
    ) -> None:
        self.module = module
        self.states = tuple(states)
        self.call = call
        self.axes = tuple(axes)
        self.scratch = tuple(scratch)
        self.transient = 0
        """After how many calls the module holds the same things from call to call."""

    def with_states(self, states: Sequence[StateDef]) -> Reference:
        """Return the same with other states."""
        return Reference(self.module, states, self.call, self.axes, self.scratch)

    def with_module(
        self, module: nn.Module, states: Sequence[StateDef], plan: InputPlan
    ) -> Reference:
        """Return the same for a copy of the module whose states have other initial values.

        Args:
            module: The copy.
            states: Its states.
            plan: Its inputs.
        """
        del plan
        return Reference(module, states, self.call, self.axes, self.scratch)

    @contextmanager
    def on_loan(self) -> Iterator[None]:
        """Lend the module to a tracer; it is restored at the end."""
        with Snapshot(self.module):
            yield

    def lay(self, values: Tensors) -> None:
        """Put ``values`` themselves into the module, each under every path of its state."""
        for state in self.states:
            put(self.module, state, values[state.name])

    def pick(self, before: Tensors) -> Tensors:
        """Return the very tensors that the module holds as its states.

        Args:
            before: The states before the call.
        """
        del before
        return {state.name: taken(self.module, state) for state in self.states}

    def numbers_after(self, numbers: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the Python numbers that a call has to leave, where ``numbers`` were before."""
        return numbers

    def initial(self, sizes: Mapping[str, int]) -> Tensors:
        """Return new initial values of all states for ``sizes``."""
        return {state.name: state.initial_at(sizes) for state in self.states}

    @contextmanager
    def session(self, *, exact: bool = True) -> Iterator[Session]:
        """Lend the module for stepping; it is restored at the end.

        Args:
            exact: Whether to turn off the fused kernels that round differently.
        """
        kernels = exact_kernels() if exact else nullcontext()
        with Snapshot(self.module), torch.no_grad(), kernels:
            yield Session(self)

    def rollout(
        self,
        sizes: Mapping[str, int],
        inputs: Iterable[Tensors],
        reset_every: int | None = None,
    ) -> Generator[Step, None, None]:
        """Yield one :class:`Step` for each of ``inputs``, the module feeding itself.

        Args:
            sizes: Axis name to size, for the initial states.
            inputs: The inputs of each step, by name.
            reset_every: Start again from the initial states after that many steps.
        """
        with self.session() as session:
            for index, given in enumerate(inputs):
                if index == 0 or (reset_every and index % reset_every == 0):
                    session.load(self.initial(sizes))
                before = session.states()
                outputs = session.step(given)
                yield Step(index, given, outputs, before, session.states())


class Session:
    """The module on loan: set its states, call it, read them."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._last: Tensors = {}

    def load(self, values: Tensors) -> None:
        """Put copies of ``values`` into the module, each under every path of its state."""
        self._last = {name: value.clone() for name, value in values.items()}
        self._reference.lay({name: value.clone() for name, value in values.items()})

    def states(self) -> Tensors:
        """Return copies of the states as the module holds them now."""
        now = self._reference.pick(self._last)
        self._last = {name: value.detach().clone() for name, value in now.items()}
        return dict(self._last)

    def step(self, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """Call the entry point once; outputs are detached copies, by name.

        Raises:
            StageError: The module raised.
        """
        given = {name: value.clone() for name, value in inputs.items()}
        try:
            result = self._reference.call(self._reference.module, given)
        except PipelineError:
            raise
        except Exception as error:  # any module may raise anything
            raise module_raised(error) from error
        outputs = named_outputs(result)
        return {name: value.detach().clone() for name, value in outputs.items()}


CAPACITY_HINT = (
    "the stream may have run past a fixed capacity, such as a cache's: take fewer steps "
    "(`verify.steps`, `verify.reset_every`), a shorter example, or more capacity; "
    "if it did not, call it with such inputs in eager mode first"
)
_PAST_THE_END = re.compile(r"\bindex\b.* out of (bounds|range)\b")


def module_raised(error: Exception) -> StageError:
    """Return the error to raise where the user's module raised ``error``."""
    past_the_end = _PAST_THE_END.search(str(error)) is not None  # not every IndexError says that
    return StageError(
        f"the module raises {type(error).__name__}: {error}",
        stage="script",
        place=user_place(error),
        hint=CAPACITY_HINT if past_the_end else "call it with such inputs in eager mode first",
    )


def put(module: nn.Module, state: StateDef, value: torch.Tensor) -> None:
    """Put ``value`` itself, or the number that it is, under every path of ``state``."""
    held = as_number(value) if state.number else value
    if state.kind == "parameter":  # a module lets nothing else be assigned there
        held = nn.Parameter(value, requires_grad=False)
    for path in state.paths:
        write(module, path, held)
    for part in state.parts:
        view = part.of(value)
        for path in part.paths:
            write(module, path, view)


def taken(module: nn.Module, state: StateDef) -> torch.Tensor:
    """Return what the module holds as ``state``: the very tensor, or a number as a new one.

    Raises:
        StateError: Its places hold two tensors, or it is a number of another kind.
    """
    values = [read(module, path) for path in state.paths]
    if state.number:
        return as_tensor(values[0], state.initial.dtype, state.name)
    if any(value is not values[0] for value in values):
        raise StateError(
            f"{' and '.join(state.paths)} are one tensor before the call and two after it",
            attribute=state.name,
            hint="change it in place, or reassign it everywhere",
        )
    held: torch.Tensor = values[0]
    for path in (path for part in state.parts for path in part.paths):
        view: torch.Tensor = read(module, path)
        if view.untyped_storage()._cdata != held.untyped_storage()._cdata:
            raise StateError(
                f"'{path}' is a view of it before the call and another tensor after it",
                attribute=state.name,
                hint="change it in place, or make the view in forward",
            )
    return held


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Turn off the fused attention fast path, which rounds differently from the plain operators."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use ``count`` threads within an operator; None changes nothing."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)
