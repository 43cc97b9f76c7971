"""Where a probabilistic run begins: proxies at the class means, and embeddings of a length that means something.

The length of an embedding is its concentration. Out of a fresh head it is arbitrary, so the last linear layer is
scaled, by a published factor or to a wanted mean length. Source: authors' release (settings); the wanted length is our
reading.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize
from proxemics.losses.checks import check_batch, check_number


@torch.no_grad()
def class_means(embeddings: Tensor, labels: Tensor, proxies: Tensor, *, length: float) -> Tensor:
    """Return proxies that point to the means of the embeddings of their classes.

    With K proxies a class, its pictures are dealt out to them in turn, and each points to the mean of its share.

    Args:
        embeddings: (n, M) floating, any length.
        labels: (n,) integers in 0..C-1.
        proxies: (C, M) or (C, K, M) floating: the wanted shape; a proxy without a picture keeps its direction.
        length: > 0, of every proxy returned.

    Returns:
        The shape and dtype of ``proxies``.

    Raises:
        LossError: shapes or labels that do not fit.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 1.0]])
        >>> class_means(z, torch.tensor([0, 0, 1]), torch.zeros(2, 2), length=3.0)
        tensor([[3., 0.],
                [0., 3.]])
    """
    check_number("length", length, low=0, open_low=True)
    classes, dim = proxies.shape[0], proxies.shape[-1]
    labels = check_batch(embeddings, labels, num_classes=classes, dim=dim).to(proxies.device)
    flat = proxies.reshape(-1, dim)
    per_class = len(flat) // classes
    slots = labels * per_class + _turns(labels) % per_class
    sums = torch.zeros_like(flat).index_add_(0, slots, embeddings.to(flat))
    seen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device).index_fill_(0, slots, True)
    return (normalize(torch.where(seen[:, None], sums, flat)) * length).to(proxies.dtype).view(proxies.shape)


def _turns(labels: Tensor) -> Tensor:
    """For each row, how many rows of its class come before it."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    turns = torch.empty_like(labels)
    turns[order] = torch.arange(len(labels), device=labels.device) - starts[labels[order]]
    return turns


@torch.no_grad()
def scale_last_linear(head: nn.Module | None, factor: float) -> None:
    """Multiply weight and bias of the last linear layer of ``head``, and with them the length of all embeddings.

    Args:
        head: what makes the embeddings.
        factor: > 0.

    Raises:
        LossError: there is no linear layer.

    Example:
        >>> head = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        >>> before = head(torch.ones(1, 2))
        >>> scale_last_linear(head, 50.0)
        >>> torch.allclose(head(torch.ones(1, 2)), 50 * before)
        True
    """
    check_number("factor", factor, low=0, open_low=True)
    layers = [] if head is None else [module for module in head.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise LossError(
            "The length of the embeddings cannot be scaled, because the model has no linear head; "
            "set model.dim, or init_norm_multiplier=1."
        )
    layers[-1].weight.mul_(factor)
    if layers[-1].bias is not None:
        layers[-1].bias.mul_(factor)
