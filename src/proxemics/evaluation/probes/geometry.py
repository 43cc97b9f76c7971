"""Geometry: hubs, spectrum, compactness of classes, crowding of proxies, seen against unseen classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.core.geometry import normalize
from proxemics.core.seeds import numpy_generator, torch_generator
from proxemics.evaluation.knn import nearest_neighbours
from proxemics.evaluation.probes.background import mean
from proxemics.evaluation.probes.measure import Rows, recall_hits


@dataclass(frozen=True)
class Hubness:
    """How unevenly pictures occur among the k nearest of others (Radovanović et al., JMLR 2010).

    Attributes:
        skewness: of the k-occurrence N_k: third central moment over the cubed standard deviation; 0 where all occur
            equally often. Large: few pictures (hubs) are near to many.
        never: share of pictures that are among the k nearest of no other.
        most: largest N_k.
        k: length of the lists.
    """

    skewness: float
    never: float
    most: int
    k: int


def hubness(embeddings: Tensor, *, k: int = 10) -> Hubness:
    """Count how often each row is among the k nearest of the others.

    Args:
        embeddings: (N, D), N >= 2.
        k: length of the lists; at most N - 1 are used.

    Raises:
        EvaluationError: fewer than two rows.

    Example:
        >>> hubness(torch.eye(4), k=3).skewness
        0.0
    """
    if len(embeddings) < 2:
        raise EvaluationError("Hubness needs two or more embeddings.")
    k = min(k, len(embeddings) - 1)
    counts = np.bincount(nearest_neighbours(embeddings, k=k).indices.ravel(), minlength=len(embeddings))
    centred = counts - counts.mean()
    spread = float(np.sqrt((centred**2).mean()))
    skewness = float((centred**3).mean() / spread**3) if spread > 0 else 0.0
    return Hubness(skewness, float((counts == 0).mean()), int(counts.max()), k)


def effective_rank(embeddings: Tensor) -> float:
    """Exponential of the entropy of the shares of the singular values (Roy and Vetterli 2007).

    Args:
        embeddings: (N, D); rows are set to unit length and not centred.

    Returns:
        Between 1 (all rows on one line) and min(N, D).

    Example:
        >>> round(effective_rank(torch.eye(4)), 6), round(effective_rank(torch.ones(4, 3)), 6)
        (4.0, 1.0)
    """
    values = torch.linalg.svdvals(normalize(embeddings.double()))
    share = values / values.sum()
    share = share[share > 1e-12]
    return float(torch.exp(-(share * share.log()).sum()))


@dataclass(frozen=True)
class Compactness:
    """Mean cosines.

    Attributes:
        within: of two different pictures of one class, the mean over pairs.
        between: of two pictures of different classes.
    """

    within: float
    between: float

    @property
    def gap(self) -> float:
        """``within - between``: 0 when the classes do not show."""
        return self.within - self.between


def compactness(embeddings: Tensor, classes: Rows) -> Compactness:
    """Compare cosines within and between classes, from class sums alone.

    Args:
        embeddings: (N, D).
        classes: (N,) class codes; at least one class has two rows, and there are two classes.

    Raises:
        EvaluationError: there is no pair within or between classes.

    Example:
        >>> found = compactness(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1]))
        >>> found.within, found.between
        (1.0, 0.0)
    """
    units = normalize(embeddings.double())
    codes = torch.from_numpy(np.unique(classes, return_inverse=True)[1])
    count = int(codes.max()) + 1
    sizes = torch.bincount(codes, minlength=count).double()
    sums = torch.zeros(count, units.shape[1], dtype=torch.float64).index_add_(0, codes, units)
    own = sums.square().sum(1)
    inside, pairs = float((own - sizes).sum()), float((sizes * (sizes - 1)).sum())
    outside = float(units.sum(0).square().sum() - own.sum())
    others = float(len(units) ** 2 - sizes.square().sum())
    if not pairs or not others:
        raise EvaluationError("Compactness needs a class with two pictures, and two classes.")
    return Compactness(inside / pairs, outside / others)


def proxy_crowding(proxies: Tensor) -> float:
    """Mean over classes of the largest cosine between a proxy of the class and a proxy of another class.

    Args:
        proxies: (C, D) or (C, K, D), any length, C >= 2.

    Returns:
        In [-1, 1]; near 1: proxies of different classes coincide.

    Raises:
        EvaluationError: fewer than two classes.

    Example:
        >>> proxy_crowding(torch.eye(3)), round(proxy_crowding(torch.ones(3, 2)), 6)
        (0.0, 1.0)
    """
    if proxies.ndim not in (2, 3) or len(proxies) < 2:
        raise EvaluationError(f"Proxies of shape {tuple(proxies.shape)}; give (C, D) or (C, K, D) with C >= 2.")
    units = normalize(proxies.double())
    units = units if units.ndim == 3 else units[:, None]
    classes, each = units.shape[:2]
    cosines = units.flatten(0, 1) @ units.flatten(0, 1).t()
    blocks = cosines.view(classes, each, classes, each).amax((1, 3))
    blocks.fill_diagonal_(-2)
    return float(blocks.amax(1).mean())


def random_like(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random directions to compare a geometry with: isotropic, (..., D)."""
    return normalize(torch.randn(*shape, generator=torch_generator(seed, "geometry")))


