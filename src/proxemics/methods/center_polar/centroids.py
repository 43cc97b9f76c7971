"""Class centroids: means of the data on the sphere, not learnable proxies.

    ema, joint:  c_y ← norm(m c_y + (1 - m) · mean of the embeddings of class y in the batch)
    batch:       c_y = norm(mean of the embeddings of class y in the batch), with a gradient

A centroid that is all zeros is not known yet: it is no competitor, and its first mean becomes it. Source: our reading.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proxemics.core.geometry import normalize, upcast

CHUNK = 8192


def batch_means(units: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes in a batch and the means of their embeddings; one small matrix product, the same every time.

    Args:
        units: (B, M) floating.
        labels: (B,) int64.

    Returns:
        (P,) int64 sorted, and (P, M) in float32 or float64, not normalised, differentiable.

    Example:
        >>> classes, means = batch_means(torch.tensor([[1.0, 0], [0, 1], [0, 1]]), torch.tensor([4, 2, 4]))
        >>> classes.tolist(), means.tolist()
        ([2, 4], [[0.0, 1.0], [0.5, 0.5]])
    """
    units = upcast(units)
    counts = torch.bincount(labels)
    classes = counts.nonzero()[:, 0]
    slots = torch.searchsorted(classes, labels)
    weights = functional.one_hot(slots, len(classes)).to(units) / counts[classes].to(units)
    return classes, weights.t() @ units


@torch.no_grad()
def updated_centroids(centroids: Tensor, units: Tensor, labels: Tensor, *, momentum: float) -> Tensor:
    """Return centroids moved towards the means of a batch; classes without a row, and means of zero, leave theirs.

    Args:
        centroids: (C, M) floating, unit length or zeros where nothing is known.
        units: (B, M) floating, unit length.
        labels: (B,) int64 in 0..C-1.
        momentum: m in [0, 1); 0 takes the means of the batch.

    Returns:
        (C, M) of the dtype of ``centroids``.

    Example:
        >>> c = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        >>> updated_centroids(c, torch.tensor([[0.0, 1.0]]), torch.tensor([1]), momentum=0.9)
        tensor([[1., 0.],
                [0., 1.]])
    """
    classes, means = batch_means(units, labels)
    old = centroids[classes].to(means.dtype)
    new = normalize(momentum * old + (1 - momentum) * means)
    result = centroids.clone()
    result[classes] = torch.where(new.any(1, keepdim=True), new, old).to(centroids.dtype)
    return result


@torch.no_grad()
def centroids_of(raw: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroids of a whole training set, summed in float64 on the CPU so that every process gets the same.

    Args:
        raw: (n, M) floating, any length.
        labels: (n,) int64 in 0..C-1.
        centroids: (C, M) those of classes without a row.

    Returns:
        (C, M) of the dtype and device of ``centroids``.

    Example:
        >>> centroids_of(torch.tensor([[0.0, 9.0]]), torch.tensor([0]), torch.zeros(2, 2)).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    sums = torch.zeros(centroids.shape, dtype=torch.float64)
    for start in range(0, len(raw), CHUNK):
        rows = slice(start, start + CHUNK)
        sums.index_add_(0, labels[rows].cpu(), normalize(raw[rows].cpu().double()))
    means = normalize(sums)
    return torch.where(means.any(1, keepdim=True), means, centroids.cpu().double()).to(centroids)


def working_centroids(centroids: Tensor, units: Tensor, labels: Tensor, *, batch: bool) -> tuple[Tensor, Tensor]:
    """Return the centroids that a step works with, and which of them are known.

    Args:
        centroids: (C, M) as stored.
        units: (B, M) floating, unit length: the clean batch.
        labels: (B,) int64 in 0..C-1.
        batch: take the means of the batch for its classes, with their gradient; otherwise only where nothing is known.

    Returns:
        (C, M) in the dtype of the embeddings, and (C,) bool.

    Example:
        >>> z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
        >>> found, known = working_centroids(torch.zeros(3, 2), z, y, batch=False)
        >>> found.tolist(), known.tolist()
        ([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [False, True, False])
    """
    classes, means = batch_means(units if batch else units.detach(), labels)
    stored = centroids.to(means.dtype)
    if not batch:
        kept = stored[classes]
        means = torch.where(kept.any(1, keepdim=True), kept, means)
    found = stored.index_copy(0, classes, normalize(means))
    return found, found.detach().any(1)
