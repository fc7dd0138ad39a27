"""Lists, dicts and tuples: taken apart while rewriting where their length is known.

A list that grows in a loop is one value of the new graph, and appending to it makes a new list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.branches import choose
from stateful_pipeline.stages.rewrite.torchscript.loops import NeedsUnrollingError
from stateful_pipeline.stages.rewrite.torchscript.number_lists import NUMBER_LISTS, number
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Group,
    Held,
    Known,
    Opaque,
    Plain,
    Ref,
    Table,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Action, Writer

MOST_CHOSEN = 256
"""The longest list of which an item is chosen at run time."""


def new_list(writer: Writer, items: list[Any], element: Any) -> List:
    """Return a new list object."""
    return writer.new_list(Elements(tuple(items)), element)


def new_dict(writer: Writer, keys_and_values: list[Any]) -> Table:
    """Return a new dict object."""
    content = Elements(tuple(keys_and_values[1::2]), tuple(keys_and_values[::2]))
    return Table(writer.new_root(content, "a dict"))


def unpack(writer: Writer, what: Any, types: list[Any]) -> list[Any]:
    """Return the items of a tuple or a list that is unpacked into as many names as ``types``."""
    if isinstance(what, Group):
        return list(what.items)
    content = writer.content(what.root)
    if isinstance(content, Elements):
        if len(content.items) != len(types):
            raise writer.refusal(f"{len(content.items)} values are unpacked into {len(types)}")
        return list(content.items)
    outputs = writer.node_of("prim::ListUnpack", [content.value], types)
    return [_item(writer, output, what, content) for output in outputs]


def _item(writer: Writer, value: Any, what: List, content: Opaque) -> Any:
    """Return an item of a list that is one value."""
    if not jit.is_tensor_type(what.element):
        return Plain(value, writer.scope)
    value.setType(jit.tensor_type(content.fake))
    sources = writer.sources_of(what.root)
    return Ref(writer.new_root(Held(value, content.fake), "an item of a list", sources))


def _length(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[0].root)
    if isinstance(content, Elements):
        return Known(len(content.items))
    [output] = writer.node_of(kind, [content.value], [jit.INT])
    return Plain(output, writer.scope, writer.sizes.unknown_size())


def _get(writer: Writer, arguments: list[Any], kind: str) -> Any:
    what, key = arguments[:2]
    if isinstance(what, Group):
        if isinstance(key, Known):
            return what.items[key.value]
        return _chosen(writer, what.items, _index(writer, key, what.items))
    content = writer.content(what.root)
    if isinstance(what, Table):
        return content.items[_key(writer, content, key)]
    if isinstance(content, Elements) and isinstance(key, Known):
        try:
            return content.items[key.value]
        except IndexError as error:
            raise writer.refusal(f"index {key.value} is out of range of a list") from error
    if isinstance(content, Elements) and not all(map(_is_number, content.items)):
        return _chosen(writer, content.items, _index(writer, key, content.items))
    values = [writer.list_content(what), writer.value(key)]
    [output] = writer.node_of(kind, values, [what.element])
    fake = content.fake if isinstance(content, Opaque) else None
    return _item(writer, output, what, Opaque(values[0], fake))


def _is_number(item: Any) -> bool:
    return isinstance(item, Known | Plain)


def _key(writer: Writer, content: Elements, key: Any) -> int:
    if not isinstance(key, Known):
        raise writer.refusal("a dict is read with a key that is not a constant")
    if key not in content.keys:
        raise writer.refusal(f"a dict has no key {key.value!r}")
    return content.keys.index(key)


def _known(writer: Writer, key: Any) -> int:
    if isinstance(key, Known):
        index: int = key.value
        return index
    if writer.may_unroll:
        raise NeedsUnrollingError
    raise writer.refusal(
        "a list is sliced, or an item inserted or taken away, where a value says", "use a tensor"
    )


def _index(writer: Writer, key: Any, items: Sequence[Any]) -> Any:
    """Return a number that is known only at run time as one from 0 on.

    Raises:
        NeedsUnrollingError: A loop may give it.
        StageError: There are too many items to choose from.
    """
    if writer.may_unroll:
        raise NeedsUnrollingError
    if len(items) > MOST_CHOSEN:
        raise writer.refusal(
            f"a list of {len(items)} tensors is indexed with a number known only at run time",
            "stack the tensors into one, and index that",
        )
    return number(writer, "aten::remainder", jit.INT, key, Known(len(items)))


def _chosen(writer: Writer, items: Sequence[Any], index: Any) -> Any:
    """Return the item of a list that a number says, where this is known only at run time."""
    found = items[-1]
    for place in reversed(range(len(items) - 1)):
        here = number(writer, "aten::eq", jit.BOOL, index, Known(place))
        [found] = choose(writer, here, _giving(items[place]), _giving(found))
    return found


def _giving(what: Any) -> Action:
    return lambda: [what]


def _replaced(writer: Writer, items: Sequence[Any], index: Any, item: Any) -> list[Any]:
    """Return the items of a list after one was assigned, where a number says which."""

    def either(place: int, before: Any) -> Any:
        here = number(writer, "aten::eq", jit.BOOL, index, Known(place))
        return choose(writer, here, _giving(item), _giving(before))[0]

    return [either(place, before) for place, before in enumerate(items)]


def _set(writer: Writer, arguments: list[Any], kind: str) -> Any:
    what, key, item = arguments
    content = writer.content(what.root)
    if not isinstance(content, Elements):
        raise writer.refusal(
            "an item of a list that grows in a loop is assigned", "append to it, or use a tensor"
        )
    items, keys = list(content.items), content.keys
    if isinstance(what, Table) and key not in keys and isinstance(key, Known):
        items, keys = [*items, item], (*keys, key)
    elif isinstance(what, List) and not isinstance(key, Known):
        items = _replaced(writer, items, _index(writer, key, items), item)
    else:
        items[_key(writer, content, key) if isinstance(what, Table) else key.value] = item
    writer.store(what.root, Elements(tuple(items), keys))
    return what


def _append(writer: Writer, arguments: list[Any], kind: str) -> Any:
    return _extended(writer, arguments[0], [arguments[1]])


def _extend(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[1].root)
    if isinstance(content, Elements):
        return _extended(writer, arguments[0], list(content.items))
    what = arguments[0]
    values = [writer.list_content(what), content.value]
    [output] = writer.node_of("aten::add", values, [content.value.type()])
    writer.add_parts(what.root, writer.sources_of(arguments[1].root))
    writer.store(what.root, Opaque(output, content.fake))
    return what


def _extended(writer: Writer, what: List, items: list[Any]) -> List:
    content = writer.content(what.root)
    if isinstance(content, Elements):
        limit = what.root.limit
        kept = [*content.items, *items]
        writer.store(what.root, Elements(tuple(kept if limit is None else kept[-limit:])))
        return what
    if not jit.is_tensor_type(what.element) or what.root.limit is not None:
        if writer.may_unroll:
            raise NeedsUnrollingError
        what_grows = "a list of numbers" if what.root.limit is None else "a deque"
        raise writer.refusal(
            f"{what_grows} grows in a loop, or in one branch alone",
            "let it hold tensors, and be a list" if what.root.limit is None else "let it be full",
        )
    values = [writer.value(item) for item in items]
    more = writer.list_value(values, jit.element_type(content.value.type()))
    [output] = writer.node_of("aten::add", [content.value, more], [more.type()])
    fake = content.fake
    for item in items:
        if isinstance(item, Ref):
            held = writer.read(item)
            fake = held.fake if fake is None else writer.sizes.join(fake, held.fake)
    writer.store(what.root, Opaque(output, fake))
    for item in items:
        if isinstance(item, Ref):
            writer.add_parts(what.root, writer.sources_of(item.base))
    return what


def _changed(change: Callable[[list[Any], int, list[Any]], Any]) -> Callable[..., Any]:
    """Return a handler for an operator that changes a list of known length."""

    def handle(writer: Writer, arguments: list[Any], kind: str) -> Any:
        what = arguments[0]
        content = writer.content(what.root)
        if not isinstance(content, Elements) or content.keys:
            raise writer.refusal(
                f"{kind} on a list whose length depends on values, or on a dict",
                "let the list have one length on every path, or use a tensor",
            )
        items = list(content.items)
        index = _known(writer, arguments[1]) if len(arguments) > 1 else 0
        result = change(items, index, arguments[2:])
        # Of what a full deque takes on the left, it lets as much go on the right.
        writer.store(what.root, Elements(tuple(items[: what.root.limit])))
        return what if result is None else result

    return handle


def _concatenate(writer: Writer, arguments: list[Any], kind: str) -> Any:
    contents = [writer.content(argument.root) for argument in arguments]
    first = arguments[0]
    if any(argument.root.limit is not None for argument in arguments):
        raise writer.refusal("two deques are joined into a new one", "use append or extend")
    if all(isinstance(content, Elements) for content in contents):
        return new_list(writer, [i for content in contents for i in content.items], first.element)
    values = [writer.list_content(argument) for argument in arguments]
    [output] = writer.node_of(kind, values, [jit.list_type(first.element)])
    sources = writer.sources_of(first.root) | writer.sources_of(arguments[1].root)
    fake = next((c.fake for c in contents if isinstance(c, Opaque) and c.fake is not None), None)
    return writer.new_list(Opaque(output, fake), first.element, sources)


def _slice(writer: Writer, arguments: list[Any], kind: str) -> Any:
    what, *bounds = arguments
    content = writer.content(what.root)
    if not isinstance(content, Elements):
        raise writer.refusal("a slice of a list that grows in a loop")
    start, stop, step = (_known(writer, bound) for bound in bounds)
    return new_list(writer, list(content.items[start:stop:step]), what.element)


def _contains(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[0].root)
    among = content.keys if isinstance(arguments[0], Table) else content.items
    wanted = arguments[1]
    found: Any = Known(False)
    for item in among:
        if not isinstance(wanted, Known | Plain) or not isinstance(item, Known | Plain):
            raise writer.refusal("whether a list of tensors contains one depends on values")
        same = Known(wanted == item)
        if not isinstance(wanted, Known) or not isinstance(item, Known):
            same = number(writer, "aten::eq", jit.BOOL, wanted, item)
        if same == Known(True):
            return same
        if same != Known(False):
            either = found == Known(False)
            found = same if either else number(writer, "aten::__or__", jit.BOOL, found, same)
    return found


def _equal(writer: Writer, arguments: list[Any], kind: str) -> Any:
    """Compare two lists of numbers, item by item."""
    a, b = (writer.content(argument.root) for argument in arguments)
    negated = kind == "aten::ne"
    if not isinstance(a, Elements) or not isinstance(b, Elements):
        raise writer.refusal("two lists are compared whose length is not known")
    if len(a.items) != len(b.items):
        return Known(negated)
    parts = [
        number(writer, "aten::eq", jit.BOOL, x, y) for x, y in zip(a.items, b.items, strict=True)
    ]
    if Known(False) in parts:
        return Known(negated)
    open_ = [part for part in parts if part != Known(True)]
    if not open_:
        return Known(not negated)
    result = open_[0]
    for part in open_[1:]:
        result = number(writer, "aten::__and__", jit.BOOL, result, part)
    return number(writer, "aten::__not__", jit.BOOL, result) if negated else result


def _keys(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[0].root)
    return new_list(writer, list(content.keys), jit.STRING)


def _items(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[0].root)
    pairs = [Group(pair) for pair in zip(content.keys, content.items, strict=True)]
    return new_list(writer, pairs, None)


def _values(writer: Writer, arguments: list[Any], kind: str) -> Any:
    content = writer.content(arguments[0].root)
    return new_list(writer, list(content.items), jit.TENSOR)


HANDLERS: dict[str, Callable[[Writer, list[Any], str], Any]] = {
    **NUMBER_LISTS,
    "aten::len": _length,
    "aten::__getitem__": _get,
    "aten::_set_item": _set,
    "aten::append": _append,
    "aten::extend": _extend,
    "aten::add_": _extend,
    "aten::add": _concatenate,
    "aten::slice": _slice,
    "aten::eq": _equal,
    "aten::ne": _equal,
    "aten::list": lambda writer, arguments, kind: _copy(writer, arguments[0]),
    "aten::copy": lambda writer, arguments, kind: _copy(
        writer, arguments[0], arguments[0].root.limit
    ),
    "aten::__contains__": _contains,
    "aten::keys": _keys,
    "aten::values": _values,
    "aten::items": _items,
    "aten::insert": _changed(lambda items, index, rest: items.insert(index, rest[0])),
    "aten::pop": _changed(lambda items, index, rest: items.pop(index)),
    "aten::clear": _changed(lambda items, index, rest: items.clear()),
    "aten::reverse": _changed(lambda items, index, rest: items.reverse()),
    "aten::Delete": _changed(lambda items, index, rest: items.pop(index) and None),
}
"""What operators on lists, dicts and tuples do, by kind."""


def _copy(writer: Writer, what: List, limit: int | None = None) -> List:
    content = writer.content(what.root)
    sources = writer.sources_of(what.root) if isinstance(content, Opaque) else frozenset()
    made = writer.new_list(content, what.element, sources)
    made.root.limit = limit
    return made
