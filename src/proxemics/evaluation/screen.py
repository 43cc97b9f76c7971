"""Fast scores with a proven error bound, so that only what they cannot decide is computed again in float64.

A screen computes a tile of scores by one matrix product in float32 or bfloat16 and returns *codes*: numbers of a type
that compares quickly and in the order of the scores. For every query row it knows ``eps`` with

    |exact score - screened score| <= eps,

by Cauchy-Schwarz on the rounding residuals of the rows plus the bound n*u/(1-n*u) on any summation order of a dot
product (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). A threshold on exact scores therefore
becomes a code that surely keeps, or surely excludes, what lies beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from proxemics.evaluation.inputs import row_chunks
from proxemics.evaluation.space import Side, Space

_U32 = 2.0**-24
_U16 = 2.0**-8


class Screen(Protocol):
    """Scores by a fast product; see the module text."""

    dtype: torch.dtype
    lowest: int | float
    coarse: float
    eps: Tensor

    def tile(self, rows: slice | Tensor, cols: slice, out: Tensor) -> None:
        """Write the codes of a block into ``out`` (rows, cols)."""
        ...

    def reach(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Codes c with ``code > c`` for every screened score >= threshold, and where such a code exists."""
        ...

    def beyond(self, thresholds: Tensor) -> Tensor:
        """Codes c such that ``code > c`` implies a screened score > threshold."""
        ...

    def values(self, codes: Tensor) -> Tensor:
        """Float64 scores of codes."""
        ...

    def slack(self, values: Tensor) -> Tensor | float:
        """Bound on the rounding of ``values`` to codes, to be added to ``eps``."""
        ...


def _down(values: Tensor) -> Tensor:
    rounded = values.float()
    return torch.where(
        rounded.double() > values, torch.nextafter(rounded, torch.full_like(rounded, -torch.inf)), rounded
    )


def _up(values: Tensor) -> Tensor:
    return -_down(-values)


