"""Makes a scripted module a pure function of its inputs and states."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import Place, StageError, StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.program import Port, dim_text, identifier
from stateful_pipeline.model.reference import Reference, StateDef
from stateful_pipeline.model.script_program import ScriptProgram
from stateful_pipeline.model.scripting import Scripted
from stateful_pipeline.model.sizes import fix_axes, fixed_sizes
from stateful_pipeline.stages.rewrite.torchscript.attributes import Attributes
from stateful_pipeline.stages.rewrite.torchscript.changes import Changes
from stateful_pipeline.stages.rewrite.torchscript.constants import (
    refuse_other_constants,
    under_first_paths,
)
from stateful_pipeline.stages.rewrite.torchscript.containers import new_list
from stateful_pipeline.stages.rewrite.torchscript.loops import NeedsUnrollingError
from stateful_pipeline.stages.rewrite.torchscript.rewriter import Rewriter
from stateful_pipeline.stages.rewrite.torchscript.sizes import Sizes
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Group,
    Held,
    Known,
    Object,
    Ref,
    Table,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

_SYMBOL = re.compile(r"\b(u|s|zuf)\d+\b")
_FUSED = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")


@dataclass(frozen=True)
class Explicit:
    """The rewritten program, and what it does to the module.

    Attributes:
        program: The program.
        unseen: Tensors that it changes although they are no states yet.
        held: What the module holds after a call in the attributes that forward names, by path:
            ``Tensor``, ``int``, ``float``, ``bool``, ``None``, or the text of a constant.
    """

    program: ScriptProgram
    unseen: tuple[str, ...]
    held: Mapping[str, str]


def make_explicit(
    scripted: Scripted,
    reference: Reference,
    plan: InputPlan,
    hints: Mapping[str, int],
    later: Sequence[StateDef] | None = None,
) -> Explicit:
    """Rewrite ``scripted`` into a pure function.

    Args:
        scripted: The module's TorchScript.
        reference: The module with its states found.
        plan: The inputs.
        hints: A size of each axis, at which operators are tried.
        later: The states after the call, where the module does not hold the same after it as
            before: a list is longer, or there is a tensor in the place of None.  The program
            then takes the states of ``reference`` and gives these.

    Raises:
        StateError: A state would be lost, or random numbers are drawn.
        StageError: The graph has something in it that cannot be followed, or an axis is fixed by
            the module's code.
    """
    try:
        return _written(scripted, reference, plan, hints, later, unrolls=True)
    except NeedsUnrollingError:  # by a loop that cannot be unrolled
        return _written(scripted, reference, plan, hints, later, unrolls=False)


def _written(
    scripted: Scripted,
    reference: Reference,
    plan: InputPlan,
    hints: Mapping[str, int],
    later: Sequence[StateDef] | None,
    *,
    unrolls: bool,
) -> Explicit:
    sizes = Sizes(reference.axes, hints)
    fused = any(jit.has_kind(scripted.graph, kind) for kind in _FUSED)
    writer = Writer(sizes, has_fast_path=fused, unrolls=unrolls)
    fixed = fixed_sizes(reference.axes)
    with sizes.active(), _no_collections():
        paths = scripted.paths or _paths(reference.module)
        call: Any = reference.call
        constants = under_first_paths(call.fixed, paths)
        attributes = Attributes(
            writer,
            scripted.module,
            reference.states,
            fixed,
            paths,
            constants,
            scripted.limits,
            scripted.forms,
            later,
        )
        inputs = {
            value.name: _input(writer, value.name, fix_axes(value.shape, fixed), value.dtype)
            for value in plan.inputs
        }
        rewriter = Rewriter(writer, attributes, python=scripted.python)
        outputs = rewriter.run(
            scripted.graph, [Object(""), *_arguments(writer, scripted, reference, inputs)]
        )
        refuse_other_constants(writer, attributes)
        known = {*reference.scratch, *(path for s in reference.states for path in s.places)}
        unseen = tuple(p for p in Changes(writer, attributes).changed() if p not in known)
        held = attributes.held()
        results = [writer.read(ref) for what in outputs for ref in _tensors(writer, what)]
        after = list(attributes.after())
    _refuse_fixed(sizes)
    if len(results) != len(scripted.outputs):
        raise StageError(
            f"forward returns {len(scripted.outputs)} tensors in eager mode and {len(results)} "
            "in TorchScript",
            stage="rewrite",
        )
    names = tuple(state.name for state in reference.states)
    later = reference.states if later is None else later
    texts = [f"'{name}'" for name in scripted.outputs]
    texts += [f"state '{state.name}'" for state in later]
    ports = _ports(writer, reference, plan, later, texts, [*results, *after])
    graph, weights = _finished(writer, attributes, [*results, *after], len(names) + len(inputs))
    program = ScriptProgram(
        graph,
        weights,
        tuple(inputs),
        scripted.outputs,
        names,
        ports,
        tuple(rewriter.raises),
        tuple(state.name for state in later),
    )
    return Explicit(program, unseen, held)


def _paths(module: nn.Module) -> dict[str, str]:
    """Return the first path of each submodule that has several, by each of its paths."""
    first: dict[int, str] = {}
    return {
        path: first.setdefault(id(inner), path)
        for path, inner in module.named_modules(remove_duplicate=False)
    }


@contextmanager
def _no_collections() -> Iterator[None]:
    """Do not look for garbage: what a rewrite makes lives to its end, and is walked in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _input(writer: Writer, name: str, shape: Shape, dtype: torch.dtype) -> Ref:
    value = writer.graph.addInput(identifier(name))
    fake = writer.sizes.tensor(shape, dtype)
    value.setType(jit.tensor_type(fake))
    return writer.new_tensor(Held(value, fake), f"input '{name}'")


