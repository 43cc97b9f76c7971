"""Background reliance: what the embedding does when the background is removed, swapped or kept alone.

* removed: the object stays on plain grey;
* swapped: the object stays, on the background of a picture of another class, whose own object is painted over;
* alone: the object is painted over from what surrounds it. A blurred hole of about the object's outline stays.

Queries are the changed pictures, the gallery holds the unchanged ones; see :mod:`proxemics.evaluation.probes.measure`.

In a swapped picture object and background contradict each other (a cue conflict, as Geirhos et al. (ICLR 2019) set
texture against shape). The share of them whose embedding is nearer to the picture that gave the background than to the
one that gave the object has known extremes: 0 for a model that sees objects only, 1 for one that sees backgrounds only,
0.5 for random and for constant embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from proxemics.core.errors import EvaluationError
from proxemics.core.geometry import normalize
from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.probes.measure import (
    BATCH,
    Advance,
    Embed,
    Rows,
    drift,
    embed_all,
    in_batches,
    interval,
    recall_chance,
    recall_hits,
    to_bytes,
)

GREY = (127.0, 127.0, 127.0)
_SAME = 1e-6  # cosines nearer than this are equal: rounding of float32
_GROW = 1 / 32  # of the side: how far beyond the mask the object is painted over, for its edge and shadow


@dataclass(frozen=True)
class BackgroundReliance:
    """What background reliance is made of.

    Attributes:
        follows: share of swapped pictures that are nearer to the picture of their background than to that of their
            object; ties count half.
        follows_interval: its 95 % interval over classes.
        recall: R@1 of ``clean``, ``removed``, ``swapped`` and ``alone`` queries.
        recall_interval: their 95 % intervals over classes.
        chance: R@1 of a random ranking.
        drift: mean 1 - cos to the unchanged picture, of ``removed``, ``swapped`` and ``alone``.
        queries: how many pictures were changed.
    """

    follows: float
    follows_interval: tuple[float, float]
    recall: dict[str, float]
    recall_interval: dict[str, tuple[float, float]]
    chance: float
    drift: dict[str, float]
    queries: int


def background_reliance(
    embed: Embed,
    pictures: Tensor,
    masks: Tensor,
    classes: Rows,
    *,
    rows: Rows | None = None,
    scenes: Rows | None = None,
    clean: Tensor | None = None,
    grey: tuple[float, float, float] = GREY,
    seed: int = 0,
    advance: Advance | None = None,
) -> BackgroundReliance:
    """Remove, swap and isolate backgrounds and see what the embedding does.

    Args:
        embed: the model.
        pictures: (N, 3, S, S) uint8.
        masks: (N, S, S) float in [0, 1], 1 on the object; those outside ``rows`` are not looked at.
        classes: (N,) class codes.
        rows: (Q,) the pictures with a mask, which are the queries; None for all.
        scenes: (N,) codes of the backgrounds where they are known: a background is never swapped for the same.
        clean: (N, D) embeddings of the unchanged pictures, if they are at hand.
        grey: colour of the removed background, grey levels of R, G, B.
        seed: of who swaps with whom.
        advance: called with the number of pictures embedded.

    Returns:
        A :class:`BackgroundReliance`.

    Raises:
        EvaluationError: shapes do not fit, or all queries are of one class.

    Example:
        >>> pictures = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
        >>> masks = torch.zeros(8, 8, 8)
        >>> masks[:, 2:6, 2:6] = 1.0
        >>> found = background_reliance(
        ...     lambda x: x[:, :, 3:5, 3:5].float().flatten(1), pictures, masks, np.arange(8) // 2)
        >>> found.follows, round(found.drift["swapped"], 6)
        (0.0, 0.0)
    """
    if masks.shape != (len(pictures), *pictures.shape[2:]) or len(classes) != len(pictures):
        raise EvaluationError(
            f"{len(pictures)} pictures of {tuple(pictures.shape[2:])} with masks of {tuple(masks.shape)} and "
            f"{len(classes)} classes do not fit; give one mask and one class a picture."
        )
    queries = np.arange(len(pictures)) if rows is None else rows
    donors = queries[choose_donors(classes[queries], None if scenes is None else scenes[queries], seed=seed)]
    gallery = embed_all(embed, in_batches(pictures), advance) if clean is None else clean

    def changed(how: str) -> Iterator[Tensor]:
        for start in range(0, len(queries), BATCH):
            own, other = queries[start : start + BATCH], donors[start : start + BATCH]
            if how == "removed":
                yield on_colour(pictures[own], masks[own], grey)
            elif how == "alone":
                yield paint_over(pictures[own], masks[own])
            else:
                yield paste(pictures[own], masks[own], paint_over(pictures[other], masks[other]))

    found = {how: embed_all(embed, changed(how), advance) for how in ("removed", "swapped", "alone")}
    hits = {how: recall_hits(vectors, gallery, classes, queries) for how, vectors in found.items()}
    hits = {"clean": recall_hits(gallery[queries], gallery, classes, queries), **hits}
    side = conflicts(found["swapped"], gallery[queries], gallery[donors])
    return BackgroundReliance(
        follows=float(side.mean()),
        follows_interval=interval(side, classes[queries], seed),
        recall={how: mean(one) for how, one in hits.items()},
        recall_interval={how: interval(one, classes[queries], seed) for how, one in hits.items()},
        chance=recall_chance(classes, queries),
        drift={how: drift(vectors, gallery[queries]) for how, vectors in found.items()},
        queries=len(queries),
    )


def mean(hits: NDArray[np.float64]) -> float:
    """Mean of what is known; NaN where nothing is."""
    known = hits[~np.isnan(hits)]
    return float(known.mean()) if len(known) else float("nan")


def conflicts(swapped: Tensor, objects: Tensor, backgrounds: Tensor) -> NDArray[np.float64]:
    """Return for each swapped picture 1 if it is nearer to the giver of its background, 0 to that of its object.

    Args:
        swapped: (Q, D).
        objects: (Q, D) of the pictures whose objects they show.
        backgrounds: (Q, D) of the pictures whose backgrounds they show.

    Returns:
        (Q,) with 0.5 where both are equally near.

    Example:
        >>> conflicts(torch.tensor([[1.0, 0.1]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])).tolist()
        [1.0]
    """
    units = normalize(swapped.double())
    lead = (units * normalize(backgrounds.double())).sum(1) - (units * normalize(objects.double())).sum(1)
    return np.asarray(torch.where(lead.abs() <= _SAME, 0.5, (lead > 0).double()).numpy(), dtype=np.float64)


def choose_donors(classes: Rows, scenes: Rows | None = None, *, seed: int = 0) -> Rows:
    """Choose for each picture one of another class, and of another background, to take the background from.

    Args:
        classes: (Q,) class codes.
        scenes: (Q,) codes of backgrounds; None when they are unknown.
        seed: of the draw.

    Returns:
        (Q,) row numbers below Q.

    Raises:
        EvaluationError: there is one class only, or all others show the same background.

    Example:
        >>> donors = choose_donors(np.array([0, 0, 1, 1]))
        >>> bool((np.array([0, 0, 1, 1])[donors] != np.array([0, 0, 1, 1])).all())
        True
    """
    draw = numpy_generator(seed, "donors")
    chosen = np.empty(len(classes), dtype=np.int64)
    for row in range(len(classes)):
        allowed = classes != classes[row]
        if scenes is not None:
            allowed &= scenes != scenes[row]
        others = np.flatnonzero(allowed)
        if not len(others):
            raise EvaluationError(
                "To swap backgrounds there must be pictures of another class on another background; "
                "the pictures that have a mask are of one class or on one background."
            )
        chosen[row] = others[draw.integers(len(others))]
    return chosen


def on_colour(pictures: Tensor, masks: Tensor, colour: tuple[float, float, float] = GREY) -> Tensor:
    """Keep the object and replace everything else by a colour.

    Args:
        pictures: (B, 3, S, S) uint8.
        masks: (B, S, S) float in [0, 1], 1 on the object.
        colour: grey levels of R, G, B.

    Returns:
        (B, 3, S, S) uint8.

    Example:
        >>> on_colour(torch.full((1, 3, 1, 2), 9, dtype=torch.uint8), torch.tensor([[[1.0, 0.0]]]))[0, 0].tolist()
        [[9, 127]]
    """
    plain = torch.tensor(colour, dtype=torch.float32).view(1, 3, 1, 1)
    weight = masks[:, None].float()
    return to_bytes(pictures.float() * weight + plain * (1 - weight))


def paste(pictures: Tensor, masks: Tensor, backgrounds: Tensor) -> Tensor:
    """Put the objects on other backgrounds.

    Args:
        pictures: (B, 3, S, S) uint8.
        masks: (B, S, S) float in [0, 1], 1 on the object.
        backgrounds: (B, 3, S, S) uint8.

    Returns:
        (B, 3, S, S) uint8.

    Example:
        >>> nine, two = torch.full((1, 3, 1, 2), 9, dtype=torch.uint8), torch.full((1, 3, 1, 2), 2, dtype=torch.uint8)
        >>> paste(nine, torch.tensor([[[1.0, 0.0]]]), two)[0, 0].tolist()
        [[9, 2]]
    """
    weight = masks[:, None].float()
    return to_bytes(pictures.float() * weight + backgrounds.float() * (1 - weight))


def paint_over(pictures: Tensor, masks: Tensor) -> Tensor:
    """Fill the place of the object smoothly from what surrounds it (push and pull over an image pyramid).

    Args:
        pictures: (B, 3, S, S) uint8.
        masks: (B, S, S) float in [0, 1], 1 on the object; the filled place is a 32nd of the side wider.

    Returns:
        (B, 3, S, S) uint8; grey where the mask covers everything.

    Example:
        >>> picture = torch.full((1, 3, 8, 8), 50, dtype=torch.uint8)
        >>> picture[..., 3:5, 3:5] = 250
        >>> mask = torch.zeros(1, 8, 8)
        >>> mask[:, 3:5, 3:5] = 1
        >>> paint_over(picture, mask).unique().tolist()
        [50]
    """
    side = 2 * max(1, round(_GROW * masks.shape[-1])) + 1
    hole = functional.max_pool2d(masks[:, None].float(), side, 1, side // 2)
    weight = 1 - hole
    colour = pictures.float()
    levels = [(colour, weight)]
    while min(weight.shape[2:]) > 1:
        mass = functional.avg_pool2d(weight, 2, ceil_mode=True)
        colour = functional.avg_pool2d(colour * weight, 2, ceil_mode=True) / mass.clamp_min(1e-6)
        weight = (4 * mass).clamp_max(1)
        levels.append((colour, weight))
    filled = torch.full_like(levels[-1][0], GREY[0])
    for colour, weight in reversed(levels):
        wide = functional.interpolate(filled, colour.shape[2:], mode="bilinear", align_corners=False)
        filled = colour * weight + wide * (1 - weight)
    return to_bytes(filled)
