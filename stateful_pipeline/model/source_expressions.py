"""The forms of expressions and calls; :mod:`.source_forms` lists them."""

from __future__ import annotations

import ast
import copy
import types
from dataclasses import dataclass

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.seen_types import SeenTypes
from stateful_pipeline.model.superclasses import class_of, super_name
from stateful_pipeline.model.trees import located, type_tree
from stateful_pipeline.model.truth import is_bool, is_test, may_change_something

ANNOTATE, UNBIND, PRESENT = "_annotate", "_unbind", "_present"
"""The names by which the changed tree calls functions of torch, whatever the user's file does."""
BUILTINS = {"sum": "_python_sum", "round": "_python_round"}
"""The names by which the changed tree calls functions of Python."""
_TAKE_ITEMS = frozenset({"sum", "min", "max", "any", "all", "sorted", "list", "tuple"})
_TAKE_VALUES = _TAKE_ITEMS | {"len", "int", "float", "bool", "abs", "round", "enumerate", "zip"}
_STACKS = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack", "dstack"})
"""Functions that take a list of tensors as well as a tuple of them."""
_DEQUE = {"appendleft": "insert", "popleft": "pop"}


@dataclass(frozen=True)
class Naming:
    """What the names of attributes mean in a module's code.

    Attributes:
        deques: Whether ``popleft``, ``appendleft`` and ``rotate`` are those of a deque.
        created: Attributes that the first call creates: they are None before it.
        absent: Attributes that are None before the first call.
        optional: These, and those that are declared as optional.
        maxlen: The most items that every deque of the module keeps.
    """

    deques: bool = False
    created: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    maxlen: int | None = None


NO_NAMING = Naming()
"""Names that mean nothing in particular."""


