"""The runner: a model with explicit state, used as if it had none.

``h_in`` and ``h_out`` are hidden again: the runner feeds each step the state that the last one
left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract, State, expand_initial, expanded_shape
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import InputCheck
from stateful_pipeline.runtime.buffers import StateBuffers
from stateful_pipeline.runtime.engine import Array, Engine
from stateful_pipeline.runtime.initial import all_values, contract_values, overlay
from stateful_pipeline.runtime.model_file import read_contract
from stateful_pipeline.runtime.rows import check_rows, rows_axis, set_rows, states_with_rows
from stateful_pipeline.runtime.sizes import AxisRules, Sizes
from stateful_pipeline.runtime.snapshot import read_snapshot, write_snapshot
from stateful_pipeline.runtime.step import Stepper


class StatefulRunner:
    """Runs an exported model step by step and keeps its state.

    A runner is one stream (or one batch of streams).  Calls from several threads are put one after
    the other; for independent streams make one runner each.

    **Sizes.**  The first step after a reset binds the axes that the states depend on, such as
    ``batch``; a step of another size is then an error until :meth:`reset`.  Axes that no state
    has, such as the ``time`` of a chunk, may change from step to step.

    **Errors.**  A step that fails leaves the state as it was.  The exception is a model with states
    that are updated in place (``State.in_place``): if ONNX Runtime fails, or Ctrl-C arrives, in the
    middle of such a step, the state is not known any more, and the runner says so until it is
    :meth:`reset` or given a state.  Wrong inputs are found before that and do no harm.

    Args:
        path: The ONNX file, with the state contract in its metadata.
        init: Initial values by state name, or in the textbook's form ``{"h.init": array}``.  A
            value may have size 1 along named axes, where it is expanded; a Python number fills the
            state.  Arrays must have the state's dtype.  These values stay the initial ones: every
            later :meth:`reset` comes back to them.  States not named keep the contract's value.
        provider: The execution provider: ``"cpu"``.
        threads: Threads within an operator; None leaves it to ONNX Runtime.

    Raises:
        ContractError: The file is missing, is no model or has no contract; ``init`` does not fit.
        SpecError: ``threads`` is not a positive number.
        TargetError: ONNX Runtime or the provider is not available.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        init: Mapping[str, Any] | None = None,
        *,
        provider: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self._path = Path(path)
        self._engine = Engine(self._path, provider, threads)
        self._contract = read_contract(self._engine, self._path)
        self._rules = AxisRules(self._contract)
        self._buffers = StateBuffers(self._contract, self._engine)
        self._check_inputs = InputCheck(self._contract)
        self._stepper = Stepper(
            self._path, self._contract, self._engine, self._buffers, self._rules
        )
        self._lock = threading.Lock()
        self._in_doubt = False
        stored = contract_values(self._contract, self._path.parent)
        self._initial = overlay(self._contract, stored, init)
        self._pending: dict[str, Array] | None = None
        self._bound: Sizes = {}
        self._start_from(self._initial)

    @property
    def contract(self) -> Contract:
        """The state contract of the model."""
        return self._contract

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that are bound now, and their sizes."""
        return dict(self._bound)

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers of the session, the one asked for first."""
        return self._engine.providers

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the states by name; before the first step, of the initial values as stored.

        Raises:
            ContractError: A step failed while it updated a state in place.
        """
        with self._lock:
            return {name: array.copy() for name, array in self._current().items()}

    def run(
        self, inputs: Mapping[str, Any], *, out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Run one step.

        Args:
            inputs: Input name to array, of exactly the contract's dtype.  C-contiguous arrays are
                read where they are; others are copied.
            out: Output name to a C-contiguous array that is to receive it, for any of the outputs.

        Returns:
            Output name to array.  The arrays are the caller's own, and later steps do not change
            them; for outputs named in ``out`` they are those buffers.

        Raises:
            ContractError: An input or a buffer does not fit, the sizes are not those that are
                bound, or ONNX Runtime refused the step.
        """
        with self._lock:
            self._refuse_doubt()
            arrays = self._check_inputs(inputs)
            plan = self._stepper.plan(arrays, self._pending, self._bound)
            call = self._stepper.prepare(plan, arrays, out)
            if self._pending is not None:
                self._fill_buffers(self._pending, plan.sizes)
            self._stepper.bind(call)
            # Until the commit, a state that is updated in place may be half written.
            self._in_doubt = self._pending is None and bool(self._buffers.in_place)
            results = self._stepper.execute(call)
            self._buffers.commit()
            self._in_doubt = False
            if self._pending is not None:
                kept = self._rules.kept.intersection(plan.sizes)
                self._bound = {axis: plan.sizes[axis] for axis in sorted(kept)}
                self._pending = None
            return results

    def reset(
        self,
        init: Mapping[str, Any] | None = None,
        *,
        rows: Iterable[int] | None = None,
        shared: str | None = None,
    ) -> None:
        """Go back to the initial state, and unbind the axes.

        Args:
            init: Initial values for this reset only, in the constructor's form; the next
                ``reset()`` comes back to the runner's own.
            rows: Reset only these rows of the batch, numbered from 0 along the axis ``batch`` (or,
                without one, along the first axis of the first input); the sizes stay bound.
            shared: What to do, with ``rows``, about states that have no rows, such as a step
                counter for the whole batch: None refuses, ``"keep"`` leaves them as they are.

        Raises:
            ContractError: A value does not fit; or rows were asked for and no step has bound their
                axis yet, a row is out of range, or a state is shared or grows.
        """
        with self._lock:
            values = overlay(self._contract, self._initial, init)
            if rows is None:
                if shared is not None:
                    raise ContractError("shared= has a meaning only with rows=")
                self._start_from(values)
            else:
                self._reset_rows(values, rows, shared)

    def load_state(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the state by copies of what :attr:`state` gave, here or on another runner.

        The sizes other than 1 are bound by it; along a named axis of size 1 it is expanded by the
        next step.

        Args:
            snapshot: State name to array, for every state.

        Raises:
            ContractError: A state is missing or unknown, or a value does not fit it.  The state
                is unchanged then.
        """
        with self._lock:
            self._start_from(all_values(self._contract, snapshot))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to an ``.npz`` file, in one piece: an old file is replaced at the end.

        Raises:
            ContractError: The file cannot be written, or the state is not known (see the class).
        """
        write_snapshot(Path(path), self.state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the state by one that :meth:`save` wrote, as :meth:`load_state` does.

        Raises:
            ContractError: The file cannot be read, or does not fit the contract.  The state is
                unchanged then.
        """
        try:
            self.load_state(read_snapshot(Path(path), self._contract))
        except ContractError as error:
            if error.place is not None:
                raise
            raise ContractError.in_file(Path(path), error.message, error.hint) from error

    def _start_from(self, values: dict[str, Array]) -> None:
        """Make ``values`` the state that the next step expands and binds."""
        bound = self._rules.bound_by({name: array.shape for name, array in values.items()})
        self._bound = bound
        self._pending = values
        self._in_doubt = False

    def _current(self) -> dict[str, Array]:
        self._refuse_doubt()
        return self._buffers.arrays() if self._pending is None else self._pending

    def _refuse_doubt(self) -> None:
        if self._in_doubt:
            raise ContractError(
                "the last step broke off while it updated "
                f"{', '.join(self._buffers.in_place)} in place: the state is not known",
                hint="reset(), or load_state() of a state that was taken before",
            )

    def _fill_buffers(self, values: dict[str, Array], sizes: Sizes) -> None:
        shapes = {
            state.name: expanded_shape(state.name, values[state.name].shape, state.shape, sizes)
            for state in self._contract.states
        }
        self._buffers.fill(values, shapes)

    def _expanded(self, values: dict[str, Array], states: Iterable[State]) -> dict[str, Array]:
        return {
            s.name: expand_initial(s.name, values[s.name], s.shape, self._bound) for s in states
        }

    def _reset_rows(
        self, initial: dict[str, Array], rows: Iterable[int], shared: str | None
    ) -> None:
        axis = rows_axis(self._contract)
        states = states_with_rows(self._contract, axis, shared)
        if axis not in self._bound:
            raise ContractError(
                f"axis '{axis}' has no size yet, so that there are no rows to reset",
                hint="rows can be reset after a step; before it, use reset()",
            )
        current = self._current()
        numbers = check_rows(rows, self._bound[axis])
        if self._pending is not None:
            current = {**current, **self._expanded(current, states)}
        fresh = self._expanded(initial, states)
        set_rows(states, axis, numbers, current, fresh)
        if self._pending is not None:
            self._start_from(current)
