"""Sphere helpers shared by losses, methods and evaluation. Computed in float32 or better, whatever autocast says."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(values: Tensor) -> Tensor:
    """Return ``values`` in float32, or unchanged when they are float32 or float64 already.

    Args:
        values: any shape, floating.

    Example:
        >>> upcast(torch.zeros(2, dtype=torch.bfloat16)).dtype
        torch.float32
        >>> upcast(torch.zeros(2, dtype=torch.float64)).dtype
        torch.float64
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def normalize(vectors: Tensor, eps: float = 1e-12) -> Tensor:
    """Scale the last axis to unit length: ``v / max(|v|, eps)``; zero vectors stay zero and keep finite gradients.

    Args:
        vectors: (..., D) floating; half precision is computed in float32.
        eps: smallest norm that is divided by.

    Returns:
        (..., D) in float32 or float64.

    Example:
        >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(upcast(vectors), dim=-1, eps=eps)
