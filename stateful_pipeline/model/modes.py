"""Refuses modules in forms and modes whose state cannot be followed from Python."""

from __future__ import annotations

import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.cpp_forms import refuse_without_form
from stateful_pipeline.model.cpp_objects import cpp_class, is_cpp_object
from stateful_pipeline.model.scripted import (
    OPAQUE,
    class_name,
    constant,
    is_scripted,
    library_class,
)
from stateful_pipeline.model.survey import survey


def refuse_opaque(module: nn.Module) -> None:
    """Refuse what hides its state from Python, in the module or in what its code refers to.

    That are objects of TorchScript classes, and of C++ classes that have no explicit form.
    """
    for leaf in survey(module).leaves:
        if is_cpp_object(leaf.value):
            refuse_without_form(leaf.path, leaf.value)
            continue
        if isinstance(leaf.value, torch.ScriptObject):
            kind = f"an object of a TorchScript class ({cpp_class(leaf.value)})"
        elif leaf.kind == OPAQUE:
            kind = f"a value of a rare type ({type(leaf.value).__name__})"
        else:
            continue
        raise StateError(
            f"is {kind}, whose state cannot be seen from Python; it is not supported yet",
            attribute=leaf.path,
            hint="hold what survives between calls in registered buffers",
        )


def scripted_inside(module: nn.Module) -> str | None:
    """Return the path of the first ScriptModule in ``module`` (it may be itself), or None."""
    return next((name for name, inner in module.named_modules() if is_scripted(inner)), None)


def refuse_training(module: nn.Module) -> None:
    """Refuse layers whose training mode would change statistics or drop at random."""
    for name, inner in module.named_modules():
        cls = library_class(inner)
        if not getattr(inner, "training", False):
            continue  # a frozen ScriptModule has no mode
        if issubclass(cls, nn.modules.batchnorm._NormBase):
            if not constant(inner, "track_running_stats", True):
                continue
            what = "would update its running statistics"
        elif issubclass(cls, nn.modules.dropout._DropoutNd) and constant(inner, "p", 1) > 0:
            what = "would drop elements at random"
        else:
            continue
        kind = cls.__name__ if is_scripted(inner) else type(inner).__name__
        raise StateError(
            f"the {kind} is in training mode, in which it {what}",
            attribute=name or class_name(module),
            hint="call module.eval() first",
        )
