"""The private parts of TorchScript's graphs that this project relies on, all in one file.

Tried on torch 2.13.  :func:`require_supported` fails clearly on versions where a part is missing.
Graphs, blocks, nodes and values are those of ``torch._C``; everything that makes or changes one
goes through this file.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from stateful_pipeline.errors import Place, StageError
from stateful_pipeline.model.torch_internals import missing_of_sizes, refuse_missing
from stateful_pipeline.model.user_code import is_user_file

Graph: TypeAlias = Any  # torch._C.Graph, of which the stubs lack the half
Block: TypeAlias = Any
Node: TypeAlias = Any
Value: TypeAlias = Any

_NEEDED = {
    "Graph": ("addInput", "create", "insertNode", "insertConstant", "insert_point_guard", "copy"),
    "Node": ("addBlock", "addOutput", "copyMetadata", "schema", "sourceRange"),
    "Block": ("addInputToBlock", "registerOutput"),
    "TensorType": ("with_sizes", "with_dtype"),
}
_FUNCTIONS = ("_jit_pass_inline", "_jit_pass_dce", "_jit_pass_lint", "_create_function_from_graph")
_MOST_LOOKED_AT = 64
"""So many operators are looked at for the user's line before one that has none."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def require_supported() -> None:
    """Raise ``StageError`` if this torch lacks a private part that is used here."""
    missing = [f"torch._C.{name}" for name in _FUNCTIONS if not hasattr(torch._C, name)]
    for name, methods in _NEEDED.items():
        cls = getattr(torch._C, name, None)
        missing += [f"torch._C.{name}.{m}" for m in methods if not hasattr(cls, m)]
    refuse_missing([*missing, *missing_of_sizes()], "script")


@contextmanager
def quiet_scripting() -> Iterator[None]:
    """Silence the warnings by which torch says that TorchScript is deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.|stateful")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.|stateful")
        warnings.filterwarnings("ignore", message=r".*torch\.jit")
        yield


def script(module: nn.Module) -> torch.jit.ScriptModule:
    """Return ``torch.jit.script(module)``; a ScriptModule comes back as it is."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    with quiet_scripting():
        scripted: torch.jit.ScriptModule = torch.jit.script(module)
    return scripted


def inlined_graph(module: torch.jit.ScriptModule, method: str) -> Graph:
    """Return a copy of a method's graph in which all calls of other methods are inlined."""
    graph: Graph = getattr(module, method).graph.copy()
    torch._C._jit_pass_inline(graph)
    return graph


def code_of(module: torch.jit.ScriptModule, method: str) -> str:
    """Return the TorchScript code of ``method``, with what it calls inlined."""
    return str(function_of(inlined_graph(module, method)).code)


def new_graph() -> Graph:
    """Return an empty graph."""
    return torch._C.Graph()


def function_of(graph: Graph) -> Any:
    """Return a copy of ``graph`` as a function that can be called."""
    return torch._C._create_function_from_graph("forward", graph.copy())


def plain_execution() -> Any:
    """Return a context in which functions run as they are, without profiling and fusion."""
    return torch.jit.optimized_execution(False)  # type: ignore[attr-defined]


def remove_unused(graph: Graph) -> None:
    """Remove the operators whose results nobody reads, and check the graph's form.

    Args:
        graph: A pure graph: a loop whose results nobody reads does nothing, which the compiler
            leaves in since it may not end.
    """
    idle: list[Node] = [graph]
    while idle:
        _pass(graph, torch._C._jit_pass_dce)
        loops = graph.findAllNodes("prim::Loop", recurse=True)
        idle = [node for node in loops if not any(value.uses() for value in node.outputs())]
        if idle:
            idle[0].destroy()  # others may lie in it
    _pass(graph, torch._C._jit_pass_lint)


def remove_repeats(graph: Graph) -> None:
    """Let operators that compute the same once more share one result."""
    _pass(graph, torch._C._jit_pass_cse)


def _pass(graph: Graph, function: Callable[[Any], object]) -> None:
    try:
        function(graph)
    except RuntimeError as error:
        first, *_ = str(error).splitlines()
        raise StageError(
            f"PyTorch's TorchScript does not take the rewritten graph: {first}",
            stage="rewrite",
            hint="write it with other operators, or export with torch.export",
        ) from error


