"""Simplifies what PyTorch's exporter wrote, without changing a single number.

The exporter's own ``optimize=True`` is not used.  Among its rewrite rules are some that take a
constant for 0 or 1 when it is only close (``h * 0.999995``, ``x + 1e-8``: the state stands still),
that round differently (double to half directly, BatchNorm into the weights of Conv), and that are
wrong in corners (``Clip(Clip(x, 0, 1), 2, 3)``, a ``ScatterND`` that adds).  Such an error may be
below any tolerance at one step, and grow over a rollout.

What is left is the folding of constants, and rules that only move data.  The one rule here that
looks at the value of a floating-point constant compares it exactly::

    x * 1 = x / 1 = x        also for infinities, NaN and both zeros; not so x + 0, where -0 + 0 = 0
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules import common

ROUNDS = 2
"""How often folding and rules feed each other: as often as in the exporter's own optimizer."""


def simplify(model: ir.Model) -> None:
    """Fold constants, drop what does nothing and nodes that nobody reads, in place.

    Constants become initializers; equal ones, and equal nodes, become one.
    """
    passes.InlinePass()(model)
    for _ in range(ROUNDS):
        optimizer.fold_constants(model, onnx_shape_inference=True)
        rewriter.rewrite(model, RULES)
    ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    )(model)


def _times_one(op: Any, x: Any, one: Any) -> Any:
    return op.Mul(x, one)


def _over_one(op: Any, x: Any, one: Any) -> Any:
    return op.Div(x, one)


def _itself(op: Any, x: ir.Value, **_: Any) -> Any:
    return op.Identity(x)


def _is_one(_: Any, one: ir.Value, **__: Any) -> bool:
    """Whether it is the constant 1 and no other number, of rank 0 so that it broadcasts nothing."""
    constant = one.const_value
    return constant is not None and len(constant.shape) == 0 and bool(constant.numpy() == 1)


RULES: tuple[pattern.RewriteRule, ...] = (
    *pattern.RewriteRule(_times_one, _itself, _is_one).commute(),
    pattern.RewriteRule(_over_one, _itself, _is_one),
    common.cast_constant_of_shape_rule,
    common.cast_constant_of_shape_without_value_rule,
    common.collapse_slice_rule,
    common.collapse_slice2_rule,
    common.materialize_reshape_shape_rule,
    common.reshape_reshape_rule,
    common.squeeze_reshape_1d_rule,
    common.unsqueeze_unsqueeze_rule,
    common.no_op_transpose_rule,
    common.transpose_transpose_rule,
    common.no_op_dynamic_scatter_nd_rule,
)
"""Our own, and those of onnxscript that touch no arithmetic."""
