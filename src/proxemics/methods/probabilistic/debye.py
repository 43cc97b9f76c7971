"""The uniform (Debye) expansion of I_ν, arranged so that nothing cancels: for every κ from 0 up, in any precision.

With s = √(ν² + κ²), δ = s - ν, p = ν/s and q = 1 - p = δ/s:

    log[Γ(ν+1) (2/κ)^ν I_ν(κ)] = δ - ν log1p(δ/2ν) - ½ log1p(δ/ν) + c(p) - c(1),     c(p) = log Σ_k U_k(p) / ν^k.

The correction c(p) - c(1) is a polynomial in q without a constant term inside a ``log1p``, and so it is exact to the
last digits for small κ as well. The expansion is used at orders of at least 24; lower orders are reached from there by
the recurrence I_{ν-1}/I_ν = 2ν/κ + I_{ν+1}/I_ν, which is stable downwards.

Source: the classical expansion (DLMF 10.41.3), whose polynomials U_k are generated here from their own recurrence; the
centring is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

LEAST_ORDER = 24.0
"""The expansion is used from this order on."""

MOST_TERMS = 10


@dataclass(frozen=True)
class Expansion:
    """The expansion at one order.

    Attributes:
        order: ν.
        poly: coefficients of q, q², ... in (Σ_k U_k(1-q)/ν^k) / (Σ_k U_k(1)/ν^k) - 1.
    """

    order: float
    poly: tuple[float, ...]

    def correction(self, q: Tensor, derivatives: int) -> tuple[Tensor, ...]:
        """Return c(p) - c(1) and its first ``derivatives`` (0 to 2) derivatives in q."""
        value = _horner(self.poly, q) * q
        results = [torch.log1p(value)]
        if derivatives:
            first = _horner(tuple(n * c for n, c in enumerate(self.poly, 1)), q)
            slope = first / (1 + value)
            results.append(slope)
            if derivatives > 1:
                second = _horner(tuple(n * (n - 1) * c for n, c in enumerate(self.poly, 1))[1:], q)
                results.append(second / (1 + value) - slope * slope)
        return tuple(results)


def shifts(order: float) -> int:
    """Return by how many whole steps ``order`` must be raised before the expansion is used."""
    return max(0, int(-((order - LEAST_ORDER) // 1)))


@lru_cache(maxsize=64)
def expansion(order: float, dtype: torch.dtype) -> Expansion:
    """Return the expansion at ``order`` with as many terms as ``dtype`` can tell from more."""
    eps = torch.finfo(dtype).eps / 4
    polynomials = _polynomials()
    terms = next((k for k in range(2, MOST_TERMS) if _size(polynomials[k + 1]) / order ** (k + 1) < eps), MOST_TERMS)
    length = 3 * terms + 1
    total = [Fraction(0)] * length
    inverse = 1 / Fraction(order)
    for k in range(terms + 1):
        for power, coefficient in enumerate(polynomials[k]):
            total[power] += coefficient * inverse**k
    at_one = sum(total)
    shifted = _in_one_minus(total)
    return Expansion(order, tuple(float(c / at_one) for c in shifted[1:]))


@lru_cache(maxsize=1)
def _polynomials() -> tuple[tuple[Fraction, ...], ...]:
    """U_0 .. U_11 by U_{k+1} = ½p²(1-p²)U_k' + ⅛ ∫_0^p (1-5t²) U_k(t) dt."""
    found: list[list[Fraction]] = [[Fraction(1)]]
    for _ in range(MOST_TERMS + 1):
        last = found[-1]
        following = [Fraction(0)] * (len(last) + 3)
        for power, c in enumerate(last):
            following[power + 1] += c * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            following[power + 3] -= c * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        found.append(following)
    return tuple(tuple(polynomial) for polynomial in found)


def _size(polynomial: tuple[Fraction, ...]) -> float:
    """The largest value on a grid over [0, 1]."""
    grid = [step / 64 for step in range(65)]
    return max(abs(sum(float(c) * p**power for power, c in enumerate(polynomial))) for p in grid)


def _in_one_minus(polynomial: list[Fraction]) -> list[Fraction]:
    """Rewrite a polynomial in p as one in q = 1 - p."""
    result = [Fraction(0)] * len(polynomial)
    for coefficient in reversed(polynomial):
        # result * (1 - q) + coefficient
        for power in range(len(result) - 1, 0, -1):
            result[power] -= result[power - 1]
        result[0] += coefficient
    return result


def _horner(coefficients: tuple[float, ...], q: Tensor) -> Tensor:
    if not coefficients:
        return torch.zeros_like(q)
    value = torch.full_like(q, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * q + coefficient
    return value
