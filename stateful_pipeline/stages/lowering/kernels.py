"""Which operators ONNX Runtime has a kernel for on the CPU, as it says itself.

The list belongs to the installed build, so that a newer one with more kernels is asked for fewer
casts.  Some kernels are listed and refuse all the same, once they run: see :func:`_refuses`.
"""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from typing import Any

import onnx_ir as ir

from stateful_pipeline.errors import TargetError
from stateful_pipeline.stages.lowering.signatures import Signature, dtypes_of, is_function

_Kernel = tuple[tuple[int, int], dict[str, frozenset[ir.DataType]]]
"""The versions of the operator that a kernel is for, and the dtypes that it takes."""

_LAST = (1 << 31) - 1
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def has_kernel(signature: Signature) -> bool:
    """Whether ONNX Runtime runs the operator at these dtypes on the CPU, rounding each result.

    An operator without any kernel is replaced by those that define it.  In 16 bits each of these
    rounds, where PyTorch rounds once, so that it counts as having none.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    if _refuses(signature):
        return False
    fitting = [
        constraints
        for (first, last), constraints in _kernels()[signature.domain, signature.operator]
        if first == signature.version or (last < _LAST and first <= signature.version <= last)
    ]
    if not fitting:
        halves = any(dtype in _HALVES for _, dtype in signature.dtypes)
        return is_function(signature) and not halves
    return any(
        all(dtype in constraints.get(name, {dtype}) for name, dtype in signature.dtypes)
        for constraints in fitting
    )


def _refuses(signature: Signature) -> bool:
    """Whether a kernel of ONNX Runtime 1.32 that is listed does not run all the same."""
    dtypes = {dtype for _, dtype in signature.dtypes}
    if signature.operator in ("ScatterND", "ScatterElements") and signature.reduction != "none":
        return not dtypes.isdisjoint({*_HALVES, ir.DataType.BOOL})
    return signature.operator in ("GRU", "LSTM", "RNN") and ir.DataType.DOUBLE in dtypes


@functools.cache
def _kernels() -> dict[tuple[str, str], list[_Kernel]]:
    """Return all kernels of the CPU, by domain and operator.

    Raises:
        TargetError: This ONNX Runtime does not list its kernels.
    """
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(state, "get_all_opkernel_def"):
        raise TargetError(
            "this ONNX Runtime does not list its kernels",
            target="onnxruntime",
            hint="install the package `onnxruntime` from PyPI, 1.24 or newer",
        )
    found: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            takes = {name: dtypes_of(texts) for name, texts in kernel.type_constraints.items()}
            found[kernel.domain, kernel.op_name].append((kernel.version_range, takes))
    return found
