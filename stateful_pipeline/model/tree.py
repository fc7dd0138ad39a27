"""Names and flattens what ``forward`` returns.

A single tensor is ``output``; a tuple or list gives ``output_0``, ``output_1``, ...; a dict, a
dataclass or a named tuple gives its keys; nesting joins names with a dot.  ``None`` is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stateful_pipeline.errors import StageError, StateError


def named_outputs(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in ``value`` by name, in order.

    Raises:
        StateError: Something in it is neither a tensor nor a container of tensors: a number
            would be frozen in the exported graph.
        StageError: Two of them have one name.
    """
    named: dict[str, torch.Tensor] = {}
    for name, tensor in _named(value, ""):
        if name in named:
            raise StageError(
                f"forward returns two tensors that are called '{name}': nesting joins names with "
                "a dot, and items of a list get numbers",
                stage="script",
                hint="return one of them under another key",
            )
        named[name] = tensor
    return named


def _named(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield prefix or "output", value
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        base = prefix or "output"
        for index, item in enumerate(value):
            yield from _named(item, f"{base}_{index}")
        return
    else:
        raise StateError(
            f"forward returns {_article(type(value).__name__)} as '{prefix or 'output'}', "
            "which an exported graph would freeze to its value at export",
            hint="return tensors: torch.tensor(value)",
        )
    for key, item in items:
        yield from _named(item, f"{prefix}.{key}" if prefix else key)


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