def place_of(node: Node) -> Place | None:
    """Return the line of source that made ``node``, or None if it is not recorded."""
    found = _PLACE.findall(_range_of(node))
    return Place(found[0][0], int(found[0][1])) if found else None


def _range_of(node: Node) -> str:
    try:
        return str(node.sourceRange() or "")
    except RuntimeError:  # a file holds its source lines apart from its code; they may be damaged
        return ""


def written_place_of(node: Node) -> Place | None:
    """Return the line of the user's that made ``node``, or the last one before it.

    What torch's own functions are made of is in their files, or in none.
    """
    first = place_of(node)
    place = first
    for _ in range(_MOST_LOOKED_AT):
        if place is not None and is_user_file(place.file):
            return place
        before = node.prev()
        if before.kind() == "prim::Return":  # the first of its block
            before = node.owningBlock().owningNode()
        if before is None:
            break
        node, place = before, place_of(before)
    return first


def source_of(node: Node, *, to_the_end: bool = False) -> str:
    """Return the first line of the source of ``node``, or nothing if it is not recorded.

    Args:
        node: The node.
        to_the_end: Whether to go on to the end of the line: of a call, the function is recorded.
    """
    lines = _range_of(node).splitlines()
    for text, mark in itertools.pairwise(lines):
        if mark.rstrip().endswith("<--- HERE"):
            start = len(mark) - len(mark.lstrip())
            return text[start:] if to_the_end else text[start : start + mark.count("~")]
    return ""


def with_python_remainders(graph: Graph) -> Graph:
    """Return a copy of ``graph`` in which ``a %= b`` is what it is in Python: not ``fmod``."""
    changed = graph.copy()
    for old, new in (("aten::fmod_", "aten::remainder_"), ("aten::fmod", "aten::remainder")):
        for node in changed.findAllNodes(old, recurse=True):
            if "%=" in source_of(node):
                _replace(changed, node, new)
    return changed


def with_python_powers(graph: Graph) -> Graph:
    """Return a copy of ``graph`` in which ``2**7`` is an int, as in Python: not 128.0.

    The compiler computes such a constant; the source of the operator that reads it says how it was
    written.
    """
    changed = graph.copy()
    for constant in changed.findAllNodes("prim::Constant", recurse=True):
        value = None if constant.mustBeNone() else constant.output().toIValue()
        if type(value) is not float or not value.is_integer() or place_of(constant) is not None:
            continue
        for use in constant.output().uses():
            exact = _power(source_of(use.user, to_the_end=True), value)
            if exact is not None:
                with changed.insert_point_guard(use.user):
                    use.user.replaceInput(use.offset, changed.insertConstant(exact))
    return changed


def _power(source: str, value: float) -> int | None:
    """Return the power of two ints in ``source`` that is ``value``, or None."""
    for base, exponent in re.findall(r"\b(\d+)\s*\*\*\s*(\d+)\b", source):
        power: int = int(base) ** int(exponent)
        if abs(power) < 2**63 and float(power) == abs(value):
            return power if value >= 0 else -power
    return None


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    return torch._C.parse_schema(text)


def schema_of(node: Node) -> Any:
    """Return the schema of the operator that ``node`` calls, or None if it has none."""
    text = node.schema()
    return None if text == "(no schema)" else _parsed(text)


@functools.lru_cache(maxsize=4096)
def overloads(kind: str) -> tuple[Any, ...]:
    """Return the schemas of all overloads of the operator ``kind``, such as ``aten::add``."""
    return tuple(torch._C._jit_get_schemas_for_operator(kind))


@functools.lru_cache(maxsize=4096)
def operator(kind: str, overload: str) -> Callable[..., Any] | None:
    """Return the operator as a function, or None where it is not to be had."""
    space, _, name = kind.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    return None if packet is None else getattr(packet, overload or "default", None)


@functools.lru_cache(maxsize=4096)
def takes_symbols(kind: str, overload: str) -> bool:
    """Whether an operator can be called with symbolic integers: those of TorchScript alone cannot.

    They would turn a symbol into a number, without a word.
    """
    try:
        torch._C._dispatch_find_schema_or_throw(kind, overload)
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def may_alias_unsaid(kind: str, overload: str) -> bool:
    """Whether an operator may give back memory of an argument although its schema does not say so.

    Those may that are made of other operators.
    """
    name = f"{kind}.{overload}" if overload else kind
    try:
        composite: bool = torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        )
    except RuntimeError:  # an operator of TorchScript alone
        return False
    return composite


