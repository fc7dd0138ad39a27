"""Writes Python that ``torch.jit.script`` does not take as Python that it takes and means the same.

The compiler reads a function's syntax tree.  Here the tree is changed before it does, so that each
part stays at the user's line and column:

======================  ==============================================================
``x //= n``             ``x.floor_divide_(n)`` for a tensor, ``x = x // n`` for a number;
                        so for ``**=``, ``|=``, ``^=`` and ``&=``
``x.data += y``         ``x.data.add_(y)``
``x.norm(dim=1)``       ``x.norm(dim=1, p=2)``
``torch.full(s, True)``  the same with ``dtype=torch.bool``: to TorchScript it is an integer
``x @= y``              ``x = x @ y``, as Python does for tensors
``n %= 7``              ``n = n % 7`` for a number
``n **= 2``             ``n = int(n ** 2)`` for an int, which stays one in Python
``a, b = x``            ``a, b = x.unbind(0)`` for a tensor
``x.tolist()``          the same with the type that it was seen to give
``xs = []``, ``y = None``  with the type of what it was seen to become
``x.item()``            ``x.tolist()`` with the type that it was seen to give
``m.h + 1``             ``m.h`` is unwrapped, where it is None before the first call
``hasattr(m, "h")``     ``m.h is not None``, where the first call creates it
``sum(xs)``, ``round(x)``  those of :mod:`.builtins_in_torchscript`
``sum(f(x) for x in xs)``  ``sum([f(x) for x in xs])``
``if (n := f(x)) > 0``  ``n = f(x)``, then ``if n > 0``
``[x, *rest]``          ``[x] + rest``
``super().f(x)``        a call of the method that this is
``def f(x, *, n=1)``    ``def f(x, n=1)``
``def f(x, n)``         ``def f(x, n: int)``: what it was seen to be called with,
                        or what the compiler says of a call
======================  ==============================================================

Which of two forms holds where a type decides is left to the compiler, which knows types, by a test
with ``isinstance`` that it evaluates.  What was not seen, because the example does not come by,
stays as it is.
"""

from __future__ import annotations

import ast
import copy
import types
from typing import Any, cast

from stateful_pipeline.model.seen_types import SeenTypes
from stateful_pipeline.model.source_expressions import UNBIND, Expressions, Naming
from stateful_pipeline.model.trees import branch_on_type, loaded, located, type_tree
from stateful_pipeline.model.truth import mark_tests

_FIRST_STATEMENTS = (ast.If, ast.Assign, ast.Expr, ast.Return)
_FIRST: dict[type, str] = {
    **dict.fromkeys((ast.BinOp, ast.Compare), "left"),
    **dict.fromkeys((ast.Attribute, ast.Subscript), "value"),
    ast.UnaryOp: "operand",
    ast.IfExp: "test",
    ast.Call: "func",
}
"""The part of an expression that is evaluated first."""
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add_",
    ast.Sub: "sub_",
    ast.Mult: "mul_",
    ast.Div: "div_",
}
_IN_PLACE: dict[type[ast.operator], str] = {
    ast.FloorDiv: "floor_divide_",
    ast.Pow: "pow_",
    ast.BitOr: "bitwise_or_",
    ast.BitXor: "bitwise_xor_",
    ast.BitAnd: "bitwise_and_",
}
"""What Python calls for augmented assignments to tensors, of those that TorchScript does not do."""


def rewrite_function(
    tree: ast.FunctionDef,
    function: types.FunctionType,
    seen: SeenTypes,
    *,
    start: tuple[int, int],
    has_types: bool,
    naming: Naming,
) -> None:
    """Change the tree of a function, as :mod:`.source_forms` says.

    Args:
        tree: The tree.
        function: The function itself.
        seen: The types that were seen.
        start: The number of lines before the source that was parsed, and of columns that were cut
            off from each line of it.
        has_types: Whether a comment gives the types of its parameters.
        naming: What names of attributes mean.
    """
    mark_tests(tree)
    forms = _Statements(function, seen, start, naming)
    forms.returns = tree.returns is not None
    tree.body = [statement for old in tree.body for statement in forms.each(old)]
    given = tree.args
    given.args, given.kwonlyargs, given.kw_defaults = [*given.args, *given.kwonlyargs], [], []
    if not has_types:
        for parameter in given.args:
            forms.annotate(parameter)