class Float32Screen:
    """Single-precision product; works everywhere.

    Args:
        space: the exact scores.
    """

    dtype = torch.float32
    lowest: int | float = -float("inf")

    def __init__(self, space: Space) -> None:
        self._left, left = _single(space.query)
        self._right, right = (self._left, left) if space.gallery is space.query else _single(space.gallery)
        self._bias = None if space.bias is None else space.bias.float()
        peak = float(space.gallery.norm.max())
        offset = 0.0 if space.bias is None else float(space.bias.abs().max())
        bound = (space.dim + 8) * _U32 * 1.01
        self.eps = bound * (space.query.norm * (1 + left) * peak * (1 + right) + offset)
        self.coarse = bound
        self.eps += ((1 + left) * (1 + right) - 1) * space.query.norm * peak + space.dim * 1e-37 + space.tie

    def tile(self, rows: slice | Tensor, cols: slice, out: Tensor) -> None:
        """Write the scores of a block into ``out``."""
        if self._bias is None:
            torch.mm(self._left[rows], self._right[cols].T, out=out)
        else:
            torch.addmm(self._bias[cols], self._left[rows], self._right[cols].T, out=out)

    def reach(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Next float32 below each threshold; one always exists."""
        low = _down(thresholds)
        return torch.nextafter(low, torch.full_like(low, -torch.inf)), torch.ones_like(low, dtype=torch.bool)

    def beyond(self, thresholds: Tensor) -> Tensor:
        """Smallest float32 at or above each threshold."""
        return _up(thresholds)

    def values(self, codes: Tensor) -> Tensor:
        """The scores themselves."""
        return codes.double()

    def slack(self, values: Tensor) -> float:
        """Codes are the scores: nothing to add."""
        return 0.0


class BFloat16Screen:
    """bfloat16 product with float32 sums, read as int16: the bits of non-negative bfloat16 numbers order as integers.

    Negative scores compare below all others but not among themselves, so a threshold below 0 has no code.

    Args:
        space: exact scores without bias, at most 1 in absolute value.
    """

    dtype = torch.int16
    lowest: int | float = -(2**15)

    def __init__(self, space: Space) -> None:
        self._left, left = _brain(space.query)
        self._right, right = (self._left, left) if space.gallery is space.query else _brain(space.gallery)
        peak = float(right.max())
        self.coarse = peak
        length = 1 + 2 * _U16
        self.eps = left * length + (1 + 1e-6) * peak + (space.dim + 8) * _U32 * 1.01 * length**2
        self.eps += space.dim * 1e-37 + space.tie

    def tile(self, rows: slice | Tensor, cols: slice, out: Tensor) -> None:
        """Write the bits of the scores of a block into ``out``."""
        torch.mm(self._left[rows], self._right[cols].T, out=out.view(torch.bfloat16))

    def reach(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Rounding is monotone: a score >= t rounds to at least the rounded t."""
        codes = _down(thresholds.clamp_min(0)).bfloat16().view(torch.int16)
        return codes - 1, thresholds >= 0

    def beyond(self, thresholds: Tensor) -> Tensor:
        """Rounding is monotone: what rounds above the rounded t was above t; below 0 the code of 0 is safe."""
        return _up(thresholds.clamp_min(0)).bfloat16().view(torch.int16)

    def values(self, codes: Tensor) -> Tensor:
        """Scores of codes."""
        return codes.view(torch.bfloat16).double()

    def slack(self, values: Tensor) -> Tensor:
        """Half a unit in the last place of eight significant bits."""
        return values.abs() * _U16


def make_screen(space: Space, precision: str) -> Screen:
    """Build the screen ``float32`` or ``bfloat16`` of a space."""
    return BFloat16Screen(space) if precision == "bfloat16" else Float32Screen(space)


def _single(side: Side) -> tuple[Tensor, float]:
    """Scored rows in float32 and a bound on their relative deviation that is not element-wise rounding."""
    if side.mean is None and side.raw.dtype == torch.float32:
        off = float((1 / side.scale.clamp_min(1e-300) - 1).abs().max()) if bool((side.scale > 0).all()) else 1.0
        if off < 1e-5:
            return side.raw, off  # unit rows already: no copy, a slightly wider bound
    rows = torch.empty(side.raw.shape, dtype=torch.float32, device=side.raw.device)
    for part in row_chunks(len(rows)):
        rows[part] = side.rows(part)
    return rows, 0.0


def _brain(side: Side) -> tuple[Tensor, Tensor]:
    """Scored rows in bfloat16 and the lengths (N,) of what rounding took away."""
    rows = torch.empty(side.raw.shape, dtype=torch.bfloat16, device=side.raw.device)
    lost = torch.empty(len(rows), dtype=torch.float64, device=side.raw.device)
    for part in row_chunks(len(rows)):
        exact = side.rows(part)
        rows[part] = exact.float()
        lost[part] = torch.linalg.vector_norm(exact - rows[part], dim=1)
    return rows, lost


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch autocast, gradients and reduced-precision float32 products off, which would break the bounds."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), _ieee_products():
        yield


@contextmanager
def _ieee_products() -> Iterator[None]:
    switches: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not all(hasattr(switch, "fp32_precision") for switch in switches):  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    # The old switch must not be touched where a program uses the new ones: torch refuses the mixture.
    settings = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, setting in zip(switches, settings, strict=True):
            switch.fp32_precision = setting


@lru_cache(maxsize=1)
def brain_is_fast() -> bool:
    """Whether this CPU multiplies bfloat16 natively, at 1.5 times the float32 rate or better, with float32 sums."""
    if (  # torch gives is_available no types
        torch.backends.cpu.get_cpu_capability() not in {"AVX512", "AVX512_BF16", "AMX"}
        or not torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    ):
        return False
    left = torch.linspace(-1, 1, 512 * 512).view(512, 512).sin_()
    half = left.bfloat16()
    took = []
    for matrix in (left, half):
        torch.mm(matrix, matrix.T)
        start = time.process_time()
        for _ in range(3):
            torch.mm(matrix, matrix.T)
        took.append(time.process_time() - start)
    exact = half.double() @ half.double().T
    scale = torch.linalg.vector_norm(half.double(), dim=1)
    bound = (scale[:, None] * scale) * 520 * _U32 + exact.abs() * _U16 * 1.01
    honest = bool(((torch.mm(half, half.T).double() - exact).abs() <= bound).all())
    return honest and took[1] * 1.5 < took[0]
