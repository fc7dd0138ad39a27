"""Finds values that OpenVINO would hand on to a state without copying them.

``Assign`` shares memory with what it is given.  That is as it should be where an operator has made
a new tensor.  But OpenVINO 2026.4 also lets a state share memory with an input of the model, with a
constant, or with another state, where nothing but operators that do nothing lie between: the state
then changes when the caller writes to the array, or with the next input.  ``y = h; h = x`` gives
the *present* ``x`` from the second step on, and no error says so.

An operator counts as doing nothing if it may give the elements that it was given, in their order
(``Reshape`` and its like), or is arithmetic with a neutral constant (plus 0, times 1), which an
optimizer takes away.  Bodies of control flow may hand on what they were given, too.

Where all sizes are known beforehand, ``Concat`` is done in place: the parts are to be made where
they will lie.  For a part that is an input, in a state that takes turns between two buffers, that
goes wrong: ``h = cat([h[:, 2:], x], 1)`` never gets ``x``, or reads memory that nobody wrote.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_BODIES = frozenset({"If", "Loop", "TensorIterator"})
_SOURCES = frozenset({"Constant", "Parameter", "ReadValue"}) | _BODIES
_VIEWS = frozenset(
    {"Broadcast", "Convert", "ConvertLike", "Identity", "Pad", "Reshape", "Slice", "Split"}
    | {"Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze", "VariadicSplit"}
)
_IN_PLACE = frozenset({"Concat", "Split", "VariadicSplit"})
"""Operators that share memory with what surrounds them where all sizes are known beforehand."""

_NEUTRAL = {"Add": 0, "Subtract": 0, "Multiply": 1, "Divide": 1, "Power": 1}
"""Arithmetic, to the constant with which it does nothing."""


def is_handed_on(node: Any) -> bool:
    """Whether what ``node`` makes may share memory with an input, a constant or another state."""
    while True:
        kind = node.get_type_name()
        if kind in _SOURCES or (kind in _IN_PLACE and _is_static(node)):
            return True
        if kind in _VIEWS or (kind == "Concat" and node.get_input_size() == 1):
            node = _source(node, 0)
            continue
        if kind not in _NEUTRAL:
            return False
        operands = [_source(node, index) for index in range(node.get_input_size())]
        varying = [operand for operand in operands if not _is_neutral(operand, _NEUTRAL[kind])]
        if len(varying) == len(operands):
            return False
        node = (varying or operands)[0]


def reaches_a_body(node: Any) -> bool:
    """Whether control flow may read the memory that ``node`` has, as it is or through views."""
    to_follow, seen = [node], set[str]()
    while to_follow:
        for output in to_follow.pop().outputs():
            readers = [reader.get_node() for reader in output.get_target_inputs()]
            if any(reader.get_type_name() in _BODIES for reader in readers):
                return True
            to_follow += [r for r in readers if _may_view(r) and r.get_name() not in seen]
            seen |= {reader.get_name() for reader in readers}
    return False


def _may_view(node: Any) -> bool:
    kind = node.get_type_name()
    return kind in _VIEWS or kind in _IN_PLACE or kind in _NEUTRAL


def _is_static(node: Any) -> bool:
    return all(output.get_partial_shape().is_static for output in node.outputs())


def _is_neutral(node: Any, number: int) -> bool:
    """Whether ``node`` is a constant all of whose elements are ``number``, perhaps converted."""
    while node.get_type_name() in _VIEWS:
        node = _source(node, 0)
    return node.get_type_name() == "Constant" and bool(
        np.all(np.asarray(node.get_data()) == number)
    )


def _source(node: Any, index: int) -> Any:
    return node.input_value(index).get_node()
