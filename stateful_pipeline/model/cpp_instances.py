"""Makes instances of explicit forms, and says what is wrong with a class that cannot be one."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from stateful_pipeline.errors import Place, StateError

_VALUES = (tuple, list, dict, set, frozenset, str, bytes, int, float, torch.Tensor)


def new_instance(name: str, form: type, state: Any) -> Any:
    """Return a new instance of an explicit form, its layers in the mode of the model: eval.

    Args:
        name: The C++ class.
        form: The explicit form.
        state: The pickled state that the instance is made from, and may keep.

    Raises:
        StateError: The form cannot be made from the state, or cannot change what it holds.
    """
    what = f"the explicit form {form.__name__} of the C++ class {name}"
    why_fixed = _why_fixed(form)
    if why_fixed is not None:
        raise StateError(
            f"{what} is {why_fixed}, whose instances cannot change what they hold",
            place=place_of_class(form),
            hint="write a plain class, whose methods assign to attributes: self.level = ...",
        )
    words = _words(state)
    try:
        with torch.random.fork_rng(devices=[]):  # a layer in it begins with random weights
            made = form(state)
    except Exception as error:  # the user's class may raise anything
        raise StateError(
            f"{what} cannot be made from a pickled state: {type(error).__name__}: {error}",
            place=place_of_class(form),
            hint=f"its constructor takes what {name} pickles: {words}",
        ) from error
    for held in (made, *getattr(made, "__dict__", {}).values()):
        if isinstance(held, nn.Module):
            if "_modules" not in vars(held):
                cls = type(held)
                raise StateError(
                    f"{what}: {cls.__name__} is an nn.Module that does not call its constructor",
                    place=place_of_class(cls),
                    hint="begin __init__ with super().__init__()",
                )
            held.eval()
    return made


def place_of_class(cls: type) -> Place | None:
    """Return where a class is written, if it is in a file."""
    try:
        file, (_, line) = inspect.getsourcefile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return None
    return None if file is None else Place(file, line)


def _why_fixed(form: type) -> str | None:
    """Return why the instances of a class stay as they are made, or None if they do not."""
    value = next((kind for kind in _VALUES if issubclass(form, kind)), None)
    if value is not None:
        return f"a {value.__name__}"
    parameters = getattr(form, "__dataclass_params__", None)
    return "a frozen dataclass" if parameters is not None and parameters.frozen else None


def _words(state: Any) -> str:
    if isinstance(state, torch.Tensor):
        return f"a tensor {list(state.shape)}"
    if isinstance(state, tuple):
        return f"a tuple of {', '.join(map(_words, state))}"
    return f"a {type(state).__name__}"
