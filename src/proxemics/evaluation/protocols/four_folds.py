"""The protocol of Musgrave, Belongie and Lim ("A Metric Learning Reality Check", 2020).

The training classes are cut into four folds. Four models are trained, each on three folds and chosen on the fourth, and
the test classes are measured twice: the mean of the four models ("separated"), and their joined embeddings
("concatenated").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import DataError, EvaluationError
from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.result import EvaluationResult

FOLDS = 4
METRICS = ("recall_at_1", "r_precision", "map_at_r")
"""P@1, R-Precision and MAP@R: what the paper reports."""


@dataclass(frozen=True)
class Fold:
    """One of the models.

    Attributes:
        train: (N,) int64 rows to train on.
        val: (V,) int64 rows to choose on, of other classes.
        classes: the classes of ``val``, sorted.
    """

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Musgrave:
    """Both readings of the test classes.

    Attributes:
        each: the result of each model.
        concatenated: the result of the joined embeddings.
    """

    each: tuple[EvaluationResult, ...]
    concatenated: EvaluationResult

    @property
    def separated(self) -> dict[str, float]:
        """Mean over the models, by metric."""
        return {name: float(np.mean([one[name] for one in self.each])) for name in self.each[0]}


def musgrave_folds(labels: Sequence[object] | NDArray[np.generic], *, folds: int = FOLDS) -> tuple[Fold, ...]:
    """Cut the training classes into folds of neighbours in sorted order.

    Args:
        labels: (N,) classes of the training images; numbers are sorted as numbers, text as text.
        folds: how many; their numbers of classes differ by one at most.

    Returns:
        One :class:`Fold` a model; each class is in the ``val`` of exactly one.

    Raises:
        DataError: fewer than two folds, or fewer than two classes a fold (with one, nothing can be chosen on it).

    Example:
        >>> [fold.classes for fold in musgrave_folds(list("abcdefgh"))]
        [('a', 'b'), ('c', 'd'), ('e', 'f'), ('g', 'h')]
        >>> musgrave_folds(list("aabbcc"), folds=3)
        Traceback (most recent call last):
        proxemics.core.errors.DataError: 3 training classes cannot make 3 folds of two classes or more...
    """
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype == object:
        values = np.asarray([str(value) for value in labels], dtype=np.str_)
    names, codes = np.unique(values, return_inverse=True)
    if folds < 2:
        raise DataError(f"folds={folds}; use two or more (the paper has {FOLDS}).")
    if len(names) < 2 * folds:
        raise DataError(
            f"{len(names)} training classes cannot make {folds} folds of two classes or more; "
            f"{2 * folds} classes are the least."
        )
    parts = []
    for chosen in np.array_split(np.arange(len(names)), folds):
        held = np.isin(codes, chosen)
        parts.append(
            Fold(
                np.flatnonzero(~held).astype(np.int64),
                np.flatnonzero(held).astype(np.int64),
                tuple(str(name) for name in names[chosen]),
            )
        )
    return tuple(parts)


def concatenate(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.float32]:
    """Join the embeddings of several models: each normalised, side by side, the whole normalised.

    Args:
        parts: arrays (N, D_i) of the same images; the paper has four of 128.

    Returns:
        (N, sum of D_i) float32 with unit rows. The cosine of two rows is the mean of the cosines of the models. A row
        of length 0 stays 0 in its part.

    Raises:
        EvaluationError: no arrays, or arrays of different images.

    Example:
        >>> concatenate([np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]])]).round(3).tolist()
        [[0.7070000171661377, 0.0, 0.0, 0.7070000171661377]]
    """
    shapes = [np.shape(part) for part in parts]
    if not shapes or any(len(shape) != 2 or shape[0] != shapes[0][0] for shape in shapes):
        raise EvaluationError(f"Embeddings of shapes {shapes} cannot be joined; give (N, D) of the same N images each.")
    joined = np.concatenate([_unit(np.asarray(part, dtype=np.float64)) for part in parts], axis=1)
    return _unit(joined).astype(np.float32)


def musgrave(
    parts: Sequence[NDArray[np.floating]],
    labels: Labels,
    *,
    recall_at: Sequence[int] = (1,),
    neighbours: int = 1,
    bootstrap: int = 0,
    seed: int = 0,
) -> Musgrave:
    """Measure the models of the folds on the test classes, separated and concatenated.

    Lone queries are left out of every mean, as in the paper's code.

    Args:
        parts: embeddings (N, D_i) of the test images by each model.
        labels: (N,) their classes.
        recall_at: values of k for Recall@k.
        neighbours: how many to keep for each query.
        bootstrap: resamples for intervals.
        seed: of the resampling.

    Raises:
        EvaluationError: the arrays do not fit together, or cannot be evaluated.

    Example:
        >>> points = np.eye(3)[[0, 0, 1, 1]]
        >>> found = musgrave([points, points[::-1]], ["a", "a", "b", "b"])
        >>> found.separated["map_at_r"], found.concatenated["map_at_r"]
        (1.0, 1.0)
    """
    joined = concatenate(parts)
    results = [
        evaluate_embeddings(one, labels, recall_at=recall_at, neighbours=neighbours, bootstrap=bootstrap, seed=seed)
        for one in (*parts, joined)
    ]
    return Musgrave(tuple(results[:-1]), results[-1])


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)
