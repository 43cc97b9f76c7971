"""Checks with readable messages, similarities, class means and the start of the proxies."""

from __future__ import annotations

import math

import pytest
import torch

from proxemics.core.errors import LossError
from proxemics.losses import (
    ArcFace,
    MultiSimilarity,
    NormSoftmax,
    PDLoss,
    PotentialField,
    ProxyAnchor,
    ProxyNCA,
    SoftTriple,
)
from proxemics.losses import functional as F
from proxemics.losses.fused import unit_rows


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (
            torch.zeros(2, 3),
            torch.tensor([0, 1]),
            "Embeddings must have shape (B, 4), got (2, 3). Build the loss with dim=3",
        ),
        (
            torch.zeros(2, 4, 1),
            torch.tensor([0, 1]),
            "Embeddings must have shape (B, 4), got (2, 4, 1). Pool or flatten",
        ),
        (torch.zeros(2, 4, dtype=torch.int64), torch.tensor([0, 1]), "must be floating, got torch.int64"),
        ([[0.0] * 4], torch.tensor([0]), "Embeddings must be a torch tensor, got list"),
        (torch.zeros(2, 4), torch.tensor([0]), "Labels must have shape (2,) to match the embeddings, got (1,)"),
        (torch.zeros(2, 4), torch.tensor([0.0, 1.0]), "Labels must be integers, got torch.float32"),
        (torch.zeros(2, 4), torch.tensor([True, False]), "Labels must be integers, got torch.bool"),
        (torch.zeros(2, 4), ["cat", "dog"], "got list. Map names to integers with proxemics.data.LabelMap"),
        (torch.zeros(2, 4), torch.zeros(2, 5, dtype=torch.int64), "images with several labels are not supported"),
        (
            torch.zeros(3, 4),
            torch.tensor([0, 1, 5]),
            "Label 5 in row 2 is outside 0..4: the loss was built for 5 classes.",
        ),
        (torch.zeros(3, 4), torch.tensor([0, -1, 1]), "Label -1 in row 1 is outside 0..4"),
        (torch.zeros(2, 4), torch.tensor([0, 200], dtype=torch.uint8), "Label 200 in row 1 is outside 0..4"),
    ],
)
@pytest.mark.parametrize("build", [NormSoftmax, SoftTriple, PotentialField, MultiSimilarity])
def test_wrong_batches_are_named(build, embeddings, labels, message):
    """user-pains 2, 4, 5 and 7: strings, labels out of range on every torch version, several labels an image."""
    with pytest.raises(LossError) as error:
        build(5, 4)(embeddings, labels)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_label_message_tells_the_class_count_to_use():
    with pytest.raises(LossError, match="or build the loss with num_classes=1001"):
        NormSoftmax(3, 4)(torch.zeros(3, 4), torch.tensor([2, 7, 1000]))


def test_functional_refuses_wrong_proxies():
    z, y = torch.zeros(2, 4), torch.tensor([0, 1])
    with pytest.raises(
        LossError, match=r"Proxies must be a floating tensor of shape \(C, M\) with C >= 1, got .*\(2, 1, 4\)"
    ):
        F.norm_softmax(z, y, proxies=torch.zeros(2, 1, 4))
    with pytest.raises(LossError, match=r"shape \(C, K, M\)"):
        F.soft_triple(z, y, proxies=torch.zeros(2, 4))
    with pytest.raises(LossError, match=r"Move the loss with loss.to\('cpu'\)"):
        F.norm_softmax(z, y, proxies=torch.zeros(2, 4, device="meta"))


def test_similarities():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 8, generator=generator)
    loss = ArcFace(5, 8, generator=generator)
    expected = torch.nn.functional.cosine_similarity(z[:, None], loss.proxies[None], dim=2)
    torch.testing.assert_close(loss.similarities(z), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss.similarities(z)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected)
    loss.similarities(z).sum().backward()
    assert bool((loss.proxies.grad != 0).any())
    with pytest.raises(LossError, match=r"shape \(B, 8\)"):
        loss.similarities(z[:, :3])


def test_similarities_with_several_proxies():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 8, generator=generator)
    soft = SoftTriple(5, 8, centers=3, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(z[:, None, None], soft.proxies[None], dim=3)
    weights = (cosines / 0.1).softmax(2)
    torch.testing.assert_close(soft.similarities(z), (weights * cosines).sum(2))
    field = PotentialField(5, 8, proxies_per_class=3, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(z[:, None, None], field.proxies[None], dim=3)
    torch.testing.assert_close(field.similarities(z), cosines.amax(2))


def test_class_means():
    loss = PDLoss(3, 2, generator=torch.Generator().manual_seed(0))
    before = loss.proxies.detach().clone()
    loss.set_class_means(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, -3.0]]), torch.tensor([0, 0, 2]))
    units = unit_rows(loss.proxies.detach())
    torch.testing.assert_close(units[0], torch.tensor([0.5, 0.5]).sqrt())
    torch.testing.assert_close(units[2], torch.tensor([0.0, -1.0]))
    assert torch.equal(loss.proxies[1].detach(), before[1])  # no sample of class 1
    torch.testing.assert_close(loss.proxies.norm(dim=1).detach(), before.norm(dim=1))
    assert loss.proxies.requires_grad
    assert loss.starts_from_class_means
    assert not NormSoftmax.starts_from_class_means


def test_class_means_are_refused_for_several_proxies():
    with pytest.raises(LossError, match="Class means cannot start SoftTriple: its 10 proxies a class would be equal"):
        SoftTriple(3, 2).set_class_means(torch.zeros(1, 2), torch.tensor([0]))


@pytest.mark.parametrize(
    ("build", "kind", "size"),
    [
        (NormSoftmax, "uniform", 1 / math.sqrt(64)),
        (ArcFace, "uniform", 1 / math.sqrt(64)),
        (SoftTriple, "uniform", 1 / math.sqrt(64)),
        (ProxyAnchor, "normal", math.sqrt(2 / 400)),
        (ProxyNCA, "normal", 1 / 8),
    ],
)
def test_start_of_the_proxies(build, kind, size):
    proxies = build(400, 64, generator=torch.Generator().manual_seed(0)).proxies.detach()
    assert proxies.dtype == torch.float32
    if kind == "uniform":
        assert float(proxies.abs().max()) <= size
        assert float(proxies.std()) == pytest.approx(size / math.sqrt(3), rel=0.02)
    else:
        assert float(proxies.abs().max()) > 3 * size
        assert float(proxies.std()) == pytest.approx(size, rel=0.02)
