"""Agreement of k-means clusters with the classes, and the spectrum of embeddings; scikit-learn is imported on use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.core.seeds import derive_seed


def clustering_scores(
    embeddings: NDArray[np.floating], classes: NDArray[np.int64], *, seeds: int = 3, seed: int = 0
) -> dict[str, float]:
    """NMI, AMI and F1 of k-means clusters, the mean over several initialisations because one alone is noisy.

    Args:
        embeddings: (N, D), normally unit rows.
        classes: (N,) class codes; k-means looks for as many clusters as there are classes.
        seeds: number of initialisations, at least 3.
        seed: from which theirs are derived.

    Returns:
        ``nmi`` = 2 I / (H + H) and ``ami`` (corrected for chance), both by scikit-learn with arithmetic means;
        ``f1`` as :func:`pair_f1`.

    Raises:
        EvaluationError: fewer than 3 seeds, or scikit-learn is missing.

    Example:
        >>> points = np.repeat(np.eye(3), 4, axis=0)
        >>> clustering_scores(points, np.repeat([0, 1, 2], 4))["nmi"]
        1.0
    """
    if seeds < 3:
        raise EvaluationError(f"seeds={seeds}; k-means is noisy, so use 3 or more and report their mean.")
    try:
        from sklearn.cluster import KMeans
        from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
    except ImportError as error:
        raise EvaluationError('Clustering needs scikit-learn: pip install "proxemics[train]".') from error
    count = len(np.unique(classes))
    nmi, ami, f1 = [], [], []
    for run in range(seeds):
        state = derive_seed(seed, "kmeans", run) % 2**32
        found = KMeans(n_clusters=count, n_init=1, random_state=state).fit_predict(embeddings)
        nmi.append(normalized_mutual_info_score(classes, found))
        ami.append(adjusted_mutual_info_score(classes, found))
        f1.append(pair_f1(classes, found))
    return {"nmi": float(np.mean(nmi)), "ami": float(np.mean(ami)), "f1": float(np.mean(f1))}


def pair_f1(classes: NDArray[np.int64], clusters: NDArray[np.integer]) -> float:
    """F1 over pairs of images: those in one cluster are said to be of one class.

    Args:
        classes: (N,) class codes.
        clusters: (N,) cluster codes.

    Returns:
        2 TP / (pairs in one cluster + pairs in one class), with TP the pairs in both; counted exactly, in integers.
        1 where there is no pair of either kind.

    Example:
        >>> pair_f1(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 2, 2, 2]))
        0.5714285714285714
    """
    _, rows = np.unique(classes, return_inverse=True)
    _, columns = np.unique(clusters, return_inverse=True)
    wide = int(columns.max(initial=0)) + 1

    def pairs(codes: NDArray[np.int64]) -> int:
        return sum(int(count) * (int(count) - 1) // 2 for count in np.unique(codes, return_counts=True)[1])

    said, true = pairs(columns), pairs(rows)
    return 2 * pairs(rows * wide + columns) / (said + true) if said + true else 1.0


def rho_spectrum(embeddings: NDArray[np.floating], *, reverse: bool = False) -> float:
    """Divergence of the singular values from the uniform distribution (Roth et al. 2020); 0 is a flat spectrum.

    KL(U || s / sum s) over the min(N, D) singular values of the embedding matrix; KL(s / sum s || U) with ``reverse``.
    Values below 1e-12 of the largest are raised to it, so that a rank-deficient matrix has a large finite score.

    Args:
        embeddings: (N, D).
        reverse: which direction; Roth's mode -1.

    Example:
        >>> round(rho_spectrum(np.eye(4)), 6)
        0.0
        >>> round(rho_spectrum(np.diag([3.0, 1.0])), 6), round(rho_spectrum(np.diag([3.0, 1.0]), reverse=True), 6)
        (0.143841, 0.130812)
    """
    values = np.linalg.svd(np.asarray(embeddings, dtype=np.float64), compute_uv=False)
    values = np.maximum(values, 1e-12 * max(float(values.max()), 1e-300))
    share = values / values.sum()
    uniform = 1 / len(share)
    terms = share * np.log(share / uniform) if reverse else uniform * np.log(uniform / share)
    return float(terms.sum())
