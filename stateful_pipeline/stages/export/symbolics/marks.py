"""Operators of our own, which tell the exporter what it forgets."""

from __future__ import annotations

from typing import Any

import torch
from torch.onnx import JitScalarType  # type: ignore[attr-defined]

from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.symbolics.writing import Symbolic

EMPTY_LIST = "stateful_pipeline::empty_list"
"""An empty list of tensors of one dtype, which the exporter would call float32."""
_LIBRARY: Any = torch.library.Library("stateful_pipeline", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("empty_list(Tensor any, int dtype) -> Tensor[]")
_LIBRARY.impl("empty_list", lambda anything, dtype: [], "CompositeExplicitAutograd")


MARK = "stateful_pipeline::known"
"""A tensor whose dtype and rank are known, which the exporter forgets of what branches hand on."""
_LIBRARY.define("known(Tensor value) -> Tensor")
_LIBRARY.impl("known", lambda value: value.clone(), "CompositeExplicitAutograd")


def known(g: Any, value: Any) -> Any:
    """The same tensor, with the type that it has in the program."""
    same = g.op("Identity", value)
    same.setType(g.original_node.output().type())
    return same


def empty_list(g: Any, anything: Any, dtype: Any) -> Any:
    """``SequenceEmpty`` of the dtype that its tensors will have."""
    code = torch_exporter.argument(dtype, "i")
    return g.op("SequenceEmpty", dtype_i=JitScalarType(code).onnx_type())


RENAMED = {"aten::index_put": "aten::_unsafe_index_put"}
"""Operators that the exporter must not see by their names.

It takes an ``index_put`` of a slice for an assignment through the slice, and makes it one of the
whole tensor.
"""
MARKS: dict[str, Symbolic] = {EMPTY_LIST: empty_list, MARK: known}
"""Operators of this file."""
