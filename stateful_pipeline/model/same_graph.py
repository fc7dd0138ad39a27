"""Proves that a state which the first call creates may begin with a constant instead.

The first call is captured as it is, and so is a later call, which takes the state.  If the graph of
the first has a constant wherever that of the later call has the state, and is the same otherwise,
then the first call is a later call with this constant: for all inputs, at all sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model.capture import capture, quiet
from stateful_pipeline.model.decomposed import DECOMPOSED
from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.reference import exact_kernels
from stateful_pipeline.model.torch_internals import symbolic_shapes

_aten = torch.ops.aten
_SAME = frozenset(
    {_aten.clone.default, _aten.alias.default, _aten.detach.default, _aten.detach_.default}
    | {_aten.lift_fresh_copy.default, _aten.lift_fresh.default, _aten.contiguous.default}
)
"""Operators that give what they get."""
_FILLED: dict[Any, int | float | None] = {
    _aten.zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones.default: 1,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
    _aten.full.default: None,
    _aten.full_like.default: None,
    _aten.new_full.default: None,
}
"""Operators that make one number throughout, with that number; None where it is an argument."""


def is_proven(
    reference: PhasedReference,
    initial: Mapping[str, Any],
    plan: InputPlan,
    sizes: Mapping[str, int],
) -> bool | None:
    """Whether the first call is a later call that begins with ``initial``.

    Args:
        reference: The module in two phases: its first call, and the later ones.
        initial: The initial value of each state that the first call creates.
        plan: The inputs.
        sizes: A size of each axis, to trace at.

    Returns:
        None if ``torch.export`` does not capture later calls, so that nothing is known.
    """
    tensors = {name: value for name, value in initial.items() if isinstance(value, torch.Tensor)}
    numbers = {name: value for name, value in initial.items() if name not in tensors}
    try:
        warm = _functional(capture(reference.at(1, numbers), plan, sizes))
    except PipelineError:
        return None
    try:
        cold = _functional(capture(reference.at(0, {}), plan, sizes))
    except PipelineError:  # it depends on something that a later call does not
        return False
    if cold.outputs != warm.outputs:
        return False
    return _Comparison(cold, warm, tensors).is_same(skip={reference.states[0].name})


def _functional(program: ExportProgram) -> ExportProgram:
    with torch.no_grad(), exact_kernels(), symbolic_shapes(), quiet():
        return program.with_exported(program.exported.run_decompositions(DECOMPOSED))


class _Comparison:
    """Compares the graph of a first call with that of a later one, from their results up."""

    def __init__(
        self, cold: ExportProgram, warm: ExportProgram, initial: Mapping[str, torch.Tensor]
    ) -> None:
        self._cold, self._warm, self._initial = cold, warm, initial
        names = [*cold.states, *cold.inputs]
        self._names = [
            dict(zip(program.user_nodes()[0], names, strict=True)) for program in (cold, warm)
        ]
        self._kept = [_kept(program) for program in (cold, warm)]
        self._known: dict[tuple[Node, Node], bool] = {}

    def is_same(self, skip: set[str]) -> bool:
        """Whether all results are the same, but for the states in ``skip``."""
        names = [*self._cold.outputs, *self._cold.states]
        cold, warm = (_results(program) for program in (self._cold, self._warm))
        return all(
            self._same(a, b)
            for name, a, b in zip(names, cold, warm, strict=True)
            if name not in skip
        )

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, Node) and isinstance(b, Node):
            a, b = _source(a), _source(b)
            if (a, b) not in self._known:
                self._known[a, b] = False  # until it is known
                self._known[a, b] = self._same_nodes(a, b)
            return self._known[a, b]
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(self._same, a, b))
        return type(a) is type(b) and bool(a == b or (a != a and b != b))

    def _same_nodes(self, a: Node, b: Node) -> bool:
        name = self._names[1].get(b)
        if name is not None and name in self._initial:
            return self._is_constant(a, name)
        if b.op == "placeholder" or a.op == "placeholder":
            return self._same_placeholders(a, b)
        return (
            a.op == b.op == "call_function"  # what a graph within this one does is not compared
            and a.target == b.target
            and self._same(list(a.args), list(b.args))
            and a.kwargs.keys() == b.kwargs.keys()
            and all(self._same(value, b.kwargs[key]) for key, value in a.kwargs.items())
        )

    def _same_placeholders(self, a: Node, b: Node) -> bool:
        names = [self._names[0].get(a), self._names[1].get(b)]
        if names[0] is not None or names[1] is not None:
            return names[0] == names[1]
        one, other = self._kept[0].get(a.name), self._kept[1].get(b.name)
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        return one is other or (one.dtype == other.dtype and torch.equal(one, other))

    def _is_constant(self, node: Node, name: str) -> bool:
        """Whether a value of the first call is the constant with which a state is to begin."""
        wanted = self._initial[name]
        made = node.meta["val"]
        shape = self._cold.shape(made)
        state = next(n for n, known in self._names[1].items() if known == name)
        if made.dtype != wanted.dtype or shape != self._warm.shape(state.meta["val"]):
            return False
        while node.target in (_aten.expand.default, _aten.repeat.default):
            node = _source(node.args[0])  # type: ignore[arg-type]
        if node.op == "placeholder":
            kept = self._kept[0].get(node.name)
            return isinstance(kept, torch.Tensor) and _all_alike(kept, wanted)
        if node.target not in _FILLED:
            return False
        number: Any = _FILLED[node.target]
        number = node.args[-1] if number is None else number
        return isinstance(number, int | float) and _all_alike(
            torch.full((1,), number, dtype=wanted.dtype), wanted
        )


def _all_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have one number throughout, the same, or are the same tensor."""
    if one.shape == other.shape and torch.equal(one, other):
        return True
    flat = torch.cat([one.reshape(-1), other.reshape(-1).to(one.dtype)])
    return flat.numel() > 0 and one.numel() > 0 and bool((flat == flat[0]).all())


def _source(node: Node) -> Node:
    """Return the node whose value ``node`` hands on."""
    while node.op == "call_function":
        if node.target in _SAME:
            node = node.args[0]  # type: ignore[assignment]
        elif node.target is operator.getitem and isinstance(node.args[0], list | tuple):
            node = node.args[0][node.args[1]]  # type: ignore[assignment,index]
        else:
            break
    return node


def _results(program: ExportProgram) -> Sequence[Node]:
    [output] = program.exported.graph.find_nodes(op="output")
    count = len(program.outputs) + len(program.states)
    return list(output.args[0])[-count:]


def _kept(program: ExportProgram) -> dict[str, Any]:
    """Return the weights and constants of a program, by the names of their nodes."""
    kept = {**program.exported.constants, **program.exported.state_dict}
    signature = program.exported.graph_signature
    return {
        spec.arg.name: kept[spec.target]
        for spec in signature.input_specs
        if spec.target is not None and spec.target in kept
    }
