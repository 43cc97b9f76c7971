"""Proxy Anchor as the authors of the probabilistic proxies wrote it, for reproducing their regularised runs.

Each column of the batch contributes the pull of its own class, so that a class counts as often as it is in the batch.
With equally many pictures of every class present it is Proxy Anchor.

Source: Kirchhof et al., ECCV 2022, authors' release (formula only).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxemics.core.geometry import normalize
from proxemics.losses.checks import check_inputs


def released_proxy_anchor(
    embeddings: Tensor, labels: Tensor, *, proxies: Tensor, alpha: float = 32.0, delta: float = 0.1
) -> Tensor:
    """Return mean_k log(1 + Σ_{i: y_i=y_k} e^{-α(S_iy-δ)}) + mean_c log(1 + Σ_{i: y_i≠c} e^{α(S_ic+δ)}).

    Args:
        embeddings: (B, M) floating, any length, B >= 1.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        alpha: scale.
        delta: margin on the cosine.

    Returns:
        Scalar.

    Raises:
        LossError: shapes or labels that do not fit.

    Example:
        >>> from proxemics.losses.functional import proxy_anchor
        >>> z, y, w = torch.eye(4), torch.tensor([0, 0, 2, 2]), torch.eye(4)[:3]
        >>> bool(torch.isclose(released_proxy_anchor(z, y, proxies=w), proxy_anchor(z, y, proxies=w)))
        True
    """
    labels = check_inputs(embeddings, labels, proxies)
    with torch.autocast(embeddings.device.type, enabled=False):
        cosines = normalize(embeddings) @ normalize(proxies).t()
        own = cosines.gather(1, labels[:, None])
        same = labels[:, None] == labels[None]
        pull = _log_one_plus((-alpha * (own - delta)).expand_as(same).masked_fill(~same, -math.inf))
        positive = torch.nn.functional.one_hot(labels, len(proxies)).bool()
        push = _log_one_plus((alpha * (cosines + delta)).masked_fill(positive, -math.inf))
        return pull.mean() + push.mean()


def _log_one_plus(logits: Tensor) -> Tensor:
    """log(1 + Σ exp) over the first axis."""
    return torch.logsumexp(torch.cat([logits.new_zeros(1, logits.shape[1]), logits]), 0)