class Expressions(ast.NodeTransformer):
    """Changes the expressions of one function.

    Args:
        function: The function.
        seen: The types that were seen.
        start: The number of lines before the source that was parsed, and of columns that were cut
            off from each line of it.
        naming: What names of attributes mean.
    """

    def __init__(
        self,
        function: types.FunctionType,
        seen: SeenTypes,
        start: tuple[int, int],
        naming: Naming,
    ) -> None:
        self._code, self._seen, self._start = function.__code__, seen, start
        self._class, self._of = class_of(function), function
        self._naming = naming
        self._globals = function.__globals__
        self._own = {*function.__globals__, *function.__code__.co_varnames}
        self._own |= set(function.__code__.co_freevars)

    # --- attributes that are None at first -----------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Take the operands for values."""
        self.generic_visit(node)
        node.left, node.right = self._present(node.left), self._present(node.right)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Take what is compared for values, but for comparisons with None."""
        for middle in node.comparators[:-1]:
            if self._may_change(middle):
                raise self._refusal(
                    node, "TorchScript evaluates what is in the middle of this comparison twice"
                )
        self.generic_visit(node)
        if not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            node.left = self._present(node.left)
            node.comparators = list(map(self._present, node.comparators))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Choose an operand, as Python does, where more than the truth of it matters."""
        self.generic_visit(node)
        if is_test(node) or is_bool(node):
            return node
        self._seen.is_needed = True
        *first, result = node.values
        for value in reversed(first):
            if self._may_change(value):
                raise self._refusal(
                    node, "TorchScript makes a bool of this, where Python gives an operand"
                )
            same = copy.deepcopy(value)
            yes, no = (same, result) if isinstance(node.op, ast.Or) else (result, same)
            result = located(ast.IfExp(value, yes, no), node)
        return result

    def _may_change(self, value: ast.expr) -> bool:
        names = self._code.co_varnames[:1] or ("",)
        return may_change_something(value, names[0], self._own)

    def _refusal(self, node: ast.expr, reason: str) -> StageError:
        line = node.lineno + self._start[0]
        return StageError(
            reason,
            stage="script",
            place=Place(self._code.co_filename, line),
            hint="put the call on a line of its own before it",
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Take the operand for a value."""
        self.generic_visit(node)
        node.operand = self._present(node.operand)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Take that for a value of which an attribute is read or a method called."""
        self.generic_visit(node)
        own = isinstance(node.value, ast.Name) and node.value.id in self._code.co_varnames[:1]
        if node.attr == "maxlen" and self._naming.maxlen is not None and not own:
            return located(ast.Constant(self._naming.maxlen), node)
        node.value = self._present(node.value)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        """Take for a value what a loop goes over."""
        self.generic_visit(node)
        node.iter = self._present(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Take for a value what a comprehension goes over."""
        self.generic_visit(node)
        node.iter = self._present(node.iter)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Take for a value what is indexed."""
        self.generic_visit(node)
        node.value = self._present(node.value)
        return node

    def _present(self, value: ast.expr) -> ast.expr:
        """Return a read of an attribute that is None at first as one of what is there then."""
        if isinstance(value, ast.Attribute) and value.attr in self._naming.optional:
            return located(ast.Call(ast.Name(PRESENT, ast.Load()), [value], []), value)
        return value

    def _may_be_none(self, value: ast.expr) -> bool:
        """Whether an argument is declared as optional, as a bias is, and need not be there."""
        return isinstance(value, ast.Attribute) and value.attr not in self._naming.absent

    def _is_of_torch(self, function: ast.expr) -> bool:
        """Whether a function is one of torch's."""
        while isinstance(function, ast.Attribute):
            function = function.value
        held = self._globals.get(function.id) if isinstance(function, ast.Name) else None
        return isinstance(held, types.ModuleType) and held.__name__.partition(".")[0] == "torch"

    # --- calls and lists -----------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Say what a call gives, or call by the name that the compiler knows."""
        self.generic_visit(node)
        if self._is_of_torch(node.func):
            node.args = [v if self._may_be_none(v) else self._present(v) for v in node.args]
        if isinstance(node.func, ast.Name):
            return self._function(node, node.func)
        if not isinstance(node.func, ast.Attribute):
            return node
        if self._class is not None and _is_super(node.func.value):
            name = super_name(self._class, node.func.attr)
            this = ast.Name(self._code.co_varnames[0], ast.Load())
            node.func = located(ast.Attribute(this, name, ast.Load()), node.func)
            return node
        name = node.func.attr
        if name in _STACKS and node.args:
            _untuple(node.args[0])
        self._say_keywords(node, node.func)
        if node.keywords:
            return node
        if name in ("item", "tolist") and not node.args:
            return self._read(node, node.func)
        if self._naming.deques and name in _DEQUE:
            node.func.attr = _DEQUE[name]
            node.args.insert(0, located(ast.Constant(0), node.func))
        return node

    def _say_keywords(self, node: ast.Call, function: ast.Attribute) -> None:
        """Say what Python implies and the compiler does not."""
        names = [keyword.arg for keyword in node.keywords]
        if function.attr == "norm" and not node.args and names == ["dim"]:
            node.keywords.append(ast.keyword("p", located(ast.Constant(2), node)))
        if function.attr == "full" and "dtype" not in names and self._is_of_torch(function):
            _say_bool(node, function)

    def _function(self, node: ast.Call, function: ast.Name) -> ast.expr:
        """Call what TorchScript takes for more types than what Python names."""
        if function.id in self._own:
            return node
        if function.id in ("hasattr", "getattr"):
            return self._attribute(node, function.id)
        if function.id in _TAKE_VALUES:
            node.args = list(map(self._present, node.args))
        if function.id == "zip":  # of unequal lengths, Python goes no further with strict=True
            node.keywords = [key for key in node.keywords if key.arg != "strict"]
        for index, given in enumerate(node.args):
            if isinstance(given, ast.GeneratorExp) and function.id in _TAKE_ITEMS:
                if function.id in ("any", "all") and self._may_change(given):
                    raise self._refusal(node, "TorchScript does not stop at the first item here")
                node.args[index] = located(ast.ListComp(given.elt, given.generators), given)
        if function.id in BUILTINS and len(node.args) == 1 and not node.keywords:
            function.id = BUILTINS[function.id]
        return node

    def _attribute(self, node: ast.Call, function: str) -> ast.expr:
        """Read an attribute that is None before the first call, and in Python not there."""
        holder, name, *default = node.args
        if not isinstance(name, ast.Constant) or name.value not in self._naming.created:
            return node
        held = ast.Attribute(holder, str(name.value), ast.Load())
        if function == "hasattr":
            return located(ast.Compare(held, [ast.IsNot()], [ast.Constant(None)]), node)
        nones = [isinstance(d, ast.Constant) and d.value is None for d in default]
        return located(held, node) if nones == [True] else node

    def _read(self, node: ast.Call, function: ast.Attribute) -> ast.expr:
        line, column = self._start
        spot = (node.end_lineno or 0) + line, (node.end_col_offset or 0) + column
        kind = self._seen.result((self._code.co_filename, *spot))
        if kind is None:
            return node
        function.attr = "tolist"  # of which the rewriting checks that it has this type
        annotate = ast.Name(ANNOTATE, ast.Load())
        return located(ast.Call(annotate, [type_tree(kind, function.value), node], []), node)

    def visit_List(self, node: ast.List) -> ast.expr:
        """Write a list with starred items as a sum of lists."""
        self.generic_visit(node)
        if not any(isinstance(item, ast.Starred) for item in node.elts):
            return node
        if not isinstance(node.ctx, ast.Load):
            return node
        parts: list[ast.expr] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                parts.append(ast.Call(ast.Name("list", ast.Load()), [item.value], []))
            elif parts and isinstance(parts[-1], ast.List):
                parts[-1].elts.append(item)
            else:
                parts.append(ast.List([item], ast.Load()))
        total, *others = parts
        for part in others:
            total = ast.BinOp(total, ast.Add(), part)
        return located(total, node)


def _say_bool(node: ast.Call, function: ast.Attribute) -> None:
    """Say what dtype ``torch.full(size, True)`` gives: to TorchScript the flag is an integer."""
    named = [keyword.value for keyword in node.keywords if keyword.arg == "fill_value"]
    number, *_ = [*node.args[1:2], *named, None]
    if isinstance(number, ast.Constant) and isinstance(number.value, bool):
        dtype = ast.Attribute(copy.deepcopy(function.value), "bool", ast.Load())
        node.keywords.append(ast.keyword("dtype", located(dtype, node)))


def _untuple(argument: ast.expr) -> None:
    """Let ``tuple(items)`` be ``list(items)`` where tensors are joined: its length is not known."""
    called = argument.func if isinstance(argument, ast.Call) else None
    if isinstance(called, ast.Name) and called.id == "tuple":
        called.id = "list"


def _is_super(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "super"
