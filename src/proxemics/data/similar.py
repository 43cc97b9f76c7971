"""Pictures that are nearly equal: the same photograph saved again, smaller, in another format, a little edited.

Two pictures count as nearly equal when their 16 x 16 colour versions, each minus its mean, correlate by 0.99 or
more. The search for such pairs misses none: as unit vectors they are at most r = sqrt(2 - 2 · 0.99) apart, and no
projection puts them further apart. So the vectors are projected on their 96 lowest frequencies, rotated to principal
axes and sorted by the first; each is compared, as one matrix product a block, only with those whose first coordinate
is within r.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MIN_CORRELATION = 0.99
"""Correlation of the 16 x 16 colour pictures from which two files count as nearly equal."""
MIN_CONTRAST = 2.0
"""Pictures whose 16 x 16 grey levels vary less (standard deviation, of 255) have nothing to compare."""

_FREQUENCIES = 96
_ROWS, _COLUMNS = 512, 8192  # of a block of the matrix product
_PAIRS = 1 << 12  # compared in full at a time
Thumbs = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]


def similar_pictures(thumbs: Thumbs, *, min_correlation: float = MIN_CORRELATION) -> list[list[int]]:
    """Group pictures that are nearly equal.

    Args:
        thumbs: (N, 16, 16, 3) uint8, upright; the whole picture, whatever its shape.
        min_correlation: from which two pictures count as nearly equal, in (0, 1].

    Returns:
        Groups of two or more positions, each in order. A group is closed under "nearly equal to a member". Pictures
        of hardly any contrast are in no group.

    Example:
        >>> noise = np.random.default_rng(0).integers(40, 200, (3, 16, 16, 3)).astype(np.uint8)
        >>> noise[2] = noise[0] + 9                                  # the first one, brighter
        >>> similar_pictures(noise)
        [[0, 2]]
    """
    usable = np.flatnonzero(contrast(thumbs) >= MIN_CONTRAST)
    groups = _Groups(len(usable))
    for left, right in _candidates(_project(thumbs, usable), 2 - 2 * min_correlation):
        _confirm(thumbs, usable, left, right, groups, min_correlation)
    return [usable[group].tolist() for group in groups.lists()]


def contrast(thumbs: Thumbs) -> _Floats:
    """Return the standard deviation of the grey levels of each picture, (N,) float32."""
    result = np.empty(len(thumbs), dtype=np.float32)
    for part in _parts(len(thumbs), _PAIRS):
        grey = thumbs[part].mean(axis=3, dtype=np.float32)
        result[part] = grey.reshape(len(grey), -1).std(axis=1)
    return result


def _unit(thumbs: Thumbs) -> _Floats:
    """Return (N, 768) float32 rows of mean 0 and length 1."""
    rows = thumbs.reshape(len(thumbs), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return rows


def _project(thumbs: Thumbs, rows: _Ints) -> _Floats:
    """Return (len(rows), 96): grey cosine frequencies of the unit vectors, rotated to principal axes, widest first."""
    size = thumbs.shape[1]
    basis = np.cos(np.pi / size * (np.arange(size) + 0.5) * np.arange(size)[:, None]) * np.sqrt(2 / size)
    basis[0] /= np.sqrt(2)
    order = sorted(((u, v) for u in range(size) for v in range(size) if u + v), key=lambda uv: (sum(uv), uv))
    chosen = [u * size + v for u, v in order[:_FREQUENCIES]]
    waves = np.einsum("ui,vj->uvij", basis, basis).reshape(size * size, -1)[chosen]
    matrix = np.repeat(waves / np.sqrt(3), 3, axis=1).astype(np.float32).T  # grey is (R + G + B) / sqrt 3 here
    low = np.empty((len(rows), _FREQUENCIES), dtype=np.float32)
    for part in _parts(len(rows), _PAIRS):
        low[part] = _unit(thumbs[rows[part]]) @ matrix
    _, axes = np.linalg.eigh(np.cov(low.T) if len(low) > 1 else np.eye(_FREQUENCIES))
    return low @ axes[:, ::-1].astype(np.float32)


def _candidates(points: _Floats, max_squared: float) -> Iterator[tuple[_Ints, _Ints]]:
    """Yield pairs of rows whose squared distance is at most ``max_squared``, some at a time."""
    order = np.argsort(points[:, 0], kind="stable")
    points = points[order]
    radius = np.sqrt(max_squared) + 1e-5
    half = (points**2).sum(axis=1, keepdims=True) / 2
    ones = np.ones_like(half)
    # One product gives a·b − |a|²/2 − |b|²/2 = −|a − b|²/2.
    left, right = np.hstack([points, half, ones]), np.hstack([points, -ones, -half]).T
    for part in _parts(len(points), _ROWS):
        end = int(np.searchsorted(points[:, 0], points[part][-1, 0] + radius, side="right"))
        for begin in range(part.start, end, _COLUMNS):
            product = left[part] @ right[:, begin : min(begin + _COLUMNS, end)]
            row, column = np.nonzero(product >= -max_squared / 2 - 1e-5)
            row, column = row + part.start, column + begin
            later = column > row
            if later.any():
                yield order[row[later]], order[column[later]]


def _confirm(thumbs: Thumbs, usable: _Ints, left: _Ints, right: _Ints, groups: _Groups, min_correlation: float) -> None:
    """Compare pairs in full and join those that are nearly equal; pairs in one group already are skipped."""
    for part in _parts(len(left), _PAIRS):
        first, second = left[part], right[part]
        apart = groups.of[first] != groups.of[second]
        first, second = first[apart], second[apart]
        if len(first):
            one, other = _unit(thumbs[usable[first]]), _unit(thumbs[usable[second]])
            alike = np.einsum("nd,nd->n", one, other) >= min_correlation - 1e-6
            groups.join(first[alike], second[alike])


class _Groups:
    """Disjoint sets of 0..size-1; ``of`` holds the smallest member of each one's set."""

    def __init__(self, size: int) -> None:
        self.of: _Ints = np.arange(size)

    def join(self, first: _Ints, second: _Ints) -> None:
        """Join pairs: smaller names flow along the pairs until nothing changes."""
        while (different := self.of[first] != self.of[second]).any():
            one, other = self.of[first[different]], self.of[second[different]]
            np.minimum.at(self.of, np.maximum(one, other), np.minimum(one, other))
            while (shorter := self.of[self.of])[self.of != shorter].size:
                self.of = shorter

    def lists(self) -> list[list[int]]:
        members: dict[int, list[int]] = defaultdict(list)
        for member, name in enumerate(self.of.tolist()):
            members[name].append(member)
        return [group for group in members.values() if len(group) > 1]


def _parts(length: int, step: int) -> Iterator[slice]:
    for begin in range(0, length, step):
        yield slice(begin, min(begin + step, length))
