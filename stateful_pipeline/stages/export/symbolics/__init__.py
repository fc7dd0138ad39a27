"""ONNX forms of operators that PyTorch's TorchScript exporter lacks or gets wrong.

They are registered while a model is converted, and taken back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# The exporter's table of its own forms; torch.onnx has no public way to it.
from stateful_pipeline.stages.export import torch_exporter
from stateful_pipeline.stages.export.python_numbers.operators import forms
from stateful_pipeline.stages.export.symbolics.activations import ACTIVATIONS
from stateful_pipeline.stages.export.symbolics.arrangements import ARRANGEMENTS
from stateful_pipeline.stages.export.symbolics.attention import ATTENTION
from stateful_pipeline.stages.export.symbolics.cells import CELLS
from stateful_pipeline.stages.export.symbolics.distances import DISTANCES
from stateful_pipeline.stages.export.symbolics.division import DIVISION
from stateful_pipeline.stages.export.symbolics.error_function import ERROR_FUNCTION
from stateful_pipeline.stages.export.symbolics.functions import FUNCTIONS
from stateful_pipeline.stages.export.symbolics.marks import EMPTY_LIST, MARK, MARKS, RENAMED
from stateful_pipeline.stages.export.symbolics.matrices import MATRICES
from stateful_pipeline.stages.export.symbolics.normalization import NORMALIZATION
from stateful_pipeline.stages.export.symbolics.order import ORDER
from stateful_pipeline.stages.export.symbolics.pairs import PAIRS
from stateful_pipeline.stages.export.symbolics.products import PRODUCTS
from stateful_pipeline.stages.export.symbolics.reductions import REDUCTIONS
from stateful_pipeline.stages.export.symbolics.running import RUNNING
from stateful_pipeline.stages.export.symbolics.scatters import SCATTERS
from stateful_pipeline.stages.export.symbolics.shapes import SHAPES
from stateful_pipeline.stages.export.symbolics.sums import SUMS
from stateful_pipeline.stages.export.symbolics.triangles import TRIANGLES
from stateful_pipeline.stages.export.symbolics.views import VIEWS
from stateful_pipeline.stages.export.symbolics.writing import Symbolic

__all__ = ["EMPTY_LIST", "MARK", "RENAMED", "registered"]

SYMBOLICS: dict[str, Symbolic] = {
    **ACTIVATIONS,
    **ARRANGEMENTS,
    **ATTENTION,
    **CELLS,
    **DISTANCES,
    **DIVISION,
    **ERROR_FUNCTION,
    **FUNCTIONS,
    **MARKS,
    **MATRICES,
    **NORMALIZATION,
    **ORDER,
    **PAIRS,
    **PRODUCTS,
    **REDUCTIONS,
    **RUNNING,
    **SCATTERS,
    **SHAPES,
    **SUMS,
    **TRIANGLES,
    **VIEWS,
    **forms(),
}
"""Forms by the names of operators.

The exporter takes the last ``_`` off a name, as it does for operators in place: ``aten::__and__``
is looked up as ``aten::__and_``.
"""


@contextmanager
def registered(opset: int) -> Iterator[None]:
    """Let the exporter know the operators of this package; ``opset`` is the one that it writes."""
    exporter: Any = torch.onnx
    for name, function in SYMBOLICS.items():
        symbolic = _or_exporters(name, function, opset)
        exporter.register_custom_op_symbolic(name, symbolic, opset)
    try:
        yield
    finally:
        for name in SYMBOLICS:
            exporter.unregister_custom_op_symbolic(name, opset)


def _or_exporters(name: str, function: Symbolic, opset: int) -> Symbolic:
    """Return a form that is the exporter's own where ``function`` has none."""
    exporters = torch_exporter.own_form(name, opset)

    def symbolic(g: Any, *arguments: Any, **attributes: Any) -> Any:
        made = function(g, *arguments)
        if made is not NotImplemented:
            return made
        if exporters is None:
            raise RuntimeError(f"there is no ONNX form of {name} with these arguments")
        return exporters(g, *arguments, **attributes)

    return symbolic
