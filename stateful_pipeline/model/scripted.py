"""What a ScriptModule holds and what its code holds, seen past PyTorch's public interface.

A ``torch.jit.ScriptModule`` keeps its parameters, buffers and attributes in a C++ object, whose
lists, dicts and tuples are handed out as copies (see :mod:`.scripted_items`).  Tensors need no
care: PyTorch gives the very same Python object for a tensor each time.

State may also lie in the code: a tensor that is no buffer becomes a constant when a module is
traced, and an in-place operator writes to it all the same.

Tried on torch 2.13.  :func:`require_supported` fails clearly on versions where a part is missing;
it speaks for :mod:`.scripted_items` too.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn

from stateful_pipeline.model.scripted_items import (
    Where,
    followed,
    holds_container,
    is_same_object,
    keep_attributes,
)
from stateful_pipeline.model.torch_internals import refuse_missing

OPAQUE = "opaque value of TorchScript"
"""The kind of attributes whose values cannot be followed."""
FIXED_TUPLE = "tuple with a list or a dict in it"
"""The kind of tuples that cannot be made anew, for the sake of what holds the containers too."""
CONSTANT = "constant of the code"
"""The kind of tensors that the code of a method holds."""
FUNCTION = "Python function of the code"
"""The kind of Python functions that the code of a method calls."""

INTERNALS = frozenset({"_c", "_concrete_type", "_initializing", "_actual_script_module", "_name"})
"""What a ScriptModule's ``__dict__`` holds beyond that of every module."""

_FLAGS = ("training", "_is_full_backward_hook")
_NUMBERS = ("IntType", "FloatType", "BoolType", "ComplexType")
_PLAIN = ("TensorType", *_NUMBERS, "StringType", "NoneType", "DeviceObjType", "EnumType")
_SEEN = frozenset({*_PLAIN, "GeneratorType"})
_NEEDED = {
    "ScriptModule": ("getattr", "setattr", "_type", "_get_method", "_method_names", "__copy__"),
    "ConcreteModuleType": ("from_jit_type", "get_attributes", "get_constants"),
    "Graph": ("addInput", "appendNode", "create", "findAllNodes", "insertConstant"),
    "Node": ("hasAttribute", "ival", "kindOf", "pyobj", "pyname", "s_", "t"),
}


def require_supported() -> None:
    """Raise ``StageError`` if this torch lacks a private part that is used here."""
    missing = [
        f"torch._C.{name}.{part}"
        for name, parts in _NEEDED.items()
        for part in parts
        if not hasattr(getattr(torch._C, name, None), part)
    ]
    if not hasattr(torch._C, "_jit_interpret_graph"):
        missing.append("torch._C._jit_interpret_graph")
    refuse_missing(missing, "script")


def is_scripted(value: object) -> TypeGuard[torch.jit.ScriptModule]:
    """Whether ``value`` is a module whose state is kept in a C++ object."""
    return isinstance(value, torch.jit.ScriptModule)


def core(module: nn.Module) -> Any:
    """Return the module that has the C++ object: traced and subclassed ones wrap another one."""
    return module.__dict__.get("_actual_script_module", module)


@dataclass(frozen=True)
class _Facts:
    """What stays the same as long as a module lives: its attributes' types, and its code."""

    types: dict[str, Any]
    constants: dict[str, Any]
    hidden: dict[str, nn.Module]
    tensors: tuple[torch.Tensor, ...]
    functions: dict[str, Any]


_known: weakref.WeakKeyDictionary[Any, _Facts] = weakref.WeakKeyDictionary()


def _facts(module: nn.Module) -> _Facts:
    holder = core(module)
    found = _known.get(holder)
    if found is None:
        require_supported()
        kind: Any = torch._C.ConcreteModuleType.from_jit_type(holder._c._type())
        types = {name: type_ for name, (type_, _) in sorted(kind.get_attributes().items())}
        hidden = _hidden_submodules(holder)
        tensors, functions = _in_code(holder, [*holder._modules.values(), *hidden.values()])
        found = _Facts(types, dict(kind.get_constants()), hidden, tensors, functions)
        _known[holder] = found
    return found


