"""The one door to ONNX Runtime: sessions, bindings and tensors.

Facts about ONNX Runtime 1.32 that this file rests on, each held by a test:

- An ``OrtValue`` made by ``ortvalue_from_numpy_with_onnx_type`` shares the array's memory, for
  every element type; bfloat16, which numpy lacks, goes in as a view of its 16-bit patterns.
- A bound output of the wrong shape makes the run fail; nothing is written past its end.
- A graph output that *is* a graph input (same name, no node between) is never written to the buffer
  bound for it, and no error says so.  Callers must copy such outputs themselves;
  :meth:`Binding.verify` catches any other case.
- A provider that cannot be had is replaced by the CPU without an error.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stateful_pipeline.contract import numpy_dtype
from stateful_pipeline.errors import ContractError, SpecError, TargetError

Array = np.ndarray[Any, Any]

ONNX_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""Element type to its number in ``onnx.TensorProto.DataType``."""

_RAISED_NOT_PRINTED = 4
"""Log level ``fatal``: errors are raised, so that printing them would say them twice; the warnings,
repeated at each step, are of shapes, which the runner checks itself."""


@dataclass(frozen=True)
class Provider:
    """An execution provider: what ONNX Runtime calls it, and the package that brings it."""

    ort_name: str
    package: str


PROVIDERS = {"cpu": Provider("CPUExecutionProvider", "onnxruntime")}
"""Provider name, as in a spec's ``provider``, to the provider.  States live in host memory."""


def import_onnxruntime() -> Any:
    """Return the module ``onnxruntime``, imported on the first call.

    Raises:
        TargetError: It is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise TargetError(
            f"ONNX Runtime cannot be imported: {error}", hint="pip install onnxruntime"
        ) from error


def first_line(error: BaseException, limit: int = 400) -> str:
    """Return the first line of a foreign error's message, for use inside another."""
    text = str(error).strip() or repr(error)
    line = text.splitlines()[0]
    return line if len(line) <= limit else line[: limit - 3] + "..."


class Engine:
    """An ONNX Runtime session of one model file.

    Args:
        path: The model file.
        provider: A key of :data:`PROVIDERS`.
        threads: Threads within an operator; None leaves it to ONNX Runtime.

    Raises:
        ContractError: The file is missing, or is not a model that ONNX Runtime can load.
        SpecError: ``threads`` is not a positive number.
        TargetError: ONNX Runtime or the provider is not available.
    """

    def __init__(self, path: Path, provider: str, threads: int | None) -> None:
        wanted = _provider(provider)
        check_threads(threads)
        if not path.is_file():
            raise ContractError.in_file(path, "there is no such model file")
        ort = import_onnxruntime()
        self._ort_value = ort.OrtValue
        if wanted.ort_name not in ort.get_available_providers():
            raise TargetError(
                f"this ONNX Runtime has no {wanted.ort_name}",
                target=provider,
                hint=f"pip install {wanted.package}",
            )
        options = ort.SessionOptions()
        options.inter_op_num_threads = 1
        options.log_severity_level = _RAISED_NOT_PRINTED
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            session = ort.InferenceSession(str(path), options, providers=[wanted.ort_name])
        except Exception as error:
            raise ContractError.in_file(
                path, f"ONNX Runtime cannot load the model: {first_line(error)}", _hint(error)
            ) from error
        self.session = session
        self.providers: tuple[str, ...] = tuple(session.get_providers())
        if self.providers[0] != wanted.ort_name:
            raise TargetError(
                f"ONNX Runtime fell back to {self.providers[0]}",
                target=provider,
                hint=f"see why {wanted.ort_name} cannot be started on this machine",
            )

    def value(self, array: Array, dtype: str) -> Any:
        """Return an ``OrtValue`` that shares the memory of a C-contiguous ``array``."""
        bits = array.view(np.uint16) if dtype == "bfloat16" else array
        return self._ort_value.ortvalue_from_numpy_with_onnx_type(bits, ONNX_TYPES[dtype])

    def binding(self) -> Binding:
        """Return a new, empty binding of this session."""
        return Binding(self.session)

    def shapes(self, binding: Binding) -> dict[str, tuple[int, ...]] | None:
        """Return the shape that each bound output would have had, or None if the model cannot run.

        For the message after a failure: runs the model once more, into memory of its own.
        """
        names = list(binding.outputs)
        try:
            values = self.session.run_with_ort_values(names, binding.inputs)
        except Exception:  # noqa: BLE001 - the caller has the first failure at hand and raises that
            return None
        return {name: tuple(value.shape()) for name, value in zip(names, values, strict=True)}


class Binding:
    """Which memory a run reads and writes; what was bound once stays bound for later runs.

    Attributes:
        inputs: Graph input to the value that is bound.
        outputs: Graph output to the value that is bound; None where ONNX Runtime allocates.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._io = session.io_binding()
        self._verified = False
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def bind_input(self, name: str, value: Any) -> None:
        """Let graph input ``name`` read ``value``."""
        self._io.bind_ortvalue_input(name, value)
        self.inputs[name] = value

    def bind_output(self, name: str, value: Any | None) -> None:
        """Let graph output ``name`` write to ``value``, or to new memory if that is None."""
        if value is None:
            self._io.bind_output(name)
        else:
            self._io.bind_ortvalue_output(name, value)
        self.outputs[name] = value

    def run(self) -> None:
        """Run the model once.

        Raises:
            Exception: Whatever ONNX Runtime raises; the classes share no base.
            ContractError: An output was not written to the memory bound for it.
        """
        self._session.run_with_iobinding(self._io)
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

    def copy_output(self, name: str, dtype: str) -> Array:
        """Return a copy of the output ``name`` that ONNX Runtime allocated in the last run."""
        value = self._io.get_outputs()[list(self.outputs).index(name)]
        array = np.empty(tuple(value.shape()), numpy_dtype(dtype))
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array


def _hint(error: Exception) -> str:
    """Return what to try when a model cannot be loaded."""
    if "NOT_IMPLEMENTED" in str(error):
        return (
            "a portable file may have dtypes that ONNX Runtime has no kernels for, bfloat16 above "
            "all: run the copy in `targets/` that `pipeline run` builds, or export it with "
            "runtime='onnxruntime'"
        )
    return "check the file with onnx.checker, and that its external data lies beside it"


def _provider(name: str) -> Provider:
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise TargetError(f"unknown provider '{name}'", target="onnxruntime", hint=f"use {known}")
    return PROVIDERS[name]


def check_threads(threads: int | None) -> None:
    """Check a number of threads.

    Raises:
        SpecError: It is neither None nor a number from 1.
    """
    good = threads is None or (isinstance(threads, int) and threads >= 1)
    if not good or isinstance(threads, bool):
        raise SpecError(f"threads is {threads!r}", hint="a number from 1, or None", key="threads")
