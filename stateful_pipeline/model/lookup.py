"""Finds what a holder holds under one name without listing all the rest.

:func:`~stateful_pipeline.model.entries.entries` says what there is; a model with a thousand states
is read a thousand times in each step, each time by one path.  So the usual holders, modules and
lists, are asked for the name itself.  What is not found so may still be there under another form
of its name, and is looked for among all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stateful_pipeline.model.entries import REGISTRIES, Entry, entries, of_tensor
from stateful_pipeline.model.scripted import Slot, is_scripted, member


def first_entry(holder: Any, path: str) -> Entry | None:
    """Return the entry of ``holder`` with which ``path`` begins; of several, the shortest name."""
    found = _direct(holder, path.partition(".")[0])
    if found is not None:
        return found
    listed = of_tensor(holder) if isinstance(holder, torch.Tensor) else entries(holder) or ()
    fits = [e for e in listed if path == e.name or path.startswith(e.name + ".")]
    return min(fits, key=lambda entry: len(entry.name), default=None)


def _direct(holder: Any, name: str) -> Entry | None:
    if is_scripted(holder):
        held = member(holder, name)
        return None if held is None else Entry(name, *held, Slot(name))
    if isinstance(holder, nn.Module):
        for kind, registry in REGISTRIES:
            values = holder.__dict__[registry]
            if name in values:
                return Entry(name, values[name], kind, (registry, name))
    elif type(holder) in (list, tuple) and name.isdecimal():
        index = int(name)
        if index < len(holder) and str(index) == name:
            return Entry(name, holder[index], "item", index)
    return None