def reads(argument: Any) -> bool:
    """Whether an argument or a result of a schema may be an alias of another."""
    return argument.alias_info is not None


def writes(argument: Any) -> bool:
    """Whether the operator writes to this argument."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def tensor_type(fake: torch.Tensor | None) -> Any:
    """Return the graph type of a tensor: dtype, and the sizes that are numbers."""
    plain = torch._C.TensorType.get()
    if fake is None:
        return plain
    sizes: list[int | None] = [s if isinstance(s, int) else None for s in fake.shape]
    return plain.with_dtype(fake.dtype).with_sizes(sizes)


def tensor_type_of(dtype: torch.dtype) -> Any:
    """Return the graph type of a tensor of which the dtype alone is known."""
    return torch._C.TensorType.get().with_dtype(dtype)


def list_type(element: Any) -> Any:
    """Return the type of a list of ``element``."""
    return torch._C.ListType(element)


INT = torch._C.IntType.get()
FLOAT = torch._C.FloatType.get()
BOOL = torch._C.BoolType.get()
STRING = torch._C.StringType.get()
TENSOR = torch._C.TensorType.get()


def is_tensor_type(kind: Any) -> bool:
    """Whether a value of this type is a tensor, perhaps an optional one."""
    return bool(_stripped(kind).kind() == "TensorType")


def is_list_type(kind: Any) -> bool:
    """Whether a value of this type is a list."""
    return bool(_stripped(kind).kind() == "ListType")


def element_type(kind: Any) -> Any:
    """Return the type of a list's elements."""
    return _stripped(kind).getElementType()


def _stripped(kind: Any) -> Any:
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def tuple_type(elements: Sequence[Any]) -> Any:
    """Return the type of a tuple."""
    return torch._C.TupleType(list(elements))


