"""The fixture of the specification (golden values) and references written out as plain loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor


@pytest.fixture
def golden() -> SimpleNamespace:
    """Four embeddings, three proxies, M = 3, float64; no row has unit length."""
    z = torch.tensor([[1, 2, 2], [2, -1, 2], [0, 3, 4], [-2, 1, 2]], dtype=torch.float64)
    w = torch.tensor([[2, 1, 2], [1, -2, 2], [-1, 2, 2]], dtype=torch.float64)
    second = w.roll(1, dims=1) * torch.tensor([1.0, -1.0, 1.0])
    return SimpleNamespace(z=z, y=torch.tensor([0, 1, 0, 2]), w=w, w2=torch.stack([w, second], dim=1))


def _unit(v: Tensor) -> Tensor:
    return v / v.norm()


def _lse(values: list[Tensor]) -> Tensor:
    return torch.stack(values).logsumexp(0)


def _cross_entropy(logits: list[list[Tensor]], y: Tensor) -> Tensor:
    return sum(_lse(row) - row[int(c)] for row, c in zip(logits, y, strict=True)) / len(y)


def _cosines(z: Tensor, w: Tensor) -> list[list[Tensor]]:
    return [[_unit(a) @ _unit(b) for b in w] for a in z]


def norm_softmax(z: Tensor, y: Tensor, w: Tensor, sigma: float = 0.05) -> Tensor:
    return _cross_entropy([[s / sigma for s in row] for row in _cosines(z, w)], y)


def proxy_nca(z: Tensor, y: Tensor, w: Tensor, scale: float = 3.0, proxy_scale: float = 3.0) -> Tensor:
    total = 0
    for a, c in zip(z, y, strict=True):
        d = [(scale * _unit(a) - proxy_scale * _unit(b)).square().sum() for b in w]
        total = total + d[int(c)] + _lse([-v for k, v in enumerate(d) if k != int(c)])
    return total / len(z)


def proxy_nca_smooth(z: Tensor, y: Tensor, w: Tensor, scale: float = 3.0, smoothing: float = 0.1) -> Tensor:
    total = 0
    for a, c in zip(z, y, strict=True):
        logits = [-(scale * _unit(a) - scale * _unit(b)).square().sum() for b in w]
        for k, logit in enumerate(logits):
            weight = 1 - smoothing if k == int(c) else smoothing / (len(w) - 1)
            total = total + weight * (_lse(logits) - logit)
    return total / len(z)


def proxy_nca_pp(z: Tensor, y: Tensor, w: Tensor, scale: float = 3.0) -> Tensor:
    return _cross_entropy([[-(scale * _unit(a) - scale * _unit(b)).square().sum() for b in w] for a in z], y)


def proxy_anchor(z: Tensor, y: Tensor, w: Tensor, alpha: float = 32.0, delta: float = 0.1) -> Tensor:
    s = _cosines(z, w)
    zero = z.new_zeros(())
    present = sorted({int(c) for c in y})
    pull = sum(_lse([zero, *[-alpha * (s[i][c] - delta) for i in range(len(y)) if int(y[i]) == c]]) for c in present)
    push = sum(
        _lse([zero, *[alpha * (s[i][c] + delta) for i in range(len(y)) if int(y[i]) != c]]) for c in range(len(w))
    )
    return pull / len(present) + push / len(w)


def cosface(z: Tensor, y: Tensor, w: Tensor, margin: float = 0.35, scale: float = 64.0) -> Tensor:
    s = _cosines(z, w)
    return _cross_entropy(
        [[scale * (v - margin * (k == int(c))) for k, v in enumerate(row)] for row, c in zip(s, y, strict=True)], y
    )


def arcface(z: Tensor, y: Tensor, w: Tensor, margin_rad: float = 0.5, scale: float = 64.0) -> Tensor:
    def own(v: Tensor) -> Tensor:
        angle = v.clamp(-1 + 1e-12, 1 - 1e-12).arccos()
        if angle.item() > math.pi - margin_rad:
            return v - margin_rad * math.sin(margin_rad)
        return (angle + margin_rad).cos()

    s = _cosines(z, w)
    return _cross_entropy(
        [[scale * (own(v) if k == int(c) else v) for k, v in enumerate(row)] for row, c in zip(s, y, strict=True)], y
    )


def soft_triple(
    z: Tensor, y: Tensor, w: Tensor, la: float = 20.0, gamma: float = 0.1, tau: float = 0.2, delta: float = 0.01
) -> Tensor:
    classes, centers = w.shape[:2]
    logits = []
    for a, c in zip(z, y, strict=True):
        row = []
        for k in range(classes):
            s = torch.stack([_unit(a) @ _unit(b) for b in w[k]])
            row.append(la * (((s / gamma).softmax(0) * s).sum() - delta * (k == int(c))))
        logits.append(row)
    loss = _cross_entropy(logits, y)
    if centers == 1:
        return loss
    spread = sum(
        (2 + 1e-5 - 2 * _unit(w[c, k]) @ _unit(w[c, m])).sqrt()
        for c in range(classes)
        for k in range(centers)
        for m in range(k + 1, centers)
    )
    return loss + tau * spread / (classes * centers * (centers - 1))


def pd_loss(z: Tensor, y: Tensor, w: Tensor, eps: float = 1e-6, unbiased: bool = False, t: float = 1.0) -> Tensor:
    s = _cosines(z, w)
    genuine = torch.stack([s[i][int(c)] / t for i, c in enumerate(y)])
    impostor = torch.stack([v / t for i, c in enumerate(y) for k, v in enumerate(s[i]) if k != int(c)])
    spread = genuine.var(correction=int(unbiased)) + impostor.var(correction=int(unbiased))
    return spread.clamp_min(eps).log() / 2 - (genuine.mean() - impostor.mean()).clamp_min(eps).log()


def potential_field(z: Tensor, y: Tensor, w: Tensor, delta: float = 0.2, alpha: float = 3.0) -> Tensor:
    nodes = [_unit(a) for a in z] + [_unit(b) for group in w for b in group]
    labels = [int(c) for c in y] + [c for c in range(len(w)) for _ in range(w.shape[1])]
    total = z.new_zeros(())
    for i, a in enumerate(nodes):
        for j, b in enumerate(nodes):
            if i == j:
                continue
            r = (a - b).norm().clamp_min(1e-4)
            if labels[i] == labels[j]:
                total = total - (1 / delta**alpha if r.item() < delta else 1 / r**alpha)
            else:
                total = total + (1 / r**alpha if r.item() < delta else 1 / delta**alpha)
    return total


def multi_similarity(
    z: Tensor,
    y: Tensor,
    w: None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    lam: float = 0.5,
    eps: float | None = 0.1,
) -> Tensor:
    total = z.new_zeros(())
    zero = z.new_zeros(())
    for i, a in enumerate(z):
        sims = [_unit(a) @ _unit(b) for b in z]
        pos = [s for j, s in enumerate(sims) if y[j] == y[i] and j != i]
        neg = [s for j, s in enumerate(sims) if y[j] != y[i]]
        if eps is not None:
            hardest = max(neg, default=None)
            farthest = min(pos, default=None)
            pos = [s for s in pos if hardest is not None and s - eps < hardest]
            neg = [s for s in neg if farthest is not None and s + eps > farthest]
        total = total + _lse([zero, *[-alpha * (s - lam) for s in pos]]) / alpha
        total = total + _lse([zero, *[beta * (s - lam) for s in neg]]) / beta
    return total / len(z)


REFERENCES: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        norm_softmax,
        proxy_nca,
        proxy_nca_smooth,
        proxy_nca_pp,
        proxy_anchor,
        cosface,
        arcface,
        soft_triple,
        pd_loss,
        potential_field,
        multi_similarity,
    )
}


@pytest.fixture(scope="session")
def references() -> dict[str, Callable[..., Tensor]]:
    """Loss name -> slow reference ``(z, y, w, options) -> scalar`` that autograd can differentiate."""
    return REFERENCES
