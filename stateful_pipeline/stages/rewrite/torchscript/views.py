"""Writes through views: puts new elements into the tensor that a chain of views leads to.

For a view ``v = link(base)`` and new elements ``v'`` there is one ``base'`` with
``link(base') = v'`` and all other elements as in ``base``.  Where the view takes all elements in
order it is a reshape of ``v'``, for a transposition the inverse transposition, for ``select`` and
``slice`` the operators ``select_scatter`` and ``slice_scatter``.  For any other view it comes from
the positions that the view takes: the same view of ``arange(numel)`` gives them, and a ``scatter``
puts ``v'`` there.  (The scheme is that of PyTorch's functionalization pass.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stateful_pipeline.stages.rewrite.torchscript.branches import choose
from stateful_pipeline.stages.rewrite.torchscript.sizes import same_shape
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Choice,
    Held,
    Known,
    Link,
    Listing,
    Ref,
)
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

SAME = frozenset({"detach", "alias", "contiguous", "to", "lift", "type_as", "expand", "expand_as"})
"""Views that, where they are views and can be written to, take all elements in their places."""
RESHAPES = frozenset(
    {"view", "reshape", "flatten", "unsqueeze", "squeeze", "unflatten", "view_as", "reshape_as"}
) | {"_unsafe_view", "ravel", "atleast_1d", "atleast_2d", "atleast_3d"}
"""Views that take all elements in order."""
EXCHANGES = frozenset({"transpose", "swapaxes", "swapdims", "t", "numpy_T", "adjoint", "mT"})


def write(writer: Writer, ref: Ref, held: Held) -> None:
    """Let the tensor that ``ref`` means hold ``held`` from here on."""
    if ref.chain:
        *prefix, link = ref.chain
        whole = Ref(ref.base, tuple(prefix))
        write(writer, whole, put_back(writer, link, writer.read(whole), held))
    elif isinstance(ref.base, Choice):
        _write_choice(writer, ref.base, held)
    else:
        before = writer.scope.content(ref.base)
        assert isinstance(before, Held)
        writer.store(ref.base, Held(held.value, _in_place(writer, before.fake), held.real))


def _in_place(writer: Writer, before: torch.Tensor | None) -> torch.Tensor | None:
    """Return what is known of a tensor after a write to it: it lies in memory as before."""
    return None if before is None else writer.sizes.like(before)


def _write_choice(writer: Writer, base: Choice, held: Held) -> None:
    def left() -> list[Any]:
        write(writer, base.left, held)
        return []

    def right() -> list[Any]:
        write(writer, base.right, held)
        return []

    choose(writer, base.condition, left, right)


def put_back(writer: Writer, link: Link, base: Held, new: Held) -> Held:
    """Return ``base`` with the elements that ``link`` takes replaced by ``new``."""
    name = link.kind.partition("::")[2]
    arguments = [a for i, a in enumerate(link.arguments) if i != link.position]
    if link.item is None:
        if name in SAME and same_shape(base.fake, new.fake):
            return new
        if name in RESHAPES:
            return writer.tensor_op("aten::reshape_as", "", new, base)
        if name in EXCHANGES:
            return writer.tensor_op(link.kind, link.overload, new, *arguments)
        if name == "permute" and _inverse(arguments[0]) is not None:
            return writer.tensor_op("aten::permute", "", new, _inverse(arguments[0]))
        if name == "select" and link.overload == "int":
            return writer.tensor_op("aten::select_scatter", "", base, new, *arguments)
        if name == "slice":
            return writer.tensor_op("aten::slice_scatter", "", base, new, *arguments)
    return _by_positions(writer, link, base, new)


def _inverse(order: Any) -> Listing | None:
    """Return the permutation that undoes ``order``."""
    if not isinstance(order, Listing) or not all(isinstance(i, Known) for i in order.items):
        return None
    axes: Sequence[int] = [item.value % len(order.items) for item in order.items]
    return Listing(tuple(Known(axes.index(axis)) for axis in range(len(axes))))


def _by_positions(writer: Writer, link: Link, base: Held, new: Held) -> Held:
    no = Known(None)
    flat = writer.tensor_op("aten::flatten", "using_ints", base, Known(0), Known(-1))
    count = writer.number("aten::numel", flat)
    order = writer.tensor_op("aten::arange", "", count, Known(4), no, no, no)
    positions = writer.follow(writer.tensor_op("aten::reshape_as", "", order, base), link)
    index = writer.tensor_op("aten::flatten", "using_ints", positions, Known(0), Known(-1))
    source = writer.tensor_op("aten::flatten", "using_ints", new, Known(0), Known(-1))
    put = writer.tensor_op("aten::scatter", "src", flat, Known(0), index, source)
    return writer.tensor_op("aten::reshape_as", "", put, base)
