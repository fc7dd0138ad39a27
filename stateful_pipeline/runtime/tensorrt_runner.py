"""The runner of engines: TensorRT takes the steps, and the state stays on the GPU."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import expanded_shape
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.arrays import check_buffers
from stateful_pipeline.runtime.cuda_device import CudaDevice, Device
from stateful_pipeline.runtime.engine import Array
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.runtime.sizes import AxisRules, Sizes
from stateful_pipeline.runtime.tensorrt_engine import TensorRtEngine
from stateful_pipeline.runtime.tensorrt_sidecar import EngineSidecar, read_sidecar
from stateful_pipeline.runtime.tensorrt_states import DeviceStates
from stateful_pipeline.runtime.tensorrt_step import EngineStepper


class TensorRtRunner(Runner):
    """Runs an engine of TensorRT, or of TensorRT for RTX, as :class:`StatefulRunner` runs ONNX.

    The state is copied to the host only when it is asked for: by :attr:`state`, :meth:`save` and a
    reset of single rows.

    **Sizes.**  Each step takes the first profile, in the order of the spec, that covers it; one
    that none covers is an error that says which axis lies outside.

    **Errors.**  A step that fails leaves the state as it was.  The exception is an engine that
    updates a cache in place: if such a step breaks off, the state is not known any more, and the
    runner says so until it is :meth:`reset` or given a state.

    Args:
        path: The engine file, with its description ``<name>.json`` beside it.
        init: Initial values by state name, as for :class:`StatefulRunner`.
        gpu: The number of the GPU.
        device: The GPU itself, in place of its number.

    Raises:
        ContractError: A file is missing, stale or damaged; the graph is not as the contract says;
            ``init`` does not fit.
        TargetError: The library, its version, a plugin or the GPU is not there, or is another.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        init: Mapping[str, Any] | None = None,
        *,
        gpu: int = 0,
        device: Device | None = None,
    ) -> None:
        file = Path(path)
        self._sidecar = read_sidecar(file)
        contract = self._sidecar.contract
        try:
            rules = AxisRules(contract)
        except ContractError as error:
            raise ContractError.in_file(file, error.message, error.hint) from error
        self._device = CudaDevice(gpu) if device is None else device
        self._resources = _Resources(file, self._sidecar, rules, self._device)
        self._finalizer = weakref.finalize(self, self._resources.close)
        self._states = self._resources.states
        self._stepper = self._resources.stepper
        super().__init__(file, contract, init, self._states.in_place)

    @property
    def sidecar(self) -> EngineSidecar:
        """The description of the engine."""
        return self._sidecar

    def close(self) -> None:
        """Give the engine and the memory of the GPU back; no step can be taken any more.

        What is not closed is given back when the runner is no longer used.
        """
        with self._lock:
            self._finalizer()

    def _step(
        self, inputs: dict[str, Array], out: Mapping[str, Array] | None
    ) -> tuple[Sizes, dict[str, Array]]:
        sizes, states = self._sizes(inputs)
        given = check_buffers(out, self._contract, inputs) if out else {}
        with self._idle_at_the_end():
            profile = self._stepper.profile(inputs, states)
            kept = [] if self._pending is None else self._fill(self._pending, sizes)
            call = self._stepper.prepare(profile, inputs, given, sizes)
            # Until the commit, a state that is updated in place may be half written.
            self._in_doubt = self._pending is None and bool(self._states.in_place)
            results = self._stepper.execute(call)
            kept.clear()
        self._states.commit()
        self._in_doubt = False
        return sizes, results

    def _held(self) -> dict[str, Array]:
        with self._idle_at_the_end():
            return self._states.get()

    def _store(self, values: Mapping[str, Array]) -> None:
        with self._idle_at_the_end():
            kept = self._states.put(values)
            self._device.synchronize(self._resources.stream)
            kept.clear()

    def _sizes(self, inputs: Mapping[str, Array]) -> tuple[Sizes, dict[str, tuple[int, ...]]]:
        """Return the sizes of a step, and the shapes of the states before it.

        Raises:
            ContractError: They do not fit.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        if self._pending is None:
            held = self._states.shapes()
            return self._rules.step(shapes, held, self._bound), held
        stored = {name: array.shape for name, array in self._pending.items()}
        sizes = self._rules.step(shapes, stored, self._bound)
        return sizes, {
            state.name: expanded_shape(state.name, stored[state.name], state.shape, sizes)
            for state in self._contract.states
        }

    def _fill(self, values: Mapping[str, Array], sizes: Sizes) -> list[Array]:
        return self._states.put(self._expanded(values, self._contract.states, sizes))

    @contextmanager
    def _idle_at_the_end(self) -> Iterator[None]:
        """Make the GPU the thread's, and leave it idle: whatever happens, nothing is under way."""
        if not self._finalizer.alive:
            raise ContractError("the runner is closed", hint="make a new one")
        with self._device.current():
            try:
                yield
            finally:
                self._device.synchronize(self._resources.stream)


class _Resources:
    """What a runner holds on the GPU, and the order in which it is given back."""

    def __init__(
        self, path: Path, sidecar: EngineSidecar, rules: AxisRules, device: Device
    ) -> None:
        self._device = device
        with device.current():
            self.stream = device.open_stream()
            try:
                self.engine = TensorRtEngine(path, sidecar, device, self.stream)
            except BaseException:
                device.close_stream(self.stream)
                raise
            contract, tensors = sidecar.contract, self.engine.tensors
            self.states = DeviceStates(contract, tensors, device, self.stream)
            self.stepper = EngineStepper(
                path, contract, self.engine, self.states, rules, device, self.stream
            )

    def close(self) -> None:
        with self._device.current():
            self._device.synchronize(self.stream)
            self.engine.close()
            self.stepper.close()
            self.states.close()
            self._device.close_stream(self.stream)
