"""Decides which operators are computed in half precision.

All are that ONNX defines for it, but for these, which stay in float32:

1. Operators that lose too much in half (:data:`~.half_operators.WIDE`).
2. **What a state accumulates.**  Where sums, products and moves of elements alone lead from a state
   that is stored in float32 to such a state, all operators in between stay: ``h' = a h + b x`` adds
   in float32, and a cache or a ring takes its new entries as they are.  Values that a loop carries
   from step to step count as states.
3. Cheap arithmetic and moves where all that is read is in float32 already, constants aside: the
   epsilon that a variance gets, angles of positions (which come from integers), what is read from a
   state.  Results of at most one element, too: counters and factors.
4. What reads a constant that half has no number for (a mask of -1e9 in fp16), or that would vanish
   as a whole (an epsilon of 1e-12); and whatever reads what came of that (:mod:`.half_range`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import onnx_ir as ir

from stateful_pipeline.stages.lowering.half_operators import (
    ARITHMETIC,
    LINEAR,
    LOOKUPS,
    MEANS_ITS_DTYPE,
    MOVES,
    WIDE,
    half_signature,
    is_constant,
    takes_any,
)
from stateful_pipeline.stages.lowering.half_ports import Port, bodies_of, ports_of
from stateful_pipeline.stages.lowering.half_range import HalfRange
from stateful_pipeline.stages.lowering.half_weights import Weights
from stateful_pipeline.stages.lowering.signatures import (
    input_parameters,
    output_parameters,
    schema_of,
)

_CARRY = LINEAR | MOVES | WIDE
_FLOAT = ir.DataType.FLOAT


class _Kind(Enum):
    """What a float32 value of the model is worth."""

    CONSTANT = auto()
    KEPT = auto()  # it is in float32
    HALF = auto()


@dataclass
class HalfPlan:
    """What is computed in half.

    Attributes:
        reads: For each such operator, the indices of the operands that it wants in half.
        makes: For each, the indices of the results that it makes in half.
        stays: The kinds of operators that could be in half, and stay in float32.
        ports: All places where values enter and leave bodies.
    """

    reads: dict[ir.Node, frozenset[int]] = field(default_factory=dict)
    makes: dict[ir.Node, frozenset[int]] = field(default_factory=dict)
    stays: dict[str, None] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)


def plan_half(
    model: ir.Model,
    half: ir.DataType,
    weights: Weights,
    states: Iterable[tuple[ir.Value, ir.Value]],
    outside: Iterable[ir.Value] = (),
) -> HalfPlan:
    """Return which operators of ``model`` are computed in ``half``.

    Args:
        model: The model, dtypes inferred, functions written out.
        half: float16 or bfloat16.
        weights: Says what half does to constants.
        states: Input and output of each state that is stored in float32.
        outside: Inputs of those whose initial value is too large for half.
    """
    return _Planner(model, half, weights, list(states), outside).plan()


class _Planner:
    def __init__(
        self,
        model: ir.Model,
        half: ir.DataType,
        weights: Weights,
        states: list[tuple[ir.Value, ir.Value]],
        outside: Iterable[ir.Value],
    ) -> None:
        self._model, self._half = model, half
        self._plan = HalfPlan()
        self._ports: dict[ir.Node, list[Port]] = {}
        for graph in model.graphs():
            for node in graph:
                self._ports[node] = [port for port in ports_of(node) if port.is_float]
                self._plan.ports += self._ports[node]
        self._kinds: dict[ir.Value, _Kind] = {before: _Kind.KEPT for before, _ in states}
        self._accumulates = _accumulating(states, self._plan.ports)
        self._range = HalfRange(model, weights, states, self._ports, outside)
        self._undecided: list[ir.Node] = []

    def plan(self) -> HalfPlan:
        self._visit(self._model.graph)
        for node in reversed(self._undecided):
            if node.op_type in MOVES and self._is_read_in_half(node):
                self._put_in_half(node)
        return self._plan

    def _visit(self, graph: ir.Graph) -> None:
        for node in graph:
            ports = self._ports[node]
            for port in ports:
                for value in port.values:
                    kinds = [self._kind(operand) for operand in port.sources()][:1]
                    in_half = not port.carried and _Kind.HALF in kinds
                    self._kinds[value] = _Kind.HALF if in_half else _Kind.KEPT
            for body in bodies_of(node):
                self._visit(body)
            for port in ports:
                kinds = [self._kind(value) for value in port.sources()]
                for value in port.values:
                    self._kinds[value] = _Kind.HALF if _Kind.HALF in kinds else _Kind.KEPT
            if not ports:
                self._decide(node)

    def _decide(self, node: ir.Node) -> None:
        kind = _Kind.KEPT
        if half_signature(node, self._model.opset_imports, self._half) is not None:
            kind = self._kind_of_result(node)
            if kind is _Kind.HALF:
                self._put_in_half(node)
            elif kind is _Kind.CONSTANT:
                self._undecided.append(node)
        if kind is _Kind.KEPT and _reads_floats(node):
            self._plan.stays[node.op_type] = None
        for output in node.outputs:
            self._kinds[output] = kind

    def _kind_of_result(self, node: ir.Node) -> _Kind:
        """Return what becomes of an operator that ONNX defines in half."""
        if self._range.keeps_wide(node) or node.op_type in WIDE or node in self._accumulates:
            return _Kind.KEPT
        operands = [value for value in node.inputs if value is not None and value.dtype == _FLOAT]
        if _is_single(node, operands):
            return _Kind.KEPT
        kinds = {self._kind(value) for value in operands}
        cheap = node.op_type in ARITHMETIC or node.op_type in MOVES
        if not cheap or _Kind.HALF in kinds:
            return _Kind.HALF
        if kinds == {_Kind.CONSTANT}:
            return _Kind.HALF if node.op_type in LOOKUPS else _Kind.CONSTANT
        return _Kind.KEPT

    def _kind(self, value: ir.Value) -> _Kind:
        """Return what ``value`` is worth; inputs of the user are rounded at the edge."""
        return _Kind.CONSTANT if is_constant(value) else self._kinds.get(value, _Kind.HALF)

    def _put_in_half(self, node: ir.Node) -> None:
        found = half_signature(node, self._model.opset_imports, self._half)
        assert found is not None
        signature, dtypes = found
        schema = schema_of(signature.domain, signature.operator, signature.version)
        changed = {name for name, was in signature.dtypes if dtypes[name] != was}
        taken, made = input_parameters(node, schema), output_parameters(node, schema)
        self._plan.reads[node] = frozenset(
            index
            for index, name in enumerate(taken)
            if name in changed and node.inputs[index] is not None
        )
        self._plan.makes[node] = frozenset(
            index for index, name in enumerate(made) if name in changed
        )

    def _is_read_in_half(self, node: ir.Node) -> bool:
        """Whether all readers of what ``node`` makes of constants want it in half."""
        if any(value.is_graph_output() for value in node.outputs):
            return False
        uses = [u for value in node.outputs for u in value.uses() if not takes_any(u.node)]
        return bool(uses) and all(
            use.idx in self._plan.reads.get(use.node, frozenset()) for use in uses
        )


def _reads_floats(node: ir.Node) -> bool:
    """Whether ``node`` is an operator on float32, whatever it is."""
    if node.op_type in MEANS_ITS_DTYPE or takes_any(node):
        return False
    return any(value is not None and value.dtype == _FLOAT for value in node.inputs)


def _is_single(node: ir.Node, operands: list[ir.Value]) -> bool:
    """Whether ``node`` reads and makes one element at most, by what is known."""
    return all(_size(value) == 1 for value in (*operands, *node.outputs))


def _size(value: ir.Value) -> int | None:
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    size = 1
    for length in value.shape.numpy():
        size *= length
    return size


def _accumulating(states: list[tuple[ir.Value, ir.Value]], ports: list[Port]) -> frozenset[ir.Node]:
    """Return the operators that lie between states, where all in between only accumulate."""
    carried = [port for port in ports if port.carried]
    begins = [before for before, _ in states] + [port.values[0] for port in carried]
    ends = [after for _, after in states]
    ends += [graph.outputs[index] for port in carried for graph, index in port.results]
    onwards: dict[ir.Value, list[ir.Value]] = {}
    back: dict[ir.Value, list[ir.Value]] = {}
    for port in ports:
        for source in port.sources():
            onwards.setdefault(source, []).extend(port.values)
            for value in port.values:
                back.setdefault(value, []).append(source)
    ahead = _reached(begins, lambda value: (*onwards.get(value, ()), *_made_of(value)))
    behind = _reached(ends, lambda value: (*back.get(value, ()), *_made_from(value)))
    return frozenset(
        node
        for value in ahead & behind
        if (node := value.producer()) is not None and _carries(node)
        if any(operand in ahead and operand in behind for operand in node.inputs)
    )


def _made_of(value: ir.Value) -> Iterator[ir.Value]:
    for use in value.uses():
        if _carries(use.node):
            yield from use.node.outputs


def _made_from(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    if node is not None and _carries(node):
        yield from (operand for operand in node.inputs if operand is not None)


def _carries(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _CARRY


def _reached(
    values: Iterable[ir.Value], following: Callable[[ir.Value], Iterable[ir.Value]]
) -> set[ir.Value]:
    """Return all that ``values`` lead to by float32 values, these included."""
    found: set[ir.Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found and value.dtype == _FLOAT:
            found.add(value)
            pending.extend(following(value))
    return found
