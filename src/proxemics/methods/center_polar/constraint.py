"""C4, the centripetal constraint: seen and generated samples come to their centroid, classes keep apart.

    L_pull = mean_q (1 - ⟨q, c_{y_q}⟩),   L_cls = mean_q CE(⟨q, c_·⟩ / τ, y_q)
    L_sep  = mean_y 1/|J_y| Σ_{j∈J_y} [⟨ĉ_y, sg(c_j)⟩ - m]₊²,   ĉ_y = norm(mean of the q of class y)

J_y are the other centroids nearest to ĉ_y. Among C unit vectors some pair has a cosine of -1/(C-1) or more, so a margin
m below that can never be met; m = 0 can be met for C <= 2M. Source: our reading.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize, upcast
from proxemics.losses.checks import check_count, check_inputs, check_number
from proxemics.methods.center_polar.centroids import batch_means


class Constraint(NamedTuple):
    """The three parts of C4, scalars without their weights."""

    pull: Tensor
    cls: Tensor
    sep: Tensor


def check_margin(margin: float, num_classes: int) -> None:
    """Refuse a margin that no arrangement of centroids can meet.

    Raises:
        LossError: m < -1/(C-1), or not a cosine.

    Example:
        >>> check_margin(-0.5, 5)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: margin_c=-0.5 cannot be met: some pair of 5 centroids has a cosine of -0.25 ...
    """
    check_number("margin_c", margin, low=-1, high=1)
    if num_classes > 1 and margin < -1 / (num_classes - 1):
        raise LossError(
            f"margin_c={margin:g} cannot be met: some pair of {num_classes} centroids has a cosine of "
            f"{-1 / (num_classes - 1):g} or more; use margin_c=0."
        )


def centripetal_constraint(
    units: Tensor,
    labels: Tensor,
    centroids: Tensor,
    *,
    tau: float = 0.1,
    margin: float = 0.0,
    neighbours: int = 10,
    known: Tensor | None = None,
) -> Constraint:
    """Return L_pull, L_cls and L_sep.

    Args:
        units: (Q, M) floating, unit length: clean and generated embeddings together.
        labels: (Q,) integers in 0..C-1.
        centroids: (C, M) floating, unit length; a gradient flows into them in L_pull and L_cls if they ask for one.
        tau: temperature of the softmax over centroids.
        margin: m, a cosine.
        neighbours: size of J_y.
        known: (C,) bool, centroids that count as competitors; None: all.

    Returns:
        Scalars in float32 or float64; L_cls and L_sep are 0 where no class has a competitor.

    Raises:
        LossError: shapes, labels or options that do not fit.

    Example:
        >>> c = torch.eye(3)
        >>> parts = centripetal_constraint(c, torch.arange(3), c)
        >>> [round(float(part), 4) for part in parts]
        [0.0, 0.0001, 0.0]
    """
    check_number("tau", tau, low=0, open_low=True)
    check_count("neighbours", neighbours)
    check_margin(margin, len(centroids))
    labels = check_inputs(units, labels, centroids)
    q = upcast(units)
    c = centroids.to(q.dtype)
    cosines = q @ c.t()
    own = cosines.gather(1, labels[:, None])
    logits = cosines
    if known is not None:
        logits = cosines.masked_fill(~known, -math.inf).scatter(1, labels[:, None], own)
    cls = functional.cross_entropy(logits / tau, labels)
    return Constraint((1 - own).mean(), cls, _separation(q, labels, c.detach(), margin, neighbours, known))


def _separation(
    q: Tensor, labels: Tensor, centroids: Tensor, margin: float, neighbours: int, known: Tensor | None
) -> Tensor:
    classes, means = batch_means(q, labels)
    cosines = normalize(means) @ centroids.t()
    if known is not None:
        cosines = cosines.masked_fill(~known, -math.inf)
    cosines = cosines.scatter(1, classes[:, None], -math.inf)
    nearest = cosines.topk(min(neighbours, len(centroids)), dim=1).values
    counted = nearest > -math.inf
    hinge = torch.relu(nearest.masked_fill(~counted, margin) - margin)
    return (hinge.square().sum(1) / counted.sum(1).clamp_min(1)).mean()
