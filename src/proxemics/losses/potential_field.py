"""Potential-field metric learning (arXiv 2405.18560): samples and proxies as charges on the sphere.

r = max(|a - b|, 1e-4) of unit vectors; attraction (same label) ψ⁺(r) = -1 / max(r, δ)^α;
repulsion (other label) ψ⁻(r) = 1 / min(r, δ)^α;  U = Σ over ordered pairs of distinct nodes.
Attraction fades with distance and has no slope inside δ (no collapse); repulsion has a slope inside δ only.
δ = 0.2, α = 3 follow a public re-implementation (the paper prints them ambiguously); 15 proxies a class on CUB and
Cars, 2 on SOP.
The batch is one set, so gradient accumulation is not the bigger batch. Unchanged by rotating, by rescaling any row,
by permuting batch, classes or the proxies of a class. Computed in float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemics.core.errors import LossError, did_you_mean
from proxemics.losses.base import ProxyLoss, normal_proxies
from proxemics.losses.checks import check_count, check_inputs, check_number
from proxemics.losses.draws import Draws
from proxemics.losses.fused import compute_dtype, empty_loss, unit_rows

SHORTEST = 1e-4
"""Smallest distance; nearer nodes repel with the same, constant potential."""

CLOSE = 0.1
"""Below this distance 2 - 2cos loses digits, so that pairs that repel are measured from their difference."""

REDUCTIONS = ("sum", "mean")


@dataclass(frozen=True)
class _Options:
    delta: float
    alpha: float
    reduction: str
    max_proxies: int

    def __post_init__(self) -> None:
        check_number("delta", self.delta, low=SHORTEST, high=2)
        check_number("alpha", self.alpha, low=0, open_low=True)
        check_count("max_proxies", self.max_proxies, low=0)
        if self.reduction not in REDUCTIONS:
            allowed = " or ".join(map(repr, REDUCTIONS))
            near = did_you_mean(str(self.reduction), REDUCTIONS)
            raise LossError(f"reduction must be {allowed}, got {self.reduction!r}.{near}")


class _Potential(torch.autograd.Function):
    """U of unit nodes (N, M) with labels (N,); one product forward, one backward, one (N, N) table kept."""

    @staticmethod
    def forward(ctx: Any, nodes: Tensor, labels: Tensor, delta: float, alpha: float) -> Tensor:
        same = labels[:, None] == labels
        squared = torch.mm(nodes, nodes.t()).mul_(-2).add_(2)
        _measure_close_(squared, nodes, same)
        low = torch.full_like(squared, SHORTEST**2).masked_fill_(same, delta**2)
        high = torch.full_like(squared, delta**2).masked_fill_(same, torch.inf)
        free = (squared > low) & (squared < high)
        squared = squared.clamp_(low, high)
        potential = squared.pow(-alpha / 2).mul_(1 - 2 * same.to(nodes.dtype)).fill_diagonal_(0)
        if ctx.needs_input_grad[0]:
            slope = potential.div(squared).mul_(free).mul_(-alpha / 2)
            ctx.save_for_backward(nodes, slope)
        return potential.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nodes, slope = ctx.saved_tensors
        # d r²_ij / d n_i = 2 (n_i - n_j), and each unordered pair counts twice
        pull = torch.mm(slope, nodes)
        return (nodes * slope.sum(1, keepdim=True)).sub_(pull).mul_(4 * grad), None, None, None


def _measure_close_(squared: Tensor, nodes: Tensor, same: Tensor) -> None:
    """Replace squared distances of near pairs with other labels by the exact ones, a bounded number at a time."""
    first, second = ((squared < CLOSE**2) & ~same).nonzero(as_tuple=True)
    for start in range(0, len(first), 65536):
        i, j = first[start : start + 65536], second[start : start + 65536]
        squared[i, j] = (nodes[i] - nodes[j]).square_().sum(1)


def _choose(labels: Tensor, classes: int, centers: int, limit: int, generator: torch.Generator | None) -> Tensor | None:
    """Return flat ids of the proxies of the batch's classes and of random others up to ``limit``; None for all."""
    if limit == 0 or classes * centers <= limit:
        return None
    present = torch.zeros(classes, dtype=torch.bool).index_fill_(0, labels.cpu(), True).repeat_interleave(centers)
    others = (~present).nonzero()[:, 0]
    order = torch.randperm(len(others), generator=generator)
    room = max(limit - int(present.sum()), 0)
    return torch.cat([present.nonzero()[:, 0], others[order[:room]]])


