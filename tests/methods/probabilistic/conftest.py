"""The worked case of the specification, and integrals over the sphere in R³."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture
def worked() -> SimpleNamespace:
    """Four images and three classes in R³: raw (4, 3), proxies (3, 3), their cosines, lengths and stretches."""
    raw = torch.tensor([[1, 2, 2], [2, -1, 2], [0, 3, 4], [-2, 1, 2]], dtype=torch.float64)
    proxies = torch.tensor([[2, 1, 2], [1, -2, 2], [-1, 2, 2]], dtype=torch.float64)
    z, w = torch.nn.functional.normalize(raw, dim=-1), torch.nn.functional.normalize(proxies, dim=-1)
    return SimpleNamespace(
        raw=raw,
        proxies=proxies,
        z=z,
        w=w,
        cosines=z @ w.T,
        kappa_z=raw.norm(dim=-1),
        kappa_p=torch.tensor([3, 4, 6], dtype=torch.float64),
        stretch=torch.tensor([[1, 2, 3], [2, 2, 2], [4, 1, 2]], dtype=torch.float64),
        labels=torch.tensor([0, 1, 0, 2]),
    )


@pytest.fixture(scope="session")
def sphere() -> SimpleNamespace:
    """Points (n, 3) and weights (n,) that integrate smooth functions over S² to about 1e-13."""
    heights, weights = np.polynomial.legendre.leggauss(200)
    turns = np.arange(400) * 2 * np.pi / 400
    radius = np.sqrt(1 - heights**2)
    points = np.stack(
        [np.outer(radius, np.cos(turns)), np.outer(radius, np.sin(turns)), np.outer(heights, np.ones(400))], -1
    )
    area = np.repeat(weights * 2 * np.pi / 400, 400)
    return SimpleNamespace(points=torch.from_numpy(points.reshape(-1, 3)), weights=torch.from_numpy(area))


@pytest.fixture(scope="session")
def integral(sphere: SimpleNamespace) -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """Integrate a function of points (n, 3) over S²."""

    def integrate(function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.tensordot(sphere.weights, function(sphere.points), 1)

    return integrate


def log_density(
    points: Tensor,
    mu: Tensor,
    kappa: Tensor,
    det: str,
    stretch_sample: bool,
    log_normalizer: Callable[[Tensor], Tensor],
) -> Tensor:
    """The nivMF log-densities (..., C) written out with a tensor (..., C, M)."""
    mu = mu / mu.norm(dim=-1, keepdim=True)
    stretched = kappa * mu
    g = stretched.norm(dim=-1)
    moved = points[..., None, :] * kappa
    length = moved.norm(dim=-1)
    logs = kappa.log().sum(-1)
    dim = mu.shape[-1]
    log_det = {
        "released": logs - g.log(),
        "mode": logs - dim * g.log(),
        "exact": logs - dim * length.log(),
        "none": 0 * g,
    }[det]
    compared = moved / length[..., None] if stretch_sample else points[..., None, :]
    return log_normalizer(g) + log_det + (compared * stretched).sum(-1)


@pytest.fixture(scope="session")
def broadcast_log_density() -> Callable[..., Tensor]:
    """The reference in the plainest form."""
    return log_density
