"""What every loss of the package is: a module from ``(embeddings, labels)`` to one number, and proxies for most."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.losses.checks import check_batch, check_count, check_embeddings
from proxemics.losses.fused import compute_dtype, unit_rows


class MetricLoss(nn.Module, ABC):
    """A loss over a batch of embeddings and class labels.

    Attributes:
        num_classes: C, the number of training classes.
        dim: M, the embedding dimension.
        per_sample_mean: True when the loss is a mean over samples (plus terms of the proxies alone), so that averaging
            the gradients of equal chunks gives the gradient of the whole batch. When False, gradient accumulation over
            chunks is another loss than the big batch.
        stochastic: True when a step draws random numbers (from the loss's own generator).
        starts_from_class_means: True when the source starts the proxies at the class means of the untrained embeddings;
            a training loop then calls :meth:`ProxyLoss.set_class_means` once before the first step.
    """

    per_sample_mean: ClassVar[bool] = False
    stochastic: bool = False
    starts_from_class_means: ClassVar[bool] = False

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("dim", dim)
        self.num_classes = num_classes
        self.dim = dim

    @abstractmethod
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch.

        Args:
            embeddings: (B, M) floating, any length; half precision is computed in float32. May be gathered from several
                processes: nothing here is distributed.
            labels: (B,) of any integer dtype, in 0..C-1.

        Returns:
            Scalar, float32 (float64 for float64 inputs); zero with a graph for B = 0.

        Raises:
            LossError: wrong shape or dtype, or a label outside 0..C-1.
        """

    def extra_repr(self) -> str:
        """Return sizes and options for ``print(loss)``."""
        shown = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in shown.items())


class ProxyLoss(MetricLoss):
    """A loss that compares embeddings with one or more learnable proxies a class.

    The proxies are raw (any length) and stay float32 whatever autocast does; give them their own optimiser group.

    Attributes:
        proxies: (C, M), or (C, K, M) for losses with K proxies a class.
    """

    proxies: nn.Parameter

    def similarities(self, embeddings: Tensor) -> Tensor:
        """Return the cosine similarity of each embedding to each class.

        Args:
            embeddings: (B, M) floating, any length.

        Returns:
            (B, C) in float32 or float64, differentiable in embeddings and proxies.

        Raises:
            LossError: embeddings are not floating (B, M).
        """
        check_embeddings(embeddings, self.dim)
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = compute_dtype(embeddings, self.proxies)
            return self._class_similarities(unit_rows(embeddings.to(dtype)), unit_rows(self.proxies.to(dtype)))

    def _class_similarities(self, units: Tensor, proxies: Tensor) -> Tensor:
        return units @ proxies.t()

    @torch.no_grad()
    def set_class_means(self, embeddings: Tensor, labels: Tensor) -> None:
        """Point each proxy at the mean of its class's unit embeddings, keeping the proxy's length.

        Args:
            embeddings: (N, M) floating, for instance of the whole training set by the untrained model.
            labels: (N,) integers in 0..C-1; classes without a row keep their proxy.

        Raises:
            LossError: the loss has several proxies a class, which class means would make equal; or a wrong batch.
        """
        if self.proxies.ndim != 2:
            raise LossError(
                f"Class means cannot start {type(self).__name__}: its {self.proxies.shape[1]} proxies a class would be "
                "equal and stay so. Keep the random start."
            )
        labels = check_batch(embeddings, labels, num_classes=self.num_classes, dim=self.dim).to(self.proxies.device)
        units = unit_rows(embeddings.to(self.proxies))
        means = unit_rows(torch.zeros_like(self.proxies).index_add_(0, labels, units))
        seen = torch.bincount(labels, minlength=self.num_classes) > 0
        lengths = torch.linalg.vector_norm(self.proxies, dim=1, keepdim=True)
        self.proxies.copy_(torch.where(seen[:, None], means * lengths, self.proxies))


def normal_proxies(*shape: int, std: float, generator: torch.Generator | None) -> nn.Parameter:
    """Draw proxies from N(0, std²).

    Example:
        >>> normal_proxies(3, 4, std=0.1, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 4])
    """
    return nn.Parameter(nn.init.normal_(torch.empty(*shape), std=std, generator=generator))


def uniform_proxies(*shape: int, generator: torch.Generator | None) -> nn.Parameter:
    """Draw proxies from U(-1/√M, 1/√M), M the last axis.

    Example:
        >>> float(uniform_proxies(3, 4, generator=None).detach().abs().max()) <= 0.5
        True
    """
    bound = 1 / math.sqrt(shape[-1])
    return nn.Parameter(nn.init.uniform_(torch.empty(*shape), -bound, bound, generator=generator))
