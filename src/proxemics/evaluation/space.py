"""What "similar" means: a score for every (query, gallery) pair, defined in float64 whatever computes it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from proxemics.core.errors import EvaluationError, did_you_mean
from proxemics.evaluation.inputs import row_chunks

Metric: TypeAlias = Literal["cosine", "euclidean", "dot"]
METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "dot")
_PAIRS = 1024


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

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return scored rows (n, D) in float64."""
        return self._shifted(index) * self.scale[index, None]

    def _shifted(self, index: Tensor | slice) -> Tensor:
        rows = self.raw[index].double()
        return rows if self.mean is None else rows - self.mean


@dataclass(frozen=True)
class Space:
    """Scores of queries against a gallery: ``<query row, gallery row> + bias``; a larger score is nearer.

    Scores closer than :attr:`tie` cannot be told apart in float64 and count as equal.

    Attributes:
        query: the queries.
        gallery: the gallery; the same object as ``query`` when a set is searched for itself.
        bias: (G,) float64 added to each column, or None.
        metric: what the score stands for.
    """

    query: Side
    gallery: Side
    bias: Tensor | None
    metric: Metric

    @property
    def same(self) -> bool:
        """Whether scores are symmetric because the gallery is the query set."""
        return self.query is self.gallery and self.bias is None

    @property
    def dim(self) -> int:
        """Embedding dimension D."""
        return self.query.raw.shape[1]

    @property
    def tie(self) -> float:
        """Largest difference of two float64 scores that rounding alone can cause (scores are at most 1.5)."""
        return (6 * self.dim + 64) * 2.0**-53

    def pairs(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Return the float64 scores of n pairs.

        Args:
            rows: (n,) int64 query rows.
            cols: (n,) int64 gallery rows.
        """
        scores = torch.empty(len(rows), dtype=torch.float64, device=self.query.raw.device)
        for part in row_chunks(len(rows), _PAIRS):
            left = self.query._shifted(rows[part])
            scores[part] = left.mul_(self.gallery._shifted(cols[part])).sum(dim=1)
        scores *= self.query.scale[rows] * self.gallery.scale[cols]
        return scores if self.bias is None else scores + self.bias[cols]

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
        >>> space.pairs(torch.tensor([0]), torch.tensor([1])).tolist()
        [0.6]
    """
    if metric not in METRICS:
        raise EvaluationError(f"metric={metric!r}; use one of {', '.join(METRICS)}.{did_you_mean(metric, METRICS)}")
    if gallery is not None and gallery.shape[1] != query.shape[1]:
        raise EvaluationError(
            f"Queries have {query.shape[1]} dimensions and the gallery has {gallery.shape[1]}; embed both with one model."
        )
    if metric == "cosine":
        side = _unit_side(query)
        return Space(side, side if gallery is None else _unit_side(gallery), None, "cosine")
    if metric == "dot":
        return _dot_space(query, gallery)
    return _euclidean_space(query, gallery)


def norms(matrix: Tensor, mean: Tensor | None = None) -> Tensor:
    """Return the float64 lengths (N,) of the rows of ``matrix - mean``."""
    result = torch.empty(matrix.shape[0], dtype=torch.float64, device=matrix.device)
    for part in row_chunks(matrix.shape[0], 2048):
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
    return Space(left, _scaled_side(query if gallery is None else gallery, length, unit, None), None, "dot")


def _euclidean_space(query: Tensor, gallery: Tensor | None) -> Space:
    # |x - y|^2 = |x|^2 - 2 (<x, y> - |y|^2 / 2); shifting both by the mean keeps the rounding small.
    target = query if gallery is None else gallery
    total = torch.zeros(target.shape[1], dtype=torch.float64, device=target.device)
    for part in row_chunks(target.shape[0]):
        total += target[part].sum(dim=0, dtype=torch.float64)
    mean = total / target.shape[0]
    left, right = norms(query, mean), norms(target, mean)
    unit = 1 / max(float(left.max()), float(right.max()), 1e-300)
    target_side = _scaled_side(target, right, unit, mean)
    query_side = target_side if gallery is None else _scaled_side(query, left, unit, mean)
    return Space(query_side, target_side, -0.5 * target_side.norm**2, "euclidean")
