"""Interprets the old graph, node by node, and has the new one written.

The order of this file is that of a node's fate: what it is decides who rewrites it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stateful_pipeline.errors import Place
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Block, Node, Value
from stateful_pipeline.model.user_code import is_user_file
from stateful_pipeline.stages.rewrite.torchscript import containers, like_python
from stateful_pipeline.stages.rewrite.torchscript.attributes import Attributes
from stateful_pipeline.stages.rewrite.torchscript.branches import choose
from stateful_pipeline.stages.rewrite.torchscript.conversions import converted
from stateful_pipeline.stages.rewrite.torchscript.facts import FACTS
from stateful_pipeline.stages.rewrite.torchscript.loops import loop
from stateful_pipeline.stages.rewrite.torchscript.number_lists import number
from stateful_pipeline.stages.rewrite.torchscript.operators import write_operator
from stateful_pipeline.stages.rewrite.torchscript.scalars import identity
from stateful_pipeline.stages.rewrite.torchscript.sizes import decided
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Group,
    Known,
    Object,
    Plain,
    Ref,
    Table,
    Undefined,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer
from stateful_pipeline.stages.rewrite.torchscript.writes import write_in_place

_IGNORED = frozenset({"prim::Print", "aten::warn", "prim::AddStatValue", "prim::TimePoint"})
_IMPLICIT = ("aten::IntImplicit", "aten::FloatImplicit", "aten::ScalarImplicit")
_DTYPE = re.compile(r"\(\s*(dtype\s*=\s*)?torch\.\w+\s*\)")
_NOT_COMPILED = "This Python function is annotated to be ignored"
"""How TorchScript begins what the call of a method raises that was not compiled."""
_SAME = frozenset(
    {"prim::unchecked_cast", "aten::_unwrap_optional", "prim::unchecked_unwrap_optional"}
    | {"prim::data", "aten::detach"}  # the same elements, and no gradients anywhere
)


class Rewriter:
    """Rewrites one inlined graph.

    Args:
        writer: The new graph.
        attributes: The module's attributes.
        python: Whether the graph stands for Python's code, and means what that does.

    Attributes:
        raises: The user's lines that raise under a condition; the new graph goes on there.
    """

    def __init__(self, writer: Writer, attributes: Attributes, *, python: bool) -> None:
        self._writer, self._attributes = writer, attributes
        self._meaning: dict[int, Any] = {}
        self.raises: dict[Place, None] = {}
        self._handlers: dict[str, Callable[[Node], Sequence[Any]]] = {
            "prim::Constant": self._constant,
            "prim::GetAttr": self._get_attribute,
            "prim::SetAttr": self._set_attribute,
            "prim::If": self._if,
            "prim::Loop": self._loop,
            "prim::ListConstruct": self._list,
            "prim::DictConstruct": self._dict,
            "prim::TupleConstruct": lambda node: [Group(tuple(self._inputs(node)))],
            "prim::ListUnpack": self._unpack,
            "prim::TupleUnpack": self._unpack,
            "prim::TupleIndex": self._tuple_item,
            "prim::RaiseException": self._raise,
            "prim::Uninitialized": lambda node: [Undefined(node.output().type())],
            "prim::CallMethod": self._call,
            "prim::CallFunction": self._call,
            "aten::item": self._item,
            "aten::to": self._to,
            "prim::tolist": self._numbers,
            "aten::divmod": self._divmod,
            **dict.fromkeys(_IMPLICIT, self._implicit),
        }
        if python:
            self._handlers["aten::index"] = self._index
            self._handlers["aten::index_put_"] = self._index_put
            self._handlers["aten::tensor"] = self._tensor
            self._handlers["aten::full"] = self._full
            self._handlers["aten::pow"] = self._power
            self._handlers["aten::view"] = self._view

    def run(self, graph: Any, arguments: Sequence[Any]) -> list[Any]:
        """Rewrite ``graph`` for the abstract values of its inputs; return those of its outputs."""
        for value, what in zip(graph.inputs(), arguments, strict=True):
            self._meaning[value.unique()] = what
        self._nodes(graph)
        if self._writer.scope.dead:
            raise self._writer.refusal("forward always raises")
        return [self._of(value) for value in graph.outputs()]

    def call(self, graph: Any, arguments: Sequence[Any]) -> list[Any]:
        """Rewrite ``graph`` in the place of a call; return the abstract values of its outputs."""
        for value, what in zip(graph.inputs(), arguments, strict=True):
            self._meaning[value.unique()] = what
        self._nodes(graph)
        return [] if self._writer.scope.dead else [self._of(value) for value in graph.outputs()]

    def _in_form(self) -> Rewriter:
        """Return a rewriter for the method of an explicit form, which is written in Python."""
        inner = Rewriter(self._writer, self._attributes, python=True)
        inner.raises = self.raises
        return inner

    def _of(self, value: Value) -> Any:
        return self._meaning[value.unique()]

    def _inputs(self, node: Node) -> list[Any]:
        return [self._of(value) for value in node.inputs()]

    def _block(self, block: Block) -> list[Any]:
        self._nodes(block)
        return [] if self._writer.scope.dead else [self._of(value) for value in block.outputs()]

    def _nodes(self, block: Any) -> None:
        writer = self._writer
        around = writer.node
        for node in block.nodes():
            writer.node = node
            writer.scope.dead = self._is_unreachable(node)
            results = [] if writer.scope.dead else self._node(node)
            if writer.scope.dead:
                break
            for output, what in zip(node.outputs(), results, strict=True):
                self._meaning[output.unique()] = what
        writer.node = around

    def _is_unreachable(self, node: Node) -> bool:
        """Whether an operator would compute with what is not there: no call gets to it.

        After ``break`` and ``return`` TorchScript guards with a condition what uses such values.
        """
        computes = node.kind().startswith("aten::")
        return computes and any(isinstance(what, Undefined) for what in self._inputs(node))

    def _node(self, node: Node) -> Sequence[Any]:
        kind = node.kind()
        if kind in self._handlers:
            return self._handlers[kind](node)
        if kind in _IGNORED:
            return []
        inputs = self._inputs(node)
        if kind in _SAME:
            return inputs[:1]
        if len(inputs) == 2:
            known = identity(kind, *inputs)
            if known is not None:
                return [known]
        if inputs and isinstance(inputs[0], List | Table | Group) and kind in containers.HANDLERS:
            result = containers.HANDLERS[kind](self._writer, inputs, kind)
            return [result] * node.outputsSize()
        if kind in FACTS:
            fact = FACTS[kind](self._writer, inputs)
            if fact is not None:
                return [fact]
        return write_operator(self._writer, node, inputs)

    # --- values ------------------------------------------------------------------------------

    def _constant(self, node: Node) -> list[Any]:
        value = None if node.mustBeNone() else node.output().toIValue()
        if isinstance(value, torch.Tensor):
            writer = self._writer
            held = writer.tensor_constant(value)
            return [writer.new_tensor(held, "a constant")]
        if isinstance(value, list | tuple):
            return [self._literal(value, node.output().type())]
        return [Known(value)]

    def _literal(self, value: Any, kind: Any) -> Any:
        if isinstance(value, tuple):
            return Group(tuple(self._literal(item, None) for item in value))
        if isinstance(value, list):
            items = [self._literal(item, None) for item in value]
            element = jit.INT if kind is None else jit.element_type(kind)
            return containers.new_list(self._writer, items, element)
        return Known(value)

    def _list(self, node: Node) -> list[Any]:
        element = jit.element_type(node.output().type())
        return [containers.new_list(self._writer, self._inputs(node), element)]

    def _dict(self, node: Node) -> list[Any]:
        inputs = self._inputs(node)
        if not all(isinstance(key, Known) for key in inputs[::2]):
            raise self._writer.refusal("a dict is made with a key that is not a constant")
        return [containers.new_dict(self._writer, inputs)]

    def _unpack(self, node: Node) -> list[Any]:
        types = [output.type() for output in node.outputs()]
        return containers.unpack(self._writer, self._inputs(node)[0], types)

    def _tuple_item(self, node: Node) -> list[Any]:
        group, index = self._inputs(node)
        return [group.items[index.value]]

    def _index(self, node: Node) -> Sequence[Any]:
        inputs, is_view = like_python.indexed(self._writer, self._inputs(node))
        return inputs[:1] if is_view else write_operator(self._writer, node, inputs)

    def _tensor(self, node: Node) -> Sequence[Any]:
        inputs = self._inputs(node)
        held = like_python.tensor(self._writer, inputs)
        if held is None:
            return write_operator(self._writer, node, inputs)
        return [self._writer.new_tensor(held)]

    def _full(self, node: Node) -> Sequence[Any]:
        sizes, number, dtype, *others = self._inputs(node)
        if dtype == Known(None) and like_python.is_flag(node, 1):
            dtype = Known(jit.dtype_code(torch.bool))
        return write_operator(self._writer, node, [sizes, number, dtype, *others])

    def _to(self, node: Node) -> Sequence[Any]:
        inputs = self._inputs(node)
        ref = converted(self._writer, jit.schema_of(node).overload_name, inputs)
        return write_operator(self._writer, node, inputs) if ref is None else [ref]

    def _power(self, node: Node) -> Sequence[Any]:
        inputs = self._inputs(node)
        power = like_python.power(self._writer, inputs)
        return write_operator(self._writer, node, inputs) if power is None else [power]

    def _implicit(self, node: Node) -> Sequence[Any]:
        inputs = self._inputs(node)
        fake = self._writer.read(inputs[0]).fake if isinstance(inputs[0], Ref) else None
        if fake is not None and fake.dim() > 0:
            raise self._writer.refusal(
                "TorchScript takes a tensor of several elements for a number here",
                "write the tensor first: x & 6, not 6 & x",
            )
        return write_operator(self._writer, node, inputs)

    def _view(self, node: Node) -> Sequence[Any]:
        function, line = jit.source_of(node), jit.source_of(node, to_the_end=True)
        if _DTYPE.match(line[len(function) :]):  # to TorchScript it is a number, and so a size
            raise self._writer.refusal(
                "a tensor's bits are read as another dtype, which ONNX has no form for",
                "convert it: x.to(dtype)",
            )
        return write_operator(self._writer, node, self._inputs(node))

    def _item(self, node: Node) -> Sequence[Any]:
        inputs = self._inputs(node)
        number = like_python.item(self._writer, inputs[0])
        return write_operator(self._writer, node, inputs) if number is None else [number]

    def _numbers(self, node: Node) -> list[Any]:
        ref, *_ = self._inputs(node)
        return [like_python.numbers(self._writer, ref, node.output().type())]

    def _divmod(self, node: Node) -> list[Any]:
        quotient, rest = (output.type() for output in node.outputs())
        a, b = self._inputs(node)
        return [
            number(self._writer, "aten::floordiv", quotient, a, b),
            number(self._writer, "aten::remainder", rest, a, b),
        ]

    def _index_put(self, node: Node) -> Sequence[Any]:
        given = self._inputs(node)
        inputs, is_view = like_python.indexed(self._writer, given)
        if not is_view or inputs[3] != Known(False):
            return write_operator(self._writer, node, given)
        write_in_place(
            self._writer,
            "aten::copy_",
            jit.overloads("aten::copy_")[0],
            [inputs[0], inputs[2], Known(False)],
        )
        return given[:1]

    # --- attributes --------------------------------------------------------------------------

    def _get_attribute(self, node: Node) -> list[Any]:
        holder = self._holder(node)
        return [self._attributes.load(holder.path, node.s("name"))]

    def _set_attribute(self, node: Node) -> list[Any]:
        _, value = self._inputs(node)
        self._attributes.store(self._holder(node).path, node.s("name"), value)
        return []

    def _holder(self, node: Node) -> Object:
        holder = self._of(node.inputsAt(0))
        if not isinstance(holder, Object):
            raise self._writer.refusal(
                f"'{node.s('name')}' is an attribute of an object that is no module"
            )
        return holder

    def _call(self, node: Node) -> list[Any]:
        receiver, *arguments = self._inputs(node)
        forms = self._attributes.forms
        if isinstance(receiver, Object) and forms.at(receiver.path) is not None:
            graph = forms.graph(receiver.path, node.s("name"))
            return self._in_form().call(graph, [receiver, *arguments])
        raise self._writer.refusal(
            "a call cannot be inlined: it goes through an interface, or is recursive"
        )

    # --- control flow ------------------------------------------------------------------------

    def _if(self, node: Node) -> list[Any]:
        condition = self._of(node.inputsAt(0))
        then, other = node.blocks()
        truth = self._truth(condition)
        if truth is not None:
            return self._block(then if truth else other)
        if not isinstance(condition, Plain):
            self._writer.value(condition)  # says why it cannot be used
        return choose(
            self._writer, condition, lambda: self._block(then), lambda: self._block(other)
        )

    def _truth(self, condition: Any) -> bool | None:
        if isinstance(condition, Known):
            return bool(condition.value)
        return decided(condition.fake) if isinstance(condition, Plain) else None

    def _loop(self, node: Node) -> list[Any]:
        trips, start, *initial = self._inputs(node)
        [block] = node.blocks()

        def body(index: Any, variables: list[Any]) -> tuple[Any, list[Any]]:
            for value, what in zip(block.inputs(), [index, *variables], strict=True):
                self._meaning[value.unique()] = what
            outputs = self._block(block)
            if self._writer.scope.dead:
                return Known(False), variables
            return outputs[0], outputs[1:]

        return loop(self._writer, trips, start, initial, body)

    def _raise(self, node: Node) -> list[Any]:
        place = jit.place_of(node)  # what torch's own functions check is not the user's to know
        message = self._of(node.inputsAt(0))
        if isinstance(message, Known) and str(message.value).startswith(_NOT_COMPILED):
            raise self._writer.refusal(
                "a method that TorchScript was told to leave out is called here",
                "remove @torch.jit.unused, or export with torch.export",
            )
        if place is not None and is_user_file(place.file):
            self.raises[place] = None
        self._writer.scope.dead = True
        return []
