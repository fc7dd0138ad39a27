"""Lists and dicts that a ScriptModule holds, and how they are stored to and put back.

PyTorch hands such containers out as copies.  Those made here remember where they come from
(:class:`List`, :class:`Dict`).  What must reach the C++ values themselves (to store an item, to
keep a list and put it back later) is done by a few lines of TorchScript that are made operator by
operator and run at once (:class:`_Code`).  So references stay references: two attributes that are
one list stay one list.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Where:
    """The place of a list or a dict.

    Attributes:
        owner: The C++ object of the module that holds it.
        name: The attribute of the module through which it is reached.
        type: The type of that attribute.
        steps: Indices and keys that lead from there to it.
    """

    owner: Any
    name: str
    type: Any
    steps: tuple[Any, ...] = ()

    def below(self, step: Any) -> Where:
        """Return the place one step further down."""
        return Where(self.owner, self.name, self.type, (*self.steps, step))


class List(list[Any]):
    """A copy of a list that a ScriptModule holds, and its place."""

    def __init__(self, items: list[Any], where: Where) -> None:
        super().__init__(items)
        self.where = where


class Dict(dict[Any, Any]):
    """A copy of a dict that a ScriptModule holds, and its place."""

    def __init__(self, items: dict[Any, Any], where: Where) -> None:
        super().__init__(items)
        self.where = where


def followed(value: Any, type_: Any, where: Where) -> Any:
    """Return ``value`` with the lists and dicts in it knowing where they come from.

    Args:
        value: As PyTorch returned it.
        type_: Its TorchScript type.
        where: Its place.
    """
    type_ = present(type_)
    kind = type_.kind()
    if value is None or kind not in ("ListType", "DictType", "TupleType"):
        return value
    if kind == "DictType":
        inner = type_.getValueType()
        return Dict({k: followed(v, inner, where.below(k)) for k, v in value.items()}, where)
    if kind == "ListType":
        inner = type_.getElementType()
        return List([followed(v, inner, where.below(i)) for i, v in enumerate(value)], where)
    parts = [
        followed(item, inner, where.below(index))
        for index, (item, inner) in enumerate(zip(value, type_.elements(), strict=True))
    ]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def present(type_: Any) -> Any:
    """Return the type of a value of ``type_`` that is not None."""
    return type_.getElementType() if type_.kind() == "OptionalType" else type_


def holds_container(value: object) -> bool:
    """Whether ``value`` is a tuple with a list or a dict in it: it cannot be made anew."""
    pending: list[object] = [value] if isinstance(value, tuple) else []
    while pending:
        item = pending.pop()
        if isinstance(item, List | Dict):
            return True
        pending += item if isinstance(item, tuple) else ()
    return False


class _Code:
    """Straight-line TorchScript, made operator by operator, that runs once."""

    def __init__(self) -> None:
        self._graph: Any = torch._C.Graph()
        self._arguments: list[Any] = []

    def given(self, value: Any, type_: Any) -> Any:
        """Add an argument, and return its value in the graph."""
        argument = self._graph.addInput()
        argument.setType(type_)
        self._arguments.append(value)
        return argument

    def number(self, value: int) -> Any:
        """Add a constant."""
        return self._graph.insertConstant(value)

    def add(self, kind: str, inputs: list[Any], type_: Any = None, name: str | None = None) -> Any:
        """Add an operator; ``type_`` is that of its result, None if it has none."""
        node: Any = self._graph.create(kind, inputs, 0 if type_ is None else 1)
        if name is not None:
            node.s_("name", name)
        self._graph.appendNode(node)
        if type_ is None:
            return None
        node.output().setType(type_)
        return node.output()

    def run(self, result: Any = None) -> Any:
        """Run what was added, by the plain interpreter: it may run while a tracer is at work.

        Args:
            result: The value in the graph to return, if any.
        """
        self._graph.registerOutput(self._graph.insertConstant(None) if result is None else result)
        return torch._C._jit_interpret_graph(  # type: ignore[attr-defined]  # the stubs lack it
            self._graph, tuple(self._arguments)
        )

    def at(self, where: Where) -> tuple[Any, Any]:
        """Reach the very list or dict at ``where``: its value in the graph, and its type."""
        owner = self.given(where.owner, where.owner._type())
        value, type_ = self.add("prim::GetAttr", [owner], where.type, where.name), where.type
        value, type_ = self._unwrap(value, type_)
        for step in where.steps:
            if type_.kind() == "DictType":
                key, type_ = self.given(step, type_.getKeyType()), type_.getValueType()
                value = self.add("aten::__getitem__", [value, key], type_)
            elif type_.kind() == "TupleType":
                type_ = type_.elements()[step]
                value = self.add("prim::TupleIndex", [value, self.number(step)], type_)
            else:
                type_ = type_.getElementType()
                value = self.add("aten::__getitem__", [value, self.number(step)], type_)
            value, type_ = self._unwrap(value, type_)
        return value, type_

    def _unwrap(self, value: Any, type_: Any) -> tuple[Any, Any]:
        inner = present(type_)
        if inner is type_:
            return value, type_
        return self.add("aten::_unwrap_optional", [value], inner), inner


def is_same_object(one: Any, other: Any) -> bool:
    """Whether two of Python's stand-ins for an object of a class stand for the very same one."""
    if str(one._type()) != str(other._type()):
        return False
    code = _Code()
    both = [code.given(value, value._type()) for value in (one, other)]
    return bool(code.run(code.add("aten::__is__", both, torch._C.BoolType.get())))


