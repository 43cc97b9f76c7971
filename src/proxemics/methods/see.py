"""Spherical embedding expansion (SEE): synthetic embeddings that are as close to their proxy as the real one.

    L = L_base(z, y) + λ L_base(Z*, y repeated)

Z* are the points of :func:`spherical_expansion` around the samples of the batch that are nearest to their own proxy,
more of them from epoch to epoch. Their own-class similarity is that of the real sample; only the other proxies are seen
from new sides, and pushed away. By default the gradient reaches the proxies alone, and only through the loss.

Source: Le & Woo, PAKDD 2024, and the extended abstract at IJCAI 2025; schedule, gradient and defaults from the authors'
release. For losses with several proxies a class, the own proxy is the nearest one of the class (our reading).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.geometry import normalize
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Method, Step
from proxemics.methods.options import check_choice
from proxemics.methods.see_geometry import Frame, check_room, simplex, spherical_expansion

__all__ = ["SEE", "expanded_share", "nearest_own_proxies", "simplex", "spherical_expansion"]

Select = Literal["topk", "threshold"]
Grad = Literal["proxies", "all"]

LONGEST = 200
"""The release stops the schedule after so many epochs, and counts no more of them."""


def expanded_share(epoch: float, epochs: int, *, rho_min: float = 0.0, rho_max: float = 0.4) -> float:
    """Return the share of the batch that is expanded: a half cosine from ``rho_min`` to ``rho_max``.

    ρ_t = ρ_max - (ρ_max - ρ_min) (1 + cos(π min(t, 200) / min(T, 200))) / 2

    Args:
        epoch: t >= 0.
        epochs: T >= 1.
        rho_min: share at the start.
        rho_max: share at the end.

    Example:
        >>> [round(expanded_share(t, 100), 6) for t in (0, 10, 50, 100)]
        [0.0, 0.009789, 0.2, 0.4]
    """
    turn = math.pi * min(epoch, LONGEST) / min(max(epochs, 1), LONGEST)
    return rho_max - (rho_max - rho_min) * (1 + math.cos(min(turn, math.pi))) / 2


def nearest_own_proxies(units: Tensor, labels: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
    """Return the own proxy of each embedding, the nearest one where the class has several, and the cosine to it.

    Args:
        units: (B, M) unit embeddings.
        labels: (B,) int64 in 0..C-1.
        proxies: (C, M) or (C, K, M) floating, any length.

    Returns:
        Unit proxies (B, M) and cosines (B,).

    Example:
        >>> z = torch.tensor([[1.0, 0.0]])
        >>> own, cosine = nearest_own_proxies(z, torch.tensor([0]), torch.tensor([[[0.0, 2.0], [2.0, 0.0]]]))
        >>> own.tolist(), cosine.tolist()
        ([[1.0, 0.0]], [1.0])
    """
    own = normalize(proxies[labels].to(units.dtype))
    if own.ndim == 2:
        return own, (own * units).sum(-1)
    cosines, best = torch.linalg.vecdot(own, units[:, None]).max(-1)
    return own[torch.arange(len(own), device=own.device), best], cosines


class SEE(Method):
    """Expand the samples nearest to their proxies, on top of any proxy loss.

    Args:
        num_synthetic: n, synthetic points a sample; the embedding needs n + 1 dimensions.
        weight: λ.
        rho_min: share of the batch that is expanded in the first epoch.
        rho_max: share in the last.
        epochs: T of the schedule; None: by progress from step to step, the same curve for runs of at most 200 epochs
            (our reading).
        select: ``"topk"``: the share of the schedule, nearest first. ``"threshold"``: all with at least this cosine.
        threshold: the cosine for ``select="threshold"``.
        frame: ``"random"`` draws the directions anew every step, ``"fixed"`` does not.
        grad: ``"proxies"``: the synthetic points are constants. ``"all"``: the gradient flows through them to the
            embeddings and to the proxies they were made from.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> from proxemics.losses import NormSoftmax
        >>> SEE(num_synthetic=8).check(NormSoftmax(10, 8))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: 8 synthetic points need an embedding of dimension 9 or more, got 8; ...
    """

    def __init__(
        self,
        *,
        num_synthetic: int = 8,
        weight: float = 0.2,
        rho_min: float = 0.0,
        rho_max: float = 0.4,
        epochs: int | None = None,
        select: Select = "topk",
        threshold: float = 0.5,
        frame: Frame = "random",
        grad: Grad = "proxies",
    ) -> None:
        super().__init__()
        check_count("num_synthetic", num_synthetic)
        check_number("weight", weight, low=0)
        check_number("rho_max", rho_max, low=0, high=1)
        check_number("rho_min", rho_min, low=0, high=rho_max)
        check_number("threshold", threshold, low=-1, high=1)
        if epochs is not None:
            check_count("epochs", epochs, low=0)
        check_choice("select", select, get_args(Select))
        check_choice("frame", frame, get_args(Frame))
        check_choice("grad", grad, get_args(Grad))
        self.num_synthetic, self.weight, self.rho_min, self.rho_max = num_synthetic, weight, rho_min, rho_max
        self.epochs, self.select, self.threshold = epochs, select, threshold
        self.frame: Frame = frame
        self.grad = grad

    def check(self, loss: nn.Module) -> None:
        """Refuse a dimension that has no room for the synthetic points.

        Raises:
            LossError: n >= M.
        """
        proxies = getattr(loss, "proxies", None)
        if proxies is not None:
            check_room(self.num_synthetic, proxies.shape[-1])

    def share(self, step: Step) -> float:
        """Return the share of the batch that is expanded at this step."""
        if self.epochs is None:
            return expanded_share(step.progress * 100, 100, rho_min=self.rho_min, rho_max=self.rho_max)
        return expanded_share(step.epoch, self.epochs, rho_min=self.rho_min, rho_max=self.rho_max)

    def chosen(self, cosines: Tensor, step: Step) -> Tensor:
        """Return the rows to expand, nearest first.

        Args:
            cosines: (B,) to the own proxies.
            step: for the schedule.

        Returns:
            (k,) int64, possibly empty.
        """
        order = torch.argsort(cosines, descending=True, stable=True)
        if self.select == "threshold":
            return order[: int((cosines >= self.threshold).sum())]
        return order[: round(len(cosines) * self.share(step))]

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return ``{"see": λ L_base(Z*)}``, or nothing while no sample is expanded."""
        if self.weight == 0 or (self.select == "topk" and round(len(step.labels) * self.share(step)) == 0):
            return {}
        units, proxies = step.z, step.loss.proxies
        assert isinstance(proxies, Tensor)
        if self.grad == "proxies":
            units, proxies = units.detach(), proxies.detach()
        own, cosines = nearest_own_proxies(units, step.labels, proxies)
        rows = self.chosen(cosines.detach(), step)
        if not len(rows):
            return {}
        points = spherical_expansion(units[rows], own[rows], self.num_synthetic, step.generator, frame=self.frame)
        labels = step.labels[rows].repeat_interleave(self.num_synthetic)
        return {"see": self.weight * step.loss(points.flatten(0, 1), labels)}
