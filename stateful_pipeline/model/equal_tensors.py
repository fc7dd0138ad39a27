"""Whether two tensors are the same to the bit, whatever their layout."""

from __future__ import annotations

import torch


def equal_tensors(a: torch.Tensor, b: torch.Tensor) -> bool | None:
    """Whether two tensors have the same dtype, shape and bits, so that NaN equals NaN.

    None stands for a layout whose elements cannot be compared.
    """
    if a.is_nested or b.is_nested:
        return a.is_nested and b.is_nested and _equal_nested(a, b)
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout or a.device != b.device:
        return False
    if a.is_meta:
        return True  # it has no elements
    if a.layout == torch.strided and not a.is_quantized:
        return torch.equal(_bits(a), _bits(b))
    if a.is_quantized:
        return torch.equal(a, b)
    try:
        return torch.equal(a.detach().to_dense(), b.detach().to_dense())
    except (RuntimeError, NotImplementedError):
        return None


def _equal_nested(a: torch.Tensor, b: torch.Tensor) -> bool | None:
    if a.layout != b.layout:
        return False
    ours, others = a.detach().unbind(), b.detach().unbind()
    if len(ours) != len(others):
        return False
    found = [equal_tensors(one, other) for one, other in zip(ours, others, strict=True)]
    return None if None in found else all(found)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat
