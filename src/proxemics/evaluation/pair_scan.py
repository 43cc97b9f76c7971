"""All pairs of a set of embeddings, block by block: how many of one class, and of two, reach every threshold.

A score is the cosine of two embeddings, computed in float64. Thresholds are multiples of :data:`STEP`, about one
millionth, and a pair matches when its score is at least the threshold, up to 1e-9. Counting scores into steps of that
size therefore loses nothing: every count at every such threshold is exact, whatever the size of the blocks, in memory
that does not grow with the number of pairs. Scores inside one step count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.inputs import Embeddings, check_embeddings, row_chunks
from proxemics.evaluation.labels import Labels, encode_labels, label_array

STEP = 2.0**-20
"""Distance of neighbouring thresholds."""
_HALF = 2**20
BINS = 2 * _HALF + 1
"""Steps from a cosine of -1 to one of 1."""
_EQUAL = 2.0**-30  # a score this far below a threshold reaches it: rounding of float64
_BLOCK = 1024  # larger ones are no faster and take more memory


def threshold_of(index: int) -> float:
    """Return the threshold of a step: index 0 is -1, and index ``BINS`` lies above every score.

    Example:
        >>> threshold_of(2**20), threshold_of(BINS) > 1
        (0.0, True)
    """
    return (index - _HALF) * STEP


def steps_of(scores: Tensor) -> Tensor:
    """Return the step of each score, int64 in [0, BINS).

    Args:
        scores: any shape, float64 cosines; changed in place.

    Example:
        >>> steps_of(torch.tensor([-1.0, 0.0, 0.5, 1.0]).double()).tolist()
        [0, 1048576, 1572864, 2097152]
    """
    return (
        scores.add_(1 + _EQUAL).mul_(_HALF).clamp_(0, BINS - 1).long()
    )  # cut off, which for positive numbers is floor


@dataclass(frozen=True, eq=False)
class PairSet:
    """Embeddings sorted by class, ready to be paired.

    Attributes:
        matrix: (N, D) float32 or float64, rows of equal class side by side.
        scale: (N,) float64, one over the length of each row; 0 for a row of zeros, whose cosines are then 0.
        codes: (N,) int64 class numbers, rising.
        order: (N,) int64, where each row stood before.
        names: C class names.
    """

    matrix: Tensor
    scale: Tensor
    codes: Tensor
    order: NDArray[np.int64]
    names: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(C,) pictures of each class."""
        return np.bincount(self.codes.cpu().numpy(), minlength=len(self.names)).astype(np.int64)

    @property
    def zero_rows(self) -> int:
        """How many embeddings have length 0."""
        return int((self.scale == 0).sum())

    def unit(self, rows: slice) -> Tensor:
        """(n, D) float64 unit embeddings."""
        return self.matrix[rows].double() * self.scale[rows, None]


def pair_set(embeddings: Embeddings, labels: Labels, *, device: torch.device | str | None = None) -> PairSet:
    """Check embeddings and labels and sort them by class.

    Args:
        embeddings: (N, D) numbers of any length.
        labels: (N,) integers or strings.
        device: where to compute.

    Raises:
        EvaluationError: what cannot be scored, other lengths, or a single class, which has no pair to tell apart.
    """
    matrix = check_embeddings(embeddings, device=device)
    array = label_array(labels)
    if len(array) != len(matrix):
        raise EvaluationError(f"{len(array)} labels were given for {len(matrix)} embeddings; give one a row.")
    codes, _, names = encode_labels(array, array[:0])
    if len(names) < 2:
        raise EvaluationError(
            f"All {len(array)} pictures are of one class ({names[0]}), so there is no pair of different classes; "
            "give at least two classes."
        )
    order = np.argsort(codes, kind="stable")
    matrix = matrix[torch.from_numpy(order).to(matrix.device)]
    length = torch.cat([torch.linalg.vector_norm(matrix[rows].double(), dim=1) for rows in row_chunks(len(matrix))])
    scale = torch.where(length > 0, 1 / length, 0.0)
    return PairSet(matrix, scale, torch.from_numpy(codes[order]).to(matrix.device), order, names)


