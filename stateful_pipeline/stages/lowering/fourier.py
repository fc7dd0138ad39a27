"""Writes Fourier transforms of a fixed length as products with a matrix.

``DFT`` of ONNX (opsets 17 and 20), over N elements::

    X[k] = sum over n of x[n] exp(-2 pi i k n / N)            k < N, or k <= N / 2 if onesided
    x[n] = 1 / N  sum over k of X[k] exp(2 pi i k n / N)      inverse

The inverse of a onesided transform, which PyTorch's ``irfft`` is exported as, is real: what is left
out are the conjugates of what is there.  Products take N**2 steps where a fast transform takes
N log N; but ONNX Runtime's is off by 1e-3 for 400 samples, where N is no power of two, and takes
five times as long (:func:`is_better_as_product`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from stateful_pipeline.stages.lowering.names import Names
from stateful_pipeline.stages.lowering.typed import shapes_in
from stateful_pipeline.stages.lowering.writing import Writer, replace_by

_LONGEST = 4096
"""Elements of a transform; the matrix of one of float32 has 67 MB then."""

_AS_FAST = 1024

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def is_better_as_product(length: int) -> bool:
    """Whether a product takes about as long as ONNX Runtime's ``DFT``, or is more exact."""
    return length <= _AS_FAST or length & (length - 1) != 0


def write_out_transforms(
    model: ir.Model,
    names: Names,
    *,
    onesided_only: bool = False,
    which: Callable[[int], bool] = lambda length: True,
) -> list[str]:
    """Write the transforms out, in place; return what was changed, in words.

    Args:
        model: The model, without functions.  Its dtypes are known, as far as they can be.
        names: The names that are taken.
        onesided_only: Whether transforms whose result has all frequencies stay.
        which: Which lengths are written out.
    """
    nodes = [node for graph in model.graphs() for node in graph if _is_transform(node)]
    if onesided_only:
        nodes = [node for node in nodes if node.attributes.get_int("onesided", 0)]
    shapes = shapes_in(model) if nodes else {}
    usual_axis = 1 if model.opset_imports.get("", 0) < 20 else -2
    changed = list[str]()
    for node in nodes:
        form = _form(node, shapes, usual_axis)
        if form is not None and which(form.length):
            graph = node.graph
            assert isinstance(graph, ir.Graph)
            replace_by(node, _Transform(Writer(names, graph, node), form).of(node.inputs[0]))
            changed.append("DFT: as a product")
    return changed


def _is_transform(node: ir.Node) -> bool:
    return node.op_type == "DFT" and node.domain == ""


@dataclass(frozen=True)
class _Form:
    """A transform.

    Attributes:
        rank: How many dimensions it is given; the last one has real and imaginary part.
        axis: The dimension along which it runs.
        given: How many elements it is given; those beyond ``needed`` are left out.
        length: N.
        is_complex: Whether it is given imaginary parts.
        inverse: Whether it is the inverse.
        onesided: Whether the frequencies are those up to N / 2.
        dtype: The dtype of its elements.
    """

    rank: int
    axis: int
    given: int
    length: int
    is_complex: bool
    inverse: bool
    onesided: bool
    dtype: ir.DataType

    @property
    def needed(self) -> int:
        """How many elements it reads."""
        return self.length // 2 + 1 if self.inverse and self.onesided else self.length

    @property
    def made(self) -> int:
        """How many elements it makes."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length


def _form(
    node: ir.Node, shapes: Mapping[ir.Value, ir.Shape | None], usual_axis: int
) -> _Form | None:
    """Return what ``node`` is; None where its sizes are not known, or are too large."""
    given = node.inputs[0]
    shape = None if given is None else shapes.get(given, given.shape)
    axis = _number(node, 2, node.attributes.get_int("axis", usual_axis))
    if given is None or shape is None or axis is None or shape[-1] not in (1, 2):
        return None
    inverse = bool(node.attributes.get_int("inverse", 0))
    onesided = bool(node.attributes.get_int("onesided", 0))
    count = shape[axis]
    if not isinstance(count, int) or given.dtype not in _FLOATS:
        return None
    length = _number(node, 1, 2 * (count - 1) if inverse and onesided else count)
    if length is None or max(length, count) > _LONGEST:
        return None
    rank, is_complex = len(shape), shape[-1] == 2
    return _Form(rank, axis % rank, count, length, is_complex, inverse, onesided, given.dtype)


def _number(node: ir.Node, index: int, otherwise: int) -> int | None:
    """Return the constant that an input is, or ``otherwise`` if it is left out."""
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return otherwise
    known = ir.convenience.get_const_tensor(value)
    return None if known is None else int(known.numpy().reshape(-1)[0])


class _Transform:
    """Writes one transform."""

    def __init__(self, write: Writer, form: _Form) -> None:
        self._write, self._form = write, form
        self._order = list(range(form.rank - 1))
        self._order[form.axis], self._order[-1] = self._order[-1], self._order[form.axis]
        self._cosines, self._sines = (self._constant(m) for m in _matrices(form))

    def of(self, given: ir.Value | None) -> ir.Value:
        """Return the transform of ``given``."""
        write, form = self._write, self._form
        real = self._part(given, 0)
        parts = [self._times(real, self._cosines)]
        if not (form.inverse and form.onesided):
            parts.append(self._times(real, self._sines))
        if form.is_complex:
            imaginary = self._part(given, 1)
            parts[0] = write("Sub", parts[0], self._times(imaginary, self._sines))
            if len(parts) == 2:
                parts[1] = write("Add", parts[1], self._times(imaginary, self._cosines))
        last = write.ints([-1])
        made = [write("Unsqueeze", self._turned(part), last) for part in parts]
        return made[0] if len(made) == 1 else write("Concat", *made, axis=-1)

    def _constant(self, matrix: np.ndarray[Any, Any]) -> ir.Value:
        array = matrix.astype(self._form.dtype.numpy())
        return self._write("Constant", value=ir.tensor(array, dtype=self._form.dtype))

    def _part(self, given: ir.Value | None, index: int) -> ir.Value:
        """Return the real or the imaginary part, the axis last."""
        return self._turned(self._write("Gather", given, self._write.int(index), axis=-1))

    def _turned(self, value: ir.Value) -> ir.Value:
        """Exchange the axis and the last one."""
        if self._order == sorted(self._order):
            return value
        return self._write("Transpose", value, perm=self._order)

    def _times(self, value: ir.Value, matrix: ir.Value) -> ir.Value:
        return self._write("MatMul", value, matrix)


def _matrices(form: _Form) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the real and the imaginary matrix, of shape (given, made)."""
    rows, columns = np.arange(form.given), np.arange(form.made)
    turns = np.outer(rows, columns) % form.length  # exact, however large the product
    angles = 2 * np.pi / form.length * turns
    cosines, sines = np.cos(angles), np.sin(angles) * (1 if form.inverse else -1)
    sines[2 * turns % form.length == 0] = 0.0  # exactly: an angle may be taken of it
    cosines[(4 * turns % form.length == 0) & (2 * turns % form.length != 0)] = 0.0
    weights = np.where(rows < form.needed, 1 / form.length if form.inverse else 1.0, 0.0)
    if form.inverse and form.onesided:
        alone = (rows == 0) | (2 * rows == form.length)  # the others stand for two
        weights = np.where(alone, weights, 2 * weights)
    return weights[:, None] * cosines, weights[:, None] * sines