def _arguments(
    writer: Writer, scripted: Scripted, reference: Reference, inputs: Mapping[str, Ref]
) -> Iterator[Any]:
    """Yield what each parameter of the method gets."""
    bound = reference.call.bind([p.name for p in scripted.parameters])  # type: ignore[attr-defined]
    for parameter in scripted.parameters:
        argument = bound.get(parameter.name)
        if argument is not None and argument.name in inputs:
            yield inputs[argument.name]
        elif argument is not None and argument.name is None:
            yield _constant(writer, argument.value)
        else:
            yield _constant(writer, parameter.default)


def _constant(writer: Writer, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return writer.new_tensor(writer.tensor_constant(value), "a constant")
    if isinstance(value, list | tuple):
        kind = {float: jit.FLOAT, bool: jit.BOOL, str: jit.STRING}
        element = kind.get(type(value[0]), jit.INT) if value else jit.INT
        return new_list(writer, [_constant(writer, item) for item in value], element)
    return Known(value)


def _tensors(writer: Writer, what: Any) -> Iterator[Ref]:
    """Yield the tensors in what ``forward`` returns, in the order of ``named_outputs``."""
    if isinstance(what, Ref):
        yield what
    elif isinstance(what, Group):
        for item in what.items:
            yield from _tensors(writer, item)
    elif isinstance(what, List | Table):
        content = writer.content(what.root)
        if not isinstance(content, Elements):
            raise StageError(
                "forward returns a list whose length depends on values",
                stage="rewrite",
                place=writer.written_at.get(what.root),
                hint="stack the tensors in it",
            )
        for item in content.items:
            yield from _tensors(writer, item)
    elif what != Known(None):
        raise StateError(
            "forward returns something that is no tensor, which an exported graph would freeze",
            hint="return tensors: torch.tensor(value)",
        )


def _refuse_fixed(sizes: Sizes) -> None:
    for axis, size in sizes.specialized().items():
        raise StageError(
            f"an operator of the module allows axis '{axis}' only the size {size}",
            stage="rewrite",
            hint="fix the size in the spec, or declare the shapes of the states it meets",
        )


def _finished(
    writer: Writer, attributes: Attributes, results: Sequence[Held], kept: int
) -> tuple[jit.Graph, dict[str, torch.Tensor]]:
    """Return the completed graph, and the weights that it reads."""
    graph = writer.graph
    values = [held.value for held in results]
    writer.node = None
    kind = jit.tuple_type([jit.TENSOR] * len(values))
    [group] = writer.node_of("prim::TupleConstruct", values, [kind])
    graph.registerOutput(group)
    jit.remove_repeats(graph)
    jit.remove_unused(graph)
    names = list(attributes.weights)
    dropped = {index - kept for index in jit.drop_unused_inputs(graph, kept)}
    left = [name for index, name in enumerate(names) if index not in dropped]
    return graph, {name: attributes.weights[name] for name in left}


def _ports(
    writer: Writer,
    reference: Reference,
    plan: InputPlan,
    later: Sequence[StateDef],
    names: Sequence[str],
    results: Sequence[Held],
) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Describe the program's inputs and outputs, with named axes."""
    fixed = fixed_sizes(reference.axes)
    given = [Port(s.initial.dtype, fix_axes(s.shape, fixed)) for s in reference.states]
    given += [Port(value.dtype, fix_axes(value.shape, fixed)) for value in plan.inputs]
    made = []
    count = len(results) - len(later)
    for index, held in enumerate(results):
        place = jit.place_of(held.value.node())
        if held.fake is None:
            raise StageError(
                f"the dtype or the number of dimensions of {names[index]} depends on values",
                stage="rewrite",
                place=place,
                hint=_numbers_hint(reference)
                or "let every branch give the same dtype and rank (x.to(...), x.unsqueeze(...))",
            )
        shape = tuple(dim_text(dim, writer.sizes.names) for dim in held.fake.shape)
        if index >= count and not later[index - count].grows:
            _check_size(later[index - count].name, shape, place)
        made.append(Port(held.fake.dtype, shape, place))
    return tuple(given), tuple(made)


def _numbers_hint(reference: Reference) -> str | None:
    """Return what to try where branches on Python numbers may be what hides a result's form."""
    names = [state.name for state in reference.states if state.number]
    if not names:
        return None
    fixed = ", ".join(f"{name}: {{value: ...}}" for name in names)
    return f"if the first call sets a number for good, fix it: `attributes: {{{fixed}}}`"


def _check_size(state: str, shape: Shape, place: Place | None) -> None:
    if any(map(_depends_on_values, shape)):
        raise StateError(
            "may have another size after a call than before it",
            attribute=state,
            place=place,
            hint="keep a buffer of the largest size, and count how much of it is used; or declare "
            "the state with `out_shape` if it grows at each call",
        )


def _depends_on_values(dim: Dim) -> bool:
    return isinstance(dim, str) and _SYMBOL.search(dim) is not None
