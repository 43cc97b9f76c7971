"""What "similar" means: a score for every (query, gallery) pair, defined in float64 whatever computes it first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from proxemics.core.errors import EvaluationError, did_you_mean
from proxemics.evaluation.inputs import row_chunks

Metric: TypeAlias = Literal["cosine", "euclidean", "dot"]
METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "dot")
_PAIRS = 256


@dataclass(frozen=True)
class Side:
    """One set of embeddings and how a raw row becomes a row that is scored: ``(raw - mean) * scale``.

    Attributes:
        raw: (N, D) float32 or float64, the caller's numbers.
        scale: (N,) float64, positive (0 for a zero vector under cosine).
        norm: (N,) float64, length of the scored rows.
        mean: (D,) float64, or None for no shift.
    """

    raw: Tensor
    scale: Tensor
    norm: Tensor
    mean: Tensor | None

    @cached_property
    def rough(self) -> float:
        """Bound on the error of a product of two such rows in single precision; infinite where it could overflow."""
        positive = self.scale[self.scale > 0]
        tame = len(positive) > 0 and float(positive.min()) > 2.0**-40 and float(positive.max()) < 2.0**40
        if not tame or self.mean is not None or self.raw.dtype != torch.float32:
            return float("inf")
        return (self.raw.shape[1] + 8) * 2.0**-24 * 1.01

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return scored rows (n, D) in float64."""
        return self._shifted(index) * self.scale[index, None]

    def _shifted(self, index: Tensor | slice) -> Tensor:
        rows = self.raw[index].double()
        return rows if self.mean is None else rows - self.mean


