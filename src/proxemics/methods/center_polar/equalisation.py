"""The baseline that CenterPolar is compared with: expansion by the proxies, and equalisation of the two views.

    ψ minimises  L_base(x̃, y) - λ_div min(d, 1/2)              no angle is asked for
    L = L_base(z, y) + λ_g L_base(z̃, y) + λ_e L_eq

    align="mean":  L_eq = mean over classes of |mean z - mean z̃|²
    align="kl":    L_eq = 1/(2B) Σ_i [KL(sg p_i ‖ p̃_i) + KL(sg p̃_i ‖ p_i)],  p = softmax(S / τ) over the proxies

A generator that is to please the proxies puts its samples near them: their mean angle to the class centroid stays
smaller than with C3E. Source: our reading of the "expansion-equalisation" methods that the abstract of CenterPolar
(arXiv 2601.09121) names as its predecessors; none of them could be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize
from proxemics.data.preprocess import Preprocess
from proxemics.losses.base import ProxyLoss
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Method, Needs, Step, View
from proxemics.methods.center_polar.centroids import batch_means
from proxemics.methods.center_polar.geodesic import angles_between
from proxemics.methods.center_polar.learner import GeneratorLearner, check_learning
from proxemics.methods.options import check_choice

Align = Literal["mean", "kl"]


def mean_gap(clean: Tensor, expanded: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over classes of the squared distance of the two means.

    Args:
        clean: (B, M) unit embeddings.
        expanded: (B, M) unit embeddings of the same classes, row by row.
        labels: (B,) int64.

    Example:
        >>> z, y = torch.eye(2), torch.tensor([0, 1])
        >>> float(mean_gap(z, z, y)), float(mean_gap(z, z.flip(0), y))
        (0.0, 2.0)
    """
    _, gaps = batch_means(clean - expanded, labels)
    return gaps.square().sum(1).mean()


def divergence(clean: Tensor, expanded: Tensor) -> Tensor:
    """Return half the symmetric Kullback-Leibler divergence of two sets of logits, teachers held still.

    Args:
        clean: (B, C) logits.
        expanded: (B, C) logits.

    Returns:
        Scalar; its gradient in the logits is (p - p̃)/(2B), and the opposite.

    Example:
        >>> round(float(divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))), 4)
        0.4621
    """
    log_p, log_q = clean.log_softmax(1), expanded.log_softmax(1)
    p, q = log_p.detach().exp(), log_q.detach().exp()
    forward = (p * (log_p.detach() - log_q)).sum(1)
    backward = (q * (log_q.detach() - log_p)).sum(1)
    return (forward + backward).mean() / 2


class ExpansionEqualisation(Method):
    """Expansion by a proxy loss and equalisation of the two views: the comparison, not the method.

    Args:
        num_classes: C.
        dim: M.
        align: how the views are made equal.
        lambda_e: λ_e.
        lambda_g: λ_g.
        tau: τ of ``align="kl"``.
        lambda_div: λ_div.
        inner_steps: steps on ψ a step of training.
        inner_lr: rate of Adam on ψ.
        mix: share of G(x) in an expanded picture.
        pool: how many ψ are kept.
        start_epoch: first epoch with expansion.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> ExpansionEqualisation(10, 64).needs.stages
        ('pixel',)
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        align: Align = "mean",
        lambda_e: float = 0.5,
        lambda_g: float = 0.5,
        tau: float = 0.1,
        lambda_div: float = 0.1,
        inner_steps: int = 1,
        inner_lr: float = 1e-3,
        mix: float = 0.6,
        pool: int = 5,
        start_epoch: int = 1,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("dim", dim)
        check_choice("align", align, get_args(Align))
        check_number("lambda_e", lambda_e, low=0)
        check_number("lambda_g", lambda_g, low=0)
        check_number("tau", tau, low=0, open_low=True)
        check_learning(inner_steps=inner_steps, inner_lr=inner_lr, lambda_div=lambda_div, mix=mix, pool=pool)
        check_count("start_epoch", start_epoch, low=0)
        self.num_classes, self.dim, self.align, self.tau = num_classes, dim, align, tau
        self.lambda_e, self.lambda_g, self.start_epoch = lambda_e, lambda_g, start_epoch
        self.learner = GeneratorLearner(steps=inner_steps, rate=inner_lr, lambda_div=lambda_div, mix=mix, pool=pool)
        self.on = lambda_e > 0 or lambda_g > 0
        self.needs = Needs(proxies=False)
        if self.on:
            self.needs = Needs(stages=("pixel",), frozen_bn=True, proxies=align == "kl" and lambda_e > 0)
        self._stats: dict[str, Tensor] = {}

    def check(self, loss: nn.Module) -> None:
        """Refuse a base loss without class similarities where the alignment wants them.

        Raises:
            LossError: for ``align="kl"`` and a loss that is no proxy loss.
        """
        if self.needs.proxies and not isinstance(loss, ProxyLoss):
            raise LossError(f"align='kl' compares similarities to proxies; {type(loss).__name__} has none: use 'mean'.")

    def views(self, step: Step) -> Sequence[View]:
        """Train the generator to make the base loss small, and return what it makes."""
        if not self.on or step.epoch < self.start_epoch:
            return ()

        def objective(units: Tensor, rows: Tensor) -> Tensor:
            loss: Tensor = step.loss(units, step.labels[rows])
            return loss

        return (self.learner.view(step, objective),)

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the base loss of the expanded pictures, and the equalisation of the views."""
        self._stats = {}
        if not step.seen:
            return {}
        seen, terms = step.seen[0], {}
        if self.lambda_g > 0:
            terms["expansion"] = self.lambda_g * step.loss(seen.raw, seen.labels)
        if self.lambda_e > 0:
            terms["equalisation"] = self.lambda_e * self._gap(step)
        with torch.no_grad():
            classes, means = batch_means(step.z.detach(), step.labels)
            own = normalize(means)[torch.searchsorted(classes, step.labels)]
            for name, units in (("theta_clean", step.z), ("theta_expanded", seen.z)):
                self._stats[name] = angles_between(units, own).mean().rad2deg()
        return terms

    def _gap(self, step: Step) -> Tensor:
        seen = step.seen[0]
        if self.align == "mean":
            return mean_gap(step.z, seen.z, step.labels)
        loss = step.loss
        assert isinstance(loss, ProxyLoss)
        return divergence(loss.similarities(step.z) / self.tau, loss.similarities(seen.z) / self.tau)

    def report(self) -> dict[str, float]:
        """Return mean angles to the class means of the clean batch, in degrees."""
        return {name: float(value) for name, value in self._stats.items()}

    def expand_pictures(self, images: Tensor, preprocess: Preprocess, generator: torch.Generator) -> Tensor:
        """Return normalised pictures (B, 3, H, W) as the generator makes them now."""
        return self.learner.pictures(images, preprocess, generator)
