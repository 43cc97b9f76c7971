"""Losses of deep metric learning: proxy losses, two pair baselines and the contract that all of them keep.

Every loss is a pure function (in :mod:`proxemics.losses.functional`) and a thin module around it.

Example:
    >>> import torch
    >>> from proxemics.losses import ProxyAnchor
    >>> loss = ProxyAnchor(num_classes=100, dim=512)
    >>> loss(torch.randn(8, 512), torch.arange(8)).shape
    torch.Size([])
"""

from __future__ import annotations

from proxemics.losses.arcface import ArcFace
from proxemics.losses.base import MetricLoss, ProxyLoss
from proxemics.losses.build import LOSSES, build_loss, loss_options
from proxemics.losses.contract import check_loss
from proxemics.losses.cosface import CosFace
from proxemics.losses.margin import MarginLoss
from proxemics.losses.multi_similarity import MultiSimilarity
from proxemics.losses.norm_softmax import NormSoftmax
from proxemics.losses.pd_loss import PDLoss
from proxemics.losses.potential_field import PotentialField
from proxemics.losses.proxy_anchor import ProxyAnchor
from proxemics.losses.proxy_nca import ProxyNCA, ProxyNCAPlusPlus
from proxemics.losses.soft_triple import SoftTriple

__all__ = [
    "LOSSES",
    "ArcFace",
    "CosFace",
    "MarginLoss",
    "MetricLoss",
    "MultiSimilarity",
    "NormSoftmax",
    "PDLoss",
    "PotentialField",
    "ProxyAnchor",
    "ProxyLoss",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
    "SoftTriple",
    "build_loss",
    "check_loss",
    "loss_options",
]
