"""Every kind of store that a random module may have, as lines of Python.

A statement is a template.  ``{T}`` is a float buffer of shape [3, 4] and ``{U}`` another one of
the same module; ``{N}`` and ``{F}`` are 0-d int64 and float32 buffers; ``{V}`` is a value of shape
[3, 4] within (-1, 1) and ``{O}`` the tensor that it comes from; ``{L}`` is a local tensor [3, 4]
that shares its memory with nothing; ``{h}`` and ``{g}`` are names that nobody else uses; ``{P}``
and ``{Q}`` are a view and a view of a view; ``{k}`` is 0, 1 or 2; ``{i}`` is the variable of the
nearest loop; ``{C}`` is a condition.  The local ``v`` carries values to the module's output.

``DEFINITE`` statements say in each line which memory is written, whatever the values are.
``AMBIGUOUS`` ones do not: it depends on a condition, on strides, or on what comes later.
"""

from __future__ import annotations

import itertools

import torch

SHAPE = (3, 4)

DEFINITE = {
    # what the attribute is, is replaced
    "reassign": "{T} = {T} * 0.5 + {V}",
    "reassign_where": "{T} = torch.where({V} > 0.1234, {V}, {T})",
    "reassign_to_shifted": "{T} = torch.cat([{T}[1:], {V}[:1]])",
    "reassign_to_rolled": "{T} = torch.roll({T}, 1, {k} % 2)",
    "reassign_elsewhere": "self.inner.c = self.inner.c * 0.5 + {V}",
    "swap": "{T}, {U} = {U}, {T}",
    "swap_by_hand": "{h} = {T}\n{T} = {U}\n{U} = {h}",
    # operators that work in place
    "augment": "{T} += 0.25 * {V}",
    "augment_by_number": "{T} *= 0.5",
    "in_place": "{T}.mul_(0.5).add_({V})",
    "in_place_elsewhere": "self.inner.c.mul_(0.5).add_({V})",
    "copy": "{T}.copy_(0.5 * {T}.flip(0) + {V})",
    "copy_row_to_all": "{T}.copy_({V}[{k}])",
    "index_copy": "{T}.index_copy_(0, (self.t % 3).reshape(1), {V}[{k} : {k} + 1])",
    "index_add": "{T}.index_add_(0, torch.tensor([{k}]), 0.25 * {V}[:1])",
    "index_fill": "{T}.index_fill_(1, torch.tensor([{k}, 3]), 0.3)",
    "scatter": "{T}.scatter_(1, torch.tensor([[{k}], [0], [2]]), {V}[:, :1])",
    "zero": "{T}[{k}].zero_()",
    "fill": "{T}.fill_(0.25)",
    "clamp": "{T}.clamp_(-0.5, 0.75)",
    "tanh": "{T}.tanh_()",
    "masked_fill": "{T}.masked_fill_({V} > 0.1234, 0.3)",
    "out": "torch.mul({T}, {V}, out={T})",
    "out_into_row": "torch.tanh({O}[0], out={T}[{k}])",
    "data": "{T}.data.mul_(0.5)",
    "detach": "{T}.detach().mul_(0.5)",
    # item assignment
    "item": "{T}[{k}] = {V}[0]",
    "item_slice": "{T}[1:, {k} : {k} + 2] = {V}[1:, :2]",
    "item_column": "{T}[:, {k}] = {V}[:, 0]",
    "item_step": "{T}[::2] = {V}[:2]",
    "item_whole": "{T}[:] = 0.5 * {T} + {V}",
    "item_ellipsis": "{T}[..., {k}] = 0.3",
    "item_shift": "{T}[:-1] = {T}[1:].clone()",
    "item_tensor": "{T}[self.t % 3] = {V}[{k}]",
    "item_tensors": "{T}[torch.tensor([2, 0])] = {V}[:2]",
    "item_pairs": "{T}[torch.tensor([0, 2]), torch.tensor([1, {k}])] = {V}[0, :2]",
    "item_counted": "{T}[int({N}) % 3] = {V}[{k}]",
    "item_looped": "{T}[int({i}) % 3] = {V}[int({i}) % 3]",
    "item_mask": "{T}[{V} > 0.1234] = 0.3",
    "item_mask_values": "{T}[{V} > 0.1234] = {V}[{V} > 0.1234]",
    "item_row_mask": "{T}[{V}[:, {k}] > 0.1234] = 0.3",
    "item_augment": "{T}[{k}] += 0.25 * {V}[{k}]",
    "item_augment_slice": "{T}[:, 1:] *= 0.5",
    # through views
    "view": "{T}{P}.copy_({V}{P})",
    "view_of_view": "{T}{Q}.add_(0.25 * {V}{Q})",
    "view_item": "{T}{P}[0] = {V}{P}[0]",
    "view_flat": "{T}.view(-1)[2:5] = {V}.view(-1)[{k} : {k} + 3]",
    "view_named": "{h} = {T}{P}\n{h} *= 0.5",
    "view_named_twice": "{h} = {T}[1:]\n{g} = {h}.t()[{k}]\n{g}.add_(0.125)\n"
    "v = 0.5 * v + {h}.mean()",
    "view_chunk": "{T}.chunk(2, 1)[1].mul_(0.5)",
    "view_unbind": "{T}.unbind(0)[{k}].add_(0.25 * {V}[0])",
    "view_split": "{h}, {g} = {T}.split(2, 1)\n{g}.copy_({V}[:, :2])\nv = 0.5 * v + {h}.mean()",
    # two names for one tensor
    "share": "{T} = {U}\n{T}.mul_(0.5)\nv = 0.5 * v + {U}\n{T} = {T}.clone()",
    "share_elsewhere": "self.inner.c = {T}\n{T}.mul_(0.5)\nself.inner.c = self.inner.c * 1.0",
    "share_local": "{h} = 0.5 * {V}\n{T} = {h}\n{h}.add_(0.125)\nv = 0.5 * v + {T}",
    "held_and_written": "{h} = {T}\n{T}.add_(0.25 * {V})\nv = 0.5 * v + {h}",
    "held_and_reassigned": "{h} = {T}\n{T} = {T} * 0.5 + {V}\nv = 0.5 * v + {h}",
    "held_view": "{h} = {T}{P}\n{T}.mul_(0.5)\nv = 0.5 * v + {h}.mean()",
    "held_clone": "{h} = {T}.clone()\n{T}.mul_(0.5)\nv = 0.5 * v + {h}",
    "orphaned": "{h} = {T}\n{T} = {V}\n{h}.add_(0.5)\nv = 0.5 * v + {h}",
    "held_into_if": "{h} = {T}\nif {C}:\n    {h}.mul_(0.5)\n    v = 0.5 * v + {T}",
    "held_into_for": "{h} = {T}\nfor {g} in range(2):\n    {h}.mul_(0.5)\n    v = 0.5 * v + {T}",
    "view_into_if": "{h} = {T}[1:]\nif {C}:\n    {h}.add_(0.25 * {V}[1:])\nv = 0.5 * v + {T}",
    "view_into_for": "{h} = {T}.view(-1)\nfor {g} in range(3):\n    {h}[{g} + 1] = 0.125 * {g}",
    "tuple_loop": "for {h} in ({T}, {U}):\n    {h}.mul_(0.5)",
    # in other functions
    "function": "blend({T}, {V})",
    "function_of_view": "blend({T}[1:], {V}[:2])",
    "function_returns_view": "row({T}, {k}).mul_(0.5)",
    "method": "v = 0.5 * v + self.bump({V})",
    "method_returns_buffer": "self.held().mul_(0.5)",
    "call": "v = 0.5 * v + self.inner({V})",
    "call_on_own_buffer": "v = 0.5 * v + self.inner(self.inner.c)",
    # local tensors and lists
    "local": "{L} = 0.5 * {L} + {V}",
    "local_in_place": "{L}.mul_(0.5).add_({V})",
    "local_item": "{L}[{k}] = {V}[0]",
    "local_mask": "{L}[{V} > 0.1234] = 0.5",
    "local_view": "{L}{Q}.copy_({V}{Q})",
    "local_shared": "{h} = {L}\n{h}.mul_(0.5)",
    "local_zeros": "{h} = torch.zeros(3, 4)\n{h}[{k}] = {V}[0]\nv = 0.5 * v + {h}",
    "local_filled": "{h} = torch.zeros_like(x)\nfor {g} in range(x.size(0)):\n"
    "    {h}[{g}] = {V}[{g}]\nv = 0.5 * v + {h}",
    "list_append": "rows.append({V}[{k}])",
    "list_item": "rows[0] = {V}[{k}]",
    # numbers of no dimension
    "count": "{N} += 1",
    "count_reassign": "{N} = {N} + 1",
    "count_in_place": "{N}.add_(1)",
    "level": "{F} += 0.25 * {V}.mean()",
    "level_reassign": "{F} = 0.5 * {F} + {V}.mean()",
    "level_copy": "{F}.copy_({V}.max())",
}