def _hidden_submodules(holder: Any) -> dict[str, nn.Module]:
    """Return the submodules that Python has not met: freezing a module leaves such."""
    known = set(holder._modules.keys())
    names = [name for name, _ in torch._C.ModuleDict(holder._c).items() if name not in known]
    wrap: Any = torch.jit._recursive.wrap_cpp_module
    return {name: wrap(holder._c.getattr(name)) for name in names}


def submodules(module: nn.Module) -> dict[str, nn.Module]:
    """Return the submodules of a ScriptModule, by name."""
    return {**dict(core(module)._modules.items()), **_facts(module).hidden}


def _in_code(
    holder: Any, pending: list[nn.Module]
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Return the tensors and Python functions in the module's code.

    Args:
        holder: The module.
        pending: Its submodules, of whose code nothing is returned.
    """
    inner: list[_Facts] = []
    while pending:
        child = pending.pop()
        inner.append(_facts(child))
        pending += submodules(child).values()
    theirs = {id(value) for facts in inner for value in (*facts.tensors, *facts.functions.values())}
    tensors: dict[int, torch.Tensor] = {}
    functions: dict[str, Any] = {}
    for method in methods(holder):
        graph = graph_of(holder, method, inlined=True)
        for node in graph.findAllNodes("prim::Constant"):
            tensors |= {id(value): value for value in _tensors_of(node) if id(value) not in theirs}
        for node in graph.findAllNodes("prim::PythonOp"):
            if id(node.pyobj()) not in theirs:
                functions.setdefault(node.pyname(), node.pyobj())
    return tuple(tensors.values()), functions


def _tensors_of(constant: Any) -> Iterator[torch.Tensor]:
    kind = constant.kindOf("value") if constant.hasAttribute("value") else None
    pending = {"t": constant.t, "ival": constant.ival}
    values = [pending[kind]("value")] if kind in pending else []
    while values:
        value = values.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            values += value.values() if isinstance(value, dict) else value


class Slot(NamedTuple):
    """The key of an attribute that is kept in the C++ object."""

    name: str


def members(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield ``(name, value, kind)`` for all that the C++ object of ``module`` holds.

    Parameters, buffers and submodules come first, in the order of their registration; attributes
    have none and are sorted.  ``training`` is left out: it is a flag of the module, not its state.
    """
    holder = core(module)
    yield from ((name, value, "parameter") for name, value in holder._parameters.items())
    yield from ((name, value, "buffer") for name, value in holder._buffers.items())
    yield from ((name, value, "module") for name, value in submodules(module).items())
    left_out = {*holder._parameters.keys(), *holder._buffers.keys(), *_FLAGS}
    for name, type_ in _facts(module).types.items():
        if name not in left_out:
            yield name, *_attribute(holder, name, type_)


def member(module: nn.Module, name: str) -> tuple[Any, str] | None:
    """Return ``(value, kind)`` of what :func:`members` yields under ``name``, if it does."""
    holder = core(module)
    registries = (("parameter", holder._parameters), ("buffer", holder._buffers))
    for kind, registry in registries:
        if name in registry:
            return registry[name], kind
    inner = holder._modules if name in holder._modules else _facts(module).hidden
    if name in inner:
        return inner[name], "module"
    type_ = _facts(module).types.get(name)
    return None if type_ is None or name in _FLAGS else _attribute(holder, name, type_)


def _attribute(holder: Any, name: str, type_: Any) -> tuple[Any, str]:
    value = followed(holder._c.getattr(name), type_, Where(holder._c, name, type_))
    if isinstance(value, torch.ScriptObject):
        value = _same_wrapper(holder, name, value)
    kind = "attribute" if _is_followed(type_) else OPAQUE
    return value, FIXED_TUPLE if holds_container(value) else kind


_wrappers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What stands for the objects of classes that a module's attributes hold."""


def _same_wrapper(holder: Any, name: str, value: Any) -> Any:
    """Return the Python object that stands for an attribute's object: one for all attributes.

    PyTorch makes a new one each time.
    """
    known = _wrappers.setdefault(holder, {})
    if name not in known or not is_same_object(known[name], value):
        others = [other for held in _wrappers.values() for other in held.values()]
        known[name] = next((other for other in others if is_same_object(other, value)), value)
    return known[name]


def in_code(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield ``(name, value, kind)`` for what the code of ``module`` could change beside it.

    That is the tensors that the code holds as constants, and the Python functions that it calls.
    """
    facts = _facts(module)
    for index, value in enumerate(facts.tensors):
        yield f"<constant {index}>", value, CONSTANT
    for name, function in facts.functions.items():
        yield f"<function {name}>", function, FUNCTION


def _is_followed(type_: Any) -> bool:
    """Whether all that values of a type are made of can be seen from Python."""
    kind = type_.kind()
    if kind in ("ListType", "OptionalType"):
        return _is_followed(type_.getElementType())
    if kind == "DictType":
        return _is_followed(type_.getValueType())
    if kind == "TupleType":
        return all(_is_followed(element) for element in type_.elements())
    if kind == "UnionType":
        return all(member.kind() in _SEEN for member in type_.containedTypes())
    return kind in _SEEN


def set_attribute(module: nn.Module, name: str, value: Any) -> None:
    """Put ``value`` into the C++ object."""
    core(module)._c.setattr(name, value)


def keep(module: nn.Module) -> Callable[[], None]:
    """Keep what the attributes of the C++ object refer to; return what restores them."""
    return keep_attributes(core(module)._c, _facts(module).types)


def methods(module: nn.Module) -> list[str]:
    """Return the names of the compiled methods, ``forward`` first."""
    names: list[str] = list(core(module)._c._method_names())
    return sorted(names, key=lambda name: name != "forward")


def graph_of(module: nn.Module, method: str, *, inlined: bool = False) -> Any:
    """Return the ``torch._C.Graph`` of a method; its nodes live as long as it.

    Args:
        module: The ScriptModule.
        method: One of :func:`methods`.
        inlined: Whether to inline what the method calls.
    """
    found = core(module)._c._get_method(method)
    return found.inlined_graph if inlined else found.graph


def signature(module: nn.Module, method: str = "forward") -> inspect.Signature:
    """Return the signature of a method; a ScriptModule's comes from its schema.

    Raises:
        AttributeError: There is no such method.
    """
    if not is_scripted(module):
        return inspect.signature(getattr(module, method))
    if method not in methods(module):
        raise AttributeError(f"{class_name(module)} has no compiled method '{method}'")
    schema = core(module)._c._get_method(method).schema
    by_keyword, by_both = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                by_keyword if argument.kwarg_only else by_both,
                default=argument.default_value
                if argument.has_default_value()
                else inspect.Parameter.empty,
            )
            for argument in schema.arguments[1:]  # the first is the module itself
        ]
    )


def class_name(module: nn.Module) -> str:
    """Return the name of the class that ``module`` was written as."""
    return str(core(module).original_name) if is_scripted(module) else type(module).__name__


def library_class(module: nn.Module) -> type:
    """Return the class of ``torch.nn`` that a ScriptModule was made from, or its own class."""
    space, _, name = _full_name(module).rpartition(".") if is_scripted(module) else ("", "", "")
    found = getattr(nn, name, None) if space.startswith("torch.nn.modules") else None
    return found if isinstance(found, type) else type(module)


def constant(module: nn.Module, name: str, default: Any) -> Any:
    """Return an attribute, also one that scripting has made a constant, or ``default``."""
    constants = _facts(module).constants if is_scripted(module) else {}
    return constants.get(name, getattr(module, name, default))


def scripted_sources(module: nn.Module) -> Iterator[str]:
    """Yield the TorchScript code of each class of ScriptModule in ``module``, once."""
    seen: set[str] = set()
    for inner in filter(is_scripted, module.modules()):
        name = str(core(inner)._c.qualified_name)
        codes = [core(inner)._c._get_method(method).code for method in methods(inner)]
        if name not in seen and codes:
            seen.add(name)
            yield f"# {_full_name(inner)}\n" + "\n".join(codes)


def _full_name(module: nn.Module) -> str:
    name = str(core(module)._c.qualified_name).removeprefix("__torch__.")
    return re.sub(r"___torch_mangle_\d+\.", "", name)
