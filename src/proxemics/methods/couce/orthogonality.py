"""How much of the embeddings lies along the atoms, as a term that pushes it out.

    soft:  (1/B) Σ_i Σ_k ⟨z_i, d_k⟩²       for random unit vectors about K/M
    srip:  the largest eigenvalue of D (ZᵀZ/B) Dᵀ: only the worst direction in the span (soft is its trace)

Atoms are constants. Source: our reading of "soft orthogonal regularisation" in the abstract of CouCE (arXiv
2606.30365); srip after the spectral regulariser of Bansal et al. (NeurIPS 2018), applied to embeddings against atoms.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from proxemics.core.geometry import normalize

Orth = Literal["soft", "srip", "project"]
"""project takes the span out of the embeddings before the base loss instead of adding a term."""


def soft_orthogonality(embeddings: Tensor, dictionary: Tensor) -> Tensor:
    """Return ‖Z Dᵀ‖²_F / B, with a gradient to the embeddings alone.

    Args:
        embeddings: (B, M) unit.
        dictionary: (K, M) unit rows.

    Returns:
        Scalar.

    Example:
        >>> float(soft_orthogonality(torch.eye(2), torch.eye(2)[:1]))
        0.5
    """
    return (embeddings @ dictionary.detach().t()).square().sum() / max(len(embeddings), 1)


def spectral_orthogonality(embeddings: Tensor, dictionary: Tensor, start: Tensor, iterations: int = 2) -> Tensor:
    """Return vᵀ D (ZᵀZ/B) Dᵀ v after power iterations from ``start``; at most the largest eigenvalue.

    Args:
        embeddings: (B, M) unit.
        dictionary: (K, M) unit rows.
        start: (K,) any direction.
        iterations: power iterations, without a gradient.

    Returns:
        Scalar.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> float(spectral_orthogonality(z, torch.eye(2)[:1], torch.ones(1)))
        0.68...
    """
    table = embeddings @ dictionary.detach().t()
    with torch.no_grad():
        direction = normalize(start.to(table.dtype))
        for _ in range(iterations):
            direction = normalize(table.t() @ (table @ direction))
    return (table @ direction).square().sum() / max(len(table), 1)
