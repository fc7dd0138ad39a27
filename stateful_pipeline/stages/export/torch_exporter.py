"""The private parts of PyTorch's TorchScript exporter that this project relies on, in one file.

Tried on torch 2.13.  :func:`require_supported` fails clearly on versions where a part is missing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import symbolic_helper
from torch.onnx._internal.torchscript_exporter import registration, utils

from stateful_pipeline.model.torch_internals import refuse_missing

_HELPERS = (
    *("_get_const", "_get_tensor_dim_size", "_get_tensor_rank", "_is_bool", "_is_none"),
    *("_is_packed_list", "_parse_arg", "_unpack_list", "_unsqueeze_helper"),
)


def require_supported() -> None:
    """Raise ``StageError`` if this torch lacks a private part that is used here."""
    missing = [
        f"torch.onnx.symbolic_helper.{n}" for n in _HELPERS if not hasattr(symbolic_helper, n)
    ]
    if not hasattr(utils, "_get_example_outputs"):
        missing.append("torchscript_exporter.utils._get_example_outputs")
    if not hasattr(torch._C, "_jit_onnx_log"):
        missing.append("torch._C._jit_onnx_log")
    refuse_missing(missing, "export")


# --- arguments of forms ----------------------------------------------------------------------


def is_none(value: Any) -> bool:
    """Whether an argument is left out."""
    return bool(symbolic_helper._is_none(value))


def is_truth(value: Any) -> bool:
    """Whether a tensor holds truth values."""
    return bool(symbolic_helper._is_bool(value))


def constant(value: Any, kind: str) -> Any:
    """Return an argument that is known before the model runs: "i", "f", "b", "s" or "is"."""
    read: Any = symbolic_helper._get_const
    return read(value, kind, "argument")


def argument(value: Any, kind: str) -> Any:
    """Return an argument that the node's author wrote: "i", "b", "is"; None stays None."""
    read: Any = symbolic_helper._parse_arg
    return read(value, kind)


def is_listed(value: Any) -> bool:
    """Whether an argument is a list whose items are known one by one."""
    return bool(symbolic_helper._is_packed_list(value))


def items(value: Any) -> list[Any]:
    """Return the items of a list."""
    return list(symbolic_helper._unpack_list(value))


def rank(value: Any) -> int | None:
    """Return the rank of a tensor, or None where it is not known."""
    return symbolic_helper._get_tensor_rank(value)


def size(value: Any, dim: int) -> int | None:
    """Return a size of a tensor, or None where it is not known."""
    return symbolic_helper._get_tensor_dim_size(value, dim)


def unsqueezed(g: Any, value: Any, dims: Sequence[int]) -> Any:
    """Return a tensor with dimensions of size 1 inserted."""
    return symbolic_helper._unsqueeze_helper(g, value, list(dims))


# --- the exporter ----------------------------------------------------------------------------


def own_form(name: str, opset: int) -> Callable[..., Any] | None:
    """Return the exporter's own form of an operator, or None."""
    _load_forms()
    group: Any = registration.registry.get_function_group(name)
    form: Callable[..., Any] | None = None if group is None else group.get(opset)
    return form


@functools.cache
def _load_forms() -> None:
    """Load the exporter's own forms, which it does only once it writes a model."""
    package = importlib.import_module(str(registration.__package__))
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("symbolic_opset"):
            importlib.import_module(f"{package.__name__}.{module.name}")


@contextmanager
def given(results: Sequence[torch.Tensor]) -> Iterator[None]:
    """Give the exporter results of the right types, where it would run the graph on zeros."""
    before = utils._get_example_outputs
    try:
        utils._get_example_outputs = lambda model, arguments: tuple(results)
        yield
    finally:
        utils._get_example_outputs = before


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter from printing the graph where it fails."""
    before = torch._C._jit_onnx_log
    try:
        torch._C._jit_onnx_log = lambda *parts: None
        yield
    finally:
        torch._C._jit_onnx_log = before
