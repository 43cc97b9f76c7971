"""Backdoor adjustment: the loss of an embedding under backgrounds other than its own.

    P(y | do(x)) = Σ_k P(y | x, d_k) π_k        strata d_k of the dictionary, with their priors
    z^(k) = norm(z + ρ d_k),  ρ ~ U(0, ρ_max)   the embedding as it were with more of background k

* mc: one stratum k ~ π for each sample, through any loss. Its expectation bounds enum from above (Jensen).
* enum: all strata. For softmax losses -log Σ_k π_k p_k(y | x), which is the adjustment itself; for others
  Σ_k π_k L(z^(k)), the expectation of mc.
* nwgm: z + ρ Σ_k π_k a_k d_k with attention a = softmax_k(⟨W_q z, W_k d_k⟩/√h), the form of causal attention. Without
  attention the sum is the same for all samples, a shift of class biases that adjusts nothing.

Source: our reading of CouCE (arXiv 2606.30365); nwgm as in VC R-CNN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from proxemics.core.geometry import normalize
from proxemics.losses.base import ProxyLoss
from proxemics.losses.norm_softmax import NormSoftmax
from proxemics.losses.proxy_nca import ProxyNCA, ProxyNCAPlusPlus

Estimator = Literal["mc", "enum", "nwgm", "exchange"]


def shifted(embeddings: Tensor, directions: Tensor, rho: Tensor) -> Tensor:
    """Return norm(z + ρ d).

    Args:
        embeddings: (B, M) unit.
        directions: (B, M), or (M,) for all.
        rho: (B,) >= 0.

    Returns:
        (B, M) unit; for d ⟂ z every inner product with a w ⟂ d is divided by √(1+ρ²).

    Example:
        >>> shifted(torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, 1.0]), torch.tensor([0.75]))
        tensor([[0.8000, 0.6000]])
    """
    return normalize(embeddings + rho[:, None] * directions)


def draw_strata(
    count: int, prior: Tensor, rho_max: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a stratum k ~ π and a strength ρ ~ U(0, ρ_max) for each sample.

    Args:
        count: B.
        prior: (K,) >= 0, not all zero.
        rho_max: >= 0.
        generator: source of the draws, on the device of ``prior``.

    Returns:
        (B,) int64 and (B,) float32.

    Example:
        >>> draw_strata(3, torch.tensor([0.0, 1.0]), 0.0)
        (tensor([1, 1, 1]), tensor([0., 0., 0.]))
    """
    draws = torch.rand(2, count, generator=generator, device=prior.device)
    total = prior.cumsum(0)
    strata = torch.searchsorted(total, draws[0] * total[-1], right=True).clamp_max(len(prior) - 1)
    return strata, draws[1] * rho_max


def softmax_scale(loss: nn.Module) -> float | None:
    """Return the factor on the cosines of a loss that is a softmax over classes, None for other losses.

    Example:
        >>> softmax_scale(NormSoftmax(3, 4, sigma=0.05)), softmax_scale(ProxyNCA(3, 4))
        (20.0, None)
    """
    if isinstance(loss, NormSoftmax):
        return 1 / loss.sigma
    if isinstance(loss, ProxyNCAPlusPlus) or (
        isinstance(loss, ProxyNCA) and not loss.exclude_positive and loss.label_smoothing == 0
    ):
        return 2 * loss.scale * (loss.scale if loss.proxy_scale is None else loss.proxy_scale)
    return None


def enumerated(
    embeddings: Tensor, labels: Tensor, dictionary: Tensor, prior: Tensor, rho: Tensor, loss: nn.Module
) -> Tensor:
    """Return the loss over all strata.

    Args:
        embeddings: (B, M) unit.
        labels: (B,) int64.
        dictionary: (K, M) unit rows.
        prior: (K,), sums to 1.
        rho: (B,), one for all strata of a sample.
        loss: the base loss.

    Returns:
        Scalar.

    Example:
        >>> loss = NormSoftmax(3, 4)
        >>> z, y = torch.eye(4)[:2], torch.tensor([0, 2])
        >>> same = enumerated(z, y, torch.eye(4), torch.full((4,), 0.25), torch.zeros(2), loss)
        >>> torch.allclose(same, loss(z, y))
        True
    """
    scale = softmax_scale(loss)
    if scale is None:
        values = [loss(shifted(embeddings, atom, rho), labels) for atom in dictionary]
        return (torch.stack(values) * prior.to(values[0].dtype)).sum()
    assert isinstance(loss, ProxyLoss)
    parts = []
    for atom, share in zip(dictionary, prior.clamp_min(1e-30).log(), strict=True):
        logits = scale * loss.similarities(shifted(embeddings, atom, rho))
        parts.append(logits.log_softmax(1).gather(1, labels[:, None])[:, 0] + share)
    return -torch.logsumexp(torch.stack(parts), 0).mean()


def attended(
    embeddings: Tensor,
    dictionary: Tensor,
    prior: Tensor,
    rho: Tensor,
    query: Callable[[Tensor], Tensor],
    key: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return norm(z + ρ Σ_k π_k a_k d_k).

    Args:
        embeddings: (B, M) unit.
        dictionary: (K, M) unit rows.
        prior: (K,).
        rho: (B,).
        query: (B, M) -> (B, h).
        key: (K, M) -> (K, h).

    Returns:
        (B, M) unit.

    Example:
        >>> z, same = torch.eye(3)[:1], lambda x: x
        >>> attended(z, torch.eye(3)[1:2], torch.ones(1), torch.tensor([0.75]), same, same)
        tensor([[0.8000, 0.6000, 0.0000]])
    """
    queries = query(embeddings)
    attention = (queries @ key(dictionary).t() / math.sqrt(queries.shape[1])).softmax(1)
    return shifted(embeddings, (attention * prior) @ dictionary, rho)
