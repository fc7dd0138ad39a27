"""Compares a module's C++ objects with the explicit forms of their classes.

Every call of a method is compared while the module takes some steps: what the C++ class returns and
holds afterwards with what its explicit form, made from the state before, returns and holds.  Then
the module with explicit forms takes the same steps by itself.  Floats may differ by what another
order of the same operators rounds; all else must be the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from stateful_pipeline.errors import PipelineError, StateError
from stateful_pipeline.model.cpp_calls import Intercepted
from stateful_pipeline.model.cpp_differences import in_short
from stateful_pipeline.model.cpp_forms import (
    copied_with,
    named_form,
    refuse_without_method,
    with_explicit_forms,
)
from stateful_pipeline.model.cpp_objects import (
    copied_object,
    cpp_class,
    is_cpp_object,
    make_form,
    own_copy,
    put_state,
    state_of,
)
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.equal_tensors import equal_tensors
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.reference import Reference, Tensors
from stateful_pipeline.model.scripted import is_scripted

STEPS = 64
"""So many steps are compared when states are found; ``verify`` says how many a target takes."""
_TOLERANCE = 1e-5


def check_form_calls(
    reference: Reference, plan: InputPlan, sizes: Sequence[Mapping[str, int]]
) -> None:
    """Compare each call of a module's C++ objects with what their explicit forms do.

    Args:
        reference: The module with its states found.
        plan: The inputs.
        sizes: The sizes at which it takes some steps.

    Raises:
        StateError: They differ; with class and method.
    """
    if cpp_objects(reference.module) and not is_scripted(reference.module):
        for at in sizes:
            _check_calls(reference, plan, at)


def check_form_steps(
    reference: Reference, plan: InputPlan, sizes: Sequence[Mapping[str, int]]
) -> None:
    """Compare a module with the same with explicit forms, each by itself.

    Args:
        reference: The module with its states found.
        plan: The inputs.
        sizes: The sizes at which both take some steps.

    Raises:
        StateError: They differ, although no call of a method does.
    """
    if with_explicit_forms(reference, plan) is not reference:
        for at in sizes:
            _check_steps(reference, plan, at)


def _check_steps(reference: Reference, plan: InputPlan, at: Mapping[str, int]) -> None:
    """Let both modules take the same steps, each by itself."""
    inputs = plan.steps(at, 0, STEPS)
    explicit = with_explicit_forms(reference, plan)
    classes = " and ".join(sorted({cpp_class(v) for v in cpp_objects(reference.module).values()}))
    # One after the other: each has gradients off while it goes on.
    expected = list(_until_it_raises(reference, at, inputs))
    for theirs, ours in zip(expected, explicit.rollout(at, inputs[: len(expected)]), strict=True):
        for kind, want, have in (
            ("output", theirs.outputs, ours.outputs),
            ("state", theirs.after, ours.after),
        ):
            wrong = next((n for n in want if n not in have or not alike(want[n], have[n])), None)
            if wrong is not None:
                raise StateError(
                    f"with the explicit form of {classes}, {kind} '{wrong}' of step {ours.index} "
                    "is another than with the C++ class, although each call by itself is equal: "
                    "one of the two holds, or shares, more than it pickles",
                    attribute=wrong if kind == "state" else None,
                    hint="let def_pickle and to_state() give everything that the methods read; a "
                    "form may keep nothing elsewhere, nor write to what it is given or returns",
                )


def _until_it_raises(
    reference: Reference, at: Mapping[str, int], inputs: Sequence[Tensors]
) -> Iterator[Any]:
    try:
        yield from reference.rollout(at, inputs)
    except PipelineError:
        return  # a cache may be full; that it runs at all has been seen before


def _check_calls(reference: Reference, plan: InputPlan, at: Mapping[str, int]) -> None:
    """Compare every call of a method of a C++ object while the module takes some steps."""
    with reference.on_loan():
        reference.lay(reference.initial(at))
        twins = {id(v): _Twin(p, v) for p, v in cpp_objects(reference.module).items()}
        module = copied_with(reference.module, twins)
        with torch.no_grad():
            for inputs in plan.steps(at, 0, STEPS):
                try:
                    reference.call(module, {n: v.clone() for n, v in inputs.items()})
                except PipelineError:
                    raise
                except Exception as error:  # noqa: BLE001 - it may have come to a fixed capacity
                    _refuse_operators(error, twins)
                    return


def _refuse_operators(error: Exception, twins: Mapping[int, _Twin]) -> None:
    if _Twin.__name__ not in str(error):
        return
    twin = next(iter(twins.values()))
    raise StateError(
        f"is an object of the C++ class {twin.name} that is given to an operator, which does not "
        "take its explicit form",
        attribute=twin.path,
        place=user_place(error),
        hint="call a method of the class instead",
    ) from error


class _Twin(Intercepted):
    """Compares each call of a C++ object with what the explicit form of its class does."""

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call both, and return what the C++ class returns."""
        form = make_form(self.name, state_of(self.object))
        refuse_without_method(self.path, self.object, form, method)
        function = getattr(form, method)
        ours = [_as_form(own_copy(value)) for value in args]
        our_named = {name: _as_form(own_copy(value)) for name, value in kwargs.items()}
        wanted = super().call(method, args, kwargs)
        try:
            got, state = function(*ours, **our_named), form.to_state()
        except Exception as error:  # the user's class may raise anything
            raise StateError(
                f"{named_form(self.name)}: '{method}' raises {type(error).__name__}: {error}",
                attribute=self.path,
                place=user_place(error),
            ) from error
        self._compare(method, "returns another result", wanted, got)
        self._compare(method, "leaves another state", state_of(self.object), self._taken(state))
        names = inspect.signature(function)
        given = names.bind(*map(_as_object, args), **{n: _as_object(v) for n, v in kwargs.items()})
        for name, value in names.bind(*ours, **our_named).arguments.items():
            does = f"leaves another value in its argument '{name}'"
            self._compare(method, does, given.arguments[name], value)
        return wanted

    def _taken(self, state: Any) -> Any:
        """Return what an object holds that is given a state; the state, if it is not taken."""
        after = copied_object(self.object)
        try:
            put_state(after, state)
        except (RuntimeError, TypeError, ValueError):
            return state
        return state_of(after)

    def _compare(self, method: str, does: str, want: Any, have: Any) -> None:
        if not alike(_as_object(want), have):
            raise StateError(
                f"{named_form(self.name)}: '{method}' {does} than the class: "
                f"{in_short(have)} instead of {in_short(want)}",
                attribute=self.path,
                hint="with the same arguments and in the same state, both have to do the same; "
                "where one size is that of an axis alone, declare the state's shape under `states`",
            )


