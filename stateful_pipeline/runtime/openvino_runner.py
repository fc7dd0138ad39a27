"""The runner of OpenVINO files: the state lies inside the engine, in variables of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import State, expand_initial, expanded_shape
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import check_buffers
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.openvino_engine import OpenVinoEngine, check_range, openvino_says
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.runtime.sizes import Sizes, fits


class OpenVinoRunner(Runner):
    """Runs a model that the target ``openvino`` has built, as :class:`StatefulRunner` runs ONNX.

    The initial state comes from the model itself, at any size; the runner sets only what it is
    given (``init``, :meth:`load_state`).

    **Errors.**  Wrong inputs are found before a step and do no harm.  Where OpenVINO fails in the
    middle of one, or Ctrl-C arrives, the state is not known any more, and the runner says so until
    it is :meth:`reset` or given a state.

    Args:
        path: The file ``model.xml``, with the contract inside and ``model.bin`` beside it.
        init: Initial values by state name, as for :class:`StatefulRunner`.
        threads: Threads of a step; None leaves it to OpenVINO.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``: what floats are computed in; None: what the
            model was verified in.

    Raises:
        ContractError: The file is missing, is no model or has no contract; ``init`` does not fit.
        SpecError: ``threads`` or ``precision`` is wrong.
        TargetError: OpenVINO is not installed, or the processor lacks the precision.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        init: Mapping[str, Any] | None = None,
        *,
        threads: int | None = None,
        precision: str | None = None,
    ) -> None:
        file = Path(path)
        self._engine = OpenVinoEngine(file, threads, precision)
        contract = self._engine.contract
        self._shapes: dict[str, tuple[int, ...]] = {}
        super().__init__(file, contract, init, tuple(state.name for state in contract.states))

    @property
    def precision(self) -> str:
        """What floats are computed in."""
        return self._engine.precision

    def _step(
        self, inputs: dict[str, Array], out: Mapping[str, Array] | None
    ) -> tuple[Sizes, dict[str, Array]]:
        for value in self._contract.inputs:
            check_range(f"input '{value.name}'", inputs[value.name], value.dtype)
        sizes = self._sizes(inputs)
        given = check_buffers(out, self._contract, inputs) if out else {}
        known = {v.name: self._rules.known(v.shape, sizes) for v in self._contract.outputs}
        for name, buffer in given.items():
            _check_buffer(name, buffer, known[name])
        if self._pending is not None:
            self._begin(self._pending, sizes)
        self._in_doubt = self._pending is None and bool(self._contract.states)
        try:
            self._engine.run(inputs)
        except RuntimeError as error:
            raise ContractError.in_file(
                self._path, f"OpenVINO could not run the step: {openvino_says(error)}"
            ) from error
        results = {
            value.name: self._result(value.name, array, value.shape, known[value.name], given)
            for value, array in zip(
                self._contract.outputs, self._engine.outputs().values(), strict=True
            )
        }
        self._shapes |= {s.name: self._grown(s, sizes) for s in self._contract.states if s.grows}
        self._in_doubt = False
        return sizes, results

    def _held(self) -> dict[str, Array]:
        return {state.name: self._engine.read(state) for state in self._contract.states}

    def _store(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            state = self._contract.state(name)
            check_range(f"state '{name}'", value, state.dtype)
            self._engine.write(state, value)

    def _start_from(self, values: dict[str, Array]) -> None:
        for name, value in values.items():
            check_range(f"state '{name}'", value, self._contract.state(name).dtype)
        super()._start_from(values)

    def _sizes(self, inputs: Mapping[str, Array]) -> Sizes:
        """Return the sizes of a step.

        Raises:
            ContractError: They do not fit.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        if self._pending is None:
            return self._rules.step(shapes, self._shapes, self._bound)
        stored = {name: array.shape for name, array in self._pending.items()}
        sizes = self._rules.step(shapes, stored, self._bound)
        # The model expands its initial values by itself; that they can be is checked here.
        self._shapes = {
            state.name: expanded_shape(state.name, stored[state.name], state.shape, sizes)
            for state in self._contract.states
        }
        return sizes

    def _begin(self, values: Mapping[str, Array], sizes: Sizes) -> None:
        """Let the step start from ``values``; those that are the model's own, it makes itself."""
        self._engine.reset()
        for state in self._contract.states:
            value = values[state.name]
            if value is not self._stored[state.name]:
                expanded = expand_initial(state.name, value, state.shape, sizes)
                self._engine.write(state, expanded)

    def _result(
        self,
        name: str,
        array: Array,
        declared: tuple[int | str, ...],
        known: tuple[int, ...] | None,
        given: Mapping[str, Array],
    ) -> Array:
        """Return an output in memory of the caller's."""
        if not fits(declared, array.shape) or known not in (None, array.shape):
            raise ContractError.in_file(
                self._path,
                f"output '{name}' has shape {list(array.shape)} in this step, the contract says "
                f"[{', '.join(map(str, declared if known is None else known))}]",
                "the shape that the contract declares is wrong: export the model again",
            )
        buffer = given.get(name)
        if buffer is None:
            return array.copy()
        _check_buffer(name, buffer, array.shape)
        np.copyto(buffer, array, casting="no")
        return buffer

    def _grown(self, state: State, sizes: Sizes) -> tuple[int, ...]:
        shape = self._rules.known(state.out_shape or state.shape, sizes)
        return self._engine.read(state).shape if shape is None else shape


def _check_buffer(name: str, buffer: Array, shape: tuple[int, ...] | None) -> None:
    if shape is not None and buffer.shape != shape:
        raise ContractError(
            f"out: '{name}' has shape {list(buffer.shape)}, this step gives {list(shape)}"
        )
