"""Makes in-place operators functional: the operator's functional form, then a store.

``a.add_(b)`` becomes ``a' = add(a, b)``, in ``a``'s own dtype, and ``a'`` is stored where ``a`` is:
in the object itself, or through the views that lead to it.
"""

from __future__ import annotations

from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.sizes import same_shape
from stateful_pipeline.stages.rewrite.torchscript.values import Held, Known, Ref, Root
from stateful_pipeline.stages.rewrite.torchscript.views import write
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

_NOTHING = frozenset({"detach_", "requires_grad_", "retain_grad"})
_RESHAPING = frozenset(
    {"resize_", "resize_as_", "set_", "squeeze_", "unsqueeze_", "t_", "transpose_"}
    | {"swapaxes_", "swapdims_", "as_strided_", "rename_"}
)


def write_in_place(writer: Writer, kind: str, schema: Any, arguments: list[Any]) -> list[Any]:
    """Write the operator ``kind``, which writes to some of its arguments; return its results.

    Raises:
        StageError: It has no functional form.
    """
    name = kind.partition("::")[2]
    targets = [i for i, argument in enumerate(schema.arguments) if jit.writes(argument)]
    references = [arguments[i] for i in targets]
    if not all(isinstance(ref, Ref) for ref in references):
        raise writer.refusal(f"{kind} writes to something that is not a tensor")
    if name in _RESHAPING:
        raise writer.refusal(
            f"{name} changes a tensor's shape in place, which no value of a graph can",
            f"assign the result: x = x.{name.rstrip('_')}(...)",
        )
    if name in _NOTHING:
        return references
    results = _functional(writer, kind, schema, arguments, targets)
    for ref, held in zip(references, results, strict=True):
        write(writer, ref, held)
    return references


def _functional(
    writer: Writer, kind: str, schema: Any, arguments: list[Any], targets: list[int]
) -> list[Held]:
    """Write the functional form; return what each target holds afterwards."""
    name = kind.partition("::")[2]
    if name in ("copy_", "fill_", "zero_"):
        return [_filled(writer, name, arguments)]
    if "out" in schema.overload_name or any(a.is_out for a in schema.arguments):
        return _with_out(writer, kind, schema, arguments, targets)
    before = writer.read(arguments[targets[0]])
    functional = _functional_name(kind)
    overload = _overload(functional, schema, ())
    if overload is None or len(targets) != 1:
        raise writer.refusal(
            f"{kind} writes in place and has no functional form", "write it with an assignment"
        )
    return [_like(writer, writer.tensor_op(functional, overload, *arguments), before)]


def _functional_name(kind: str) -> str:
    space, _, name = kind.partition("::")
    if name.startswith("__i") and name.endswith("__"):
        return f"{space}::__{name[3:]}"
    return f"{space}::{name.rstrip('_')}"


def _overload(kind: str, schema: Any, without: tuple[str, ...]) -> str | None:
    """Return the overload of ``kind`` that takes the same arguments and writes to none of them."""
    wanted = [(a.name, str(a.type)) for a in schema.arguments if a.name not in without]
    for candidate in jit.overloads(kind):
        given = [(a.name, str(a.type)) for a in candidate.arguments]
        if given == wanted and not any(jit.writes(a) for a in candidate.arguments):
            return str(candidate.overload_name)
    return None


def _filled(writer: Writer, name: str, arguments: list[Any]) -> Held:
    """Write what ``copy_``, ``fill_`` and ``zero_`` leave in a tensor."""
    target = arguments[0]
    before = shape_of(writer, target)
    source = Known(0) if name == "zero_" else arguments[1]
    if not isinstance(source, Ref):
        no = Known(None)
        return writer.tensor_op("aten::full_like", "", before, source, no, no, no, no, no)
    new = _like(writer, writer.read(source), before)
    if same_shape(new.fake, before.fake):
        return new
    return writer.tensor_op("aten::expand_as", "", new, before)


def shape_of(writer: Writer, target: Ref) -> Held:
    """Return a value that has the shape and the dtype of ``target``, whatever it holds."""
    if not target.chain and isinstance(target.base, Root):
        held = writer.scope.content(target.base)
        assert isinstance(held, Held)
        return held
    return writer.read(target)


def _with_out(
    writer: Writer, kind: str, schema: Any, arguments: list[Any], targets: list[int]
) -> list[Held]:
    names = tuple(schema.arguments[i].name for i in targets)
    overload = _overload(kind, schema, names)
    if overload is None or len(targets) != 1:
        raise writer.refusal(f"{kind} with out= has no functional form", "assign its result")
    kept = [argument for i, argument in enumerate(arguments) if i not in targets]
    before = shape_of(writer, arguments[targets[0]])
    made = _like(writer, writer.tensor_op(kind, overload, *kept), before)
    if not same_shape(made.fake, before.fake):
        raise writer.refusal(
            f"{kind} with out= may change the shape of the tensor that it writes to",
            "assign its result",
        )
    return [made]


def _like(writer: Writer, held: Held, before: Held) -> Held:
    """Return ``held`` in the dtype of ``before``: an operator in place keeps the dtype."""
    a, b = held.fake, before.fake
    if a is None or b is None or a.dtype == b.dtype:
        return held
    code = Known(_code(b.dtype))
    no = Known(False)
    return writer.tensor_op("aten::to", "dtype", held, code, no, no, Known(None))


def _code(dtype: torch.dtype) -> int:
    return jit.dtype_code(dtype)
