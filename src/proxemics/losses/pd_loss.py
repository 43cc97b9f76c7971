"""PD-Loss (arXiv 2508.17082): maximise the decidability of genuine against impostor similarities over the batch.

g = {S_i,y_i}, m = {S_ic : c ≠ y_i}, means μ, variances v:  d' = |μ_g - μ_m| / √((v_g + v_m)/2)
L = -log(max(μ_g - μ_m, ε)) + ½ log(max(v_g + v_m, ε))          (= -log d' up to a constant)
Formula from the authors' readme. Our readings: ε = 1e-6 is a floor of the variance rather than an addend, so that
L = ½ log 2 - log d' exactly; a temperature T divides S (default 1; it cancels in d'); population variance, because
batches are small. Means and variances are over the batch as a set, so gradient accumulation is not the bigger batch.
Proxies start from class means: see :meth:`ProxyLoss.set_class_means`.
Unchanged by rotating, by rescaling any row, by permuting batch or classes. Computed in float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.core.errors import LossError, did_you_mean
from proxemics.losses.base import ProxyLoss, normal_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss

VARIANCES = ("population", "unbiased")


@dataclass(frozen=True)
class DecidabilityKernel:
    """Value and gradient of PD-Loss on a (C, B) table of cosines; a :data:`proxemics.losses.fused.Kernel`."""

    eps: float
    unbiased: bool
    temperature: float

    def __call__(self, cosines: Tensor, labels: Tensor, want_gradient: bool) -> Tensor:
        """Return the value; overwrite ``cosines`` by the gradient if wanted."""
        genuine, impostors, gap, variance, (n_g, n_m) = self._moments(cosines.div_(self.temperature), labels)
        value = variance.clamp_min(self.eps).log() / 2 - gap.clamp_min(self.eps).log()
        if want_gradient:
            pull = torch.where(gap > self.eps, -1 / gap, 0) / self.temperature
            shrink = torch.where(variance > self.eps, 1 / variance, 0) / self.temperature
            own = pull / genuine.numel() + genuine * (shrink / n_g)
            push = -pull / (cosines.numel() - genuine.numel())
            impostors.mul_(shrink / n_m).add_(push).scatter_(0, labels[None], own)
        return value

    def _moments(self, cosines: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, int]]:
        """Return centred genuine (1, B), impostors (C, B), μ_g - μ_m, v_g + v_m and the divisors.

        The impostors are ``cosines`` itself, centred in place, with 0 at the own classes.
        """
        classes, batch = cosines.shape
        index = labels[None]
        genuine = cosines.gather(0, index)
        count = (classes - 1) * batch
        mean_g = genuine.mean()
        mean_m = cosines.scatter_(0, index, 0).sum() / count
        impostors = cosines.sub_(mean_m).scatter_(0, index, 0)
        centred = genuine - mean_g
        divisors = (max(batch - self.unbiased, 1), max(count - self.unbiased, 1))
        variance = (
            centred.square().sum() / divisors[0]
            + torch.linalg.vector_norm(impostors, dim=1).square().sum() / divisors[1]
        )
        return centred, impostors, mean_g - mean_m, variance, divisors


def _check_options(eps: float, variance: str, temperature: float) -> None:
    check_number("eps", eps, low=0, open_low=True)
    check_number("temperature", temperature, low=0, open_low=True)
    if variance not in VARIANCES:
        allowed = " or ".join(map(repr, VARIANCES))
        raise LossError(f"variance must be {allowed}, got {variance!r}.{did_you_mean(str(variance), VARIANCES)}")


def _check_classes(classes: int) -> None:
    if classes < 2:
        raise LossError(
            "PD-Loss needs at least 2 classes, got 1: there would be no impostor similarities. Add classes."
        )


def pd_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    proxies: Tensor,
    eps: float = 1e-6,
    variance: str = "population",
    temperature: float = 1.0,
) -> Tensor:
    """Negative log decidability of own-proxy against other-proxy similarities, up to a constant.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1, C >= 2.
        proxies: (C, M) floating, any length.
        eps: floor ε > 0 of the difference of means and of the sum of variances; below a floor there is no gradient.
        variance: "population" (divide by n) or "unbiased" (divide by n - 1).
        temperature: T; similarities are divided by it.

    Returns:
        Scalar; may be negative.

    Raises:
        LossError: wrong shapes, labels out of range, one class only, or an option out of range.

    Example:
        >>> z, w = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> round(float(pd_loss(z, torch.tensor([0, 1]), proxies=w)), 4)
        -0.2674
    """
    _check_options(eps, variance, temperature)
    labels = check_inputs(embeddings, labels, proxies)
    _check_classes(proxies.shape[0])
    return cosine_loss(embeddings, labels, proxies, DecidabilityKernel(eps, variance == "unbiased", temperature))


@torch.no_grad()
def decidability(embeddings: Tensor, labels: Tensor, *, proxies: Tensor, variance: str = "population") -> float:
    """Return d', the distance of the two similarity distributions in units of their spread, for logging.

    Args:
        embeddings: (B, M) floating, B >= 1.
        labels: (B,) integers in 0..C-1, C >= 2.
        proxies: (C, M) floating.
        variance: "population" or "unbiased".

    Returns:
        d' >= 0; infinite when both variances are 0.

    Raises:
        LossError: as :func:`pd_loss`, or an empty batch.

    Example:
        >>> z, w = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> round(decidability(z, torch.tensor([0, 1]), proxies=w), 4)
        1.8478
    """
    _check_options(1.0, variance, 1.0)
    labels = check_inputs(embeddings, labels, proxies)
    _check_classes(proxies.shape[0])
    if not len(labels):
        raise LossError("Decidability of an empty batch is not defined. Give at least one embedding.")
    found: list[Tensor] = []

    def kernel(cosines: Tensor, labels: Tensor, want_gradient: bool) -> Tensor:
        _, _, gap, spread, _ = DecidabilityKernel(1.0, variance == "unbiased", 1.0)._moments(cosines, labels)
        found.append(gap.abs() / (spread / 2).sqrt())
        return gap

    cosine_loss(embeddings, labels, proxies, kernel)
    return float(found[0])


class PDLoss(ProxyLoss):
    """:func:`pd_loss` with its own proxies, drawn from N(0, 1)/8 until :meth:`set_class_means` is called.

    Args:
        num_classes: C, at least 2.
        dim: M.
        eps: ε.
        variance: "population" or "unbiased".
        temperature: T.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = PDLoss(10, 4)
        >>> z, y = torch.randn(20, 4), torch.arange(20) % 10
        >>> loss.set_class_means(z, y)
        >>> loss(z, y).shape
        torch.Size([])
    """

    starts_from_class_means = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        eps: float = 1e-6,
        variance: str = "population",
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(eps, variance, temperature)
        _check_classes(num_classes)
        self.eps = eps
        self.variance = variance
        self.temperature = temperature
        self.proxies = normal_proxies(num_classes, dim, std=1 / 8, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return pd_loss(
            embeddings,
            labels,
            proxies=self.proxies,
            eps=self.eps,
            variance=self.variance,
            temperature=self.temperature,
        )
