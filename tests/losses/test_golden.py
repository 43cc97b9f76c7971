"""Golden values of the specification, to the digits it prints (items 2.1-2.10; user-pains 28)."""

from __future__ import annotations

import pytest
import torch

from proxemics.losses import functional as F


def _close(value: torch.Tensor, expected: float, digits: int = 10) -> bool:
    return abs(float(value) - expected) <= 0.5000001 * 10.0**-digits


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("norm_softmax", {}, 1.0559819442),
        ("proxy_nca", {}, -3.5682661140),
        ("proxy_nca", {"exclude_positive": False, "label_smoothing": 0.1}, 1.8602038583),
        ("proxy_nca_pp", {}, 0.9702038583),
        ("proxy_anchor", {}, 23.0127816283),
        ("cosface", {}, 16.4444445590),
        ("arcface", {}, 16.8063979374),
        ("arcface", {"scale": 16}, 4.2170497477),
        ("pd_loss", {}, -0.2662176051),
        ("pd_loss", {"variance": "unbiased"}, -0.1968249795),
    ],
)
def test_proxy_losses(golden, name, options, expected):
    value = getattr(F, name)(golden.z, golden.y, proxies=golden.w, **options)
    assert _close(value, expected), float(value)


def test_proxy_anchor_positive_part(golden):
    """The positive part is 5.37e-10: it must not be lost beside the negative part of 23."""
    from proxemics.losses.proxy_anchor import ProxyAnchorKernel

    s = torch.nn.functional.normalize(golden.z) @ torch.nn.functional.normalize(golden.w).t()
    own = s.gather(1, golden.y[:, None])[:, 0]
    value, _ = ProxyAnchorKernel(32.0, 0.1)._positive(own, golden.y, 3)
    assert abs(float(value) - 5.37e-10) < 0.005e-10


def test_soft_triple(golden):
    total = F.soft_triple(golden.z, golden.y, proxies=golden.w2)
    alone = F.soft_triple(golden.z, golden.y, proxies=golden.w2, tau=0.0)
    assert _close(total, 1.3410994306)
    assert _close(alone, 1.2236857076)
    assert _close((total - alone) / 0.2, 0.5870686152)


@pytest.mark.parametrize(("delta", "alpha", "expected"), [(0.2, 3.0, 3896.5102599344), (0.5, 1.0, 46.7386127876)])
def test_potential_field(golden, delta, alpha, expected):
    value = F.potential_field(golden.z, golden.y, proxies=golden.w[:, None], delta=delta, alpha=alpha)
    assert abs(float(value) - expected) <= 1e-10  # one unit: plain loops give 46.73861278752583, printed as ...876
    mean = F.potential_field(golden.z, golden.y, proxies=golden.w[:, None], delta=delta, alpha=alpha, reduction="mean")
    assert float(mean) == pytest.approx(expected / 7, rel=1e-11)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mining": False}, 0.2052814238),
        ({"eps": 0.1}, 0.0),
        ({"eps": 0.25}, 0.1021963251),
        ({"eps": 0.5}, 0.1466453129),
    ],
)
def test_multi_similarity(golden, options, expected):
    assert _close(F.multi_similarity(golden.z, golden.y, **options), expected)


def test_margin_over_all_triplets(golden):
    triplets = tuple(torch.tensor(column) for column in zip((0, 2, 1), (0, 2, 3), (2, 0, 1), (2, 0, 3), strict=True))
    beta = torch.full((3,), 1.2, dtype=torch.float64)
    value = F.margin_loss(golden.z, golden.y, beta=beta, triplets=triplets)
    assert _close(value, 0.4017044029)


@pytest.mark.parametrize(
    ("distance", "expected"), [(0.5, 91.3702), (0.8, 39.0132), (1.0, 17.9801), (1.2, 4.9204), (1.4, -0.3115)]
)
def test_distance_weights(distance, expected):
    value = F.log_weights(torch.tensor(distance, dtype=torch.float64), 128)
    assert _close(value, expected, digits=4)


@pytest.mark.parametrize(("variance", "expected"), [("population", 1.8455755783), ("unbiased", 1.7218487526)])
def test_decidability(golden, variance, expected):
    value = F.decidability(golden.z, golden.y, proxies=golden.w, variance=variance)
    assert abs(value - expected) <= 0.5e-10
