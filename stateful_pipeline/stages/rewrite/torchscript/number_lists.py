"""Python's functions on lists of numbers: ``sum``, ``min``, ``max``, ``any``, ``all``, ``sorted``.

The list is taken apart, and its items are combined from left to right, as Python does.  Sorting
goes through a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.like_python import item as number_in
from stateful_pipeline.stages.rewrite.torchscript.like_python import row
from stateful_pipeline.stages.rewrite.torchscript.scalars import symbolic
from stateful_pipeline.stages.rewrite.torchscript.values import Elements, Known, Plain
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

_DTYPES = {"int": torch.int64, "float": torch.float64}


def number(writer: Writer, kind: str, type_: Any, *arguments: Any) -> Any:
    """Return the result of an operator on numbers: a constant where that is known."""
    found = symbolic(kind, list(arguments))
    if isinstance(found, Known):
        return found
    [output] = writer.node_of(kind, [writer.value(what) for what in arguments], [type_])
    return Plain(output, writer.scope, found)


def _items(writer: Writer, what: List) -> tuple[Any, ...]:
    content = writer.content(what.root)
    if not isinstance(content, Elements):
        raise writer.refusal(
            "a function of all numbers in a list is called, whose length is not known",
            "use a tensor",
        )
    return content.items


def _sum(writer: Writer, arguments: list[Any], kind: str) -> Any:
    element = arguments[0].element
    total: Any = Known(0.0 if element == jit.FLOAT else 0)
    for item in _items(writer, arguments[0]):
        values = [writer.value(total), writer.value(item)]
        [added] = writer.node_of("aten::add", values, [element])
        total = Plain(added, writer.scope)
    return total


def _extreme(writer: Writer, arguments: list[Any], kind: str) -> Any:
    if len(arguments) > 1:
        raise writer.refusal("two lists are compared for the larger one", "compare their items")
    first, *others = _items(writer, arguments[0]) or (None,)
    if first is None:
        raise writer.refusal(f"{kind.partition('::')[2]}() of an empty list")
    for item in others:
        first = number(writer, kind, arguments[0].element, first, item)
    return first


def _joined(join: str, start: bool) -> Callable[[Writer, list[Any], str], Any]:
    def handle(writer: Writer, arguments: list[Any], kind: str) -> Any:
        found: Any = Known(start)
        for item in _items(writer, arguments[0]):
            flag = _truth(writer, item)
            if flag == Known(not start):
                return flag
            if flag != Known(start):
                plain = found == Known(start)
                found = flag if plain else number(writer, join, jit.BOOL, found, flag)
        return found

    return handle


def _truth(writer: Writer, item: Any) -> Any:
    if isinstance(item, Known):
        return Known(bool(item.value))
    flag = str(item.value.type()) == "bool"
    return item if flag else number(writer, "aten::ne", jit.BOOL, item, Known(0))


def _sorted(writer: Writer, arguments: list[Any], kind: str) -> Any:
    """Return a sorted list of numbers, or sort it in place (``aten::sort``)."""
    what = arguments[0]
    items = _items(writer, what)
    dtype = _DTYPES.get(str(what.element))
    if dtype is None or not items:
        raise writer.refusal("something else than numbers is sorted", "sort a tensor")
    no, code = Known(None), Known(jit.dtype_code(dtype))
    empty = writer.new_list(Elements(()), jit.INT)
    held = [writer.tensor_op("aten::full", "", empty, item, code, no, no, no) for item in items]
    each = writer.new_list(Elements(tuple(map(writer.new_tensor, held))), jit.TENSOR)
    whole = writer.new_tensor(writer.tensor_op("aten::stack", "", each, Known(0)))
    down = arguments[1] if len(arguments) > 1 else Known(False)
    if not isinstance(down, Known):
        raise writer.refusal("which way a list is sorted depends on values", "sort a tensor")
    ordered = writer.new_tensor(_in_order(writer, whole, len(items), down=down.value))
    numbers = Elements(tuple(number_in(writer, row(ordered, i)) for i in range(len(items))))
    if kind == "aten::sort":
        writer.store(what.root, numbers)
        return what
    return writer.new_list(numbers, what.element)


def _in_order(writer: Writer, whole: Any, count: int, *, down: bool) -> Any:
    """Return a vector of numbers in order: ``topk`` of all of them."""
    fake = writer.read(whole).fake
    types = [jit.tensor_type(fake), jit.tensor_type(None)]
    arguments = [Known(count), Known(0), Known(down), Known(True)]
    values = [writer.value(what) for what in (whole, *arguments)]
    first, _ = writer.node_of("aten::topk", values, types)
    held = writer.read(whole)
    return type(held)(first, fake)


NUMBER_LISTS: dict[str, Callable[[Writer, list[Any], str], Any]] = {
    "aten::sum": _sum,
    "prim::min": _extreme,
    "prim::max": _extreme,
    "aten::any": _joined("aten::__or__", start=False),
    "aten::all": _joined("aten::__and__", start=True),
    "aten::sorted": _sorted,
    "aten::sort": _sorted,
}
"""What functions on lists of numbers do, by kind."""
