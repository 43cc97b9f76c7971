"""Which enrolled class a picture belongs to, or none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.evaluation.operating_point import Threshold
from proxemics.methods.probabilistic.distances import el_vmf
from proxemics.search.classes.book import UNKNOWN, ClassBook
from proxemics.search.items import unit_rows
from proxemics.search.manifest import ModelKey

By = Literal["centroid", "vmf"]


@dataclass(frozen=True)
class Decision:
    """The answer for one picture.

    Attributes:
        label: the class, or :data:`~proxemics.search.classes.book.UNKNOWN`.
        best: the class that fits best, near enough or not.
        score: cosine of the picture and the centroid of ``best``.
        threshold: what the score had to reach; None if every picture gets a class.
        second: the class that fits second best; None where only one is enrolled.
        margin: score of ``best`` minus that of ``second``; below 0 where they were not chosen by their cosines. None
            without ``second``.
        probability: share of ``best`` among all enrolled classes; None when chosen by the centroid. It says nothing of
            classes that are not enrolled.
    """

    label: str
    best: str
    score: float
    threshold: float | None
    second: str | None
    margin: float | None
    probability: float | None = None

    @property
    def known(self) -> bool:
        """Whether the picture was given a class."""
        return self.label != UNKNOWN


def decide(
    book: ClassBook,
    vectors: NDArray[np.generic] | Sequence[Sequence[float]],
    threshold: Threshold | float | None,
    *,
    by: By = "centroid",
    lengths: NDArray[np.generic] | Sequence[float] | None = None,
    key: ModelKey | None = None,
) -> list[Decision]:
    """Give each picture a class or the answer "unknown".

    Args:
        book: with at least one class.
        vectors: (N, D) embeddings of any length but zero.
        threshold: the calibrated operating point, a cosine, or None: every picture gets a class. An operating point of
            the kind ``identify`` has one threshold for each number of enrolled pictures; that of the class counts.
        by: choose by the cosine with the ``centroid``, or by ``vmf``: the probability of the picture given the enrolled
            ones, all of them von Mises-Fisher densities. The latter believes a class of one picture less than one of
            many. Whether the class is near enough is decided by the cosine in both cases.
        lengths: (N,) lengths of the raw embeddings, for ``vmf`` in a book with the weighting ``length``.
        key: the model that the vectors come from; None skips the check.

    Returns:
        N answers.

    Raises:
        SearchError: another model, an empty book, shapes that do not fit, or ``vmf`` where no class has two pictures.

    Example:
        >>> book = ClassBook(ModelKey(model="m", dim=2))
        >>> _ = book.enrol(["cat", "dog"], [[1, 0], [0, 1]])
        >>> [(one.label, one.best, round(one.margin, 2)) for one in decide(book, [[1, 0.1], [1, 0.9]], 0.9)]
        [('cat', 'cat', 0.9), ('unknown', 'cat', 0.07)]
    """
    if key is not None:
        book.check(key)
    if len(book) == 0:
        raise SearchError("No class is enrolled; add one with `proxemics enrol`.")
    rows = unit_rows(vectors, dim=book.key.dim).astype(np.float64)
    cosines = (rows @ book.centroids().T).clip(-1, 1)
    ranking, shares = cosines, None
    if by == "vmf":
        ranking = log_predictive(book, cosines, lengths)
        shares = torch.softmax(torch.from_numpy(ranking), dim=1).numpy()
    names = book.names
    return [
        _decision(book, names, row, ranking[number], None if shares is None else shares[number], threshold)
        for number, row in enumerate(cosines)
    ]


def log_predictive(
    book: ClassBook, cosines: NDArray[np.float64], lengths: NDArray[np.generic] | Sequence[float] | None = None
) -> NDArray[np.float64]:
    """Return the log density of each picture given the enrolled pictures of each class, up to a common constant.

    The mean direction of a class, given pictures of concentration κ_i at μ_i and no other knowledge, is von
    Mises-Fisher with the natural parameter Σ κ_i μ_i; the picture of concentration κ is one around it. Their integral
    over the mean direction is the expected likelihood of two such densities. With equal weights κ is the shared
    concentration of the book; with the weighting ``length`` it is the length of each raw embedding.

    Args:
        book: with at least one class.
        cosines: (N, C) with the centroids.
        lengths: (N,) lengths, where the book weighs by them.

    Raises:
        SearchError: no class has two pictures (equal weights), or lengths are missing.
    """
    totals = np.array([np.linalg.norm(book[name].total) for name in book.names])
    if book.weighting == "length":
        if lengths is None or len(lengths) != len(cosines):
            raise SearchError(f"Give the lengths of the raw embeddings of the {len(cosines)} pictures.")
        probe, own = np.asarray(lengths, dtype=np.float64), totals
    else:
        kappa = book.shared_concentration()
        if kappa is None:
            raise SearchError(
                "Every class has a single picture, so how tightly a class lies cannot be told; enrol two pictures of a "
                "class, or decide by centroid."
            )
        probe, own = np.full(len(cosines), kappa), kappa * totals
    found = el_vmf(
        torch.from_numpy(cosines), torch.from_numpy(probe), torch.from_numpy(own), book.key.dim, centred=True
    )
    result: NDArray[np.float64] = found.numpy()
    return result


def _decision(
    book: ClassBook,
    names: Sequence[str],
    cosines: NDArray[np.float64],
    ranking: NDArray[np.float64],
    shares: NDArray[np.float64] | None,
    threshold: Threshold | float | None,
) -> Decision:
    order = np.argsort(-ranking, kind="stable")[:2]
    best, score = names[order[0]], float(cosines[order[0]])
    limit = threshold.limit(best, count=book[best].count) if isinstance(threshold, Threshold) else threshold
    second = names[order[1]] if len(order) > 1 else None
    return Decision(
        label=best if limit is None or score >= limit else UNKNOWN,
        best=best,
        score=score,
        threshold=limit,
        second=second,
        margin=None if second is None else score - float(cosines[order[1]]),
        probability=None if shares is None else float(shares[order[0]]),
    )


def gallery_warning(book: ClassBook, threshold: Threshold | float | None) -> str | None:
    """Say when the book has outgrown the gallery that its threshold was calibrated for.

    Returns:
        A sentence, or None.
    """
    if not isinstance(threshold, Threshold) or threshold.gallery is None or len(book) <= 1.25 * threshold.gallery:
        return None
    return (
        f"The threshold was calibrated for {threshold.gallery} enrolled classes and there are {len(book)}, so more "
        f"than {threshold.target:g} of unknown pictures will be given a class; run `proxemics calibrate MODEL --for "
        f"identify --gallery {len(book)}`."
    )