def _as_object(value: Any) -> Any:
    return value.object if isinstance(value, _Twin) else value


def _as_form(value: Any) -> Any:
    return make_form(value.name, state_of(value.object)) if isinstance(value, _Twin) else value


def alike(want: Any, have: Any) -> bool:
    """Whether a C++ class gave what its explicit form, or a copy, gave: floats up to rounding."""
    if is_cpp_object(want):
        return alike(state_of(want), _state_of_form(want, have))
    if isinstance(want, torch.Tensor):
        return isinstance(have, torch.Tensor) and _alike_tensors(want, have)
    if isinstance(want, list | tuple):
        same = isinstance(have, list | tuple) and len(want) == len(have)
        return same and all(map(alike, want, have))
    if isinstance(want, dict):
        return want.keys() == have.keys() and all(alike(want[key], have[key]) for key in want)
    if isinstance(have, torch.Tensor) and have.ndim == 0:  # a number may be a 0-d tensor there
        have = have.item()
    if isinstance(want, float) and isinstance(have, int | float):
        return abs(want - have) <= _TOLERANCE * max(1.0, abs(want)) or (want != want != have)
    return bool(want == have)


def _state_of_form(value: Any, form: Any) -> Any:
    copied = copied_object(value)
    put_state(copied, form.to_state())
    return state_of(copied)


def _alike_tensors(want: torch.Tensor, have: torch.Tensor) -> bool:
    if want.shape != have.shape or want.dtype != have.dtype:
        return False
    if equal_tensors(want, have):
        return True
    if not want.is_floating_point():
        return False
    largest = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()) if want.numel() else 0.0
    return torch.allclose(
        want.double(), have.double(), _TOLERANCE, _TOLERANCE * max(largest, 1e-30), equal_nan=True
    )
