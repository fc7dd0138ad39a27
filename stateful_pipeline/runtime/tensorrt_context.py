"""An execution context of TensorRT: shapes and addresses in, a step on a stream out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import ContractError, PipelineError
from stateful_pipeline.runtime.tensorrt_library import ErrorLog

Reserve = Callable[[str, int], int]
"""Takes the name of an output and a number of bytes, and returns the address of as many."""


class Context:
    """An execution context, which runs the steps of one profile.

    Shapes and addresses stay set: what has not changed since the last step is not set again.
    """

    def __init__(self, raw: Any, library: Any, log: ErrorLog, path: Path) -> None:
        self._raw = raw
        self._library = library
        self._log = log
        self._path = path
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def set_input(self, name: str, shape: tuple[int, ...], address: int) -> None:
        """Let the next step read graph input ``name`` at ``address``.

        Raises:
            ContractError: TensorRT refuses it.
        """
        if self._shapes.get(name) != shape:
            self._shapes.pop(name, None)
            self._do("set_input_shape", name, shape)
            self._shapes[name] = shape
        self.set_address(name, address)

    def set_address(self, name: str, address: int) -> None:
        """Let the steps find input or output ``name`` at ``address``, where there is room for it.

        Raises:
            ContractError: TensorRT refuses it.
        """
        if self._addresses.get(name) != address:
            self._addresses.pop(name, None)
            self._do("set_tensor_address", name, address)
            self._addresses[name] = address

    def infer_shapes(self) -> None:
        """Compute the shapes of the outputs, once all inputs are set.

        Raises:
            ContractError: TensorRT cannot.
        """
        self._log.clear()
        try:
            missing = self._raw.infer_shapes()
        except RuntimeError as error:
            raise self._failed(f"{error}; {self._log.text()}") from error
        if missing:
            raise self._failed(f"{', '.join(missing)}: {self._log.text()}")

    def output_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an output; -1 where only the run can tell."""
        return tuple(self._raw.get_tensor_shape(name))

    def allocate_through(self, name: str, reserve: Reserve) -> None:
        """Let the run find memory for output ``name`` by ``reserve``, once it knows how much."""
        allocator = self._allocators.get(name)
        if allocator is None:
            allocator = _allocator(self._library)
            self._do("set_output_allocator", name, allocator)
            self._allocators[name] = allocator
        allocator.reserve, allocator.error, allocator.shape = reserve, None, None

    def enqueue(self, stream: int) -> dict[str, tuple[int, ...]]:
        """Let the stream take the step.

        Returns:
            The shapes that only the run could tell, by output.

        Raises:
            ContractError: TensorRT refuses it.
            TargetError: There was not enough memory for an output.
        """
        self._log.clear()
        done = self._raw.execute_async_v3(stream)
        for allocator in self._allocators.values():
            if allocator.error is not None:
                raise allocator.error
        if not done:
            raise self._failed(self._log.text())
        found = {name: allocator.shape for name, allocator in self._allocators.items()}
        return {name: shape for name, shape in found.items() if shape is not None}

    def close(self) -> None:
        """Give the context back; no stream may still run it."""
        self._raw = None
        self._allocators.clear()

    def _do(self, method: str, name: str, value: Any) -> None:
        self._log.clear()
        if not getattr(self._raw, method)(name, value):
            raise self._failed(f"{method} of '{name}': {self._log.text()}")

    def _failed(self, reason: str) -> ContractError:
        return ContractError.in_file(self._path, f"TensorRT could not run the step: {reason}")


def _allocator(library: Any) -> Any:
    """Return an output allocator whose ``reserve`` is set before each step."""

    class OutputAllocator(library.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IOutputAllocator.__init__(self)
            self.reserve: Reserve | None = None
            self.error: PipelineError | None = None
            self.shape: tuple[int, ...] | None = None

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def reallocate_output(
            self, tensor_name: str, memory: int, size: int, alignment: int
        ) -> int:
            assert self.reserve is not None
            # TensorRT prints what is raised here, and goes on; 0 makes the step fail.
            try:
                return self.reserve(tensor_name, size)
            except PipelineError as error:
                self.error = error
                return 0

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()
