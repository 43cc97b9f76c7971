"""Values and gradients against references written out as loops in float64, and gradcheck of every loss."""

from __future__ import annotations

import pytest
import torch

from proxemics.losses import LOSSES
from proxemics.losses import functional as F

CASES = [
    ("norm_softmax", "norm_softmax", {}, {}),
    ("norm_softmax", "norm_softmax", {"sigma": 0.3}, {"sigma": 0.3}),
    ("proxy_nca", "proxy_nca", {}, {}),
    ("proxy_nca", "proxy_nca", {"scale": 1.0, "proxy_scale": 8.0}, {"scale": 1.0, "proxy_scale": 8.0}),
    (
        "proxy_nca",
        "proxy_nca_smooth",
        {"exclude_positive": False, "label_smoothing": 0.2},
        {"smoothing": 0.2},
    ),
    ("proxy_nca_pp", "proxy_nca_pp", {"scale": 2.0}, {"scale": 2.0}),
    ("proxy_anchor", "proxy_anchor", {}, {}),
    ("proxy_anchor", "proxy_anchor", {"alpha": 4.0, "delta": -0.2}, {"alpha": 4.0, "delta": -0.2}),
    ("proxy_anchor", "proxy_anchor", {"alpha": 200.0}, {"alpha": 200.0}),
    ("cosface", "cosface", {"scale": 8.0}, {"scale": 8.0}),
    ("arcface", "arcface", {}, {}),
    ("arcface", "arcface", {"scale": 4.0, "margin_rad": 1.3}, {"scale": 4.0, "margin_rad": 1.3}),
    ("soft_triple", "soft_triple", {}, {}),
    ("soft_triple", "soft_triple", {"tau": 3.0, "gamma": 0.5}, {"tau": 3.0, "gamma": 0.5}),
    ("pd_loss", "pd_loss", {}, {}),
    ("pd_loss", "pd_loss", {"variance": "unbiased", "temperature": 0.1}, {"unbiased": True, "t": 0.1}),
    ("potential_field", "potential_field", {"delta": 1.2, "alpha": 1.5}, {"delta": 1.2, "alpha": 1.5}),
    ("multi_similarity", "multi_similarity", {}, {}),
    ("multi_similarity", "multi_similarity", {"mining": False, "beta": 10.0}, {"eps": None, "beta": 10.0}),
]


def _inputs(name: str, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(5)
    shape = (5, 3, 6) if name in ("soft_triple", "potential_field") else (5, 6)
    w = torch.randn(shape, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 3, 1, 0, 3, 0, 4])  # class 2 is absent, class 0 comes three times
    z = w.reshape(5, -1, 6)[:, 0][y] + 1.5 * torch.randn(7, 6, generator=generator, dtype=torch.float64)
    return z.to(dtype).requires_grad_(), y, w.to(dtype).requires_grad_()


def _call(name, z, y, w, options):
    if name == "multi_similarity":
        return F.multi_similarity(z, y, **options)
    return getattr(F, name)(z, y, proxies=w, **options)


@pytest.mark.parametrize(("name", "reference", "options", "reference_options"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_against_loops(references, name, reference, options, reference_options, dtype, tolerance):
    z, y, w = _inputs(name, dtype)
    value = _call(name, z, y, w, options)
    assert value.dtype == dtype
    value.backward()
    z64, w64 = (t.detach().double().requires_grad_() for t in (z, w))
    expected = references[reference](z64, y, w64, **reference_options)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
    torch.testing.assert_close(z.grad.double(), z64.grad, rtol=tolerance, atol=tolerance * float(z64.grad.abs().max()))
    if w64.grad is not None:
        scale = float(w64.grad.abs().max())
        torch.testing.assert_close(w.grad.double(), w64.grad, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(("name", "options"), [(case[0], case[2]) for case in CASES if case[2].get("alpha") != 200.0])
def test_gradcheck(name, options):
    z, y, w = _inputs(name)
    inputs = (z,) if name == "multi_similarity" else (z, w)
    assert torch.autograd.gradcheck(lambda *t: _call(name, t[0], y, t[-1], options), inputs, rtol=1e-4, atol=1e-6)


def test_gradcheck_margin():
    z, y, _ = _inputs("margin")
    beta = torch.full((5,), 1.1, dtype=torch.float64, requires_grad=True)
    triplets = F.distance_weighted_triplets(z, y, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda a, b: F.margin_loss(a, y, beta=b, triplets=triplets, nu=0.1), (z, beta), rtol=1e-4
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("multi_similarity", "margin")])
def test_gradient_reaches_one_side_only(name):
    """SEE updates proxies alone, a frozen head embeddings alone: each side without the other is the same gradient."""
    z, y, w = _inputs(name)
    both = torch.autograd.grad(_call(name, z, y, w, {}), (z, w))
    (only_z,) = torch.autograd.grad(_call(name, z, y, w.detach(), {}), z)
    (only_w,) = torch.autograd.grad(_call(name, z.detach(), y, w, {}), w)
    assert torch.equal(both[0], only_z)
    assert torch.equal(both[1], only_w)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("multi_similarity", "margin")])
def test_backward_twice_and_scaled(name):
    """The hand-written backward must not use up its tables, and must scale with the incoming gradient."""
    z, y, w = _inputs(name)
    value = _call(name, z, y, w, {})
    first = torch.autograd.grad(value, (z, w), retain_graph=True)
    second = torch.autograd.grad(value * -3, (z, w))
    for one, three in zip(first, second, strict=True):
        torch.testing.assert_close(three, one * -3)


def test_no_gradient_wanted_gives_the_same_value():
    for name in ("norm_softmax", "proxy_anchor", "soft_triple", "pd_loss", "potential_field"):
        z, y, w = _inputs(name)
        assert torch.equal(_call(name, z.detach(), y, w.detach(), {}), _call(name, z, y, w, {}).detach())


def test_in_place_change_between_forward_and_backward_is_refused():
    """An optimiser step between forward and backward would give a wrong gradient; autograd must notice."""
    z, y, w = _inputs("norm_softmax")
    value = F.norm_softmax(z, y, proxies=w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()
