"""Finds what calls change and a module's own ``reset`` method leaves as they left it.

What that method leaves in a fresh module is the initial state, to which an engine goes back as a
whole.  A method that takes a part of it back, as one that clears a buffer and goes on counting,
does something else in the middle of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stateful_pipeline.model.cpp_objects import is_pickled, own_copy, same_state, state_of
from stateful_pipeline.model.cpp_places import cpp_objects
from stateful_pipeline.model.entries import PLAIN
from stateful_pipeline.model.holders import leaves
from stateful_pipeline.model.inputs import InputPlan
from stateful_pipeline.model.reference import Call, exact_kernels
from stateful_pipeline.model.snapshot import Snapshot

_STEPS = 4


def left_by_reset(
    module: nn.Module,
    reset: str,
    call: Call,
    plan: InputPlan,
    sizes: Sequence[Mapping[str, int]],
) -> tuple[str, ...]:
    """Return the paths of what calls change and the method ``reset`` leaves as they left it.

    Args:
        module: In its initial state, in which it stays.
        reset: The method.
        call: Calls the entry point.
        plan: The inputs.
        sizes: Sizes of the axes, of which the first is taken at which both can be called.
    """
    for each in sizes:
        with Snapshot(module), torch.no_grad(), exact_kernels():
            initial = _held(module)
            try:
                for given in plan.steps(each, 0, _STEPS):
                    call(module, given)
                before = _held(module)
                getattr(module, reset)()
            except Exception:  # noqa: BLE001, S112 - any module may raise anything at other sizes
                continue
            after = _held(module)
        left = [p for p in before if p in after and same_state(before[p], after[p])]
        return tuple(p for p in left if p not in initial or not same_state(initial[p], after[p]))
    return ()


def _held(module: nn.Module) -> dict[str, Any]:
    """Return copies of the values that a module holds, each by its first path."""
    held: dict[str, Any] = {}
    seen: set[int] = set()
    for leaf in leaves(module):
        is_tensor = isinstance(leaf.value, torch.Tensor)
        if is_tensor and id(leaf.value) in seen:
            continue
        if is_tensor or isinstance(leaf.value, PLAIN):
            seen.add(id(leaf.value))
            held[leaf.path] = own_copy(leaf.value)
    for path, value in cpp_objects(module).items():
        inside = any(name.startswith(f"{path}.") for name in held)
        if is_pickled(value) and not inside:  # its class has no explicit form
            state = state_of(value)
            parts = enumerate(state) if isinstance(state, tuple) else ()
            held |= {f"{path}[{index}]": part for index, part in parts} or {path: state}
    return held
