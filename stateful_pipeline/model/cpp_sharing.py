"""Refuses modules whose C++ objects share something, with one another or with the module.

A C++ object is copied, and put back to an earlier state, by what it pickles.  What two objects
share (a third one, a tensor), or an object and the module (a buffer), is apart from then on.  All
that stands for the module is made so: the reference, its TorchScript, the explicit forms.  They
would agree with one another, and be wrong.

Much of what is shared can be seen: an object gives its very tensors, and the objects in it, to be
pickled.  Where it gives copies, only the module itself knows better: it takes some steps beside
such a copy.  Each does so in a fork of this process, since there is no way back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.cpp_equality import alike
from stateful_pipeline.model.cpp_objects import (
    cpp_class,
    is_cpp_object,
    is_pickled,
    put_state,
    raw_state,
    state_of,
    values_in,
)
from stateful_pipeline.model.cpp_places import cpp_objects, own_copy
from stateful_pipeline.model.forked import Forked, values_in_fork
from stateful_pipeline.model.holders import Leaf, leaves, write
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.parts import share_memory
from stateful_pipeline.model.reference import Call, Reference, Tensors, exact_kernels
from stateful_pipeline.model.scripted_items import is_same_cpp_object
from stateful_pipeline.model.survey import survey
from stateful_pipeline.model.tree import named_outputs

STEPS = 64
"""So many steps are compared when states are found; ``verify`` says how many a target takes."""
_MOST_PARTED = 64

Steps = Callable[[], Iterable[Tensors]]


def refuse_sharing(
    module: nn.Module, call: Call, plan: InputPlan, sizes: Sequence[Mapping[str, int]]
) -> None:
    """Refuse a module whose C++ objects share something; the module is not touched.

    Args:
        module: The module.
        call: Calls its entry point.
        plan: The inputs.
        sizes: Sizes of the axes, of which the first is taken at which a copy of the module runs.

    Raises:
        StateError: They share something, or do not pickle all that they hold.
        StageError: The module cannot be copied, or ends the process that it runs in.
    """
    if not cpp_objects(module):
        return
    copied = own_copy(module)
    _refuse_seen(module)
    for each in sizes:
        inputs = plan.steps(each, 0, STEPS)
        if _compare(module, copied, call, lambda inputs=inputs: inputs):  # type: ignore[misc]
            return


def compare_with_copy(module: nn.Module, call: Call, steps: Steps) -> int:
    """Compare what a module and a copy of it give, as far as they run; return for how many steps.

    Args:
        module: The module; not touched.
        call: Calls its entry point.
        steps: Gives the inputs of each step.

    Raises:
        StateError: They give something else: floats by more than rounding.
        StageError: The module cannot be copied, or ends the process that it runs in.
    """
    return _compare(module, own_copy(module), call, steps)


def _compare(module: nn.Module, copied: nn.Module, call: Call, steps: Steps) -> int:
    theirs = values_in_fork(lambda: _outputs(copied, call, steps))
    ours = values_in_fork(lambda: _outputs(module, call, steps))
    step = _first_difference(ours, theirs)
    if step is not None:
        raise _unlike(module, call, steps, ours, step)
    return len(ours.values)


def compare_with_reference(
    module: nn.Module, reference: Reference, sizes: Mapping[str, int], steps: Steps
) -> None:
    """Compare a module that makes C++ objects in its first call with its reference.

    The reference's module has them from the start; one that has them itself has been compared.

    Args:
        module: The module; not touched.
        reference: The module with its states found.
        sizes: The sizes of the first step.
        steps: Gives the inputs of each step.

    Raises:
        StateError: They give something else: floats by more than rounding.
        StageError: The module ends the process that it runs in.
    """
    objects = cpp_objects(reference.module)
    if not objects or cpp_objects(module):
        return
    ours = values_in_fork(lambda: _outputs(module, reference.call, steps))
    theirs = values_in_fork(lambda: (s.outputs for s in reference.rollout(sizes, steps())))
    step = _first_difference(ours, theirs)
    if step is not None:
        classes = " and ".join(sorted({cpp_class(value) for value in objects.values()}))
        raise StateError(
            f"the module makes objects of {classes} in its first call, and at step {step} gives "
            "something else than with such objects from the start: they share something, or do "
            "not pickle all that they hold",
            attribute=next(iter(objects)),
            hint="make them in __init__, and let no two hold the same thing",
        )


def _outputs(module: nn.Module, call: Call, steps: Steps) -> Iterator[Tensors]:
    with torch.no_grad(), exact_kernels():
        for inputs in steps():
            result = call(module, {name: value.clone() for name, value in inputs.items()})
            yield {n: value.detach().clone() for n, value in named_outputs(result).items()}


def _first_difference(one: Forked, other: Forked) -> int | None:
    for index, (ours, theirs) in enumerate(zip(one.values, other.values, strict=False)):
        if not alike(ours, theirs):
            return index
    counts = len(one.values), len(other.values)
    return min(counts) if counts[0] != counts[1] else None


# --- what can be seen -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """A C++ object, or a tensor or an object in the state of one.

    Attributes:
        path: Where the module holds the outermost object.
        cpp_class: The class of the object whose state it is in; none for the outermost one.
        value: The tensor or the object.
    """

    path: str
    cpp_class: str
    value: Any


def _refuse_seen(module: nn.Module) -> None:
    """Refuse what can be seen to be shared."""
    found = survey(module).leaves
    objects: dict[int, Leaf] = {}
    for leaf in found:
        if is_cpp_object(leaf.value):
            objects.setdefault(id(leaf.value), leaf)
    held = [part for leaf in objects.values() for part in _held(leaf.path, leaf.value)]
    outermost = [_Held(leaf.path, "", leaf.value) for leaf in objects.values()]
    _refuse_one_object([*outermost, *(part for part in held if is_cpp_object(part.value))])
    tensors = [part for part in held if isinstance(part.value, torch.Tensor)]
    _refuse_one_tensor(tensors, [leaf for leaf in found if isinstance(leaf.value, torch.Tensor)])


def _refuse_one_object(objects: Sequence[_Held]) -> None:
    for one, other in itertools.combinations(objects, 2):
        if is_same_cpp_object(one.value, other.value):
            raise _shared_object(one, other)


def _refuse_one_tensor(tensors: Sequence[_Held], others: Sequence[Leaf]) -> None:
    for one, part in itertools.combinations(tensors, 2):
        # Within one object, its class knows.
        if one.path != part.path and share_memory(one.value, part.value):
            raise _shared_tensor(part, f"the C++ object '{one.path}' of {one.cpp_class}")
    for part, leaf in itertools.product(tensors, others):
        if share_memory(part.value, leaf.value):
            raise _shared_tensor(part, f"the {leaf.kind} '{leaf.path}'")


def _held(path: str, value: Any) -> Iterator[_Held]:
    if not is_pickled(value):
        return
    for part in values_in(raw_state(value)):
        if isinstance(part, torch.Tensor) or is_cpp_object(part):
            yield _Held(path, cpp_class(value), part)
        if is_cpp_object(part):
            yield from _held(path, part)


def _shared_object(one: _Held, other: _Held) -> StateError:
    name = cpp_class(other.value)
    what = f"an object of the C++ class {name}"
    if not other.cpp_class:
        reason = f"is {what} that '{other.path}' is too, by another handle that C++ gave out"
    elif one.path == other.path:
        reason = f"holds {what} twice"
    elif one.cpp_class:
        reason = f"holds, as a C++ object of {one.cpp_class}, {what} that '{other.path}' holds too"
    else:
        reason = f"is {what} that '{other.path}', one of {other.cpp_class}, holds too"
    return StateError(
        f"{reason}: objects are copied by what they pickle, and copies share nothing",
        attribute=one.path,
        hint=f"let one alone hold it, and its methods do what is to be done with the {name}",
    )


def _shared_tensor(part: _Held, with_what: str) -> StateError:
    return StateError(
        f"a C++ object of {part.cpp_class} holds a tensor {list(part.value.shape)} that shares "
        f"memory with {with_what}: objects are copied by what they pickle, and copies share "
        "nothing",
        attribute=part.path,
        hint="give each a tensor of its own, `tensor.clone()`; what both are to know of a change "
        "they are told in forward, as an argument of a method",
    )


# --- what shows alone -------------------------------------------------------------------------


def _unlike(module: nn.Module, call: Call, steps: Steps, ours: Forked, step: int) -> StateError:
    """Say which objects, and which tensors of the module, cannot be made anew each for itself."""
    parted = [
        (path, what)
        for path, what, part in _partings(module)
        if _changes(module, call, steps, ours, part)
    ]
    objects = cpp_objects(module)
    first = next((path for path, _ in parted if path in objects), next(iter(objects)))
    others = [what for path, what in parted if path != first]
    classes = " and ".join(sorted({cpp_class(value) for value in objects.values()}))
    if others:
        what = f"a C++ object of {cpp_class(objects[first])} shares something with "
        what += " and ".join(others)
    elif parted:
        what = f"{cpp_class(objects[first])} does not pickle all that it holds, as it holds it"
    else:
        what = f"{classes}: not all is pickled that is held, as it is held"
    return StateError(
        f"a copy by def_pickle answers otherwise than the module itself at step {step}: {what}",
        attribute=first,
        hint="let def_pickle give, and take back, everything that methods read, and let no two "
        "objects, nor an object and the module, hold the same thing",
    )


def _partings(module: nn.Module) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield path and name of each object and tensor, and what parts it from all that share it."""
    objects = cpp_objects(module)
    for path, value in objects.items():
        yield path, f"'{path}' of {cpp_class(value)}", lambda value=value: _put_back(value)  # type: ignore[misc]
    inside = tuple(f"{path}." for path in objects)
    found: dict[int, list[Leaf]] = {}
    for leaf in leaves(module):
        if isinstance(leaf.value, torch.Tensor) and not leaf.path.startswith(inside):
            found.setdefault(id(leaf.value), []).append(leaf)
    for held in list(found.values())[:_MOST_PARTED]:
        what = f"the {held[0].kind} '{held[0].path}'"
        yield held[0].path, what, lambda held=held: _replace(module, held)  # type: ignore[misc]


def _put_back(value: Any) -> None:
    if is_pickled(value):
        put_state(value, state_of(value))


def _replace(module: nn.Module, held: Sequence[Leaf]) -> None:
    new = held[0].value.detach().clone()
    if held[0].kind == "parameter":
        new = nn.Parameter(new, requires_grad=False)
    for leaf in held:
        write(module, leaf.path, new)


def _changes(
    module: nn.Module, call: Call, steps: Steps, ours: Forked, part: Callable[[], None]
) -> bool:
    """Whether a module answers otherwise where one of its parts is made anew."""

    def parted() -> Iterator[Tensors]:
        part()
        yield from _outputs(module, call, steps)

    return _first_difference(ours, values_in_fork(parted)) is not None