class _Statements(Expressions, ast.NodeTransformer):
    """Changes the statements of one function.

    Attributes:
        returns: Whether the function declares what it returns.
    """

    returns = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._declared: set[str] = set()

    def each(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that take the place of one."""
        made = self.visit(statement)
        return made if isinstance(made, list) else [made]

    def visit(self, node: ast.AST) -> Any:
        """Assign before a statement what it assigns as the first thing that it does."""
        named = _take_named(node)
        if named is None:
            return super().visit(node)
        assigned = located(ast.Assign([named.target], named.value), node)
        return [*self.each(assigned), *self.each(cast(ast.stmt, node))]

    def annotate(self, parameter: ast.arg) -> None:
        """Give a parameter without an annotation the type that it was seen to have."""
        kind = self._seen.argument(self._of, parameter.arg)
        if parameter.annotation is None and kind is not None and kind != "Tensor":
            kind = "Optional[Tensor]" if kind == "None" else kind
            parameter.annotation = type_tree(kind, parameter)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        """Write out the augmented assignments that the compiler does not know."""
        self.generic_visit(node)
        if any(isinstance(inner, ast.Call) for inner in ast.walk(node.target)):
            return node  # which would be called twice
        if isinstance(node.target, ast.Attribute) and node.target.attr in self._naming.optional:
            return self._of_optional(node)
        if isinstance(node.target, ast.Attribute) and node.target.attr == "data":
            return self._of_data(node)
        value = ast.BinOp(loaded(node.target), node.op, node.value)
        plain: ast.stmt = ast.Assign([node.target], value)
        if isinstance(node.op, ast.MatMult):
            return located(plain, node)
        if isinstance(node.op, ast.Mod):
            return branch_on_type(node.target, "Tensor", [node], [plain], node)
        if type(node.op) not in _IN_PLACE:
            return node
        if isinstance(node.op, ast.Pow) and _is_count(node.value):
            whole = ast.Call(ast.Name("int", ast.Load()), [value], [])
            of_int = ast.Assign([node.target], whole)
            plain = branch_on_type(node.target, "int", [of_int], [plain], node)
        return branch_on_type(
            node.target, "Tensor", [_written(node, _IN_PLACE[type(node.op)])], [plain], node
        )

    def _of_data(self, node: ast.AugAssign) -> ast.stmt:
        """Write to the data of a tensor as to the tensor."""
        method = {**_ARITHMETIC, **_IN_PLACE}.get(type(node.op))
        if method is None:
            return node
        return branch_on_type(node.target, "Tensor", [_written(node, method)], [node], node)

    def _of_optional(self, node: ast.AugAssign) -> list[ast.stmt]:
        """Write an augmented assignment to what is None at first by a name for it."""
        name = ast.Name(f"_held_{node.lineno}_{node.col_offset}", ast.Store())
        taken = located(ast.Assign([name], self._present(loaded(node.target))), node)
        change = ast.copy_location(ast.AugAssign(copy.deepcopy(name), node.op, node.value), node)
        stored = located(ast.Assign([node.target], loaded(name)), node)
        return [taken, *self.each(located(change, node)), stored]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        """Let a tensor be unpacked along its first dimension."""
        self.generic_visit(node)
        [target, *more] = node.targets
        if isinstance(target, ast.Name) and not more:
            return self._typed(node, target)
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            return self._separate(node, target, node.value)
        if isinstance(target, ast.Tuple):
            node.value = self._present(node.value)
        if more or not isinstance(target, ast.Tuple | ast.List) or not _may_be_tensor(node.value):
            return node
        if any(isinstance(item, ast.Starred) for item in target.elts):
            return node
        inner = self._unpacked_inside(node, target)
        return [*self._unpacked(node, target), *inner]

    def _separate(
        self, node: ast.Assign, target: ast.Tuple, value: ast.Tuple
    ) -> ast.stmt | list[ast.stmt]:
        """Assign constants one by one."""
        plain = all(isinstance(v, ast.Constant) or _is_empty(v) for v in value.elts)
        named = all(isinstance(name, ast.Name) for name in target.elts)
        if not plain or not named or len(node.targets) > 1:
            return node
        pairs = zip(target.elts, value.elts, strict=True)
        return [s for t, v in pairs for s in self.each(located(ast.Assign([t], v), node))]

    def _unpacked_inside(self, node: ast.Assign, target: ast.Tuple | ast.List) -> list[ast.stmt]:
        """Return assignments to what is itself unpacked, which takes names in ``target``."""
        inner: list[ast.stmt] = []
        for index, item in enumerate(target.elts):
            if isinstance(item, ast.Tuple | ast.List):
                name = ast.Name(f"_part_{item.lineno}_{item.col_offset}", ast.Store())
                target.elts[index] = ast.copy_location(name, item)
                inner += self.each(located(ast.Assign([item], loaded(name)), node))
        return inner

    def _unpacked(self, node: ast.Assign, target: ast.Tuple | ast.List) -> list[ast.stmt]:
        whole = ast.Name(f"_unpacked_{node.lineno}_{node.col_offset}", ast.Store())
        held = loaded(whole)
        parts = ast.Call(ast.Name(UNBIND, ast.Load()), [held], [])
        of_tensor = ast.Assign([copy.deepcopy(target)], parts)
        as_it_is = ast.Assign([target], held)
        test = branch_on_type(
            ast.copy_location(held, target), "Tensor", [of_tensor], [as_it_is], node
        )
        return [located(ast.Assign([whole], node.value), node), test]

    def _typed(self, node: ast.Assign, target: ast.Name) -> ast.stmt:
        """Declare what a variable is that is None or empty at first."""
        none = isinstance(node.value, ast.Constant) and node.value.value is None
        if target.id in self._declared or not (none or _is_empty(node.value)):
            self._declared.add(target.id)
            return node
        self._declared.add(target.id)
        kind = self._seen.variable(self._of, target.id, none=none)
        if kind is None or not (none or kind.startswith(("List", "Dict"))):
            return node
        return located(ast.AnnAssign(target, type_tree(kind, target), node.value, simple=1), node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        """Write the rotation of a deque by a constant as so many single steps."""
        self.generic_visit(node)
        call = node.value
        if not (self._naming.deques and isinstance(call, ast.Call)):
            return node
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "rotate"):
            return node
        steps = _constant(call.args[0]) if call.args else 1
        return node if steps is None else _rotated(call.func.value, steps, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Leave numbers alone that are read from a tensor, where their type is declared."""
        if not _reads_numbers(node.value):
            self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """Leave numbers alone that are read from a tensor, where their type is declared."""
        if not (self.returns and _reads_numbers(node.value)):
            self.generic_visit(node)
        elif node.value is not None:
            self.generic_visit(node.value)
        return node


def _reads_numbers(value: ast.expr | None) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in ("item", "tolist")


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        named = isinstance(value.func, ast.Name) and value.func.id in ("list", "dict")
        return named and not value.args and not value.keywords
    return isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1]


