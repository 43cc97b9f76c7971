"""What must not change a loss: order of the batch, names of the classes, lengths of rows, rotations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.losses import LOSSES, build_loss

STEADY = [name for name in LOSSES if name != "margin"]  # margin draws negatives by row


def _make(name: str, seed: int, batch: int, classes: int):
    generator = torch.Generator().manual_seed(seed)
    options = {"proxies_per_class": 2} if name == "potential_field" else {}
    loss = build_loss(name, classes, 5, options, generator=generator).double()
    y = torch.randint(classes, (batch,), generator=generator)
    z = torch.randn(batch, 5, generator=generator, dtype=torch.float64)
    return loss, z, y, generator


cases = given(
    name=st.sampled_from(STEADY),
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 9),
    classes=st.integers(2, 7),
)


@cases
@settings(max_examples=60, deadline=None)
def test_order_of_the_batch(name, seed, batch, classes):
    loss, z, y, generator = _make(name, seed, batch, classes)
    order = torch.randperm(batch, generator=generator)
    torch.testing.assert_close(loss(z[order], y[order]), loss(z, y), rtol=1e-9, atol=1e-9)


@cases
@settings(max_examples=60, deadline=None)
def test_names_of_the_classes(name, seed, batch, classes):
    loss, z, y, generator = _make(name, seed, batch, classes)
    before = loss(z, y)
    names = torch.randperm(classes, generator=generator)
    if hasattr(loss, "proxies"):
        with torch.no_grad():
            loss.proxies.copy_(loss.proxies[names.argsort()].clone())
    torch.testing.assert_close(loss(z, names[y]), before, rtol=1e-9, atol=1e-9)


@cases
@settings(max_examples=60, deadline=None)
def test_lengths_of_rows(name, seed, batch, classes):
    loss, z, y, generator = _make(name, seed, batch, classes)
    before = loss(z, y)
    if hasattr(loss, "proxies"):
        with torch.no_grad():
            loss.proxies.mul_(
                torch.rand(loss.proxies.shape[:-1], generator=generator, dtype=torch.float64)[..., None] + 0.1
            )
    lengths = torch.rand(batch, 1, generator=generator, dtype=torch.float64) * 10 + 0.1
    torch.testing.assert_close(loss(z * lengths, y), before, rtol=1e-7, atol=1e-7)


@cases
@settings(max_examples=60, deadline=None)
def test_rotations(name, seed, batch, classes):
    loss, z, y, generator = _make(name, seed, batch, classes)
    before = loss(z, y)
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64))
    if hasattr(loss, "proxies"):
        with torch.no_grad():
            loss.proxies.copy_(loss.proxies @ turn)
    torch.testing.assert_close(loss(z @ turn, y), before, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_margin_and_all_others_ignore_lengths(name):
    loss, z, y, _ = _make(name, 3, 8, 3)
    other, _, _, _ = _make(name, 3, 8, 3)
    torch.testing.assert_close(loss(z * 7, y), other(z, y))


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_tangent_to_the_sphere(name):
    """No loss may change the length of an embedding or a proxy: their gradients are orthogonal to them."""
    loss, z, y, _ = _make(name, 4, 9, 3)
    z.requires_grad_()
    loss(z, y).backward()
    size = z.grad.norm(dim=1) * z.norm(dim=1)
    assert bool(((z.grad * z).sum(1).abs() <= 1e-10 * size.clamp_min(1)).all())
    if hasattr(loss, "proxies"):
        size = loss.proxies.grad.norm(dim=-1) * loss.proxies.norm(dim=-1)
        assert bool(((loss.proxies.grad * loss.proxies).sum(-1).abs() <= 1e-10 * size.clamp_min(1)).all())