@dataclass(frozen=True)
class Space:
    """Scores of queries against a gallery: ``<query row, gallery row> + bias``; a larger score is nearer.

    Scores closer than ``tie`` cannot be told apart in float64 and count as equal.

    Attributes:
        query: the queries.
        gallery: the gallery; the same object as ``query`` when a set is searched for itself.
        bias: (G,) float64 added to each column, or None.
        metric: what the score stands for.
        tie: largest difference of two scores that float64 rounding alone can cause.
    """

    query: Side
    gallery: Side
    bias: Tensor | None
    metric: Metric
    tie: float

    @property
    def same(self) -> bool:
        """Whether scores are symmetric because the gallery is the query set."""
        return self.query is self.gallery and self.bias is None

    @property
    def dim(self) -> int:
        """Embedding dimension D."""
        return self.query.raw.shape[1]

    def pairs(self, rows: Tensor, cols: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
        """Return the scores of n pairs.

        Args:
            rows: (n,) int64 query rows.
            cols: (n,) int64 gallery rows.
            precision: ``torch.float32`` multiplies and sums in single precision, with an error below :attr:`rough`.

        Returns:
            (n,) float64.
        """
        shape, device = (min(_PAIRS, len(rows)), self.dim), rows.device
        sides = []
        for side in (self.query, self.gallery):
            # Buffers that stay in cache: fresh temporaries cost more than the arithmetic.
            wide = torch.empty(shape, dtype=precision, device=device)
            sides.append(
                (side, wide, wide if side.raw.dtype == precision else wide.new_empty(shape, dtype=side.raw.dtype))
            )
        scores = torch.empty(len(rows), dtype=torch.float64, device=device)
        for part in row_chunks(len(rows), _PAIRS):
            count = part.stop - part.start
            for (side, wide, raw), index in zip(sides, (rows[part], cols[part]), strict=True):
                torch.index_select(side.raw, 0, index, out=raw[:count])
                if wide is not raw:
                    wide[:count].copy_(raw[:count])
                if side.mean is not None:
                    wide[:count] -= side.mean
            scores[part] = sides[0][1][:count].mul_(sides[1][1][:count]).sum(dim=1)
        scores *= self.query.scale[rows] * self.gallery.scale[cols]
        return scores if self.bias is None else scores + self.bias[cols]

    @property
    def rough(self) -> float:
        """Bound on the error of single-precision :meth:`pairs`; infinite where they are not to be used."""
        return max(self.query.rough, self.gallery.rough)

    def tile(self, rows: Tensor | slice, cols: slice) -> Tensor:
        """Return the float64 scores (rows, cols) of a block."""
        scores = self.query.rows(rows) @ self.gallery.rows(cols).T
        return scores if self.bias is None else scores + self.bias[cols]

    def similarity(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Turn scores (n,) of query ``rows`` (n,) into cosines, inner products or negative distances."""
        if self.metric == "cosine":
            return scores
        unit = self._unit()
        if self.metric == "dot":
            return scores / (unit * self.query.scale[rows].clamp_min(1e-300))
        squared = self.query.norm[rows] ** 2 - 2 * scores
        return -squared.clamp_min(0).sqrt() / unit

    def _unit(self) -> float:
        return float(self.gallery.scale[0])


def make_space(query: Tensor, gallery: Tensor | None, metric: str = "cosine") -> Space:
    """Build the scores of a metric.

    Args:
        query: (Q, D) from :func:`~proxemics.evaluation.inputs.check_embeddings`.
        gallery: (G, D), or None when the queries search one another.
        metric: ``cosine``, ``euclidean`` or ``dot``.

    Raises:
        EvaluationError: unknown metric, or D differs.

    Example:
        >>> space = make_space(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), None)
        >>> round(float(space.pairs(torch.tensor([0]), torch.tensor([1]))), 12)
        0.6
    """
    if metric not in METRICS:
        raise EvaluationError(f"metric={metric!r}; use one of {', '.join(METRICS)}.{did_you_mean(metric, METRICS)}")
    if gallery is not None and gallery.shape[1] != query.shape[1]:
        raise EvaluationError(
            f"Queries have {query.shape[1]} dimensions and the gallery has {gallery.shape[1]}; "
            "embed both with one model."
        )
    if metric == "cosine":
        side = _unit_side(query)
        return Space(side, side if gallery is None else _unit_side(gallery), None, "cosine", _tie(query.shape[1]))
    if metric == "dot":
        return _dot_space(query, gallery)
    return _euclidean_space(query, gallery)


def norms(matrix: Tensor, mean: Tensor | None = None) -> Tensor:
    """Return the float64 lengths (N,) of the rows of ``matrix - mean``."""
    result = torch.empty(matrix.shape[0], dtype=torch.float64, device=matrix.device)
    for part in row_chunks(matrix.shape[0]):
        rows = matrix[part].double()
        result[part] = torch.linalg.vector_norm(rows if mean is None else rows - mean, dim=1)
    return result


def _unit_side(matrix: Tensor) -> Side:
    length = norms(matrix)
    scale = torch.where(length > 0, 1 / length.clamp_min(1e-300), torch.zeros_like(length))
    return Side(matrix, scale, (length > 0).double(), None)


def _scaled_side(matrix: Tensor, length: Tensor, unit: float, mean: Tensor | None) -> Side:
    return Side(matrix, torch.full_like(length, unit), length * unit, mean)


def _dot_space(query: Tensor, gallery: Tensor | None) -> Space:
    left = _unit_side(query)  # the length of a query does not change its ranking
    length = norms(query if gallery is None else gallery)
    unit = 1 / max(float(length.max()), 1e-300)
    return Space(
        left, _scaled_side(query if gallery is None else gallery, length, unit, None), None, "dot", _tie(query.shape[1])
    )


def _euclidean_space(query: Tensor, gallery: Tensor | None) -> Space:
    # |x - y|^2 = |x|^2 - 2 (<x, y> - |y|^2 / 2); shifting both by the mean keeps the rounding small.
    target = query if gallery is None else gallery
    total = torch.zeros(target.shape[1], dtype=torch.float64, device=target.device)
    for part in row_chunks(target.shape[0]):
        total += target[part].sum(dim=0, dtype=torch.float64)
    mean = total / target.shape[0]
    left, right = norms(query, mean), norms(target, mean)
    peak = max(float(left.max()), float(right.max()))
    unit = 1 / peak if peak > 0 else 1.0
    target_side = _scaled_side(target, right, unit, mean)
    query_side = target_side if gallery is None else _scaled_side(query, left, unit, mean)
    # Taking the mean away costs as many digits as the mean is longer than what is left.
    lost = unit * (peak + float(torch.linalg.vector_norm(mean)))
    return Space(query_side, target_side, -0.5 * target_side.norm**2, "euclidean", _tie(query.shape[1], lost))


def _tie(dim: int, lost: float = 1.0) -> float:
    """Bound on the difference of two float64 scores of at most 1.5 that are equal in real arithmetic."""
    return (6 * dim + 64 + 8 * lost) * 2.0**-53