def _take_named(node: ast.AST) -> ast.NamedExpr | None:
    """Take ``name := value`` out of a statement, if that is evaluated first, and return it."""
    field = "test" if isinstance(node, ast.If) else "value"
    holder: ast.AST = node
    while isinstance(node, _FIRST_STATEMENTS) and field:
        inner = getattr(holder, field, None)
        if isinstance(inner, ast.NamedExpr):
            setattr(holder, field, loaded(inner.target))
            return inner
        holder, field = cast(ast.AST, inner), _FIRST.get(type(inner), "")
    return None


def _rotated(held: ast.expr, steps: int, like: ast.stmt) -> list[ast.stmt]:
    """Return statements that rotate a list: its last item becomes its first, or the other way."""
    text = "_.insert(0, _.pop())" if steps > 0 else "_.append(_.pop(0))"

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            del node
            return copy.deepcopy(held)

    made = []
    for _ in range(abs(steps)):
        [statement] = ast.parse(text).body
        for inner in ast.walk(statement):
            if isinstance(inner, ast.expr | ast.stmt):
                ast.copy_location(inner, like)
        made.append(Filled().visit(statement))
    return made


def _constant(value: ast.expr) -> int | None:
    try:
        number = ast.literal_eval(value)
    except ValueError:
        return None
    return number if type(number) is int else None


def _written(node: ast.AugAssign, name: str) -> ast.stmt:
    """Return an augmented assignment to a tensor as the call of a method that writes to it."""
    method = ast.Attribute(loaded(node.target), name, ast.Load())
    written = ast.Call(method, [node.value], [])
    if isinstance(node.target, ast.Subscript):  # which may have given a copy
        return ast.Assign([copy.deepcopy(node.target)], written)
    return ast.Expr(written)


def _is_count(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) is int


def _may_be_tensor(value: ast.expr) -> bool:
    return not isinstance(value, ast.Tuple | ast.List | ast.Constant | ast.Dict)
