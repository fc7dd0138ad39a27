"""The one door to engines of TensorRT: loads them, and finds the profile that a step takes.

What this file and those beside it rest on; the tests hold each against a stand-in for the library
that enforces what the documentation says:

- Loading an engine where there is no GPU ends the process: a device is opened first.
- A context and a profile serve one step at a time; each profile has a context of its own, so that a
  step of another profile needs no switch.
- What was created must go before its creator: contexts, then the engine, then the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.cuda_device import Device
from stateful_pipeline.runtime.tensorrt_context import Context
from stateful_pipeline.runtime.tensorrt_library import error_log, import_library
from stateful_pipeline.runtime.tensorrt_sidecar import EngineSidecar, check_engine
from stateful_pipeline.runtime.tensorrt_tensors import check_tensors, read_tensors


class TensorRtEngine:
    """A loaded engine, with an execution context for each of its profiles.

    Args:
        path: The engine file.
        sidecar: Its description.
        device: The GPU; it is the current device.
        stream: The stream on which it will run.

    Raises:
        ContractError: The file is not what was described, cannot be loaded, or its graph is not as
            the contract says.
        TargetError: The library is not installed, or the engine cannot run here.
    """

    def __init__(self, path: Path, sidecar: EngineSidecar, device: Device, stream: int) -> None:
        library = import_library(sidecar.library)
        self._path = path
        self._log = error_log(library)
        self.contexts: list[Context] = []
        self._engine: Any = None
        self._runtime: Any = None
        if sidecar.plugins:
            library.init_libnvinfer_plugins(self._log.logger, "")
        check_engine(sidecar, path, library, device.capability)
        self._log.clear()
        self._runtime = library.Runtime(self._log.logger)
        if sidecar.version_compatible:
            self._runtime.engine_host_code_allowed = True
        try:
            self._load(library, sidecar, device, stream)
        except BaseException:
            self.close()
            raise

    def _load(self, library: Any, sidecar: EngineSidecar, device: Device, stream: int) -> None:
        self._engine = self._runtime.deserialize_cuda_engine(self._path.read_bytes())
        if self._engine is None:
            raise self._refused("TensorRT cannot load the engine")
        self.tensors = read_tensors(self._engine, library)
        check_tensors(self.tensors, sidecar.contract, self._path)
        count = self._engine.num_optimization_profiles
        self.profiles = tuple(profile.name for profile in sidecar.profiles)
        if count != len(self.profiles):
            raise ContractError.in_file(
                self._path,
                f"the engine has {count} profiles, its description {len(self.profiles)}",
                "build the engine again",
            )
        strategy = library.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
        for index in range(count):
            raw = self._engine.create_execution_context(strategy)
            if raw is None or not raw.set_optimization_profile_async(index, stream):
                raise self._refused(f"no context for profile '{self.profiles[index]}'")
            self.contexts.append(Context(raw, library, self._log, self._path))
        device.synchronize(stream)

    def choose(
        self, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, tuple[int | str, ...]]
    ) -> int:
        """Return the number of the first profile that covers the shapes of a step.

        Args:
            shapes: Graph input to shape.
            dims: Graph input to its shape in the contract, for the message.

        Raises:
            ContractError: None does.
        """
        dynamic = [tensor for tensor in self.tensors.values() if tensor.ranges]
        for index in range(len(self.profiles)):
            if all(_covers(tensor.ranges[index], shapes[tensor.name]) for tensor in dynamic):
                return index
        raise ContractError.in_file(
            self._path,
            f"no profile covers this step: {self._uncovered(shapes, dims)}",
            "declare a profile that does (`profiles` of the target), and build the engine again",
        )

    def close(self) -> None:
        """Give everything back, in the order that TensorRT demands; may be called again."""
        for context in self.contexts:
            context.close()
        self.contexts.clear()
        self._engine = None
        self._runtime = None

    def _uncovered(
        self, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, tuple[int | str, ...]]
    ) -> str:
        """Return each axis that lies outside some profile, its size, and all profiles' ranges."""
        parts: dict[str, str] = {}
        for tensor in self.tensors.values():
            for place, size in enumerate(shapes[tensor.name]) if tensor.ranges else ():
                limits = [(low[place], high[place]) for low, _, high in tensor.ranges]
                if all(low <= size <= high for low, high in limits):
                    continue
                axis = str(dims[tensor.name][place])
                ranges = ", ".join(
                    f"{name} takes {_range(*limit)}"
                    for name, limit in zip(self.profiles, limits, strict=True)
                )
                parts.setdefault(axis, f"axis '{axis}' is {size}, and {ranges}")
        return "; ".join(parts.values())

    def _refused(self, what: str) -> ContractError:
        return ContractError.in_file(self._path, f"{what}: {self._log.text()}")


def _covers(
    ranges: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...]
) -> bool:
    low, _, high = ranges
    return all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
