"""A threshold for each class: some classes look like many others, and one threshold for all lets them through.

The false-match rate of class c at threshold t is taken as λ_c · (its own rate) + (1 - λ_c) · (the rate of all classes),
and its threshold is the smallest at which that is at most the rate of all classes at the common threshold. λ_c is the
share of what is seen of class c that belongs to the class and not to chance (empirical Bayes; Efron and Morris 1973):

    λ_c = τ² / (τ² + φ p / R_c)

p is the rate of all classes and R_c the pairs of class c with others. φ p / R_c is how much its rate varies by chance:
φ is the variance over its mean of the number of false matches of a class with each other class, because false matches
come in clumps, a few classes that look alike, and R_c pairs are worth R_c / φ independent ones. τ² is what is left of
the variance between classes after that is taken off. A class with few pairs keeps the common threshold.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.evaluation.operating_point import ClassThreshold
from proxemics.evaluation.pair_scan import BINS, PairSet, count_by_class, pair_blocks, smallest_index, threshold_of

_A_DECADE = 64  # thresholds in every factor of ten of the false-match rate
_DECADES = 2.0  # above and below the common rate


def class_thresholds(
    pairs: PairSet, index: int, false: NDArray[np.int64], *, block_size: int | None = None
) -> dict[str, ClassThreshold]:
    """Find the threshold of each class; two passes over all pairs.

    Args:
        pairs: the set.
        index: the common threshold.
        false: (BINS + 1,) impostor pairs that reach each threshold.
        block_size: changes speed and memory only.

    Returns:
        By class name. Thresholds are taken from a ladder whose steps change the common false-match rate by 4 %.
    """
    rate = int(false[index]) / int(false[0])
    ladder = _ladder(false, index, rate)
    counts = count_by_class(pairs, ladder, block_size=block_size)
    share = own_share(pairs, index, counts.impostors, block_size=block_size)
    own = counts.false_matches / counts.impostors[:, None]
    mixed = share[:, None] * own + (1 - share[:, None]) * counts.fmr
    found = {}
    for number, name in enumerate(pairs.names):
        place = min(smallest_index(mixed[number], rate), len(counts.index) - 1)
        found[name] = ClassThreshold(
            threshold=threshold_of(int(counts.index[place])),
            own_share=float(share[number]),
            negatives=int(counts.impostors[number]),
            false_match=float(own[number, place]),
        )
    return found


def _ladder(false: NDArray[np.int64], index: int, rate: float) -> NDArray[np.int64]:
    base = rate if rate > 0 else 1 / int(false[0])
    powers = np.arange(-_DECADES * _A_DECADE, _DECADES * _A_DECADE + 1) / _A_DECADE
    rates = np.minimum(base * 10.0**powers, 1.0)
    return np.unique([smallest_index(false, float(one) * int(false[0])) for one in rates] + [index, BINS])


def own_share(
    pairs: PairSet, index: int, impostors: NDArray[np.int64], *, block_size: int | None = None
) -> NDArray[np.float64]:
    """Return λ of each class at a threshold; see the module text.

    Args:
        pairs: the set.
        index: the threshold.
        impostors: (C,) pairs of each class with others.
        block_size: changes speed and memory only.

    Returns:
        (C,) in [0, 1].
    """
    first, second, count = _matches_of_classes(pairs, index, block_size)
    sizes, classes = pairs.sizes.astype(np.float64), len(pairs.names)
    matches = np.bincount(first, count, classes) + np.bincount(second, count, classes)
    squares = np.bincount(first, count**2, classes) + np.bincount(second, count**2, classes)
    crossed = np.bincount(first, count * sizes[second], classes) + np.bincount(second, count * sizes[first], classes)
    own, trials = matches / impostors, impostors.astype(np.float64)
    rate = float(matches.sum() / trials.sum())
    if rate == 0:
        return np.zeros(classes)
    # Variance of the number of matches, from how unevenly they fall on the other classes.
    spread = squares - 2 * own * sizes * crossed + (own * sizes) ** 2 * (np.square(sizes).sum() - sizes**2)
    clumping = float(spread.sum() / matches.sum()) * (classes - 1) / max(classes - 2, 1)
    chance = max(clumping, 1.0) * rate / trials
    weight = trials / trials.sum()
    between = max(float((weight * (np.square(own - rate) - chance)).sum()), 0.0)
    shares: NDArray[np.float64] = between / (between + chance)
    return shares


def _matches_of_classes(
    pairs: PairSet, index: int, block_size: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs of classes (P,), (P,) that match at a threshold, and how many of their pictures do (P,)."""
    classes = len(pairs.names)
    found: dict[int, int] = {}
    for block in pair_blocks(pairs, block_size):
        hit = block.steps >= index
        row, col = torch.nonzero(hit if block.impostor is None else hit & block.impostor, as_tuple=True)
        key = pairs.codes[block.rows][row] * classes + pairs.codes[block.cols][col]
        keys, counts = torch.unique(key, return_counts=True)
        for one, number in zip(keys.tolist(), counts.tolist(), strict=True):
            found[one] = found.get(one, 0) + number
    keys_, counts_ = (np.array(list(part), dtype=np.int64) for part in (found.keys(), found.values()))
    return keys_ // classes, keys_ % classes, counts_.astype(np.float64)
