"""Fast scores of queries against many rows, with a bound on their error.

The bound of a float32 product of D terms is the usual one on any order of summation (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1); that of 8-bit rows is Cauchy-Schwarz on what rounding lost.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from proxemics.search.local.codes import quantise
from proxemics.search.local.products import multiply, multiply_one, torch_is_faster, torch_keeps_bits

_UNIT = 2.0**-24
FEW = 8
"""Up to so many queries a tile is laid out by query, so that comparing it with limits has long inner loops."""
CACHED = 1 << 19
"""Numbers of the rows of one product for few queries, so that they stay in cache."""


class Screen(Protocol):
    """Scores of all queries against a range of columns.

    Attributes:
        columns: how many rows can be asked for.
        entries: scores of one tile.
        eps: (Q,) float32, how far a score may be from the exact one.
    """

    columns: int
    entries: int
    eps: NDArray[np.float32]

    def tile(self, first: int, last: int, queries: slice, out: NDArray[np.float32]) -> None:
        """Write the scores (q, last - first) of some queries; ``out`` is from :func:`empty_tile`."""
        ...


def empty_tile(buffer: NDArray[np.float32], queries: int, columns: int) -> NDArray[np.float32]:
    """Return room for a tile (queries, columns): contiguous by column for few queries, by query for more."""
    room = buffer[: queries * columns]
    return room.reshape(queries, columns) if queries <= FEW else room.reshape(columns, queries).T


class FloatScreen:
    """Single-precision products.

    Args:
        vectors: (N, D) unit rows.
        queries: (Q, D) unit rows.
        slots: (n,) rising rows to look at; None: all.
    """

    entries = 1 << 19

    def __init__(
        self, vectors: NDArray[np.float32], queries: NDArray[np.float32], slots: NDArray[np.int64] | None = None
    ) -> None:
        self._vectors, self._queries, self._slots = vectors, queries, slots
        self.columns = len(vectors) if slots is None else len(slots)
        self._torch_may = len(queries) > 1 and torch_keeps_bits()
        self.eps = np.full(len(queries), (queries.shape[1] + 8) * _UNIT * 1.01 + 1e-30, np.float32)

    def tile(self, first: int, last: int, queries: slice, out: NDArray[np.float32]) -> None:
        """Write the scores (q, last - first) of some queries."""
        rows = self._vectors[first:last] if self._slots is None else self._vectors[self._slots[first:last]]
        some = self._queries[queries]
        if len(some) == 1:
            multiply_one(rows, some[0], out[0])
            return
        by_torch = self._torch_may and (len(some) <= FEW or torch_is_faster())
        if len(some) > FEW:
            multiply(rows, some, out.T, by_torch=by_torch)
            return
        step = max(64, CACHED // rows.shape[1])
        for start in range(0, last - first, step):
            part = slice(start, start + step)
            products = np.empty((len(rows[part]), len(some)), np.float32)
            multiply(rows[part], some, products, by_torch=by_torch)
            out[:, part] = products.T


def codes_pay() -> bool:
    """Whether this processor has products of 8-bit numbers; without them float32 is several times as fast.

    Both screens lead to the same answer.
    """
    import torch

    return bool(getattr(torch.cpu, "_is_vnni_supported", bool)())


class CodeScreen:
    """Products of 8-bit codes, in units of the query's own step, over all rows; tiles stay in a core's own cache.

    Args:
        codes: (N, D) int8.
        scales: (N, 2) steps and lost lengths, see :func:`~proxemics.search.local.codes.quantise`.
        queries: (Q, D) unit rows.
    """

    entries = 1 << 19

    def __init__(self, codes: NDArray[np.int8], scales: NDArray[np.float32], queries: NDArray[np.float32]) -> None:
        self._codes, self.columns = codes, len(codes)
        self._whole = np.empty(0, np.int32)
        self._steps = np.ascontiguousarray(scales[:, 0])
        self._queries, own = quantise(queries)
        if codes.shape[1] == 1:  # the product of whole numbers goes wrong there
            self._codes, self._queries = (np.pad(part, ((0, 0), (0, 1))) for part in (codes, self._queries))
        lost = float(scales[:, 1].max(initial=0.0))
        # |x.y - x'.y'| <= |x - x'| |y| + |x'| |y - y'|, and the product is rounded to float32 twice.
        bound = own[:, 1].astype(np.float64) * (1 + 1e-6) + (1 + own[:, 1]) * lost + 4 * _UNIT
        self.eps = (bound / own[:, 0] * (1 + 1e-6)).astype(np.float32)

    def tile(self, first: int, last: int, queries: slice, out: NDArray[np.float32]) -> None:
        """Write the scores (q, last - first) of some queries."""
        import torch

        turned = not out.flags.c_contiguous
        scores = torch.from_numpy(out.T if turned else out)
        if self._whole.size < out.size:
            self._whole = np.empty(out.size, np.int32)
        whole = torch.from_numpy(self._whole[: out.size].reshape(tuple(scores.shape)))
        some, rows = torch.from_numpy(self._queries[queries]), torch.from_numpy(self._codes[first:last])
        steps = torch.from_numpy(self._steps[first:last])
        if turned:
            torch._int_mm(rows, some.T, out=whole)
        else:
            torch._int_mm(some, rows.T, out=whole)
        scores.copy_(whole)
        scores.mul_(steps[:, None] if turned else steps)
