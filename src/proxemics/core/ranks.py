"""Bring the rows of all processes together so that gradients equal those of one process on the joined batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class _GatherRows(torch.autograd.Function):
    """Concatenate equal shares over processes; backward sums the gradients of all processes and takes the own share."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        shares = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, rows.contiguous())
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        size = total.shape[0] // dist.get_world_size()
        start = dist.get_rank() * size
        return total[start : start + size]


def world_size() -> int:
    """Return the number of processes, 1 when nothing is distributed.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 when nothing is distributed.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather_rows(rows: Tensor) -> Tensor:
    """Join the rows of all processes, differentiably.

    Every process then computes the same loss on the joined batch. The backward pass sums what the ``W`` processes say
    about a row, that is ``W`` times its gradient, and data-parallel training divides by ``W`` when it averages: the
    parameters receive exactly the gradient of one process on the joined batch.

    Args:
        rows: (b, ...) any dtype, the same shape on every process.

    Returns:
        (W * b, ...) in the order of the ranks; ``rows`` itself when there is one process.

    Example:
        >>> gather_rows(torch.arange(3)).tolist()
        [0, 1, 2]
    """
    if world_size() == 1:
        return rows
    if not rows.requires_grad:
        shares = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, rows.contiguous())
        return torch.cat(shares)
    joined: Tensor = _GatherRows.apply(rows)
    return joined


def share_of(joined: Tensor) -> Tensor:
    """Return the part of a tensor over the joined batch that belongs to this process.

    Random numbers drawn for the joined batch with the same seed everywhere, then shared out, are those of one process.

    Args:
        joined: (W * b, ...), the same on every process.

    Returns:
        (b, ...); ``joined`` itself when there is one process.

    Example:
        >>> share_of(torch.arange(3)).tolist()
        [0, 1, 2]
    """
    return joined.chunk(world_size())[rank()]


def mean_over_ranks(value: Tensor) -> Tensor:
    """Average a tensor over the processes, without a gradient; itself when there is one process.

    Example:
        >>> mean_over_ranks(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / world_size()
