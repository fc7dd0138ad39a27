"""Operators that mean something else in TorchScript than the Python code that they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Held,
    Known,
    Link,
    Plain,
    Ref,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import UnknownFakeError, Writer


def indexed(writer: Writer, inputs: list[Any]) -> tuple[list[Any], bool]:
    """Return the arguments of ``index`` and ``index_put_``, 0-d indices taken by ``select``.

    Python's ``m[i]`` with such a tensor is a view; TorchScript's is a copy.  (The rules are those
    of ``applySlicing`` in PyTorch's ``python_variable_indexing.cpp``.)

    Returns:
        The arguments, and whether nothing is left to index: the first is the result.
    """
    ref, indices, *others = inputs
    if not isinstance(indices, List):
        return inputs, False
    content = writer.content(indices.root)
    if not isinstance(ref, Ref) or not isinstance(content, Elements):
        return inputs, False
    rest: list[Any] = []
    for item in content.items:
        if _is_number(writer, item):
            [number] = writer.node_of("aten::Int", [writer.value(item)], [jit.INT])
            place = Plain(number, writer.scope)
            link = Link("aten::select", "int", (None, Known(len(rest)), place), 0)
            ref = Ref(ref.base, (*ref.chain, link))
            writer.read(ref)
        else:
            rest.append(item)
    left = Elements(tuple(rest))
    is_view = ref is not inputs[0] and all(item == Known(None) for item in rest)
    return [ref, writer.new_list(left, indices.element), *others], is_view


def _is_number(writer: Writer, item: Any) -> bool:
    """Whether an index is a 0-d tensor that Python takes for an integer."""
    fake = writer.read(item).fake if isinstance(item, Ref) else None
    if fake is None or fake.dim() > 0 or fake.is_floating_point():
        return False
    return fake.dtype not in (torch.bool, torch.uint8)


def tensor(writer: Writer, inputs: list[Any]) -> Held | None:
    """Return what ``torch.tensor`` gives for numbers, or None where TorchScript gives the same.

    TorchScript rounds floats to float32 on the way to any dtype, and what a flag becomes is not
    known where nothing says so.
    """
    data, code, *_ = inputs
    dtype = jit.dtype_of(code.value) if isinstance(code, Known) and code.value is not None else None
    try:
        constant = torch.tensor(writer.known(data), dtype=dtype)
    except (UnknownFakeError, TypeError, ValueError):
        constant = None
    if constant is not None and (dtype is None or _has_all_digits(constant, data)):
        return writer.tensor_constant(constant)
    if constant is not None:
        assert isinstance(data, Known)  # a number that the comparison in float64 takes as written
        return replace(_full(writer, data, code), real=constant)
    if isinstance(data, List):
        return _of_numbers(writer, data, dtype)
    if not isinstance(data, Plain):
        return None
    if str(data.value.type()) == "bool":
        return of_flag(writer, data, dtype or torch.bool)
    return _full(writer, data, code) if dtype == torch.float64 else None


def _has_all_digits(constant: torch.Tensor, number: Any) -> bool:
    """Whether a constant is the number that it was made of, also in float64."""
    if not isinstance(number, Known) or not constant.is_floating_point():
        return True
    return bool(constant.double().item() == number.value)


def _full(writer: Writer, number: Known | Plain, code: Any) -> Held:
    """Return a number as a 0-d tensor, made by an operator that names its dtype."""
    no = Known(None)
    sizes = writer.new_list(Elements(()), jit.INT)
    return writer.tensor_op("aten::full", "", sizes, number, code, no, no, no)


def _of_numbers(writer: Writer, data: List, dtype: torch.dtype | None) -> Held | None:
    """Return a vector of numbers and flags, or None where TorchScript gives the same.

    What dtype a list of flags becomes is not known where nothing says so.
    """
    content = writer.content(data.root)
    flags = isinstance(content, Elements) and data.element == jit.BOOL
    if not flags or not content.items or dtype not in (None, torch.bool):
        return None
    each = [
        writer.tensor_constant(torch.tensor(item.value))
        if isinstance(item, Known)
        else of_flag(writer, item, torch.bool)
        for item in content.items
    ]
    tensors = writer.new_list(Elements(tuple(map(writer.new_tensor, each))), jit.TENSOR)
    return writer.tensor_op("aten::stack", "", tensors, Known(0))


def of_flag(writer: Writer, flag: Plain, dtype: torch.dtype) -> Held:
    """Return a flag that the graph computes as a 0-d tensor."""
    fake = writer.sizes.tensor((), dtype)
    values = [flag.value, *map(writer.constant, (jit.dtype_code(dtype), None, False))]
    [made] = writer.node_of("aten::tensor", values, [jit.tensor_type(fake)])
    return Held(made, fake)


def is_flag(node: jit.Node, index: int) -> bool:
    """Whether an argument is a flag, of which TorchScript makes an integer on the way.

    That conversion stands where the operator does; one that the user wrote has a place of its own.
    """
    made = node.inputsAt(index).node()
    if made.kind() != "aten::Int" or str(made.inputsAt(0).type()) != "bool":
        return False
    return str(made.sourceRange()) == str(node.sourceRange())


def power(writer: Writer, inputs: list[Any]) -> Any:
    """Return a power of ints, which is one in Python; None where TorchScript gives the same."""
    base, exponent = inputs
    if not isinstance(exponent, Known) or type(exponent.value) is not int or exponent.value < 0:
        return None
    if isinstance(base, Known) and type(base.value) is int:
        return Known(base.value**exponent.value)
    if not isinstance(base, Plain) or str(base.value.type()) != "int":
        return None
    values = [base.value, writer.constant(exponent.value)]
    [number] = writer.node_of("aten::pow", values, [jit.INT])
    return Plain(number, writer.scope)


def item(writer: Writer, ref: Any) -> Plain | None:
    """Return the number in a tensor as one whose type is known, or None if its dtype is not."""
    fake = writer.read(ref).fake if isinstance(ref, Ref) else None
    if fake is None:
        return None
    kinds: dict[str, Any] = {"aten::Int": jit.INT, "aten::Bool": jit.BOOL, "aten::Float": jit.FLOAT}
    kind = "aten::Float" if fake.is_floating_point() else "aten::Int"
    kind = "aten::Bool" if fake.dtype == torch.bool else kind
    [number] = writer.node_of(kind, [writer.value(ref)], [kinds[kind]])
    return Plain(number, writer.scope)


def numbers(writer: Writer, ref: Any, kind: Any) -> Any:
    """Return the numbers of a tensor, as ``tolist`` gives them.

    Args:
        writer: The new graph.
        ref: The tensor.
        kind: The graph type that the code has for them: numbers in as many lists as dimensions.

    Raises:
        StageError: The tensor has another dtype or rank, or a size that depends on values.
    """
    fake = writer.read(ref).fake
    if fake is None or not all(isinstance(size, int) for size in fake.shape):
        raise writer.refusal(
            "a tensor becomes a list of numbers whose length is not known", "use the tensor itself"
        )
    if not jit.is_list_type(kind):
        found = item(writer, ref)
        if fake.numel() != 1 or found is None or str(found.value.type()) != str(kind):
            raise _other_numbers(writer, fake, kind)
        return found
    if fake.dim() == 0:
        raise _other_numbers(writer, fake, kind)
    element = jit.element_type(kind)
    rows = [row(ref, index) for index in range(fake.shape[0])]
    items = tuple(numbers(writer, part, element) for part in rows)
    return writer.new_list(Elements(items), element)


def row(ref: Ref, index: int) -> Ref:
    """Return a view of one row of a tensor."""
    link = Link("aten::select", "int", (None, Known(0), Known(index)), 0)
    return Ref(ref.base, (*ref.chain, link))


def _other_numbers(writer: Writer, fake: torch.Tensor, kind: Any) -> PipelineError:
    return writer.refusal(
        f"a {fake.dim()}-dimensional tensor of {fake.dtype} becomes what TorchScript takes for "
        f"{kind}",
        "give the result a type: values: List[float] = x.tolist()",
    )