@dataclass(frozen=True, eq=False)
class Block:
    """The scores of some rows with some columns, each pair of the whole set in exactly one block.

    Attributes:
        rows: of the set.
        cols: of the set.
        steps: (r, c) int64, see :func:`steps_of`.
        impostor: (r, c) bool, pairs of different classes; None when all are.
        genuine: (r, c) bool, pairs of one class; None when there is none.
    """

    rows: slice
    cols: slice
    steps: Tensor
    impostor: Tensor | None
    genuine: Tensor | None


def pair_blocks(pairs: PairSet, size: int | None = None) -> Iterator[Block]:
    """Yield every pair of different pictures once, in blocks of ``size`` x ``size`` scores."""
    chunks = list(row_chunks(len(pairs), size or _BLOCK))
    for number, rows in enumerate(chunks):
        left = pairs.unit(rows)
        for cols in chunks[number:]:
            right = left if cols == rows else pairs.unit(cols)
            steps = steps_of(left @ right.T)
            if cols != rows and bool(pairs.codes[rows][-1] < pairs.codes[cols][0]):
                yield Block(rows, cols, steps, None, None)
                continue
            same = pairs.codes[rows, None] == pairs.codes[None, cols]
            once = torch.ones_like(same).triu(1) if cols == rows else torch.ones_like(same)
            yield Block(rows, cols, steps, once & ~same, once & same)


@dataclass(frozen=True, eq=False)
class PairCounts:
    """How many pairs have their score in each step.

    Attributes:
        impostor: (BINS,) int64, pairs of different classes.
        genuine: (BINS,) int64, pairs of one class.
    """

    impostor: NDArray[np.int64]
    genuine: NDArray[np.int64]

    def false_matches(self) -> NDArray[np.int64]:
        """(BINS + 1,) impostor pairs that reach the threshold of each index; falling, the last is 0."""
        return np.append(self.impostor[::-1].cumsum()[::-1], 0)

    def misses(self) -> NDArray[np.int64]:
        """(BINS + 1,) genuine pairs that do not reach the threshold of each index; rising from 0 to all."""
        return np.concatenate([[0], self.genuine.cumsum()])


def count_pairs(pairs: PairSet, *, block_size: int | None = None) -> PairCounts:
    """Count all pairs by step; one pass over them."""
    impostor = torch.zeros(BINS, dtype=torch.int64, device=pairs.scale.device)
    genuine = torch.zeros_like(impostor)
    for block in pair_blocks(pairs, block_size):
        chosen = block.steps.flatten() if block.impostor is None else block.steps[block.impostor]
        _tally(impostor, chosen)
        if block.genuine is not None:
            _tally(genuine, block.steps[block.genuine])
    return PairCounts(impostor.cpu().numpy(), genuine.cpu().numpy())


def _tally(table: Tensor, steps: Tensor) -> None:
    """Add one to the table for each step; few are added one by one, since the table is long."""
    if len(steps) > BINS // 16:
        table += torch.bincount(steps, minlength=BINS)
    else:
        table.index_add_(0, steps, torch.ones_like(steps))


