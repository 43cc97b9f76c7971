"""Inner products in single precision, by whichever routine is the faster here and is sure to keep 24 bits.

Processors differ: on one Xeon torch multiplied a tenth faster than NumPy and NumPy's product of a matrix with a vector
was a fifth faster than its products row by row; on one EPYC both were the other way round. So each choice is made by a
trial, once a process, of some milliseconds, or of 40 for the product with one vector. What is found is the same by all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_ROWS = 2048
"""Rows of one product by NumPy: it is slower with many more."""
_LARGE = 1 << 25
"""Bytes of the rows of a trial with one query."""


def torch_keeps_bits() -> bool:
    """Whether torch multiplies float32 numbers as such: no autocast, and no setting that allows fewer bits."""
    import torch

    if torch.is_autocast_enabled("cpu"):
        return False
    places = (torch.backends, torch.backends.mkldnn, getattr(torch.backends.mkldnn, "matmul", None))
    if not all(hasattr(place, "fp32_precision") for place in places):  # torch before 2.9
        return torch.get_float32_matmul_precision() == "highest"
    return all(getattr(place, "fp32_precision") in {"ieee", "none"} for place in places)  # noqa: B009  # untyped


@lru_cache(maxsize=1)
def torch_is_faster() -> bool:
    """Whether torch multiplies matrices faster than NumPy."""
    rows, some = _numbers(1024, 256), _numbers(128, 256)
    out = np.empty((len(rows), len(some)), np.float32)
    return _is_faster(lambda: _by_torch(rows, some, out), lambda: _by_numpy(rows, some, out))


@lru_cache(maxsize=1)
def whole_is_faster() -> bool:
    """Whether NumPy multiplies a matrix with a vector faster as a whole than row by row."""
    # 32 MB: most of it comes from memory. In cache the whole was the faster one on an EPYC; from memory it took twice
    # as long.
    rows, one = np.ones((_LARGE // 1024, 256), np.float32), np.ones(256, np.float32)
    out = np.empty(len(rows), np.float32)
    return _is_faster(lambda: np.dot(rows, one, out=out), lambda: np.vecdot(rows, one, out=out))


def multiply(
    rows: NDArray[np.float32], queries: NDArray[np.float32], out: NDArray[np.float32], *, by_torch: bool
) -> None:
    """Write the products of all pairs.

    Args:
        rows: (T, D).
        queries: (Q, D).
        out: (T, Q), contiguous.
        by_torch: else by NumPy.
    """
    (_by_torch if by_torch else _by_numpy)(rows, queries, out)


def multiply_one(rows: NDArray[np.float32], query: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write the products of rows (T, D) with one query (D,) to ``out`` (T,), contiguous."""
    if 2 * rows.nbytes >= _LARGE and whole_is_faster():  # for fewer there is little to save
        np.dot(rows, query, out=out)
    else:
        np.vecdot(rows, query, out=out)


def _by_torch(rows: NDArray[np.float32], queries: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    import torch

    torch.mm(torch.from_numpy(rows), torch.from_numpy(queries).T, out=torch.from_numpy(out))


def _by_numpy(rows: NDArray[np.float32], queries: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        np.matmul(rows[part], queries.T, out=out[part])


def _numbers(rows: int, dim: int) -> NDArray[np.float32]:
    return np.linspace(-1, 1, rows * dim, dtype=np.float32).reshape(rows, dim)


def _is_faster(first: Callable[[], object], second: Callable[[], object]) -> bool:
    """Compare the best of four each, in turns, so that other work on the machine falls on both."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(4):
        for call, times in zip((first, second), took, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return min(took[0]) < min(took[1])
