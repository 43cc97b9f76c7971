"""The kernel of the softmax family; NormSoftmax, ProxyNCA(++), CosFace and ArcFace differ in the own-class logit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Margin = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""``margin(cosines (1, B)) -> (own-class cosine after the margin, its derivative or None for 1)``."""


@dataclass(frozen=True)
class SoftmaxKernel:
    """Mean cross-entropy of ``scale * cosine`` over classes; a :data:`proxemics.losses.fused.Kernel`.

    Attributes:
        scale: factor on the cosines, the inverse temperature.
        margin: changes the own-class cosine, or None.
        exclude_own: leave the own class out of the denominator.
        smoothing: share of the target spread over the other classes, in [0, 1).
    """

    scale: float
    margin: Margin | None = None
    exclude_own: bool = False
    smoothing: float = 0.0

    def __call__(self, cosines: Tensor, labels: Tensor, want_gradient: bool) -> Tensor:
        """Return the value; overwrite ``cosines`` (C, B) by the gradient if wanted."""
        classes, batch = cosines.shape
        index = labels[None]
        own = cosines.gather(0, index)
        slope = None
        if self.margin is not None:
            own, slope = self.margin(own)
            cosines.scatter_(0, index, own)
        others = max(classes - 1, 1)
        smoothing = self.smoothing if classes > 1 else 0.0
        target = (
            own
            if not smoothing
            else own * (1 - smoothing) + (cosines.sum(0, keepdim=True) - own) * (smoothing / others)
        )
        if self.exclude_own:
            cosines.scatter_(0, index, -math.inf)
        top = cosines.amax(0, keepdim=True)
        torch.add(top * -self.scale, cosines, alpha=self.scale, out=cosines)
        total = cosines.exp_().sum(0, keepdim=True)
        value = (total.log() + self.scale * (top - target)).mean()
        if want_gradient:
            cosines.mul_(total.reciprocal_().mul_(self.scale / batch))
            self._subtract_target(cosines, index, slope, smoothing / others)
        return value

    def _subtract_target(self, cosines: Tensor, index: Tensor, slope: Tensor | None, spread: float) -> None:
        weight = self.scale / cosines.shape[1]
        if spread:
            cosines.sub_(weight * spread)
        keep = 1 - spread * cosines.shape[0]  # what the own class gets beyond the spread
        own = cosines.gather(0, index).sub_(weight * keep)
        cosines.scatter_(0, index, own if slope is None else own.mul_(slope))
