"""Precision and extremes: half precision, huge scales, large class counts, accumulation, optimiser state."""

from __future__ import annotations

import pytest
import torch

from proxemics.losses import LOSSES, ProxyAnchor, build_loss
from proxemics.losses import functional as F

GRID = [
    ("fp32", torch.float32, None),
    ("bf16", torch.bfloat16, None),
    ("fp16", torch.float16, None),
    ("autocast bf16", torch.float32, torch.bfloat16),
    ("autocast fp16", torch.float32, torch.float16),
]


@pytest.mark.parametrize(("kind", "dtype", "autocast"), GRID, ids=[row[0] for row in GRID])
@pytest.mark.parametrize("name", LOSSES)
def test_training_step_in_every_precision(name, kind, dtype, autocast):
    """user-pains 17 and 19: finite numbers, float32 parameters, gradients and optimiser moments."""
    generator = torch.Generator().manual_seed(0)
    loss = build_loss(name, 6, 8, {}, generator=generator)
    head = torch.nn.Linear(8, 8)
    parameters = [*head.parameters(), *loss.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    x = torch.randn(12, 8, generator=generator)
    x[1] = x[0]  # a duplicate with another label: its cosine is exactly 1
    labels = torch.arange(12) % 6
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            value = loss(head(x).to(dtype), labels)
            value.backward()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in parameters)
        optimizer.step()
    for parameter in loss.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert optimizer.state[parameter]["exp_avg"].dtype == torch.float32
        assert bool(parameter.isfinite().all())


def test_half_precision_embeddings_on_the_wrong_proxy():
    """user-pains 18: exp(32·1.1) overflows float16; ours equals the float64 reference to 1e-3."""
    loss = ProxyAnchor(4, 8, generator=torch.Generator().manual_seed(1))
    z = loss.proxies.detach().roll(1, 0).half().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        value = loss(z, torch.arange(4))
    value.backward()
    exact = F.proxy_anchor(z.detach().double(), torch.arange(4), proxies=loss.proxies.detach().double())
    assert value.item() == pytest.approx(exact.item(), rel=1e-3)
    assert value.item() > 30
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize(
    "name", ["norm_softmax", "proxy_nca", "proxy_anchor", "cosface", "arcface", "pd_loss", "soft_triple"]
)
def test_float32_over_many_classes(name):
    """Sums over 600 k cosines in blocks keep float32 near float64 (three blocks of proxies, the last one short)."""
    generator = torch.Generator().manual_seed(2)
    loss = build_loss(name, 5000 if name != "soft_triple" else 700, 128, {}, generator=generator)
    y = torch.randint(700, (120,), generator=generator)
    own = loss.proxies.detach().reshape(loss.num_classes, -1, 128)[y, 0]
    z = (own / own.norm(dim=1, keepdim=True) + 0.1 * torch.randn(120, 128, generator=generator)).requires_grad_()
    value = loss(z, y)
    value.backward()
    gradients = [z.grad.clone(), loss.proxies.grad.clone()]
    z.grad = None
    loss.zero_grad()
    z64 = z.detach().double().requires_grad_()
    exact = loss.double()(z64, y)
    exact.backward()
    assert value.item() == pytest.approx(exact.item(), rel=2e-6)
    for ours, other in zip(gradients, (z64.grad, loss.proxies.grad), strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=1e-3, atol=2e-5 * float(other.abs().max()))


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_do_not_change_the_value(threads, monkeypatch):
    """The proxies are visited in blocks; any block size gives the same loss and gradients."""
    from proxemics.losses import fused

    generator = torch.Generator().manual_seed(3)
    z = torch.randn(16, 32, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.randint(300, (16,), generator=generator)
    for name, shape in (("norm_softmax", (300, 32)), ("soft_triple", (300, 3, 32))):
        w = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        results = []
        for size in (1, 1 << 14, 1 << 30):
            monkeypatch.setattr(fused, "BLOCK_BYTES", size * threads)
            value = getattr(F, name)(z, y, proxies=w)
            results.append((value, *torch.autograd.grad(value, (z, w))))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "margin"])
def test_accumulation_equals_the_big_batch_or_says_not(name):
    """user-pains 29: 4 chunks of 16 against one batch of 64; ``per_sample_mean`` tells which losses allow it."""
    loss = build_loss(name, 10, 8, {}, generator=torch.Generator().manual_seed(4)).double()
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(64, 8, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.randint(10, (64,), generator=generator)
    (whole,) = torch.autograd.grad(loss(z, y), z)
    parts = sum(loss(z[i : i + 16], y[i : i + 16]) / 4 for i in range(0, 64, 16))
    (chunked,) = torch.autograd.grad(parts, z)
    assert torch.allclose(chunked, whole, rtol=1e-8, atol=1e-12) == loss.per_sample_mean


@pytest.mark.parametrize("name", LOSSES)
def test_zero_vector_has_no_gradient(name):
    """user-pains 24: a zero embedding has no direction; it must not send 1e12 into the model."""
    loss = build_loss(name, 4, 6, {}, generator=torch.Generator().manual_seed(6))
    z = torch.randn(8, 6, generator=torch.Generator().manual_seed(7))
    z[3] = 0
    z.requires_grad_()
    value = loss(z, torch.arange(8) % 4)
    value.backward()
    assert value.isfinite()
    assert bool((z.grad[3] == 0).all())
    assert bool((z.grad[0] != 0).any())


@pytest.mark.parametrize("name", LOSSES)
def test_nan_is_not_hidden(name):
    """user-pains 21: a diverged embedding must show in the loss, where the training loop looks for it."""
    loss = build_loss(name, 4, 6, {})
    z = torch.randn(8, 6)
    z[2, 1] = float("nan")
    assert not loss(z, torch.arange(8) % 4).isfinite()


@pytest.mark.parametrize("name", LOSSES)
def test_few_steps_separate_classes(name):
    """Descent on embeddings and parameters from a random start: the own proxy, or a pair's partner, becomes nearest."""
    generator = torch.Generator().manual_seed(8)
    options = {"alpha": 1.0, "delta": 0.5, "proxies_per_class": 2} if name == "potential_field" else {}
    loss = build_loss(name, 5, 16, options, generator=generator)
    y = torch.arange(20) % 5
    z = torch.randn(20, 16, generator=generator).requires_grad_()
    if loss.starts_from_class_means:
        loss.set_class_means(z, y)
    optimizer = torch.optim.Adam([z, *loss.parameters()], lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss(z, y).backward()
        optimizer.step()
    if hasattr(loss, "similarities"):
        nearest = loss.similarities(z.detach()).argmax(1)
    else:
        unit = torch.nn.functional.normalize(z.detach())
        nearest = y[(unit @ unit.t()).fill_diagonal_(-2).argmax(1)]
    assert bool((nearest == y).all())
