"""Margin loss with distance-weighted sampling (Wu 2017, "Sampling matters in deep embedding learning").

D_ij = |z_i - z_j| of unit embeddings. For each anchor a and each positive p one negative n is drawn;
L = Σ [(D_ap - β_{y_a} + m)₊ + (β_{y_a} - D_an + m)₊] / number of non-zero terms, plus ν Σ β_{y_a} over the same number.
Negatives are drawn with log w(D) = -[(M-2) log D + (M-3)/2 log(1 - D²/4)], the inverse of the density of distances on
the sphere, D clipped below at 0.5 and no weight beyond 1.4. Defaults m = 0.2, β = 1.2, ν = 0.
β is learnable, one a class, and wants its own learning rate (5e-4 in the source). The batch is one set, so gradient
accumulation is not the bigger batch. Unchanged by rotating and by rescaling any row. Computed in float32 or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.losses.base import MetricLoss
from proxemics.losses.checks import check_batch, check_number
from proxemics.losses.draws import Draws
from proxemics.losses.fused import carry_nan, compute_dtype, empty_loss, unit_rows

Triplets = tuple[Tensor, Tensor, Tensor]
"""Anchors, positives and negatives as row numbers, each (T,) int64."""


def log_weights(distances: Tensor, dim: int) -> Tensor:
    """Return the log of the inverse density of distances between random unit vectors, up to a constant.

    Args:
        distances: any shape, in (0, 2].
        dim: M, the embedding dimension.

    Returns:
        The same shape.

    Example:
        >>> round(float(log_weights(torch.tensor(0.5, dtype=torch.float64), 128)), 4)
        91.3702
    """
    inner = (1 - distances.square() / 4).clamp_min(1e-8)
    return -((dim - 2) * distances.log() + (dim - 3) / 2 * inner.log())


@torch.no_grad()
def distance_weighted_triplets(
    embeddings: Tensor,
    labels: Tensor,
    *,
    cutoff: float = 0.5,
    upper: float = 1.4,
    generator: torch.Generator | None = None,
) -> Triplets:
    """Pair each anchor with each of its positives and draw one negative a pair, evenly over distance.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers.
        cutoff: distances are clipped below at this value, so that near duplicates do not take all draws.
        upper: negatives beyond this distance are not drawn, unless an anchor has no other.
        generator: CPU generator of the draws; the global one when None.

    Returns:
        Anchors, positives, negatives: (T,) int64 each; T = 0 when there is no positive pair or no negative.

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> distance_weighted_triplets(z, y, upper=1.5)
        (tensor([0, 1]), tensor([1, 0]), tensor([2, 2]))
    """
    same = labels[:, None] == labels
    pairs = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors, positives = (pairs & (~same).any(1, keepdim=True)).nonzero(as_tuple=True)
    if not len(anchors):
        return anchors, positives, anchors
    weights = sampling_weights(embeddings, same, cutoff, upper)
    return anchors, positives, _draw(weights, anchors, generator)


@torch.no_grad()
def sampling_weights(embeddings: Tensor, same: Tensor, cutoff: float, upper: float) -> Tensor:
    """Return how likely each row is as a negative of each anchor, up to a factor a row.

    Args:
        embeddings: (B, M) floating, B >= 1.
        same: (B, B) bool, whether two rows share a label; those get weight 0.
        cutoff: lower clip of the distances.
        upper: no weight beyond; a row without any weight gets equal weights on all other labels.

    Returns:
        (B, B) in [0, 1].
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        units = unit_rows(embeddings.to(compute_dtype(embeddings)))
        distances = (2 - 2 * (units @ units.t())).clamp_min_(0).sqrt_()
        logits = log_weights(distances.clamp_min(cutoff), units.shape[1])
        logits.masked_fill_(same | (distances > upper), -math.inf)
        top = logits.amax(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
        weights = (logits - top).exp_()
        return torch.where(weights.sum(1, keepdim=True) > 0, weights, (~same).to(weights.dtype))


def _draw(weights: Tensor, rows: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one column for each entry of ``rows`` with probability in proportion to weights[row]."""
    sums = weights.double().cumsum(1)
    chance = torch.rand(len(rows), dtype=torch.float64, generator=generator).to(weights.device)
    # 1 - chance lies in (0, 1], so the first column whose running sum reaches it has a weight above 0
    target = (1 - chance) * sums[rows, -1]
    return torch.searchsorted(sums[rows], target[:, None])[:, 0]


@dataclass(frozen=True)
class _Options:
    margin: float
    nu: float
    cutoff: float
    upper: float

    def __post_init__(self) -> None:
        check_number("margin", self.margin, low=0)
        check_number("nu", self.nu, low=0)
        check_number("cutoff", self.cutoff, low=0, high=2, open_low=True)
        check_number("upper", self.upper, low=0, open_low=True)
        if self.upper < self.cutoff:
            raise LossError(
                f"upper must be at least cutoff={self.cutoff:g}, got {self.upper:g}. The paper uses 0.5 and 1.4."
            )


def margin_loss(
    embeddings: Tensor, labels: Tensor, *, beta: Tensor, triplets: Triplets, margin: float = 0.2, nu: float = 0.0
) -> Tensor:
    """Hinge on distances: positives inside β - m, negatives outside β + m.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        beta: (C,) floating, the boundary of each class.
        triplets: anchors, positives, negatives; see :func:`distance_weighted_triplets`.
        margin: m >= 0.
        nu: ν >= 0, weight of the sum of boundaries.

    Returns:
        Scalar; 0 with a graph when there is no triplet.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> triplets = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
        >>> round(float(margin_loss(z, y, beta=torch.tensor([1.2, 1.2]), triplets=triplets)), 4)
        0.4142
    """
    _Options(margin, nu, 0.5, 1.4)
    labels = check_batch(embeddings, labels, num_classes=len(beta))
    dtype = compute_dtype(embeddings, beta)
    with torch.autocast(embeddings.device.type, enabled=False):
        units, beta = unit_rows(embeddings.to(dtype)), beta.to(dtype)
        anchors, positives, negatives = triplets
        if not len(anchors):
            return empty_loss(units, beta)
        near = _distance(units[anchors], units[positives])
        far = _distance(units[anchors], units[negatives])
        boundary = beta[labels[anchors]]
        pull, push = (near - boundary + margin).relu(), (boundary - far + margin).relu()
        active = ((pull > 0).sum() + (push > 0).sum()).clamp_min(1)
        return (pull.sum() + push.sum() + nu * boundary.sum()) / active + carry_nan(units)


def _distance(first: Tensor, second: Tensor) -> Tensor:
    """Return |first - second| by row; duplicates are at 0 with no gradient."""
    distance: Tensor = torch.linalg.vector_norm(first - second, dim=1)
    return distance


class MarginLoss(MetricLoss):
    """:func:`margin_loss` with a learnable boundary a class and its own sampler.

    Args:
        num_classes: C.
        dim: M.
        margin: m.
        beta: start of every boundary β.
        nu: ν.
        cutoff: lower clip of distances in the sampler.
        upper: largest distance drawn.
        seed: of the sampler; its state is in the state dict, so a resumed run draws what the other would have drawn.
        generator: taken for a uniform constructor; the start draws nothing.

    Attributes:
        beta: nn.Parameter (C,) float32.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = MarginLoss(10, 4)
        >>> loss(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])).shape
        torch.Size([])
    """

    stochastic = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        cutoff: float = 0.5,
        upper: float = 1.4,
        seed: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        check_number("beta", beta, low=0, high=2)
        _Options(margin, nu, cutoff, upper)
        self.margin = margin
        self.nu = nu
        self.cutoff = cutoff
        self.upper = upper
        self.draws = Draws(seed, "margin")
        self.beta = nn.Parameter(torch.full((num_classes,), float(beta)))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        labels = check_batch(embeddings, labels, num_classes=self.num_classes, dim=self.dim)
        triplets = distance_weighted_triplets(
            embeddings, labels, cutoff=self.cutoff, upper=self.upper, generator=self.draws.next()
        )
        return margin_loss(embeddings, labels, beta=self.beta, triplets=triplets, margin=self.margin, nu=self.nu)
