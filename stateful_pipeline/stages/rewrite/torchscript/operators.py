"""Writes all other operators: numbers that are known, views, in-place operators, pure ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from stateful_pipeline.errors import StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Node
from stateful_pipeline.stages.rewrite.torchscript.scalars import fold, symbolic
from stateful_pipeline.stages.rewrite.torchscript.sizes import shares_memory
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Held,
    Known,
    Link,
    Listing,
    Opaque,
    Plain,
    Ref,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import UnknownFakeError, Writer
from stateful_pipeline.stages.rewrite.torchscript.writes import write_in_place

_PERHAPS = frozenset(
    {"reshape", "contiguous", "to", "flatten", "ravel", "reshape_as", "type_as", "narrow_copy"}
    | {"expand_as", "dropout", "resolve_conj", "resolve_neg", "cpu", "atleast_1d"}
)
"""Operators that give a view or a copy, depending on how the tensor lies in memory."""
_SPLITS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk"})
_ARITHMETIC = frozenset({"aten::add", "aten::sub", "aten::mul", "aten::neg"})
_SWITCHES = ("train", "training")
_RATES = ("p", "dropout", "dropout_p")


def write_operator(writer: Writer, node: Node, inputs: list[Any]) -> Sequence[Any]:
    """Write one operator of the old graph; return what its outputs mean.

    Raises:
        StateError: It draws random numbers.
        StageError: It is nothing that a graph can hold.
    """
    kind, schema = node.kind(), jit.schema_of(node)
    if schema is None:
        raise writer.refusal(f"{kind} has no form in an exported graph")
    overload = schema.overload_name
    _refuse_randomness(writer, kind, schema, inputs)
    if any(jit.writes(argument) for argument in schema.arguments):
        return write_in_place(writer, kind, schema, inputs)[: node.outputsSize()]
    types = [output.type() for output in node.outputs()]
    number = _known_kind(kind, inputs)
    if number is not None:
        types, inputs = [number], [_no_truth(writer, what) for what in inputs]
    if not any(jit.is_tensor_type(t) or jit.is_list_type(t) for t in types):
        known = _number(writer, kind, overload, inputs, types)
        if known is not None:
            return [known]
    fakes = writer.try_out(kind, overload, inputs)
    shared, certain = _shared(writer, kind, overload, inputs)
    if certain:
        seen = _view(writer, node, schema, inputs, fakes)
        if seen is not None:
            return seen
    if shared:
        return _of_shared(writer, node, schema, inputs, types, fakes, shared, certain=certain)
    return _pure(writer, kind, overload, inputs, types, fakes)


def _number(
    writer: Writer, kind: str, overload: str, inputs: list[Any], types: list[Any]
) -> Known | Plain | None:
    """Return the number that an operator on numbers gives, where sizes or constants say it."""
    known = _folded(writer, kind, overload, inputs)
    value = symbolic(kind, inputs) if known is None else known
    if value is None or isinstance(value, Known):
        return value
    [output] = writer.node_of(kind, [writer.value(what) for what in inputs], types)
    return Plain(output, writer.scope, value)


def _shared(writer: Writer, kind: str, overload: str, inputs: list[Any]) -> tuple[list[Ref], bool]:
    """Return the tensors of which an operator gives parts back although its schema is silent.

    Returns:
        The tensors, and whether it gives parts of these back at all sizes.
    """
    function = jit.operator(kind, overload)
    perhaps = kind.partition("::")[2] in _PERHAPS
    if function is None or not (perhaps or jit.may_alias_unsaid(kind, overload)):
        return [], True
    try:
        fakes = [writer.fake(what) for what in inputs]
    except UnknownFakeError:
        return [], True
    positional, keywords = jit.split_arguments(kind, overload, fakes)
    found = writer.sizes.shares_in_eager(function, positional, keywords)
    refs = [ref for what in inputs for ref in _refs(writer, what)]
    return [refs[index] for index in found.positions if index < len(refs)], found.certain


def _refs(writer: Writer, what: Any) -> list[Ref]:
    """Return the tensors of an argument, in the order in which they are given."""
    if isinstance(what, Ref):
        return [what]
    content = writer.content(what.root) if isinstance(what, List) else None
    items = content.items if isinstance(content, Elements) else ()
    return [item for item in items if isinstance(item, Ref)]


def _of_shared(
    writer: Writer,
    node: Node,
    schema: Any,
    inputs: list[Any],
    types: list[Any],
    fakes: Any,
    shared: list[Ref],
    *,
    certain: bool,
) -> Sequence[Any]:
    """Return views of what an operator gives parts of, or what is stale once that is written to."""
    kind, overload = node.kind(), schema.overload_name
    position = next((i for i, what in enumerate(inputs) if what is shared[0]), None)
    if certain and position is not None and len(types) == 1 and jit.is_tensor_type(types[0]):
        arguments = tuple(
            None if i == position else _frozen(writer, argument)
            for i, argument in enumerate(inputs)
        )
        link = Link(kind, overload, arguments, position)
        ref = Ref(shared[0].base, (*shared[0].chain, link))
        writer.read(ref)
        return [ref]
    results = _pure(writer, kind, overload, inputs, types, fakes)
    sources = frozenset(root for ref in shared for root in writer.sources_of(ref.base))
    for result in results:
        for ref in _refs(writer, result):
            for root in writer.sources_of(ref.base):
                writer.add_sources(root, sources - {root})
    return results


def _known_kind(kind: str, inputs: list[Any]) -> Any:
    """Return the type that arithmetic on numbers gives, which TorchScript may leave open."""
    if kind not in _ARITHMETIC or not all(isinstance(what, Known | Plain) for what in inputs):
        return None
    kinds = {
        type(what.value).__name__ if isinstance(what, Known) else str(what.value.type())
        for what in inputs
    }
    if not kinds <= {"int", "float", "bool"}:
        return None
    return jit.FLOAT if "float" in kinds else jit.INT


def _no_truth(writer: Writer, what: Any) -> Any:
    """Return a truth value as the integer that it is in Python, anything else as it is."""
    if isinstance(what, Plain) and str(what.value.type()) == "bool":
        [number] = writer.node_of("aten::Int", [what.value], [jit.INT])
        return Plain(number, writer.scope)
    return Known(int(what.value)) if isinstance(getattr(what, "value", None), bool) else what


def _folded(writer: Writer, kind: str, overload: str, inputs: list[Any]) -> Known | None:
    """Return a number that constants and weights determine, or None."""
    try:
        given = [writer.known(what) for what in inputs]
    except UnknownFakeError:
        return None
    return fold(kind, overload, given)


def _refuse_randomness(writer: Writer, kind: str, schema: Any, inputs: list[Any]) -> None:
    operator = jit.operator(kind, schema.overload_name)
    tags = getattr(operator, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return
    named = dict(zip((a.name for a in schema.arguments), inputs, strict=True))
    for name in _SWITCHES:
        if named.get(name) == Known(False):
            return
    if any(named.get(rate) in (Known(0.0), Known(0)) for rate in _RATES):
        return
    raise StateError(
        f"forward draws random numbers ({kind}): the random generator is hidden state, which no "
        "engine shares with PyTorch",
        place=writer.place,
        hint="take the noise as an input; put dropout into eval() mode",
    )


# --- views -----------------------------------------------------------------------------------


def _view(
    writer: Writer, node: Node, schema: Any, inputs: list[Any], fakes: Any
) -> list[Any] | None:
    """Return references to parts of an input, if that is what the operator gives."""
    position = _viewed(writer, schema, inputs, fakes)
    if position is None:
        return None
    base = inputs[position]
    name = node.kind().partition("::")[2]
    if fakes is None and name in _PERHAPS:
        return None  # a copy or a view: nobody knows, and _pure says that it may be one
    arguments = tuple(
        None if i == position else _frozen(writer, argument) for i, argument in enumerate(inputs)
    )
    link = Link(node.kind(), schema.overload_name, arguments, position)
    [output] = node.outputs()
    if not jit.is_list_type(output.type()):
        ref = Ref(base.base, (*base.chain, link))
        writer.read(ref)
        return [ref]
    if not isinstance(fakes, list | tuple):
        return None
    links = _items(link, fakes, inputs) or [
        replace(link, item=item, count=len(fakes)) for item in range(len(fakes))
    ]
    refs = tuple(Ref(base.base, (*base.chain, item)) for item in links)
    return [writer.new_list(Elements(refs), jit.TENSOR)]


def _items(link: Link, fakes: Sequence[Any], inputs: list[Any]) -> list[Link] | None:
    """Return the links to the items of a split tensor, as slices, where their sizes are known."""
    name = link.kind.partition("::")[2]
    dims = [argument for argument in inputs if isinstance(argument, Known)]
    if name == "unbind" and dims:
        select = "aten::select"
        return [Link(select, "int", (None, dims[0], Known(i)), 0) for i in range(len(fakes))]
    if name not in _SPLITS or not isinstance(inputs[-1], Known):
        return None
    dim = inputs[-1].value
    sizes = [fake.shape[dim] for fake in fakes]
    if not all(isinstance(size, int) for size in sizes):
        return None
    ends = list(itertools.accumulate(sizes))
    return [
        Link(
            "aten::slice", "Tensor", (None, Known(dim), Known(end - size), Known(end), Known(1)), 0
        )
        for size, end in zip(sizes, ends, strict=True)
    ]


def _viewed(writer: Writer, schema: Any, inputs: list[Any], fakes: Any) -> int | None:
    """Return the position of the argument of which the result is a view."""
    refs = [i for i, argument in enumerate(inputs) if isinstance(argument, Ref)]
    first = fakes[0] if isinstance(fakes, list | tuple) and fakes else fakes
    if isinstance(first, torch.Tensor):
        for index in refs:
            if shares_memory(first, writer.read(inputs[index]).fake):
                return index
        if all(writer.read(inputs[index]).fake is not None for index in refs):
            return None
    if len(schema.returns) != 1 or not jit.reads(schema.returns[0]):
        return None
    return next((i for i in refs if jit.reads(schema.arguments[i])), None)


def _frozen(writer: Writer, argument: Any) -> Any:
    """Return an argument as it is now: a list may change later."""
    if isinstance(argument, List):
        content = writer.content(argument.root)
        if isinstance(content, Elements):
            return Listing(content.items)
        return content
    return argument


# --- pure operators --------------------------------------------------------------------------


def _pure(
    writer: Writer, kind: str, overload: str, inputs: list[Any], types: list[Any], fakes: Any
) -> list[Any]:
    values = [writer.value(what) for what in inputs]
    several = fakes if isinstance(fakes, tuple) and len(types) > 1 else (fakes,) * len(types)
    out_types = [
        jit.tensor_type(fake if isinstance(fake, torch.Tensor) else None)
        if jit.is_tensor_type(kind_)
        else kind_
        for kind_, fake in zip(types, several, strict=True)
    ]
    outputs = writer.node_of(kind, values, out_types)
    unsure = kind.partition("::")[2] in _PERHAPS and fakes is None
    sources = frozenset(
        root
        for what in inputs
        if unsure and isinstance(what, Ref)
        for root in writer.sources_of(what.base)
    )
    real = writer.computed(kind, overload, inputs) if len(outputs) == 1 else None
    return [
        _meaning(writer, output, kind_, fake, sources, real)
        for output, kind_, fake in zip(outputs, types, several, strict=True)
    ]


def _meaning(
    writer: Writer, output: Any, kind: Any, fake: Any, sources: Any, real: torch.Tensor | None
) -> Any:
    if jit.is_tensor_type(kind):
        held = Held(output, fake if isinstance(fake, torch.Tensor) else None, real)
        return Ref(writer.new_root(held, "a tensor", sources))
    if jit.is_list_type(kind):
        return _list(writer, output, jit.element_type(kind), fake)
    symbol = fake if isinstance(fake, int | torch.SymInt | torch.SymBool) else None
    return Plain(output, writer.scope, None if isinstance(symbol, bool) else symbol)


def _list(writer: Writer, output: Any, element: Any, fake: Any) -> List:
    """Return what a list means that an operator gives: its items, if their number is known."""
    if not isinstance(fake, list | tuple) or not jit.is_tensor_type(element):
        return writer.new_list(Opaque(output), element)
    types = [jit.tensor_type(item) for item in fake]
    items = writer.node_of("prim::ListUnpack", [output], types)
    refs = [writer.new_tensor(Held(value, one)) for value, one in zip(items, fake, strict=True)]
    return writer.new_list(Elements(tuple(refs)), element)
