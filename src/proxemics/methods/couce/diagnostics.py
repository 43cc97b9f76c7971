"""What the log says of gate and dictionary: how open the gate is, and which part of the embedding finds the class."""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.methods.couce.dictionary import span_split

BINS = 10


def gate_histogram(gate: Tensor, bins: int = BINS) -> Tensor:
    """Return which share of the places has a gate in each of equal bins of [0, 1].

    Args:
        gate: any shape, values in [0, 1].
        bins: how many.

    Returns:
        (bins,) float32, sum 1; the last bin holds 1 as well.

    Example:
        >>> gate_histogram(torch.tensor([[0.0, 0.05], [0.95, 1.0]]), 10)[[0, 9]].tolist()
        [0.5, 0.5]
    """
    places = (gate.detach().float().flatten() * bins).long().clamp(0, bins - 1)
    return torch.bincount(places, minlength=bins).float() / max(1, len(places))


def recall_by_part(embeddings: Tensor, labels: Tensor, dictionary: Tensor) -> tuple[float, float, float] | None:
    """Return Recall@1 within a batch, with the whole embedding, its part in the span of the atoms, and the rest.

    Args:
        embeddings: (B, M) floating.
        labels: (B,) integers.
        dictionary: (K, M).

    Returns:
        Three numbers in [0, 1], over the rows whose class is there twice; None where there is no such row.

    Example:
        >>> z = torch.tensor([[1.0, 0, 0.1], [1, 0, -0.1], [0, 1, 0.1], [0, 1, -0.1]])
        >>> recall_by_part(z, torch.tensor([0, 0, 1, 1]), torch.tensor([[0.0, 0, 1]]))
        (1.0, 0.0, 1.0)
    """
    same = labels[:, None] == labels
    asked = same.sum(1) > 1
    if not bool(asked.any()):
        return None
    found = []
    for part in (torch.nn.functional.normalize(embeddings, dim=1), *span_split(embeddings, dictionary)):
        cosines = (part @ part.t()).fill_diagonal_(-torch.inf)
        nearest = cosines.argmax(1)
        found.append(float((labels[nearest] == labels)[asked].float().mean()))
    return found[0], found[1], found[2]
