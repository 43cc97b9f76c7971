"""One autograd function for all losses that read cosines: norms folded into the product, backward written by hand.

A loss supplies a :data:`Kernel`, which turns the table of cosines into a value and, in the same memory, into the
gradient of the value with respect to the cosines. Everything else - normalising, the three matrix products, the
projection back onto the sphere - is here, once. Rows of proxies are visited in blocks that stay in the processor's
cache, so that the proxies are read from memory twice a step and no normalised copy of them exists.

The table is kept class by class, (C, B), so that a block of classes is contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EPS = 1e-12
"""Smallest norm that is divided by; shorter rows count as zero vectors: cosine 0 to everything and no gradient."""

BLOCK_BYTES = 1 << 20
"""Bytes of proxies per block and thread; half the usual second-level cache is left for the result."""

Kernel = Callable[[Tensor, Tensor, bool], Tensor]
"""``kernel(cosines (C, B), labels (B,), want_gradient) -> scalar``, B >= 1.

It may overwrite the cosines, and must overwrite them with d value / d cosines when the gradient is wanted.
"""


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32.

    Example:
        >>> compute_dtype(torch.zeros(1, dtype=torch.float16), torch.zeros(1))
        torch.float32
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def blocks(rows: Tensor, *, least: int = 64) -> Iterator[slice]:
    """Yield slices over the first axis that hold about :data:`BLOCK_BYTES` a thread; one slice on an accelerator.

    Args:
        rows: (N, ...), N >= 1.
        least: fewest rows in a block.

    Example:
        >>> list(blocks(torch.zeros(5, 2)))
        [slice(0, 5, None)]
    """
    total = len(rows)
    size = total
    if rows.device.type == "cpu":
        row_bytes = max(rows.element_size() * rows[0].numel(), 1)
        size = max(least, BLOCK_BYTES * torch.get_num_threads() // row_bytes)
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def inverse_norms(rows: Tensor) -> Tensor:
    """Return ``1 / |row|``, and 0 for zero vectors (norm <= EPS).

    Args:
        rows: (..., M) float32 or float64.

    Returns:
        (...).

    Example:
        >>> inverse_norms(torch.tensor([[0.0, 4.0], [0.0, 0.0]]))
        tensor([0.2500, 0.0000])
    """
    norms = torch.linalg.vector_norm(rows, dim=-1)
    return torch.nn.functional.threshold(norms, EPS, math.inf).reciprocal_()


def unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to unit length, differentiably; zero vectors stay zero and get no gradient.

    Args:
        rows: (..., M) float32 or float64.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return rows * inverse_norms(rows)[..., None]


def project_(gradient: Tensor, rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """Take the part along ``rows`` out of ``gradient``, in place: unit vectors can only turn.

    Args:
        gradient: (..., M), the gradient with respect to the unit rows, times ``scale``.
        rows: (..., M) raw rows.
        scale: (...) from :func:`inverse_norms`; None when the rows are unit already.

    Returns:
        ``gradient``.
    """
    radial = torch.linalg.vecdot(gradient, rows)
    if scale is not None:
        radial.mul_(scale).mul_(scale)
    return gradient.addcmul_(rows, radial[..., None], value=-1)


class _CosineLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, labels: Tensor, kernel: Kernel) -> Tensor:
        dtype = compute_dtype(embeddings, proxies)
        want = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        with torch.autocast(embeddings.device.type, enabled=False):
            rows, weights = embeddings.to(dtype), proxies.to(dtype)
            scale_z = inverse_norms(rows)
            units = rows * scale_z[:, None]
            table = units.new_empty(len(weights), len(units))
            scale_w = units.new_empty(len(weights))
            for block in blocks(weights):
                scale_w[block] = inverse_norms(weights[block])
                torch.mm(weights[block], units.t(), out=table[block])
                table[block].mul_(scale_w[block, None])
            value = kernel(table, labels, want)
            if want:
                table.mul_(scale_w[:, None])
                ctx.save_for_backward(proxies, units, table, scale_z, scale_w)
                ctx.embedding_dtype = embeddings.dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        proxies, units, table, scale_z, scale_w = ctx.saved_tensors
        with torch.autocast(units.device.type, enabled=False):
            weights = proxies.to(units.dtype)
            grad_z = torch.zeros_like(units) if ctx.needs_input_grad[0] else None
            grad_w = torch.empty_like(weights) if ctx.needs_input_grad[1] else None
            for block in blocks(weights):
                if grad_z is not None:
                    grad_z.addmm_(table[block].t(), weights[block])
                if grad_w is not None:
                    torch.mm(table[block], units, out=grad_w[block])
                    project_(grad_w[block], weights[block], scale_w[block]).mul_(grad)
            if grad_z is not None:
                grad_z = project_(grad_z, units).mul_((scale_z * grad)[:, None]).to(ctx.embedding_dtype)
        return grad_z, None if grad_w is None else grad_w.to(proxies.dtype), None, None


def cosine_loss(embeddings: Tensor, labels: Tensor, proxies: Tensor, kernel: Kernel) -> Tensor:
    """Compute a loss of the cosines between embeddings and proxies, with its gradient, in three matrix products.

    Args:
        embeddings: (B, M) floating, any length; checked by the caller.
        labels: (B,) int64 in 0..C-1.
        proxies: (C, M) floating, any length.
        kernel: value and gradient of the loss; see :data:`Kernel`.

    Returns:
        Scalar in float32 (float64 if an input is float64); zero with a graph for B = 0. Differentiable once.

    Example:
        >>> def mean_cosine(cosines, labels, want_gradient):
        ...     value = cosines.mean()
        ...     if want_gradient:
        ...         _ = cosines.fill_(1 / cosines.numel())
        ...     return value
        >>> float(cosine_loss(torch.tensor([[3.0, 4.0]]), torch.tensor([0]), torch.tensor([[2.0, 0.0]]), mean_cosine))
        0.6000000238418579
    """
    if not len(labels):
        return empty_loss(embeddings, proxies)
    # torch gives Function.apply no type.
    return _CosineLoss.apply(embeddings, proxies, labels, kernel)  # type: ignore[no-any-return]


def carry_nan(units: Tensor) -> Tensor:
    """Return 0, or NaN when there is one in ``units``: a loss that picks pairs by comparing must not lose it.

    Args:
        units: (B, M) unit embeddings.

    Example:
        >>> float(carry_nan(torch.ones(2, 3)))
        0.0
    """
    return units.sum() * 0


def empty_loss(embeddings: Tensor, parameters: Tensor) -> Tensor:
    """Return 0 with a graph to both, the value of every loss on an empty batch.

    Args:
        embeddings: (0, M) floating.
        parameters: proxies or boundaries, any shape.

    Returns:
        Scalar 0 in float32 or float64.

    Example:
        >>> float(empty_loss(torch.zeros(0, 3), torch.ones(2, 3)))
        0.0
    """
    dtype = compute_dtype(embeddings, parameters)
    return embeddings.to(dtype).sum() * 0 + parameters.to(dtype).sum() * 0