def potential_field(
    embeddings: Tensor,
    labels: Tensor,
    *,
    proxies: Tensor,
    delta: float = 0.2,
    alpha: float = 3.0,
    reduction: str = "sum",
    max_proxies: int = 4096,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Potential energy of samples and proxies that attract their own class and repel others.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, K, M) floating, any length.
        delta: δ, the radius on the unit sphere where attraction stops and repulsion starts, in [1e-4, 2].
        alpha: α > 0, exponent of the potentials.
        reduction: "sum" for U; "mean" for U divided by the number of nodes, so that it does not grow with B.
        max_proxies: when C·K is larger, use all proxies of the batch's classes and random others up to this many
            (time and memory grow with the square of the nodes); 0 for no limit.
        generator: CPU generator of that choice; the global one when None.

    Returns:
        Scalar, usually negative or large; only its slope means something.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z = torch.eye(2)
        >>> far = potential_field(z, torch.tensor([0, 1]), proxies=z[:, None], delta=0.5, alpha=1.0)
        >>> round(float(far), 6)  # ordered pairs: 4 own at 0 -> -2, 8 foreign at √2 -> 2
        8.0
    """
    _Options(delta, alpha, reduction, max_proxies)
    labels = check_inputs(embeddings, labels, proxies, ndim=3)
    classes, centers, dim = proxies.shape
    dtype = compute_dtype(embeddings, proxies)
    with torch.autocast(embeddings.device.type, enabled=False):
        charges = proxies.reshape(-1, dim)
        if not len(labels):
            return empty_loss(embeddings, charges)
        owners = torch.arange(classes, device=labels.device).repeat_interleave(centers)
        chosen = _choose(labels, classes, centers, max_proxies, generator)
        if chosen is not None:
            chosen = chosen.to(labels.device)
            charges, owners = charges[chosen], owners[chosen]
        nodes = torch.cat([unit_rows(embeddings.to(dtype)), unit_rows(charges.to(dtype))])
        energy: Tensor = _Potential.apply(nodes, torch.cat([labels, owners]), delta, alpha)
        return energy / len(nodes) if reduction == "mean" else energy


class PotentialField(ProxyLoss):
    """:func:`potential_field` with its own proxies, drawn from N(0, 1)/8.

    Args:
        num_classes: C.
        dim: M.
        proxies_per_class: K; 15 for CUB and Cars, 2 for SOP.
        delta: δ.
        alpha: α.
        reduction: "sum" or "mean".
        max_proxies: limit on the proxies in one step; 0 for none.
        seed: of the choice of proxies when there is a limit; the state is in the state dict.
        generator: draws the proxies' start; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = PotentialField(10, 4, proxies_per_class=2)
        >>> loss.proxies.shape, loss(torch.randn(6, 4), torch.arange(6)).shape
        (torch.Size([10, 2, 4]), torch.Size([]))
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 15,
        delta: float = 0.2,
        alpha: float = 3.0,
        reduction: str = "sum",
        max_proxies: int = 4096,
        seed: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        check_count("proxies_per_class", proxies_per_class)
        _Options(delta, alpha, reduction, max_proxies)
        self.delta = delta
        self.alpha = alpha
        self.reduction = reduction
        self.max_proxies = max_proxies
        self.stochastic = 0 < max_proxies < num_classes * proxies_per_class
        self.draws = Draws(seed, "potential_field")
        self.proxies = normal_proxies(num_classes, proxies_per_class, dim, std=1 / 8, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return potential_field(
            embeddings,
            labels,
            proxies=self.proxies,
            delta=self.delta,
            alpha=self.alpha,
            reduction=self.reduction,
            max_proxies=self.max_proxies,
            generator=self.draws.next(),
        )

    def _class_similarities(self, units: Tensor, proxies: Tensor) -> Tensor:
        """Return the cosine to the nearest proxy of each class (B, C)."""
        return torch.einsum("bm,ckm->bck", units, proxies).amax(2)
