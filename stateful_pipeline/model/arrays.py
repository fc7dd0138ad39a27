"""Tensors to numpy arrays and back, bfloat16 included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stateful_pipeline.contract import numpy_dtype

Array = np.ndarray[Any, Any]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the contract's name of a torch dtype: ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return ``tensor`` as a numpy array; bfloat16 becomes ``ml_dtypes.bfloat16``."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(numpy_dtype("bfloat16"))
    array: Array = tensor.numpy()
    return array


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Return :func:`to_numpy` of each."""
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}