AMBIGUOUS = {
    "either": "{h} = {T}\nif {C}:\n    {h} = {U}\n{h}.mul_(0.5)",
    "either_in_one_line": "{h} = {T} if {C} else {U}\n{h}.add_(0.25 * {V})",
    "either_in_turn": "{h}, {g} = {T}, {U}\nfor _ in range(3):\n    {h}.add_(0.125)\n"
    "    {h}, {g} = {g}, {h}\n    {g}.mul_(0.5)",
    "list_of_buffers": "for {h} in [{T}, {U}]:\n    {h}.mul_(0.5)",
    "list_of_views": "rows.append({T}[{k}])",
    "lasting_name": "p = {T}",  # p is written to when forward ends
    "lasting_share": "{T} = {U}",  # the two are told apart when forward ends
    "lasting_input": "{T} = x",
    "maybe_view": "{T}.reshape(4, 3)[{k}].mul_(0.5)",
    "maybe_copy": "{T}.t().contiguous()[{k}].mul_(0.5)",
}

STORES = DEFINITE | AMBIGUOUS

_NO_SECOND_MODULE = "the submodule has no submodule"
INFEASIBLE: dict[tuple[str, str], str] = {
    (kind, "submodule"): _NO_SECOND_MODULE
    for kind in (
        "call",
        "call_on_own_buffer",
        "reassign_elsewhere",
        "in_place_elsewhere",
        "share_elsewhere",
    )
} | {
    ("item_looped", block): "no loop, so that it has no variable"
    for block in ("top", "submodule", "if", "else", "nested_if", "return")
}
"""Pairs of a kind of store and a kind of block that cannot be, and why."""

_VIEWS = (
    "[0]",
    "[-1]",
    "[1:]",
    "[:, 1]",
    "[..., 1:]",
    "[::2]",
    "[None]",
    ".t()",
    ".view(-1)",
    ".view(2, 6)",
    ".unsqueeze(1)",
    ".squeeze()",
    ".select(1, 2)",
    ".narrow(1, 1, 2)",
    ".transpose(0, 1)",
    ".permute(1, 0)",
    ".diagonal()",
    ".unflatten(1, (2, 2))",
    ".detach()",
)


def _chains(length: int) -> tuple[str, ...]:
    """Return every chain of views that a contiguous tensor of the buffers' shape allows."""
    chains = ("".join(parts) for parts in itertools.product(_VIEWS, repeat=length))
    return tuple(chain for chain in chains if _is_view(chain))


def _is_view(chain: str) -> bool:
    base = torch.zeros(SHAPE)
    try:
        view = eval(f"base{chain}", {"base": base})
    except (RuntimeError, IndexError):
        return False  # not of this shape
    same = view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    return same and view.dim() > 0


VIEWS = _chains(1)
VIEWS_OF_VIEWS = _chains(2)
