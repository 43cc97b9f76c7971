"""ProxyNCA (Movshovitz-Attias 2017) and ProxyNCA++ (Teh 2020).

ProxyNCA:   L = mean_i [ d_iy + log Σ_{c≠y} exp(-d_ic) ]     the own class is not in the denominator: L can be negative
ProxyNCA++: L = mean_i [ d_iy + log Σ_c     exp(-d_ic) ]
with d_ic = |a z_i - b w_c|² = a² + b² - 2ab S_ic of unit vectors z, w. Only 2ab matters: the rest cancels.
Defaults a = b = 3: Roth's protocol (ProxyNCA), T = 1/9 (ProxyNCA++). ProxyNCA++ equals NormSoftmax with σ = 1/(2a²).
Unchanged by rotating, by rescaling any row, by permuting batch or classes. Computed in float32 or float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.losses.base import ProxyLoss, normal_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss
from proxemics.losses.softmax import SoftmaxKernel


def _check_options(scale: float, proxy_scale: float | None, exclude_positive: bool, label_smoothing: float) -> None:
    check_number("scale", scale, low=0, open_low=True)
    if proxy_scale is not None:
        check_number("proxy_scale", proxy_scale, low=0, open_low=True)
    check_number("label_smoothing", label_smoothing, low=0, high=1)
    if exclude_positive and label_smoothing:
        raise LossError(
            f"label_smoothing={label_smoothing:g} needs the own class in the denominator. Set exclude_positive=False, "
            "or label_smoothing=0."
        )


def _check_classes(classes: int, exclude_positive: bool) -> None:
    if exclude_positive and classes < 2:
        raise LossError(
            "ProxyNCA with exclude_positive=True needs at least 2 classes, got 1: no class would be left to push away. "
            "Add classes or set exclude_positive=False."
        )


def proxy_nca(
    embeddings: Tensor,
    labels: Tensor,
    *,
    proxies: Tensor,
    scale: float = 3.0,
    proxy_scale: float | None = None,
    exclude_positive: bool = True,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Neighbourhood component analysis with proxies in place of neighbours.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        scale: a, the length to which embeddings are scaled before distances are taken.
        proxy_scale: b, the length of the proxies; a when None (Roth's SOP setting is a = 1, b = 8).
        exclude_positive: leave the own class out of the denominator (the paper); False keeps it.
        label_smoothing: share of the target on the other classes; 0.1 with ``exclude_positive=False`` is the widely
            used public PyTorch version.

    Returns:
        Scalar; may be negative when the own class is excluded.

    Raises:
        LossError: wrong shapes, labels out of range, one class only, or an option out of range.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> float(proxy_nca(z, torch.tensor([0, 1]), proxies=w, scale=1.0))
        -2.0
    """
    _check_options(scale, proxy_scale, exclude_positive, label_smoothing)
    labels = check_inputs(embeddings, labels, proxies)
    _check_classes(proxies.shape[0], exclude_positive)
    factor = 2 * scale * (scale if proxy_scale is None else proxy_scale)
    kernel = SoftmaxKernel(factor, exclude_own=exclude_positive, smoothing=label_smoothing)
    return cosine_loss(embeddings, labels, proxies, kernel)


def proxy_nca_pp(
    embeddings: Tensor, labels: Tensor, *, proxies: Tensor, scale: float = 3.0, proxy_scale: float | None = None
) -> Tensor:
    """ProxyNCA++: :func:`proxy_nca` with the own class in the denominator, that is a proper class probability.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        scale: a; the temperature of the paper is 1/a².
        proxy_scale: b; a when None.

    Returns:
        Scalar >= 0.

    Raises:
        LossError: as :func:`proxy_nca`.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> round(float(proxy_nca_pp(z, torch.tensor([0, 1]), proxies=w, scale=1.0)), 6)
        0.126928
    """
    return proxy_nca(embeddings, labels, proxies=proxies, scale=scale, proxy_scale=proxy_scale, exclude_positive=False)


class ProxyNCA(ProxyLoss):
    """:func:`proxy_nca` with its own proxies, drawn from N(0, 1)/8 as in the authors' family of code.

    Args:
        num_classes: C, at least 2 unless ``exclude_positive=False``.
        dim: M.
        scale: a; 3 in Roth's protocol.
        proxy_scale: b; a when None.
        exclude_positive: leave the own class out of the denominator (the paper).
        label_smoothing: share of the target on the other classes; needs ``exclude_positive=False``.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range, or options contradict each other.

    Example:
        >>> loss = ProxyNCA(10, 4, exclude_positive=False, label_smoothing=0.1)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    per_sample_mean = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        scale: float = 3.0,
        proxy_scale: float | None = None,
        exclude_positive: bool = True,
        label_smoothing: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(scale, proxy_scale, exclude_positive, label_smoothing)
        _check_classes(num_classes, exclude_positive)
        self.scale = scale
        self.proxy_scale = proxy_scale
        self.exclude_positive = exclude_positive
        self.label_smoothing = label_smoothing
        self.proxies = normal_proxies(num_classes, dim, std=1 / 8, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return proxy_nca(
            embeddings,
            labels,
            proxies=self.proxies,
            scale=self.scale,
            proxy_scale=self.proxy_scale,
            exclude_positive=self.exclude_positive,
            label_smoothing=self.label_smoothing,
        )


class ProxyNCAPlusPlus(ProxyLoss):
    """:func:`proxy_nca_pp` with its own proxies, drawn from N(0, 1)/8.

    The paper's other parts belong to the model and the recipe: max pooling, layer norm, fast proxies.

    Args:
        num_classes: C.
        dim: M.
        scale: a; 3 is the paper's temperature 1/9.
        proxy_scale: b; a when None.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = ProxyNCAPlusPlus(10, 4)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    per_sample_mean = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        scale: float = 3.0,
        proxy_scale: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(scale, proxy_scale, False, 0.0)
        self.scale = scale
        self.proxy_scale = proxy_scale
        self.proxies = normal_proxies(num_classes, dim, std=1 / 8, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return proxy_nca_pp(embeddings, labels, proxies=self.proxies, scale=self.scale, proxy_scale=self.proxy_scale)
