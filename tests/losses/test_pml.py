"""Values and gradients agree with pytorch-metric-learning 2.9.0, an independent implementation, in float32."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from proxemics.losses import (
    ArcFace,
    CosFace,
    MarginLoss,
    NormSoftmax,
    ProxyAnchor,
    ProxyNCAPlusPlus,
    SoftTriple,
)
from proxemics.losses import functional as F

pml = pytest.importorskip("pytorch_metric_learning.losses")

CLASSES, DIM, BATCH = 30, 64, 48


def _build(peer: str, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(pml, peer)(CLASSES, DIM, **options)


PAIRS = {
    "norm_softmax": (NormSoftmax, {}, "NormalizedSoftmaxLoss", {}, "W"),
    "proxy_nca_pp": (ProxyNCAPlusPlus, {}, "ProxyNCALoss", {"softmax_scale": 9}, "proxies"),
    "proxy_anchor": (ProxyAnchor, {}, "ProxyAnchorLoss", {}, "proxies"),
    "cosface": (CosFace, {}, "CosFaceLoss", {}, "W"),
    "arcface": (ArcFace, {}, "ArcFaceLoss", {"margin": math.degrees(0.5)}, "W"),
    "arcface wide": (
        ArcFace,
        {"margin_rad": 1.4, "scale": 16},
        "ArcFaceLoss",
        {"margin": math.degrees(1.4), "scale": 16},
        "W",
    ),
    "soft_triple": (SoftTriple, {"centers": 3, "tau": 0.0}, "SoftTripleLoss", {"centers_per_class": 3}, "fc"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_proxy_losses(name):
    build, options, peer_name, peer_options, attribute = PAIRS[name]
    generator = torch.Generator().manual_seed(1)
    loss = build(CLASSES, DIM, generator=generator, **options)
    peer = _build(peer_name, **peer_options)
    theirs = getattr(peer, attribute)
    turned = attribute != "proxies"  # they keep these as (M, C)
    with torch.no_grad():
        flat = loss.proxies.reshape(-1, DIM)
        theirs.copy_(flat.t() if turned else flat)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    own = loss.proxies.detach().reshape(CLASSES, -1, DIM)[labels, 0]
    z = (own / own.norm(dim=1, keepdim=True) + 0.2 * torch.randn(BATCH, DIM, generator=generator)).requires_grad_()
    z2 = z.detach().clone().requires_grad_()
    value, expected = loss(z, labels), peer(z2, labels)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    gradient = theirs.grad.t() if turned else theirs.grad
    for ours, other in ((z.grad, z2.grad), (loss.proxies.grad.reshape(-1, DIM), gradient)):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("mining", [False, True])
def test_multi_similarity(mining):
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(BATCH) % 8
    z = (
        torch.randn(8, DIM, generator=generator)[labels] + torch.randn(BATCH, DIM, generator=generator)
    ).requires_grad_()
    z2 = z.detach().clone().requires_grad_()
    value = F.multi_similarity(z, labels, mining=mining)
    pairs = MultiSimilarityMiner(epsilon=0.1)(z2, labels) if mining else None
    expected = pml.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(z2, labels, pairs)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(z.grad, z2.grad, rtol=1e-5, atol=1e-5 * float(z2.grad.abs().max()))


def test_margin_on_the_same_triplets():
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(BATCH) % 8
    z = torch.randn(BATCH, DIM, generator=generator).requires_grad_()
    z2 = z.detach().clone().requires_grad_()
    loss = MarginLoss(8, DIM, nu=0.01)
    peer = pml.MarginLoss(margin=0.2, nu=0.01, beta=1.2, learn_beta=True, num_classes=8)
    triplets = F.distance_weighted_triplets(z, labels, generator=generator)
    value = F.margin_loss(z, labels, beta=loss.beta, triplets=triplets, nu=0.01)
    expected = peer(z2, labels, triplets)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(z.grad, z2.grad, rtol=1e-5, atol=1e-5 * float(z2.grad.abs().max()))
    torch.testing.assert_close(loss.beta.grad, peer.beta.grad, rtol=1e-5, atol=1e-6)