def split_arguments(
    kind: str, overload: str, arguments: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split a node's arguments into those that the operator takes by position and by keyword."""
    schema = next((s for s in overloads(kind) if s.overload_name == overload), None)
    if schema is None:
        return list(arguments), {}
    named = list(zip(schema.arguments, arguments, strict=True))
    return (
        [value for argument, value in named if not argument.kwarg_only],
        {argument.name: value for argument, value in named if argument.kwarg_only},
    )


def dtype_code(dtype: torch.dtype) -> int:
    """Return the number by which graphs name a dtype."""
    graph: Graph = torch._C.Graph()
    value = graph.insertConstant(dtype)
    code: int = value.toIValue()
    return code


def dtype_of(code: int) -> torch.dtype:
    """Return the dtype that graphs name by the number ``code``."""
    return _by_code()[code]


@functools.cache
def _by_code() -> dict[int, torch.dtype]:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {dtype_code(dtype): dtype for dtype in every}


def values(graph: Graph) -> Iterator[Value]:
    """Yield every value of ``graph`` and of the blocks in it."""
    yield from graph.inputs()
    pending: list[Any] = [graph]
    while pending:
        block = pending.pop()
        for node in block.nodes():
            yield from node.outputs()
            for inner in node.blocks():
                yield from inner.inputs()
                pending.append(inner)


def results(graph: Graph) -> list[Value]:
    """Return the values that the function of ``graph`` returns in a tuple."""
    [output] = graph.outputs()
    return list(output.node().inputs())


def name_results(graph: Graph, names: Sequence[str]) -> list[str]:
    """Name what a graph returns, and return by which name each result is known in its code.

    An input, and what is returned twice, keeps the name that it has; a constant has none.
    """
    known = {value.unique(): value.debugName() for value in graph.inputs()}
    held = []
    for value, name in zip(results(graph), names, strict=True):
        if value.node().kind() == "prim::Constant":
            held.append(f"torch.{value.toIValue()!r}")
            continue
        if value.unique() not in known:
            value.setDebugName(name)
            known[value.unique()] = name
        held.append(known[value.unique()])
    return held


def drop_unused_inputs(graph: Graph, kept: int) -> list[int]:
    """Remove inputs that nobody reads, but for the first ``kept``; return the removed indices."""
    unused = [i for i, v in enumerate(graph.inputs()) if i >= kept and not v.uses()]
    for index in reversed(unused):
        graph.eraseInput(index)
    return unused


def widened(graph: Graph, *, types_too: bool) -> Graph:
    """Return a copy of ``graph`` whose constant tensors are float64.

    Args:
        graph: A pure graph.
        types_too: Whether operators that name a narrower float type name float64 instead.
    """
    wide = graph.copy()
    narrow = [dtype_code(d) for d in (torch.float16, torch.bfloat16, torch.float32)]
    for node in wide.findAllNodes("prim::Constant", recurse=True):
        value = None if node.mustBeNone() else node.output().toIValue()
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            node.t_("value", value.double())
        elif types_too and type(value) is int and value in narrow and _is_a_type(node.output()):
            node.i_("value", dtype_code(torch.float64))
    return wide


def _is_a_type(value: Value) -> bool:
    """Whether a constant is given to operators as a dtype, and as nothing else."""
    return all(
        schema_of(use.user) is not None and _takes_type(schema_of(use.user).arguments[use.offset])
        for use in value.uses()
    )


def _takes_type(argument: Any) -> bool:
    return bool(argument.name == "dtype")


def with_kinds(graph: Graph, kinds: dict[str, str]) -> Graph:
    """Return a copy of ``graph`` in which operators of some kinds are of others."""
    changed = graph.copy()
    for old, new in kinds.items():
        for node in changed.findAllNodes(old, recurse=True):
            _replace(changed, node, new)
    return changed


def _replace(graph: Graph, node: Node, kind: str) -> None:
    """Let an operator of another kind take the place of ``node``."""
    other = graph.create(kind, list(node.inputs()), node.outputsSize())
    other.copyMetadata(node)
    other.insertBefore(node)
    for before, after in zip(node.outputs(), other.outputs(), strict=True):
        after.setType(before.type())
        before.replaceAllUsesWith(after)
    node.destroy()


def with_typed_lists(graph: Graph, kind: str) -> Graph:
    """Return a copy of ``graph`` in which empty lists of one dtype are results of an operator.

    Args:
        graph: A graph whose first input is a tensor.
        kind: An operator that takes this input, so that nobody takes the list for a constant, and
            the number of the dtype.
    """
    changed = graph.copy()
    first = next(iter(changed.inputs()))
    for node in changed.findAllNodes("prim::ListConstruct", recurse=True):
        output = node.output()
        element = output.type().getElementType()
        if list(node.inputs()) or element.kind() != "TensorType" or element.dtype() is None:
            continue
        with changed.insert_point_guard(node):
            code = changed.insertConstant(dtype_code(element.dtype()))
            typed = changed.create(kind, [first, code], 1)
            changed.insertNode(typed)
        typed.output().setType(list_type(TENSOR))
        output.replaceAllUsesWith(typed.output())
        node.destroy()
    return changed


def with_marks(graph: Graph, kind: str) -> Graph:
    """Return a copy of ``graph`` in which each tensor that is computed goes through an operator.

    Args:
        graph: A pure graph.
        kind: An operator on a tensor that gives the same tensor; its result has the type that is
            known of it here, which exporters forget.
    """
    marked = graph.copy()
    pending: list[Any] = [marked]
    while pending:
        block = pending.pop()
        nodes = list(block.nodes())
        for node in nodes:
            pending += node.blocks()
            outputs = [] if node.kind() == "prim::Constant" else list(node.outputs())
            for value in reversed(outputs):
                if _is_ranked(value):
                    _mark(marked, value, kind).insertAfter(node)
        if block is not marked and nodes:
            for value in block.inputs():
                if _is_ranked(value):
                    _mark(marked, value, kind).insertBefore(nodes[0])
    return marked


def _is_ranked(value: Value) -> bool:
    return bool(value.type().kind() == "TensorType" and value.type().dim() is not None)


def _mark(graph: Graph, value: Value, kind: str) -> Node:
    """Return a node that gives ``value``, and let all others use what it gives."""
    node = graph.create(kind, [value], 1)
    node.output().setType(value.type())
    value.replaceAllUsesWith(node.output())
    node.replaceInput(0, value)
    return node


def has_kind(graph: Graph, kind: str) -> bool:
    """Whether an operator of ``kind`` is anywhere in ``graph``."""
    return bool(graph.findAllNodes(kind, recurse=True))


def place_of_kind(graph: Graph, kind: str) -> Place | None:
    """Return the line of source that made the first operator of ``kind``, or None."""
    for node in graph.findAllNodes(kind, recurse=True):
        place = place_of(node)
        if place is not None:
            return place
    return None
