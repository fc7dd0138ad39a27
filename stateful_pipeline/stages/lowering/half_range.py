"""Which values may be outside half's range: what came of a constant that half has no number for.

A mask of -1e9 is -inf in float16.  As long as that is all that becomes of it, as in ``Softmax``,
nothing is lost; but ``max == -inf`` is true of it where it was false, and ``x * 0`` is NaN.  So
what reads such a constant is computed in float32, and what it makes is taken to be outside as well,
**whatever the operator**, until one whose results are bounded (``Softmax``, ``Tanh``, ``Clip``
between two constants).  States that are stored in float32 and values that loops carry hand it on to
the next step, so that this is done until nothing changes.

Two ends of the range are told apart:

* *Large* is what could become infinite.
* *Small* is what could become 0, as an epsilon of 1e-12.  It matters next to 0, in sums, powers and
  quotients (``x / (norm + epsilon)``), and what they make is of the usual size again: products such
  as ``MatMul`` end it, and functions that are smooth at 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from stateful_pipeline.stages.lowering.half_operators import is_constant
from stateful_pipeline.stages.lowering.half_ports import Port
from stateful_pipeline.stages.lowering.half_weights import Magnitude, Weights

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})

_SMOOTH = frozenset({"Atan", "Cos", "Erf", "HardSigmoid", "Sigmoid", "Sin", "Softsign", "Tanh"})

_BOUNDED = _SMOOTH | {"Hardmax", "Sign", "Softmax"}
"""Operators whose results fit whatever they read."""

_NORMALIZED = frozenset({"LpNormalization", "MeanVarianceNormalization"}) | {
    f"{kind}Normalization" for kind in ("Group", "Instance", "Layer", "RMS")
}
"""Those that bound their first operand, and then scale and shift it."""

_BLUNT = _SMOOTH | {
    *("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM"),
    *("MatMul", "RNN"),
}
"""Operators to which a small number is as good as 0: sums of products, and what is smooth there."""


class HalfRange:
    """Says which values of a model may be outside half's range.

    Args:
        model: The model, dtypes inferred, functions written out.
        weights: Says what half does to constants.
        states: Input and output of each state that is stored in float32.
        ports: The places where values enter and leave bodies, by operator.
        outside: Inputs that may be large from the start: states, by their initial values.
    """

    def __init__(
        self,
        model: ir.Model,
        weights: Weights,
        states: Iterable[tuple[ir.Value, ir.Value]],
        ports: dict[ir.Node, list[Port]],
        outside: Iterable[ir.Value] = (),
    ) -> None:
        self._weights, self._ports = weights, ports
        self._found: dict[ir.Value, Magnitude] = dict.fromkeys(outside, Magnitude.LARGE)
        states = list(states)
        nodes = [node for graph in model.graphs() for node in graph if not _is_known(node)]
        changes = True
        while changes:
            changes = False
            for node in nodes:
                changes |= self._follow(node)
            for before, after in states:
                changes |= self._raise([before], self.of(after))

    def of(self, value: ir.Value | None) -> Magnitude:
        """Return what ``value`` may be."""
        if value is None:
            return Magnitude.FITS
        if is_constant(value):
            return self._weights.magnitude(value)
        return self._found.get(value, Magnitude.FITS)

    def keeps_wide(self, node: ir.Node) -> bool:
        """Whether ``node`` is computed in float32 for what it reads."""
        read = self._read(node)
        if read is Magnitude.SMALL and node.op_type in _BLUNT:
            return any(value is not None and self._is_small(value) for value in node.inputs)
        return read is not Magnitude.FITS

    def _is_small(self, value: ir.Value) -> bool:
        return is_constant(value) and self.of(value) is Magnitude.SMALL

    def _follow(self, node: ir.Node) -> bool:
        """Find what ``node`` hands on; return whether that is more than was known."""
        changes = False
        for port in self._ports[node]:
            found = max(map(self.of, port.sources()), default=Magnitude.FITS)
            changes |= self._raise(port.values, found)
        if self._ports[node]:
            return changes
        made = self._made(node)
        if node.op_type == "Attention":  # what is weighted is what comes out; scores and caches not
            first = max(self.of(value) for value in (*node.inputs[2:3], *node.inputs[5:6]))
            changes |= self._raise(node.outputs[:1], first)
            return self._raise(node.outputs[1:], made) or changes
        return self._raise(node.outputs, made) or changes

    def _raise(self, values: Iterable[ir.Value], found: Magnitude) -> bool:
        changes = False
        for value in values:
            is_float = value.dtype in _FLOATS or value.dtype is None  # the elements of a sequence
            if is_float and found > self._found.get(value, Magnitude.FITS):
                self._found[value] = found
                changes = True
        return changes

    def _read(self, node: ir.Node) -> Magnitude:
        """Return the most that is among the operands and attributes of ``node``."""
        given = [self.of(value) for value in node.inputs]
        given += [self._weights.magnitude_of(found) for found in node.attributes.values()]
        return max(given, default=Magnitude.FITS)

    def _made(self, node: ir.Node) -> Magnitude:
        """Return what the results of ``node`` may be."""
        kind = node.op_type if node.domain == "" else ""
        if kind in _BOUNDED:
            return Magnitude.FITS
        if kind in _NORMALIZED:
            return max(map(self.of, node.inputs[1:]), default=Magnitude.FITS)
        if kind == "Clip" and self._is_between_constants(node):
            given = self.of(node.inputs[0])
            bounds = max(self.of(value) for value in node.inputs[1:])
            return max(bounds, Magnitude.FITS if given is Magnitude.LARGE else given)
        if kind == "Div":
            return max(self.of(node.inputs[0]), min(self.of(node.inputs[1]), Magnitude.SMALL))
        if kind in _BLUNT and not self.keeps_wide(node):
            return Magnitude.FITS
        return self._read(node)

    @staticmethod
    def _is_between_constants(node: ir.Node) -> bool:
        bounds = node.inputs[1:]
        return len(bounds) == 2 and all(v is not None and is_constant(v) for v in bounds)


def _is_known(node: ir.Node) -> bool:
    return node.op_type == "Constant" and node.domain == ""
