"""Embeddings in the plane: principal components, and t-SNE on request."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ConfigError, ProxemicsError, did_you_mean
from proxemics.core.files import read_json, write_text

ProjectionName = Literal["pca", "tsne"]
PROJECTIONS: tuple[ProjectionName, ...] = ("pca", "tsne")
ITERATIONS = 1000  # of t-SNE, the default of scikit-learn
_FIRST_AXES = 50  # principal components that t-SNE starts from
_FEWEST = 5  # t-SNE of fewer points says nothing


@dataclass(frozen=True)
class Projection:
    """Points of a map.

    Attributes:
        name: ``pca`` or ``tsne``.
        points: (N, 2) float32.
        note: one sentence on how far the map can be trusted.
    """

    name: ProjectionName
    points: NDArray[np.float32]
    note: str


def check_projection(name: str, perplexity: float = 30.0) -> ProjectionName:
    """Find out before any work whether a projection can be made.

    Args:
        name: ``pca`` or ``tsne``.
        perplexity: of t-SNE.

    Returns:
        The name.

    Raises:
        ConfigError: the name is unknown or the perplexity is not positive.
        ProxemicsError: scikit-learn is needed and not installed.
    """
    chosen = next((one for one in PROJECTIONS if one == name), None)
    if chosen is None:
        raise ConfigError(f"--projection {name}: no such projection.{did_you_mean(name, PROJECTIONS)} Use pca or tsne.")
    if not perplexity > 0:
        raise ConfigError(f"--perplexity {perplexity:g}: give a positive number; 30 is common.")
    if name == "tsne" and find_spec("sklearn") is None:
        raise ProxemicsError(
            "t-SNE needs scikit-learn, which is not installed. Install it with: pip install 'proxemics[train]', or use "
            "--projection pca."
        )
    return chosen


def pca(embeddings: NDArray[np.floating]) -> Projection:
    """Project on the two directions of largest variance.

    Args:
        embeddings: (N, D) float, N >= 1.

    Example:
        >>> found = pca(np.array([[0.0, 1, 0], [0, -1, 0], [3, 0, 0], [-3, 0, 0]]))
        >>> found.points[:, 0].round(3).tolist()
        [0.0, 0.0, 3.0, -3.0]
        >>> found.note[:44]
        'The two directions of largest variance; they'
    """
    points, shares = principal_components(embeddings, 2)
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    held = 100 * float(shares[:2].sum())
    note = (
        f"The two directions of largest variance; they hold {held:.0f} % of it, so pictures that are far apart in the "
        "embedding may still overlap here."
    )
    return Projection("pca", points.astype(np.float32), note)


def principal_components(
    embeddings: NDArray[np.floating], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates along the directions of largest variance, and the share of variance of each.

    The sign of a direction is set so that its largest entry is positive; the result does not depend on the machine's
    choice of signs.

    Args:
        embeddings: (N, D) float, N >= 1.
        count: how many directions, cut to D.

    Returns:
        (N, count) coordinates, and (count,) shares in [0, 1]; all 0 where every embedding is the same.
    """
    centred = np.asarray(embeddings, np.float64) - np.mean(embeddings, axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    order = np.argsort(-variances, kind="stable")[:count]
    axes = directions[:, order]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    total = float(variances.clip(min=0).sum())
    shares = variances[order].clip(min=0) / total if total > 0 else np.zeros(len(order))
    return centred @ axes, shares


def tsne(
    embeddings: NDArray[np.floating],
    *,
    perplexity: float = 30.0,
    seed: int = 0,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Projection:
    """Lay out neighbourhoods with t-SNE (scikit-learn), starting from the principal components.

    Args:
        embeddings: (N, D) float.
        perplexity: about how many neighbours each point keeps; lowered to (N - 1) / 3 where it is larger.
        seed: of the optimisation.
        cache: file that keeps the result for these embeddings and settings; None keeps nothing.
        progress: called with the number of iterations since it was called last, of about ``ITERATIONS``.

    Returns:
        The layout; that of :func:`pca` for fewer than 5 points.
    """
    if len(embeddings) < _FEWEST:
        flat = pca(embeddings)
        note = f"{len(embeddings)} points are too few for t-SNE, so these are principal components."
        return Projection("tsne", flat.points, note)
    used = min(perplexity, (len(embeddings) - 1) / 3)
    key = _key(embeddings, used, seed)
    points = _cached(cache, key, len(embeddings))
    if points is None:
        points = _run_tsne(embeddings, used, seed, progress)
        if cache is not None:
            _store(cache, key, points)
    note = f"t-SNE with perplexity {used:.3g}: near points are neighbours; distances between groups mean little."
    if used < perplexity:
        note += f" The perplexity was lowered from {perplexity:g} for so few points."
    return Projection("tsne", points, note)


def cached_tsne(embeddings: NDArray[np.floating], cache: Path, *, perplexity: float = 30.0) -> Projection | None:
    """Return the layout that an earlier :func:`tsne` left in ``cache`` for these embeddings, or None."""
    used = min(perplexity, (len(embeddings) - 1) / 3)
    if len(embeddings) < _FEWEST or _cached(cache, _key(embeddings, used, 0), len(embeddings)) is None:
        return None
    return tsne(embeddings, perplexity=perplexity, cache=cache)


def _run_tsne(
    embeddings: NDArray[np.floating], perplexity: float, seed: int, progress: Callable[[int], None] | None
) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE

    start, _ = principal_components(embeddings, min(_FIRST_AXES, embeddings.shape[1]))
    model = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=ITERATIONS, verbose=2)
    with contextlib.redirect_stdout(_Listener(progress)):  # scikit-learn tells of its progress in print only
        found = model.fit_transform(start.astype(np.float32))
    points: NDArray[np.float32] = np.asarray(found, np.float32)
    return points


class _Listener(io.TextIOBase):
    """Takes what t-SNE prints and hands its progress on."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.progress = progress
        self.reached = 0

    def write(self, text: str) -> int:
        match = re.search(r"Iteration (\d+):", text)
        if match and self.progress is not None and int(match[1]) > self.reached:
            self.progress(int(match[1]) - self.reached)
            self.reached = int(match[1])
        return len(text)


def _key(embeddings: NDArray[np.floating], perplexity: float, seed: int) -> str:
    whole = hashlib.sha256(np.ascontiguousarray(embeddings, np.float32).tobytes())
    whole.update(f"tsne 1 {perplexity:.6g} {seed} {ITERATIONS}".encode())
    return whole.hexdigest()


def _cached(cache: Path | None, key: str, count: int) -> NDArray[np.float32] | None:
    """Read a layout that was made with this key."""
    if cache is None or not cache.is_file():
        return None
    try:
        kept = read_json(cache)
        points = np.asarray(kept["points"], np.float32) if kept["key"] == key else None
    except (ProxemicsError, KeyError, TypeError, ValueError):
        return None
    return points if points is not None and points.shape == (count, 2) else None


def _store(cache: Path, key: str, points: NDArray[np.float32]) -> None:
    rounded = [[float(f"{value:.6g}") for value in row] for row in points.tolist()]
    with contextlib.suppress(ProxemicsError):  # a folder that cannot be written must not cost the layout
        write_text(cache, json.dumps({"key": key, "points": rounded}))
