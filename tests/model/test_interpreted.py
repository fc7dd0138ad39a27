"""Graphs that TorchScript's interpreter would run in another order than they are written in."""

import pytest
import torch

from stateful_pipeline.model import jit
from stateful_pipeline.model.interpreted import interpretable

GRAPH = """
graph(%a : Tensor, %c : bool):
  %two : int = prim::Constant[value=2]()
  %yes : bool = prim::Constant[value=1]()
  %one : int = prim::Constant[value=1]()
  %r : Tensor, %s : Tensor = prim::If(%c)
    block0():
      %b : Tensor = aten::add(%a, %a, %one)
      %l : Tensor = prim::Loop(%two, %yes, %a)
        block0(%i : int, %x : Tensor):
          %y : Tensor = aten::add(%x, %b, %one)
          -> (%yes, %y)
      -> (%b, %l)
    block1():
      -> (%a, %a)
  %results : (Tensor, Tensor) = prim::TupleConstruct(%r, %s)
  return (%results)
"""


@pytest.mark.parametrize("order", ["%b, %l", "%l, %b", "%b, %b"])
def test_a_loop_reads_a_value_that_its_block_returns(order):
    graph = torch._C.parse_ir(GRAPH.replace("%b, %l", order))
    with jit.plain_execution():
        results = jit.function_of(interpretable(graph))(torch.ones(1), True)
    expected = {"%b": 2.0, "%l": 5.0}
    assert [float(r) for r in results] == [expected[name] for name in order.split(", ")]
