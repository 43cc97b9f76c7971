"""The pure functions behind the loss modules: ``(embeddings, labels, *, proxies, options) -> scalar``.

Example:
    >>> import torch
    >>> from proxemics.losses import functional
    >>> z, w = torch.eye(2), torch.eye(2)
    >>> functional.norm_softmax(z, torch.tensor([0, 1]), proxies=w).shape
    torch.Size([])
"""

from __future__ import annotations

from proxemics.losses.arcface import arcface
from proxemics.losses.cosface import cosface
from proxemics.losses.margin import distance_weighted_triplets, log_weights, margin_loss
from proxemics.losses.multi_similarity import multi_similarity
from proxemics.losses.norm_softmax import norm_softmax
from proxemics.losses.pd_loss import decidability, pd_loss
from proxemics.losses.potential_field import potential_field
from proxemics.losses.proxy_anchor import proxy_anchor
from proxemics.losses.proxy_nca import proxy_nca, proxy_nca_pp
from proxemics.losses.soft_triple import soft_triple

__all__ = [
    "arcface",
    "cosface",
    "decidability",
    "distance_weighted_triplets",
    "log_weights",
    "margin_loss",
    "multi_similarity",
    "norm_softmax",
    "pd_loss",
    "potential_field",
    "proxy_anchor",
    "proxy_nca",
    "proxy_nca_pp",
    "soft_triple",
]
