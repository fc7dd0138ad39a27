"""Refuses modules in forms and modes whose state cannot be followed from Python."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from stateful_pipeline.errors import StateError
from stateful_pipeline.model.holders import children, holders


def refuse_scripted(module: nn.Module) -> None:
    """Refuse what hides its state from Python: TorchScript modules and objects of C++ classes."""
    for path, value in _opaque(module):
        kind = "a ScriptModule" if isinstance(value, torch.jit.ScriptModule) else "a C++ object"
        raise StateError(
            f"is {kind}, whose state cannot be seen from Python; it is not supported yet",
            attribute=path or type(module).__name__,
            hint="use the nn.Module that it was made from",
        )


def _opaque(module: nn.Module) -> Iterator[tuple[str, object]]:
    opaque = (torch.jit.ScriptModule, torch.ScriptObject)
    if isinstance(module, opaque):
        yield "", module
    names = {id(inner): name for name, inner in module.named_modules()}
    for holder in holders(module):
        prefix = names.get(id(holder), "")
        for key, value, _ in children(holder) or ():
            if isinstance(value, opaque):
                yield f"{prefix}.{key}" if prefix else key, value


def refuse_training(module: nn.Module) -> None:
    """Refuse layers whose training mode would change statistics or drop at random."""
    for name, inner in module.named_modules():
        if inner.training and isinstance(inner, nn.modules.batchnorm._NormBase):
            if not inner.track_running_stats:
                continue
            what = "would update its running statistics"
        elif inner.training and isinstance(inner, nn.modules.dropout._DropoutNd) and inner.p > 0:
            what = "would drop elements at random"
        else:
            continue
        raise StateError(
            f"the {type(inner).__name__} is in training mode, in which it {what}",
            attribute=name or type(inner).__name__,
            hint="call module.eval() first",
        )