def smallest_index(falling: NDArray[np.int64] | NDArray[np.float64], allowed: float) -> int:
    """Return the first index at which a falling sequence is at most ``allowed``; its last value must be.

    Example:
        >>> smallest_index(np.array([9, 4, 4, 1, 0]), 4.0)
        1
    """
    most = allowed * (1 + 1e-12)
    limit = np.floor(most).astype(falling.dtype) if falling.dtype.kind == "i" else most
    return len(falling) - int(np.searchsorted(falling[::-1], limit, side="right"))


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Errors by class at some thresholds; an impostor pair stands in the rows of both of its classes.

    Attributes:
        index: (K,) int64 thresholds, rising, see :func:`threshold_of`.
        false_matches: (C, K) int64 impostor pairs of each class that reach each threshold.
        impostors: (C,) int64 impostor pairs of each class.
        misses: (C, K) int64 genuine pairs of each class that do not reach it.
        genuine: (C,) int64 genuine pairs of each class.
    """

    index: NDArray[np.int64]
    false_matches: NDArray[np.int64]
    impostors: NDArray[np.int64]
    misses: NDArray[np.int64]
    genuine: NDArray[np.int64]

    def at(self, place: int) -> ClassCounts:
        """Return the counts at one of the thresholds alone."""
        one = slice(place, place + 1)
        return ClassCounts(
            self.index[one], self.false_matches[:, one], self.impostors, self.misses[:, one], self.genuine
        )

    @property
    def fmr(self) -> NDArray[np.float64]:
        """(K,) false-match rates."""
        return _share(self.false_matches.sum(0), self.impostors.sum())

    @property
    def fnmr(self) -> NDArray[np.float64]:
        """(K,) false-non-match rates; NaN without a genuine pair."""
        return _share(self.misses.sum(0), self.genuine.sum())

    @property
    def fmr_without(self) -> NDArray[np.float64]:
        """(C, K) false-match rates with each class left out in turn, with all pairs it is in; NaN if none are left."""
        total, count = self.false_matches.sum(0) / 2, self.impostors.sum() / 2
        return _share(total - self.false_matches, (count - self.impostors)[:, None])

    @property
    def fnmr_without(self) -> NDArray[np.float64]:
        """(C, K) false-non-match rates with each class left out in turn."""
        return _share(self.misses.sum(0) - self.misses, (self.genuine.sum() - self.genuine)[:, None])


def count_by_class(pairs: PairSet, index: NDArray[np.int64], *, block_size: int | None = None) -> ClassCounts:
    """Count errors by class at some thresholds; one pass over all pairs.

    Args:
        pairs: the set.
        index: (K,) thresholds, rising, each in [0, BINS]; K below 2**15.
        block_size: changes speed and memory only.
    """
    index = np.unique(np.asarray(index, dtype=np.int64))
    classes, levels = len(pairs.names), len(index) + 1
    device = pairs.scale.device
    # level of a score: how many of the thresholds it reaches
    level = torch.from_numpy(np.bincount(index, minlength=BINS + 1)[:BINS].cumsum().astype(np.int16)).to(device)
    found = torch.zeros(2, classes, levels, dtype=torch.int64, device=device)
    for block in pair_blocks(pairs, block_size):
        reached = torch.take(level, block.steps)
        for side in (pairs.codes[block.rows, None], pairs.codes[None, block.cols]):
            _add(found[0], side.expand_as(reached), reached, block.impostor)
        if block.genuine is not None:
            _add(found[1], pairs.codes[block.rows, None].expand_as(reached), reached, block.genuine)
    impostor, genuine = found.cpu().numpy()
    at_least = impostor[:, ::-1].cumsum(axis=1)[:, ::-1]
    return ClassCounts(index, at_least[:, 1:], impostor.sum(1), genuine.cumsum(axis=1)[:, :-1], genuine.sum(1))


def _add(table: Tensor, codes: Tensor, level: Tensor, chosen: Tensor | None) -> None:
    """Count (class, level) of the chosen pairs; the classes of a block are neighbours."""
    low, high = int(codes.min()), int(codes.max())
    place = (codes - low) * table.shape[1] + level
    place = place.flatten() if chosen is None else place[chosen]
    counts = torch.bincount(place, minlength=(high - low + 1) * table.shape[1])
    table[low : high + 1] += counts.view(high - low + 1, -1)


def _share(part: NDArray[np.generic], whole: NDArray[np.generic] | np.generic) -> NDArray[np.float64]:
    top, bottom = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result