@dataclass(frozen=True)
class SeenUnseen:
    """R@1 on equally large samples of training and of test classes.

    Attributes:
        seen: R@1 among pictures of training classes.
        unseen: R@1 among pictures of test classes.
        classes: classes on each side.
        per_class: pictures of each.
    """

    seen: float
    unseen: float
    classes: int
    per_class: int

    @property
    def gap(self) -> float:
        """``seen - unseen``."""
        return self.seen - self.unseen


def seen_unseen(seen: Tensor, seen_classes: Rows, unseen: Tensor, unseen_classes: Rows, *, seed: int = 0) -> SeenUnseen:
    """Compare R@1 of training and test classes on samples with as many classes and as many pictures of each.

    R@1 depends on the size of the gallery, so both sides are cut to the same one: as many pictures a class as the
    median class of the poorer side has, as many classes as both sides have with that many.

    Args:
        seen: (N, D) embeddings of pictures of training classes.
        seen_classes: (N,) class codes.
        unseen: (M, D) embeddings of pictures of test classes.
        unseen_classes: (M,) class codes.
        seed: of the draw.

    Raises:
        EvaluationError: a side has fewer than two classes with two pictures.

    Example:
        >>> good, bad = torch.eye(4)[[0, 0, 1, 1]], torch.ones(4, 2)
        >>> found = seen_unseen(good, np.array([0, 0, 1, 1]), bad, np.array([0, 1, 0, 1]))
        >>> found.seen, found.classes, found.per_class
        (1.0, 2, 2)
    """
    sizes = [np.bincount(codes) for codes in (seen_classes, unseen_classes)]
    sizes = [size[size > 1] for size in sizes]
    if any(len(size) < 2 for size in sizes):
        raise EvaluationError("To compare seen and unseen classes, both sides need two classes with two pictures.")
    each = int(min(np.median(size) for size in sizes))
    count = min(int((size >= each).sum()) for size in sizes)
    sides = []
    for name, vectors, codes in (("seen", seen, seen_classes), ("unseen", unseen, unseen_classes)):
        rows = _equal_rows(codes, count, each, seed, name)
        sides.append(mean(recall_hits(vectors[rows], vectors[rows], np.unique(codes[rows], return_inverse=True)[1])))
    return SeenUnseen(sides[0], sides[1], count, each)


def _equal_rows(codes: Rows, classes: int, each: int, seed: int, name: str) -> NDArray[np.int64]:
    draw = numpy_generator(seed, "seen_unseen", name)
    enough = np.flatnonzero(np.bincount(codes) >= each)
    rows = [
        draw.permutation(np.flatnonzero(codes == code))[:each] for code in draw.permutation(enough)[:classes].tolist()
    ]
    return np.sort(np.concatenate(rows))
