"""What all runners share: a model with explicit state, used as if it had none.

``h_in`` and ``h_out`` are hidden again: the runner feeds each step the state that the last one
left.  Which runtime takes the step, and where the state lies meanwhile, is up to the subclass.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract, State, expand_initial
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import InputCheck
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.initial import all_values, contract_values, overlay
from stateful_pipeline.runtime.rows import check_rows, rows_axis, set_rows, states_with_rows
from stateful_pipeline.runtime.sizes import AxisRules, Sizes
from stateful_pipeline.runtime.snapshot import read_snapshot, write_snapshot


class Runner(ABC):
    """Runs a model step by step and keeps its state.

    A runner is one stream (or one batch of streams).  Calls from several threads are put one after
    the other; for independent streams make one runner each.

    Args:
        path: The model file.
        contract: Its contract.
        init: Initial values by state name, or in the textbook's form ``{"h.init": array}``.
        in_doubt: Names of the states that a step which breaks off may leave half written.

    Raises:
        ContractError: An initial value cannot be read, or does not fit.
    """

    def __init__(
        self,
        path: Path,
        contract: Contract,
        init: Mapping[str, Any] | None,
        in_doubt: tuple[str, ...],
    ) -> None:
        self._path = path
        self._contract = contract
        self._rules = AxisRules(contract)
        self._check_inputs = InputCheck(contract)
        self._lock = threading.Lock()
        self._half_written = in_doubt
        self._in_doubt = False
        self._stored = contract_values(contract, path.parent)
        self._initial = overlay(contract, self._stored, init)
        self._pending: dict[str, Array] | None = None
        self._bound: Sizes = {}
        self._start_from(self._initial)

    @abstractmethod
    def _step(
        self, inputs: dict[str, Array], out: Mapping[str, Array] | None
    ) -> tuple[Sizes, dict[str, Array]]:
        """Take a step, from ``_pending`` if that is not None; return its sizes and outputs.

        ``_in_doubt`` is left set if the step broke off and the state is not known.
        """

    @abstractmethod
    def _held(self) -> dict[str, Array]:
        """Return the states that the last step left, the memory itself where it can be lent."""

    @abstractmethod
    def _store(self, values: Mapping[str, Array]) -> None:
        """Put values, changed by the caller from what :meth:`_held` gave, where they lie."""

    @property
    def contract(self) -> Contract:
        """The state contract of the model."""
        return self._contract

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that are bound now, and their sizes."""
        return dict(self._bound)

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the states by name; before the first step, of the initial values as stored.

        Raises:
            ContractError: A step broke off and left a state half written.
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
                bound, or the runtime refused the step.
        """
        with self._lock:
            self._refuse_doubt()
            sizes, results = self._step(self._check_inputs(inputs), out)
            if self._pending is not None:
                kept = self._rules.kept.intersection(sizes)
                self._bound = {axis: sizes[axis] for axis in sorted(kept)}
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
        return self._held() if self._pending is None else self._pending

    def _refuse_doubt(self) -> None:
        if self._in_doubt:
            raise ContractError(
                "the last step broke off while it updated "
                f"{', '.join(self._half_written)} in place: the state is not known",
                hint="reset(), or load_state() of a state that was taken before",
            )

    def _expanded(
        self, values: Mapping[str, Array], states: Iterable[State], sizes: Sizes
    ) -> dict[str, Array]:
        return {s.name: expand_initial(s.name, values[s.name], s.shape, sizes) for s in states}

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
            current = {**current, **self._expanded(current, states, self._bound)}
        fresh = self._expanded(initial, states, self._bound)
        set_rows(states, axis, numbers, current, fresh)
        if self._pending is not None:
            self._start_from(current)
        else:
            self._store({state.name: current[state.name] for state in states})
