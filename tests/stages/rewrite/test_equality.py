"""The rewritten graph against eager: equal bits, or rounding that float64 shows, or an error."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.capture import capture
from stateful_pipeline.model.discover import discover
from stateful_pipeline.model.inputs import Input, InputPlan, Uniform
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.functional import make_functional

aten = torch.ops.aten
OPERATOR = torch._ops.OpOverload
PLAN = InputPlan([Input("x", torch.float32, (2, 64), Uniform())])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)
        self.register_buffer("h", torch.zeros(2, 64))
        self.register_buffer("n", torch.tensor(0))
        self.scale = torch.full((64,), 0.7)  # not registered: `module.double()` passes it by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = torch.tanh(self.linear(x) + self.h * self.scale)
        self.n = self.n + 1
        return self.h + x + self.n.to(self.h.dtype)


def prepared(module: nn.Module, plan: InputPlan = PLAN, axes=()):
    found = discover(module.eval(), lambda m, i: m(i["x"]), plan, axes, {})
    program = make_functional(
        capture(found.reference, plan, probe_sizes(axes)), found.reference.states
    )
    return program, found.reference


def tampered(program, target, change):
    """Return ``program`` with ``change(graph, node)`` done to the first node that is wanted."""
    exported = copy.copy(program.exported)
    module = copy.deepcopy(program.exported.graph_module)
    wanted = target if callable(target) and not isinstance(target, OPERATOR) else None
    node = next(n for n in module.graph.nodes if (wanted(n) if wanted else n.target == target))
    with module.graph.inserting_before(node.next):
        change(module.graph, node)
    module.recompile()
    exported._graph_module = module
    return program.with_exported(exported)


def test_a_right_graph_is_equal_bit_for_bit() -> None:
    program, reference = prepared(Model())
    found = check_equal(program, reference, PLAN, [{}], 5)
    assert (found.bitwise, found.steps, found.max_abs_error) == (True, 5, 0.0)


def reorder(graph, node) -> None:
    """Compute linear(x) from two halves of its columns: the same but for rounding."""
    x, weight, bias = node.args
    halves = []
    for start in (0, 32):
        part = graph.call_function(aten.slice.Tensor, (x, 1, start, start + 32))
        rows = graph.call_function(aten.slice.Tensor, (weight, 1, start, start + 32))
        turned = graph.call_function(aten.t.default, (rows,))
        halves.append(graph.call_function(aten.mm.default, (part, turned)))
    total = graph.call_function(aten.add.Tensor, tuple(halves))
    result = graph.call_function(aten.add.Tensor, (total, bias))
    node.replace_all_uses_with(result)


def test_rounding_is_recorded() -> None:
    program, reference = prepared(Model())
    found = check_equal(tampered(program, aten.linear.default, reorder), reference, PLAN, [{}], 5)
    assert not found.bitwise
    assert 0 < found.max_abs_error < 1e-5
    assert found.float64_error < 1e-10


@pytest.mark.parametrize("slip", [1e-6, 1e-3])
def test_a_small_slip_is_no_rounding(slip: float) -> None:
    def change(graph, node) -> None:
        off = graph.call_function(aten.mul.Tensor, (node, 1 + slip))
        node.replace_all_uses_with(off, delete_user_cb=lambda user: user is not off)

    program, reference = prepared(Model())
    with pytest.raises(StageError, match="it is not rounding"):
        check_equal(tampered(program, aten.tanh.default, change), reference, PLAN, [{}], 5)


def test_an_integer_that_is_off_is_never_rounding() -> None:
    def change(graph, node) -> None:
        off = graph.call_function(aten.add.Tensor, (node, 1))
        node.replace_all_uses_with(off, delete_user_cb=lambda user: user is not off)

    program, reference = prepared(Model())
    tampering = tampered(program, counts, change)
    with pytest.raises(StageError, match="step 0"):
        check_equal(tampering, reference, PLAN, [{}], 5)


def counts(node: torch.fx.Node) -> bool:
    return node.target == aten.add.Tensor and node.meta["val"].dtype == torch.int64


def test_a_frozen_state_is_found_at_the_first_step() -> None:
    program, reference = prepared(Model())
    given, _ = program.user_nodes()

    def freeze(graph, output) -> None:
        values = list(output.args[0])
        values[1] = next(node for node in graph.nodes if node.name == given[0].name)
        output.args = (tuple(values),)

    frozen = tampered(program, lambda node: node.op == "output", freeze)
    with pytest.raises(StageError, match="step 0, state h"):
        check_equal(frozen, reference, PLAN, [{}], 5)


def test_what_a_global_hides_from_the_tracer_is_found() -> None:

    class Hides(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h + x
            COUNTER["n"] += 1
            return self.h * COUNTER["n"]

    COUNTER["n"] = 0
    with pytest.raises(StateError):
        prepared(Hides())


COUNTER: dict[str, int] = {}


def test_each_size_is_compared() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(1, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h + x
            return self.h

    plan = InputPlan([Input("x", torch.float32, ("batch", 3), Uniform())])
    axes = [Axis("batch", 1, 2, 8)]
    program, reference = prepared(Sums(), plan, axes)
    found = check_equal(program, reference, plan, [{"batch": 1}, {"batch": 8}], 4)
    assert (found.bitwise, found.steps) == (True, 8)


def test_the_module_is_left_as_it_was() -> None:
    module = Model().eval()
    before = {name: (id(v), v.clone()) for name, v in module.state_dict(keep_vars=True).items()}
    program, reference = prepared(module)
    check_equal(tampered(program, aten.linear.default, reorder), reference, PLAN, [{}], 3)
    after = module.state_dict(keep_vars=True)
    assert {n: i for n, (i, _) in before.items()} == {n: id(v) for n, v in after.items()}
    assert all(torch.equal(value, after[name]) for name, (_, value) in before.items())
    assert module.h.dtype == torch.float32
    assert module.scale.dtype == torch.float32
