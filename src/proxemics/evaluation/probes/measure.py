"""What all probes share: embedding changed pictures, R@1 of changed queries in an unchanged gallery, and drift.

The protocol: the gallery holds the unchanged pictures; a changed picture is the query, and its own unchanged picture
is left out of the gallery for it. So a model that ignores the change scores exactly as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.core.geometry import normalize
from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.intervals import class_intervals
from proxemics.evaluation.knn import nearest_neighbours

Embed: TypeAlias = Callable[[Tensor], Tensor]
"""Pictures (b, 3, S, S) uint8 to raw embeddings (b, D) floating, in evaluation mode, without a gradient."""
Rows: TypeAlias = "NDArray[np.int64]"
Advance: TypeAlias = Callable[[int], None]

BATCH = 64


def embed_all(embed: Embed, batches: Iterator[Tensor], advance: Advance | None = None) -> Tensor:
    """Embed batches one after the other.

    Args:
        embed: the model.
        batches: of pictures (b, 3, S, S) uint8.
        advance: called with the number of pictures of each finished batch.

    Returns:
        (N, D) float32 on the CPU, not normalised.

    Raises:
        EvaluationError: there is no picture.

    Example:
        >>> embed_all(lambda x: x.float().mean((2, 3)), in_batches(torch.ones(3, 3, 2, 2, dtype=torch.uint8))).shape
        torch.Size([3, 3])
    """
    found = []
    for batch in batches:
        found.append(embed(batch).detach().float().cpu())
        if advance is not None:
            advance(len(batch))
    if not found:
        raise EvaluationError("There is no picture to embed.")
    return torch.cat(found)


def in_batches(pictures: Tensor, size: int = BATCH) -> Iterator[Tensor]:
    """Cut pictures (N, ...) into batches."""
    return (pictures[start : start + size] for start in range(0, len(pictures), size))


def recall_hits(changed: Tensor, gallery: Tensor, classes: Rows, rows: Rows | None = None) -> NDArray[np.float64]:
    """Say for each changed query whether its nearest unchanged picture, its own left out, shows its class.

    Args:
        changed: (Q, D) embeddings of changed pictures.
        gallery: (N, D) embeddings of the unchanged pictures.
        classes: (N,) class codes.
        rows: (Q,) which picture of the gallery each query was; None: Q = N in order.

    Returns:
        (Q,) 1 or 0; NaN where the class has no other picture.

    Example:
        >>> units = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> recall_hits(units, units, np.array([0, 0, 1])).tolist()
        [1.0, 1.0, nan]
    """
    own = np.arange(len(gallery)) if rows is None else rows
    nearest = nearest_neighbours(changed, gallery, k=1, ids=own, gallery_ids=np.arange(len(gallery))).indices[:, 0]
    hits: NDArray[np.float64] = (classes[nearest] == classes[own]).astype(np.float64)
    hits[np.bincount(classes)[classes[own]] < 2] = np.nan
    return hits


def drift(changed: Tensor, unchanged: Tensor) -> float:
    """Mean of 1 - cos between the embeddings of a picture and of its changed version: 0 is no change, 1 a right angle.

    Args:
        changed: (N, D).
        unchanged: (N, D).

    Example:
        >>> round(drift(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])), 6)
        1.0
    """
    cosines = (normalize(changed.double()) * normalize(unchanged.double())).sum(1)
    return max(float((1 - cosines).mean()), 0.0)  # rounding may pass 1


def recall_chance(classes: Rows, rows: Rows | None = None) -> float:
    """R@1 of a random ranking: the mean over queries of the share of their class among the other pictures.

    Example:
        >>> recall_chance(np.array([0, 0, 1, 1]))
        0.3333333333333333
    """
    sizes = np.bincount(classes)[classes if rows is None else classes[rows]]
    counted = sizes[sizes > 1]
    return float(((counted - 1) / max(len(classes) - 1, 1)).mean()) if len(counted) else float("nan")


def interval(values: NDArray[np.float64], classes: Rows, seed: int) -> tuple[float, float]:
    """95 % interval of a mean over queries, by resampling whole classes (500 times)."""
    if np.isnan(values).all():
        return (float("nan"), float("nan"))
    return class_intervals({"mean": values}, classes, resamples=500, seed=seed)["mean"]


def balanced_rows(classes: Rows, count: int, seed: int, *, least: int = 4) -> Rows:
    """Draw rows so that every class has about as many and none is alone.

    Classes with one picture are left out. Where ``count`` is too small to give all classes ``least`` pictures, some
    classes are drawn.

    Args:
        classes: (N,) class codes.
        count: how many rows at most.
        seed: of the draw.
        least: pictures of a class wanted, as far as it has them.

    Returns:
        Row numbers, rising; the same for the same seed.

    Example:
        >>> codes = np.repeat(np.arange(9), 5)
        >>> np.unique(codes[balanced_rows(codes, 8, 0)], return_counts=True)[1]
        array([4, 4])
    """
    order = numpy_generator(seed, "probe").permutation(len(classes))
    sizes = np.bincount(classes)
    order = order[sizes[classes[order]] > 1]
    chosen = list(dict.fromkeys(classes[order].tolist()))[: max(count // least, 1)]
    order = order[np.isin(classes[order], chosen)]
    seen: dict[int, int] = {}
    place = np.empty(len(order), dtype=np.int64)
    for number, code in enumerate(classes[order].tolist()):
        place[number] = seen[code] = seen.get(code, -1) + 1
    kept: Rows = np.sort(order[np.argsort(place, kind="stable")[:count]])
    return kept[np.bincount(classes[kept], minlength=len(sizes))[classes[kept]] > 1]


def to_bytes(values: Tensor) -> Tensor:
    """Round grey levels (..., ) floating to uint8.

    Example:
        >>> to_bytes(torch.tensor([-3.0, 1.6, 300.0])).tolist()
        [0, 2, 255]
    """
    return values.round().clamp(0, 255).to(torch.uint8)
