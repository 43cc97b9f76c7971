"""Limiting cases of the specification (table of section 8)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import softplus

from proxemics.losses import functional as F
from proxemics.losses.fused import unit_rows


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(11)
    z = torch.randn(12, 8, generator=generator, dtype=torch.float64)
    w = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    return z, torch.arange(12) % 6, w


@pytest.mark.parametrize("scale", [1.0, 16.0, 64.0])
def test_zero_margins_are_norm_softmax(batch, scale):
    """To machine precision: the same bits, in both precisions."""
    z, y, w = batch
    for dtype in (torch.float64, torch.float32):
        expected = F.norm_softmax(z.to(dtype), y, proxies=w.to(dtype), sigma=1 / scale)
        assert torch.equal(F.cosface(z.to(dtype), y, proxies=w.to(dtype), margin=0.0, scale=scale), expected)
        assert torch.equal(F.arcface(z.to(dtype), y, proxies=w.to(dtype), margin_rad=0.0, scale=scale), expected)


def test_soft_triple_with_one_centre_is_norm_softmax(batch):
    z, y, w = batch
    expected = F.norm_softmax(z, y, proxies=w, sigma=1 / 20)
    torch.testing.assert_close(F.soft_triple(z, y, proxies=w[:, None], delta=0.0), expected, rtol=1e-14, atol=0)


def test_soft_triple_with_equal_centres_is_margin_softmax(batch):
    z, y, w = batch
    value = F.soft_triple(z, y, proxies=w[:, None].expand(6, 4, 8).contiguous(), tau=0.0)
    torch.testing.assert_close(value, F.cosface(z, y, proxies=w, margin=0.01, scale=20.0), rtol=1e-12, atol=0)


def test_proxy_nca_pp_is_norm_softmax(batch):
    z, y, w = batch
    for a in (1.0, 3.0):
        expected = F.norm_softmax(z, y, proxies=w, sigma=1 / (2 * a * a))
        torch.testing.assert_close(F.proxy_nca_pp(z, y, proxies=w, scale=a), expected, rtol=1e-13, atol=0)


def test_proxy_anchor_with_one_sample_a_class(batch):
    """With one sample a class and δ = 0 the positive term is the mean of softplus(-α S_iy)."""
    z, _, w = batch
    z, y, alpha = z[:6], torch.arange(6), 7.0
    s = unit_rows(z) @ unit_rows(w).t()
    push = torch.stack([(alpha * s[torch.arange(6) != c, c]).exp().sum().log1p() for c in range(6)]).mean()
    expected = softplus(-alpha * s.diagonal()).mean() + push
    torch.testing.assert_close(F.proxy_anchor(z, y, proxies=w, alpha=alpha, delta=0.0), expected)


def test_arcface_own_logit_falls_over_the_whole_half_turn():
    """θ > π - m uses cos θ - m sin m, so that the own logit never rises with the angle."""
    from proxemics.losses.arcface import AngularMargin

    own = torch.linspace(0, math.pi, 20001, dtype=torch.float64).cos()
    moved, slope = AngularMargin(0.5)(own)
    assert bool((moved.diff() < 0).all())
    assert bool((slope > 0).all())


def test_pd_loss_is_minus_log_decidability(batch):
    z, y, w = batch
    z = z + 3 * unit_rows(w)[y]
    for variance in ("population", "unbiased"):
        expected = -math.log(F.decidability(z, y, proxies=w, variance=variance)) + 0.5 * math.log(2)
        assert F.pd_loss(z, y, proxies=w, variance=variance).item() == pytest.approx(expected, rel=1e-12)
    hot = F.pd_loss(z, y, proxies=w, temperature=0.1)
    assert hot.item() == pytest.approx(F.pd_loss(z, y, proxies=w).item(), rel=1e-12)  # T cancels


def test_pd_loss_below_the_floor_is_finite():
    """μ_g <= μ_m at the start: log of a negative number without the floor."""
    w = torch.eye(3, 4)
    z = -w.clone().requires_grad_()
    value = F.pd_loss(z, torch.arange(3), proxies=w)
    value.backward()
    assert value.isfinite()
    assert w.isfinite().all()
