"""Says what a tensor holds in a few words, for tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def short(value: torch.Tensor) -> str:
    """Return a value in a few words: ``zeros``, ``7``, ``12 values from 0.1 to 2.3``."""
    if value.numel() == 0:
        return "empty"
    flat = value.detach().reshape(-1)
    if value.numel() == 1 or bool((flat == flat[0]).all()):
        return _uniform(flat[0], scalar=value.ndim == 0)
    if value.dtype == torch.bool:
        return f"{value.numel()} values, {int(flat.sum())} of them True"
    if value.is_complex():
        return f"{value.numel()} complex values"
    if not bool(flat.isfinite().all()):
        return f"{value.numel()} values, {int((~flat.isfinite()).sum())} of them not finite"
    return f"{value.numel()} values from {_digits(flat.min())} to {_digits(flat.max())}"


def _uniform(value: torch.Tensor, *, scalar: bool) -> str:
    names: Sequence[str] = () if scalar or value.dtype == torch.bool else ("zeros", "ones")
    text = _digits(value)
    return dict(zip(("0", "1"), names, strict=False)).get(text, text)


def _digits(value: torch.Tensor) -> str:
    return f"{value.item():.4g}" if value.is_floating_point() else str(value.item())
