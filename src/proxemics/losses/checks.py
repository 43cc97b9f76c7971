"""Checks that every loss shares: shapes, dtypes, label range and options, with messages that say what to do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxemics.core.errors import LossError


def check_embeddings(embeddings: Tensor, dim: int | None = None) -> None:
    """Refuse anything but a floating (B, dim) tensor.

    Args:
        embeddings: what was given as embeddings.
        dim: M, the embedding dimension that the loss was built for; None for any.

    Raises:
        LossError: not a tensor, not floating, or not of shape (B, dim).

    Example:
        >>> check_embeddings(torch.zeros(2, 4), 3)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: Embeddings must have shape (B, 3), got (2, 4). Build the loss with dim=4, ...
    """
    if not isinstance(embeddings, Tensor):
        raise LossError(f"Embeddings must be a torch tensor, got {type(embeddings).__name__}. Use torch.as_tensor().")
    if not embeddings.is_floating_point():
        raise LossError(f"Embeddings must be floating, got {embeddings.dtype}. Convert them with .float().")
    if embeddings.ndim != 2 or dim not in (None, embeddings.shape[1]):
        fix = (
            f"Build the loss with dim={embeddings.shape[1]}, or" if embeddings.ndim == 2 else "Pool or flatten them, or"
        )
        raise LossError(
            f"Embeddings must have shape (B, {dim or 'M'}), got {tuple(embeddings.shape)}. "
            f"{fix} change the head of the model."
        )


def check_labels(labels: Tensor, batch: int, num_classes: int | None, device: torch.device) -> Tensor:
    """Return labels as (B,) int64 on ``device`` after checking kind, length and range.

    Args:
        labels: (B,) of any integer dtype.
        batch: B, the number of embeddings.
        num_classes: C; labels must lie in 0..C-1. None for any label.
        device: where the loss computes.

    Returns:
        (B,) int64.

    Raises:
        LossError: not an integer vector of length B, or a label outside 0..C-1 (named with its row).

    Example:
        >>> check_labels(torch.tensor([0, 5]), 2, 5, torch.device("cpu"))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: Label 5 in row 1 is outside 0..4: the loss was built for 5 classes. Map ...
    """
    if not isinstance(labels, Tensor):
        raise LossError(
            f"Labels must be a torch tensor of integers, got {type(labels).__name__}. "
            "Map names to integers with proxemics.data.LabelMap and use torch.as_tensor()."
        )
    if labels.ndim == 2:
        raise LossError(
            f"Labels must have shape (B,), got {tuple(labels.shape)}: images with several labels are not supported, "
            "because a proxy loss pulls each embedding to one proxy. Give one class id an image."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise LossError(f"Labels must be integers, got {labels.dtype}. Convert them with .long().")
    if labels.shape != (batch,):
        raise LossError(
            f"Labels must have shape ({batch},) to match the embeddings, got {tuple(labels.shape)}. "
            "Give one label a row."
        )
    labels = labels.to(device=device, dtype=torch.int64)
    if batch and num_classes is not None:
        low, high = torch.aminmax(labels)
        if int(low) < 0 or int(high) >= num_classes:
            _refuse_label(labels, num_classes)
    return labels


def _refuse_label(labels: Tensor, num_classes: int) -> None:
    row = int(((labels < 0) | (labels >= num_classes)).nonzero()[0, 0])
    label = int(labels[row])
    more = f", or build the loss with num_classes={int(labels.max()) + 1}" if label >= num_classes else ""
    raise LossError(
        f"Label {label} in row {row} is outside 0..{num_classes - 1}: the loss was built for {num_classes} classes. "
        f"Map labels to 0..C-1 with proxemics.data.LabelMap{more}."
    )


def check_batch(
    embeddings: Tensor, labels: Tensor, *, num_classes: int | None = None, dim: int | None = None
) -> Tensor:
    """Check a batch with :func:`check_embeddings` and :func:`check_labels`; return the labels as (B,) int64.

    Args:
        embeddings: (B, M) floating.
        labels: (B,) of any integer dtype.
        num_classes: C; None for any label.
        dim: M; None for any.

    Returns:
        (B,) int64 on the device of the embeddings.

    Raises:
        LossError: see the two checks.

    Example:
        >>> check_batch(torch.zeros(2, 3), torch.tensor([1, 0], dtype=torch.uint8), num_classes=2, dim=3)
        tensor([1, 0])
    """
    check_embeddings(embeddings, dim)
    return check_labels(labels, embeddings.shape[0], num_classes, embeddings.device)


def check_inputs(embeddings: Tensor, labels: Tensor, proxies: Tensor, *, ndim: int = 2) -> Tensor:
    """Check a batch together with the proxies it is compared to; return the labels as (B,) int64.

    Args:
        embeddings: (B, M) floating.
        labels: (B,) of any integer dtype.
        proxies: (C, M), or (C, K, M) when ``ndim`` is 3; floating, on the device of the embeddings.
        ndim: 2 or 3.

    Returns:
        (B,) int64 on the device of the embeddings.

    Raises:
        LossError: see :func:`check_batch`, or proxies of another rank or dtype, without a class, or on another device.

    Example:
        >>> check_inputs(torch.zeros(2, 3), torch.tensor([1, 0]), torch.zeros(2, 3))
        tensor([1, 0])
    """
    check_embeddings(embeddings, proxies.shape[-1] if isinstance(proxies, Tensor) and proxies.ndim else None)
    _check_proxies(proxies, embeddings.device, ndim)
    return check_labels(labels, embeddings.shape[0], proxies.shape[0], embeddings.device)


def _check_proxies(proxies: Tensor, device: torch.device, ndim: int) -> None:
    shape = "(C, M)" if ndim == 2 else "(C, K, M)"
    if not isinstance(proxies, Tensor) or not proxies.is_floating_point() or proxies.ndim != ndim or not len(proxies):
        given = f"{proxies.dtype} {tuple(proxies.shape)}" if isinstance(proxies, Tensor) else type(proxies).__name__
        raise LossError(f"Proxies must be a floating tensor of shape {shape} with C >= 1, got {given}.")
    if proxies.device != device:
        raise LossError(
            f"Embeddings are on {device} but the proxies are on {proxies.device}. "
            f"Move the loss with loss.to({str(device)!r})."
        )


def check_number(
    name: str, value: float, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> None:
    """Refuse an option that is not a finite number in [low, high], or in (low, high] when ``open_low``.

    Raises:
        LossError: with the name, the value and the range.

    Example:
        >>> check_number("sigma", -1.0, low=0, open_low=True)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: sigma must be a finite number above 0, got -1.0.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if number and (value > low if open_low else value >= low) and value <= high:
        return
    parts = []
    if low > -math.inf:
        parts.append(f"above {low:g}" if open_low else f"at least {low:g}")
    if high < math.inf:
        parts.append(f"at most {high:g}")
    raise LossError(f"{name} must be a finite number{' ' if parts else ''}{' and '.join(parts)}, got {value!r}.")


def check_count(name: str, value: int, *, low: int = 1) -> None:
    """Refuse an option that is not an integer of at least ``low``.

    Raises:
        LossError: with the name and the value.

    Example:
        >>> check_count("num_classes", 0)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: num_classes must be a whole number of at least 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise LossError(f"{name} must be a whole number of at least {low}, got {value!r}.")
