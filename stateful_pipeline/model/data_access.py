"""Keeps reads and writes of ``tensor.data`` in the graph, where the tracer would lose them.

``t.data`` is a view of ``t`` that autograd does not see, and capture runs without autograd anyway:
``t.detach()``.  ``t.data = v`` gives ``t`` the elements of ``v``: ``t.copy_(v)``, where dtype and
shape stay.  Code that relies on ``t`` and ``v`` then sharing memory comes out different, which the
comparison with eager finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stateful_pipeline.errors import StateError

_GET = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class DataAccess(TorchFunctionMode):
    """While active, ``tensor.data`` and ``tensor.data = value`` are traced."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Redirect the two accessors of ``data``."""
        if func == _GET:
            return args[0].detach()
        if func == _SET:
            tensor, value = args
            if tensor.shape != value.shape or tensor.dtype != value.dtype:
                raise StateError(
                    f"`.data = ...` changes a tensor from {tensor.dtype}{list(tensor.shape)} to "
                    f"{value.dtype}{list(value.shape)}, which is not supported",
                    hint="reassign the attribute instead",
                )
            tensor.copy_(value)
            return None
        return func(*args, **(kwargs or {}))
