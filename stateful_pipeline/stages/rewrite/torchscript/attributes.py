"""Loads and stores of a module's attributes: the places where states live.

An attribute is a pointer to an object.  Before the call, a state's attributes all point to one
object that holds the graph input ``<name>_in``; every other tensor is a weight, which becomes an
input under its own name.  After the call, what a state's attribute points to holds ``<name>_out``.
A Python number that is a state is the number in its graph input, which is a 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import Place, StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.cpp_scripts import ScriptedForms
from stateful_pipeline.model.parts import Step
from stateful_pipeline.model.program import identifier
from stateful_pipeline.model.python_state import DTYPES, as_tensor
from stateful_pipeline.model.reference import StateDef
from stateful_pipeline.model.scripted_places import place_of_set
from stateful_pipeline.model.sizes import fix_axes
from stateful_pipeline.stages.rewrite.torchscript.like_python import of_flag
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope, Slot
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Group,
    Held,
    Known,
    Link,
    Listing,
    Object,
    Plain,
    Ref,
    Root,
    Table,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer


class Attributes:
    """The attributes of a scripted module.

    Args:
        writer: The new graph; gets an input for each state, and one for each weight that is loaded.
        module: The scripted module.
        states: Its states.
        fixed: The axes that have one size, with it.
        submodules: The path by which each submodule is known, by each path that it has.
        constants: The constants of attributes that are fixed, by path.
        limits: The most items that a deque keeps, by path.
        forms: The explicit forms of C++ objects.
        later: Its states after the call, where they are others.

    Attributes:
        weights: The weights that were loaded, by the name of their input, in the order of inputs.
        initial: What each attribute that was loaded held before the call, item by item, by path.
        first: What each object held before the call.
        names: Each object's path.
        tensors: The module's own tensors.
        stored_at: The first line that stores something else to an attribute than it held.
        constants: The constants of attributes that are fixed, by path.
        forms: The explicit forms of C++ objects.
        appearing: The paths of states after the call that are none before it.
        vanishing: The paths of states before the call that are none after it.
    """

    def __init__(
        self,
        writer: Writer,
        module: nn.Module,
        states: Sequence[StateDef],
        fixed: Mapping[str, int],
        submodules: Mapping[str, str],
        constants: Mapping[str, Any],
        limits: Mapping[str, int],
        forms: ScriptedForms,
        later: Sequence[StateDef] | None = None,
    ) -> None:
        self._writer, self._module, self._limits = writer, module, limits
        self._later = states if later is None else later
        before = {place for state in states for place in state.places}
        self.appearing = {place for state in self._later for place in state.places} - before
        self.vanishing = before - {place for state in self._later for place in state.places}
        self._submodules, self.constants, self.forms = submodules, constants, forms
        self._outermost: Scope = writer.scope
        self._by_path: dict[str, Root] = {}
        self._numbers: dict[str, Plain] = {}
        self._parts: dict[str, Ref] = {}
        self._by_tensor: dict[int, Root] = {}
        self.names: dict[Root, str] = {}
        self.initial: dict[Slot, dict[str, Any]] = {}
        self.first: dict[Root, Any] = {}
        self.tensors: dict[Root, torch.Tensor] = {}
        self.stored_at: dict[Slot, Place | None] = {}
        self.weights: dict[str, torch.Tensor] = {}
        for state in states:
            value = writer.graph.addInput(identifier(f"{state.name}_in"))
            fake = writer.sizes.tensor(fix_axes(state.shape, fixed), state.initial.dtype)
            value.setType(jit.tensor_type(fake))
            if state.number:
                self._numbers[state.name] = self._number_in(value, state.initial.dtype)
                continue
            root = self._new(f"state '{state.name}'", state.name, Held(value, fake))
            self._by_path |= dict.fromkeys(state.paths, root)
            for part in state.parts:
                ref = Ref(root, tuple(map(_link, part.steps)))
                self._parts |= dict.fromkeys(part.paths, ref)

    def _new(self, origin: str, path: str, content: Any) -> Root:
        root = Root(origin, self._outermost)
        self._outermost.contents[root] = self.first[root] = content
        self.names[root] = path
        return root

    def _number_in(self, value: jit.Value, dtype: torch.dtype) -> Plain:
        kind, type_ = _NUMBERS[dtype]
        [number] = self._writer.node_of(kind, [value], [type_])
        return Plain(number, self._outermost)

    # --- loads -------------------------------------------------------------------------------

    def load(self, path: str, name: str) -> Any:
        """Return what the attribute ``name`` of the module at ``path`` means now."""
        slot = (path, name)
        known = self._writer.scope.pointer(slot)
        if known is None:
            full = joined(slot)
            known = self._outermost.pointers[slot] = self._held_at(full, self._value(slot))
            self.initial[slot] = dict(self.leaves(full, known))
        return known

    def _value(self, slot: Slot) -> Any:
        holder, above = self._module, ""
        for part in filter(None, slot[0].split(".")):
            above = joined((above, part))
            holder = self.forms.at(above) or getattr(holder, part)
        return getattr(holder, slot[1])

    def _held_at(self, path: str, value: Any) -> Any:
        """Return the abstract value of what the module holds at ``path``."""
        if path in self._numbers:
            return self._numbers[path]
        if path in self._parts:
            return self._parts[path]
        if path in self.forms.places:
            return Object(self.forms.places[path])
        if isinstance(value, nn.Module):
            return Object(self._submodules.get(path, path))
        if isinstance(value, torch.Tensor):
            return Ref(self._tensor(path, value))
        if isinstance(value, list | tuple):
            items = tuple(self._held_at(f"{path}.{i}", item) for i, item in enumerate(value))
            if isinstance(value, tuple):
                return Group(items)
            kinds = [jit.TENSOR if isinstance(item, Ref) else None for item in items]
            element = kinds[0] if kinds and kinds[0] is not None else _element(value)
            root = self._new(f"'{path}'", path, Elements(items))
            root.element, root.limit = element, self._limits.get(path)
            return List(root)
        if isinstance(value, dict):
            held = tuple(self._held_at(f"{path}.{key}", item) for key, item in value.items())
            keys = tuple(Known(key) for key in value)
            return Table(self._new(f"'{path}'", path, Elements(held, keys)))
        if isinstance(value, torch.ScriptObject):
            raise StateError(
                "is an object of a C++ class, which is not supported yet",
                attribute=path,
                place=self._writer.place,
            )
        return Known(value)

    def _tensor(self, path: str, tensor: torch.Tensor) -> Root:
        if path in self._by_path:
            self.tensors[self._by_path[path]] = tensor
            return self._by_path[path]
        if id(tensor) not in self._by_tensor:
            value = self._writer.graph.addInput(identifier(path))
            fake = self._writer.sizes.like(tensor)
            value.setType(jit.tensor_type(fake))
            # What eager calls write to must not be what the program reads.
            kept = isinstance(tensor, nn.Parameter)
            self.weights[path] = tensor.detach() if kept else tensor.detach().clone()
            held = Held(value, fake, real=self.weights[path])
            root = self._by_tensor[id(tensor)] = self._new(f"'{path}'", path, held)
            self.tensors[root] = tensor  # so that its identity stays its own
        return self._by_tensor[id(tensor)]

    def leaves(self, path: str, what: Any) -> Iterator[tuple[str, Any]]:
        """Yield what an attribute holds now: itself, or the items of its containers, by path.

        Raises:
            StateError: A list holds a number of items that depends on values.
        """
        if isinstance(what, Group):
            keys, items = [str(i) for i in range(len(what.items))], what.items
        elif isinstance(what, List | Table):
            content = self._writer.content(what.root)
            if not isinstance(content, Elements):
                raise StateError(
                    "how long it is after a call depends on values",
                    attribute=path,
                    place=self._writer.written_at.get(what.root) or self._stored(path),
                    hint="let it have one length on every path, or keep a tensor of the largest "
                    "size and a count of what is used",
                )
            numbers = [str(i) for i in range(len(content.items))]
            keys, items = [str(key.value) for key in content.keys] or numbers, content.items
        else:
            yield path, what
            return
        for key, item in zip(keys, items, strict=True):
            yield from self.leaves(f"{path}.{key}", item)

    def _stored(self, path: str) -> Place | None:
        """Return the first line that stores to the attribute that ``path`` is in."""
        for slot, place in self.stored_at.items():
            if f"{path}.".startswith(f"{joined(slot)}."):
                return place
        return None

    def held(self) -> dict[str, str]:
        """Return what the attributes that were loaded hold now, in words, by path."""
        return {
            path: _word(what)
            for slot in self.initial
            for path, what in self.leaves(joined(slot), self._writer.scope.pointer(slot))
            if not isinstance(what, Object)
        }

    # --- stores ------------------------------------------------------------------------------

    def store(self, path: str, name: str, what: Any) -> None:
        """Let an attribute mean something else.

        Raises:
            StateError: It is a string or the like, which changes although nothing showed that.
        """
        before = self.load(path, name)
        slot = (path, name)
        fixed = joined(slot) in self.constants or joined(slot) in self.appearing
        if isinstance(before, Known) and before != what and not is_number(before) and not fixed:
            raise StateError(
                f"forward stores to this attribute, a {type(before.value).__name__}, which an "
                "exported graph would freeze",
                attribute=joined((path, name)),
                place=self._writer.place,
                hint="hold it in a tensor: register_buffer, and change it with tensor operators",
            )
        self._writer.scope.pointers[slot] = what
        if self.initial[slot].get(joined(slot)) != what:
            place = place_of_set(self._writer.node)
            self.stored_at.setdefault(slot, place)

    # --- after the call ----------------------------------------------------------------------

    def after(self) -> Iterator[Held]:
        """Yield what each state holds after the call.

        Raises:
            StateError: Places that held one tensor before the call hold two after it.
        """
        for state in self._later:
            meant = [self._at(path) for path in state.paths]
            if any(ref != meant[0] for ref in meant):
                raise StateError(
                    f"{' and '.join(state.paths)} are one tensor before the call and two after it",
                    attribute=state.name,
                    hint="change it in place, or reassign it everywhere",
                )
            if state.number:
                yield self._number_after(state, meant[0])
                continue
            if not isinstance(meant[0], Ref):
                raise StateError("is no tensor after the call", attribute=state.name)
            self._check_parts(state, meant[0])
            yield self._writer.read(meant[0])

    def _check_parts(self, state: StateDef, whole: Ref) -> None:
        """Refuse a state with views of it that a call may tear apart."""
        if self.appearing & set(state.places):
            self._refuse_new_parts(state)
            return
        places = {path: self._parts[path] for part in state.parts for path in part.paths}
        places |= {state.paths[0]: Ref(self._by_path[state.paths[0]])} if places else {}
        for path, before in places.items():
            now = whole if path == state.paths[0] else self._at(path)
            if now != before:
                raise StateError(
                    f"'{path}' may be another tensor after a call; before it, it shares memory "
                    "with others",
                    attribute=state.name,
                    place=self.stored_at.get(_slot(path)),
                    hint="change it in place, or make the view in forward",
                )

    def _refuse_new_parts(self, state: StateDef) -> None:
        if state.parts:
            raise StateError(
                "is created together with views of it", attribute=state.name, hint="copy them"
            )

    def _number_after(self, state: StateDef, what: Any) -> Held:
        """Return a number as a 0-d tensor."""
        dtype = state.initial.dtype
        if isinstance(what, Known):
            return self._writer.tensor_constant(as_tensor(what.value, dtype, state.name))
        if not isinstance(what, Plain):
            raise StateError("is no number after the call", attribute=state.name)
        if dtype == torch.bool:
            return of_flag(self._writer, what, dtype)
        fake = self._writer.sizes.tensor((), dtype)
        values = [self._writer.list_value([], jit.INT), what.value]
        values += map(self._writer.constant, (jit.dtype_code(dtype), None, None, None))
        [made] = self._writer.node_of("aten::full", values, [jit.tensor_type(fake)])
        return Held(made, fake)

    def _at(self, path: str) -> Any:
        """Return what the module holds at ``path`` now."""
        holder: nn.Module = self._module
        parts, above = path.split("."), []
        while parts and isinstance(getattr(holder, parts[0], None), nn.Module | torch.ScriptObject):
            above.append(parts.pop(0))
            holder = self.forms.at(".".join(above)) or getattr(holder, above[-1])
        module = ".".join(above)
        module = self._submodules.get(module, module)
        what = self.load(module, parts[0])
        leaves = dict(self.leaves(joined((module, parts[0])), what))
        path = joined((module, ".".join(parts)))
        if path not in leaves:
            raise StateError("is not where it was, after the call", attribute=path)
        return leaves[path]


def _link(step: Step) -> Link:
    """Return a step to a part of a state as an operator of the graph."""
    if step.kind == "select":
        return Link("aten::select", "int", (None, Known(step.dim), Known(step.start)), 0)
    if step.kind in ("view", "permute"):
        return Link(f"aten::{step.kind}", "", (None, Listing(tuple(map(Known, step.shape)))), 0)
    bounds = (Known(step.start), Known(step.start + step.length), Known(1))
    return Link("aten::slice", "Tensor", (None, Known(step.dim), *bounds), 0)


_NUMBERS: dict[torch.dtype, tuple[str, Any]] = {
    torch.bool: ("aten::Bool", jit.BOOL),
    torch.int64: ("aten::Int", jit.INT),
    torch.float64: ("aten::Float", jit.FLOAT),
}
"""What reads a number from a 0-d tensor, and the graph type that it has."""


def is_number(what: Any) -> bool:
    """Whether an abstract value is a number or a flag."""
    return isinstance(what, Plain) or (isinstance(what, Known) and type(what.value) in DTYPES)


def _word(what: Any) -> str:
    if isinstance(what, Ref):
        return "Tensor"
    return str(what.value.type()) if isinstance(what, Plain) else repr(getattr(what, "value", None))


def _slot(path: str) -> Slot:
    holder, _, name = path.rpartition(".")
    return holder, name


def joined(slot: Slot) -> str:
    """Return the path of an attribute."""
    return ".".join(filter(None, slot))


def _element(value: Sequence[Any]) -> Any:
    kinds = {float: jit.FLOAT, bool: jit.BOOL}
    return kinds.get(type(value[0]), jit.INT) if value else jit.TENSOR
