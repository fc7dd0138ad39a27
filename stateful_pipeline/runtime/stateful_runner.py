"""The runner of ONNX files: ONNX Runtime takes the steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import expanded_shape
from stateful_pipeline.runtime.buffers import StateBuffers
from stateful_pipeline.runtime.engine import Engine
from stateful_pipeline.runtime.model_file import read_contract
from stateful_pipeline.runtime.ort_binding import Array
from stateful_pipeline.runtime.ort_options import SessionOptions
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.runtime.sizes import Sizes
from stateful_pipeline.runtime.step import Stepper

_DEFAULTS = SessionOptions()


class StatefulRunner(Runner):
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

    **GPUs.**  With the providers ``"cuda"`` and ``"tensorrt"`` the states stay on the GPU between
    steps; they come to the host where :attr:`state`, :meth:`save` or a reset of single rows asks
    for them.  Inputs are copied to the GPU once per step, outputs come back as numpy arrays.
    ONNX Runtime may run single nodes on the CPU all the same: :attr:`nodes` and :attr:`on_host`
    tell.  A provider that cannot be had is an error, never the CPU in its place.

    Args:
        path: The ONNX file, with the state contract in its metadata.
        init: Initial values by state name, or in the textbook's form ``{"h.init": array}``.  A
            value may have size 1 along named axes, where it is expanded; a Python number fills the
            state.  Arrays must have the state's dtype.  These values stay the initial ones: every
            later :meth:`reset` comes back to them.  States not named keep the contract's value.
        provider: The execution provider: ``"cpu"``, ``"cuda"`` or ``"tensorrt"``.
        threads: Threads within an operator; None leaves it to ONNX Runtime.
        options: What else the session is to be like: the number of the GPU, for one.

    Raises:
        ContractError: The file is missing, is no model or has no contract; ``init`` does not fit.
        SpecError: ``threads`` is not a positive number, or an option is out of range.
        TargetError: ONNX Runtime, the provider or its device is not available.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        init: Mapping[str, Any] | None = None,
        *,
        provider: str = "cpu",
        threads: int | None = None,
        options: SessionOptions = _DEFAULTS,
    ) -> None:
        file = Path(path)
        self._engine = Engine(file, provider, threads, options)
        contract = read_contract(self._engine, file)
        self._buffers = StateBuffers(contract, self._engine)
        super().__init__(file, contract, init, self._buffers.in_place)
        self._stepper = Stepper(file, contract, self._engine, self._buffers, self._rules)

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers of the session, the one asked for first."""
        return self._engine.providers

    @property
    def nodes(self) -> dict[str, dict[str, int]]:
        """Provider to operator to the number of nodes it runs; empty for the provider ``"cpu"``."""
        return {provider: dict(count) for provider, count in self._engine.nodes.items()}

    @property
    def on_host(self) -> tuple[str, ...]:
        """The states that, in spite of a GPU, lie in host memory or cross to it in each step.

        ONNX Runtime reads or writes them in nodes that it puts on the CPU.
        """
        return tuple(
            state.name
            for state in self._contract.states
            if self._engine.on_host(state.input, state.output)
        )

    def _step(
        self, inputs: dict[str, Array], out: Mapping[str, Array] | None
    ) -> tuple[Sizes, dict[str, Array]]:
        plan = self._stepper.plan(inputs, self._pending, self._bound)
        call = self._stepper.prepare(plan, inputs, out)
        if self._pending is not None:
            self._fill_buffers(self._pending, plan.sizes)
        self._stepper.bind(call)
        # Until the commit, a state that is updated in place may be half written.
        self._in_doubt = self._pending is None and bool(self._buffers.in_place)
        results = self._stepper.execute(call)
        self._buffers.commit()
        self._in_doubt = False
        return plan.sizes, results

    def _held(self) -> dict[str, Array]:
        return self._buffers.arrays()

    def _store(self, values: Mapping[str, Array]) -> None:
        self._buffers.store(values)

    def _fill_buffers(self, values: dict[str, Array], sizes: Sizes) -> None:
        shapes = {
            state.name: expanded_shape(state.name, values[state.name].shape, state.shape, sizes)
            for state in self._contract.states
        }
        self._buffers.fill(values, shapes)
