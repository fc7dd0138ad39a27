"""Which memory a step of ONNX Runtime reads and writes.

Facts about ONNX Runtime that this file rests on, each held by a test:

- An ``OrtValue`` made by ``ortvalue_from_numpy_with_onnx_type`` shares the array's memory, for
  every element type; bfloat16, which numpy lacks, goes in as a view of its 16-bit patterns.
- A bound output of the wrong shape makes the run fail; nothing is written past its end.
- A graph output that *is* a graph input (same name, no node between) is never written to the buffer
  bound for it, and no error says so.  Callers must copy such outputs themselves;
  :meth:`Binding.verify` catches any other case.

And one, from ``IOBinding``'s source, for devices: an input is copied *when it is bound* if it lies
elsewhere than the node that reads it wants it, and the copy is what later runs read.  Inputs of the
user are bound as host arrays anew for each step, so that this is their one copy to the device, into
memory of ONNX Runtime's arena; a buffer of ours would save nothing.  States on a device are bound
anew for each step too, although they are in the right place: if ONNX Runtime ever thought
otherwise, a state bound once would stand still from then on.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from stateful_pipeline.contract import numpy_dtype
from stateful_pipeline.errors import ContractError

Array = np.ndarray[Any, Any]

ONNX_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""Element type to its number in ``onnx.TensorProto.DataType``."""


class Place(Protocol):
    """A device: what ``OrtValue`` calls it, and its number."""

    @property
    def kind(self) -> str:
        """What ``OrtValue`` calls it."""
        ...

    @property
    def number(self) -> int:
        """Which of them, from 0."""
        ...


def shared_value(ort_value: Any, array: Array, dtype: str) -> Any:
    """Return an ``OrtValue`` that shares the memory of a C-contiguous ``array``."""
    bits = array.view(np.uint16) if dtype == "bfloat16" else array
    return ort_value.ortvalue_from_numpy_with_onnx_type(bits, ONNX_TYPES[dtype])


class Binding:
    """The memory of a step; what was bound once stays bound for later runs.

    Args:
        session: The session of ONNX Runtime.
        run_options: How it is to run; None for its defaults.

    Attributes:
        inputs: Graph input to the value that is bound, which lives as long as the binding.
        outputs: Graph output to the value that is bound; None where ONNX Runtime allocates.
    """

    def __init__(self, session: Any, run_options: Any | None = None) -> None:
        self._session = session
        self._run_options = run_options
        self._io = session.io_binding()
        self._verified = False
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def bind_input(self, name: str, value: Any) -> None:
        """Let graph input ``name`` read ``value``."""
        self._io.bind_ortvalue_input(name, value)
        self.inputs[name] = value

    def bind_output(self, name: str, value: Any | None) -> None:
        """Let graph output ``name`` write to ``value``, or to new host memory if that is None."""
        if value is None:
            self._io.bind_output(name)
        else:
            self._io.bind_ortvalue_output(name, value)
        self.outputs[name] = value

    def bind_input_on(
        self, device: Place, name: str, dtype: str, shape: tuple[int, ...], memory: Any
    ) -> None:
        """Let graph input ``name`` read a tensor at the front of ``memory`` on a device."""
        self._io.bind_input(
            name, device.kind, device.number, ONNX_TYPES[dtype], shape, memory.data_ptr()
        )
        self.inputs[name] = memory

    def bind_output_on(
        self,
        device: Place,
        name: str,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        memory: Any | None = None,
    ) -> None:
        """Let graph output ``name`` write to ``memory`` on a device, or to new memory there."""
        if dtype is None or memory is None:
            self._io.bind_output(name, device.kind, device.number)
        else:
            kind, number, element = device.kind, device.number, ONNX_TYPES[dtype]
            self._io.bind_output(name, kind, number, element, shape, memory.data_ptr())
        self.outputs[name] = memory

    def run(self) -> None:
        """Run the model once.

        Raises:
            Exception: Whatever ONNX Runtime raises; the classes share no base.
            ContractError: An output was not written to the memory bound for it.
        """
        self._session.run_with_iobinding(self._io, self._run_options)
        if not self._verified:
            self.verify()
            self._verified = True

    def verify(self) -> None:
        """Check that the last run wrote each output to the memory bound for it.

        Where an output lands depends on the graph alone, so that one check does for many runs.

        Raises:
            ContractError: It did not.
        """
        results = self._io.get_outputs()
        for (name, value), result in zip(self.outputs.items(), results, strict=True):
            if value is None or 0 in result.shape():
                continue
            if result.data_ptr() != value.data_ptr():
                raise ContractError(f"ONNX Runtime gave output '{name}' in memory of its own")

    def output(self, name: str) -> Any:
        """Return the value of output ``name`` that the last run left."""
        return self._io.get_outputs()[list(self.outputs).index(name)]

    def copy_output(self, name: str, dtype: str) -> Array:
        """Return a copy of the output ``name`` that ONNX Runtime allocated in host memory."""
        value = self.output(name)
        array = np.empty(tuple(value.shape()), numpy_dtype(dtype))
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array

    def synchronize(self) -> None:
        """Wait for copies on the device, which the next run would otherwise not wait for."""
        self._io.synchronize_inputs()

    def shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Return the shape that each output would have had, or None if the model cannot run.

        For the message after a failure: runs the model once more, into memory of its own.  The
        binding is of no use afterwards.
        """
        names = list(self.outputs)
        try:
            self._io.clear_binding_outputs()
            for name in names:
                self._io.bind_output(name)
            self._session.run_with_iobinding(self._io, self._run_options)
        except Exception:  # noqa: BLE001 - the caller has the first failure at hand and raises that
            return None
        return {
            name: tuple(value.shape())
            for name, value in zip(names, self._io.get_outputs(), strict=True)
        }