def is_same_cpp_object(one: Any, other: Any) -> bool:
    """Whether two of Python's stand-ins for C++ objects stand for the very same one.

    Each time that C++ hands an object out, PyTorch puts another one of its own around it.
    """
    if str(one._type()) != str(other._type()):
        return False
    code, kind = _Code(), torch._C.AnyType.get()
    both = [code.given(value, value._type()) for value in (one, other)]
    inner = [code.add("prim::GetAttr", [value], kind, "capsule") for value in both]
    return bool(code.run(code.add("aten::__is__", inner, torch._C.BoolType.get())))


def set_item(container: List | Dict, key: Any, value: Any) -> None:
    """Put ``value`` under ``key`` of the very container that ``container`` is a copy of."""
    code = _Code()
    held, type_ = code.at(container.where)
    if isinstance(container, Dict):
        name, item = type_.getKeyType(), type_.getValueType()
        code.add("aten::_set_item", [held, code.given(key, name), code.given(value, item)])
    else:
        item = code.given(value, type_.getElementType())
        code.add("aten::_set_item", [held, code.number(key), item], type_)
    code.run()


def keep_attributes(owner: Any, types: dict[str, Any]) -> Callable[[], None]:
    """Keep what some attributes of a module's C++ object refer to; return what restores them.

    Args:
        owner: The C++ object.
        types: The types of the attributes, by name.
    """
    kept = copy.copy(owner)  # another C++ object that refers to the same values

    def restore() -> None:
        code = _Code()
        target, source = code.given(owner, owner._type()), code.given(kept, owner._type())
        for name, type_ in types.items():
            value = code.add("prim::GetAttr", [source], type_, name)
            code.add("prim::SetAttr", [target, value], name=name)
        code.run()

    return restore


def keep_items(container: List | Dict) -> Callable[[], None]:
    """Keep what a container holds, one level deep; return what restores it in place."""
    is_dict = isinstance(container, Dict)
    code = _Code()
    held, type_ = code.at(container.where)
    make: Any = torch._C.ScriptModule
    kept = make("Kept", torch._C.CompilationUnit(), True)
    kept._register_attribute("items", type_, {} if is_dict else [])
    copied = code.add("aten::copy" if is_dict else "aten::list", [held], type_)
    code.add("prim::SetAttr", [code.given(kept, kept._type()), copied], name="items")
    code.run()

    def restore() -> None:
        code = _Code()
        held, _ = code.at(container.where)
        source = code.given(kept, kept._type())
        items = code.add("prim::GetAttr", [source], type_, "items")
        code.add("aten::clear", [held])
        code.add("aten::update" if is_dict else "aten::extend", [held, items])
        code.run()

    return restore
