"""Mining and duplicates of the Multi-Similarity loss."""

from __future__ import annotations

import torch

from proxemics.losses import functional as F


def test_duplicates_stay_positives():
    """The anchor is left out by its index; dropping similarities near 1, as the authors do, drops duplicates too."""
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    value = F.multi_similarity(z, y, mining=False)
    pull = torch.tensor(-2 * 0.5, dtype=torch.float64).exp().log1p() / 2
    push = torch.tensor(50 * 0.1, dtype=torch.float64).exp()
    expected = (2 * (pull + push.log1p() / 50) + (2 * push).log1p() / 50) / 3
    torch.testing.assert_close(value, expected)


def test_easy_pairs_are_dropped():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]], requires_grad=True)
    value = F.multi_similarity(z, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0
    assert bool((z.grad == 0).all())


def test_slack_keeps_more_pairs():
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(20, 6, generator=generator), torch.arange(20) % 5
    values = [F.multi_similarity(z, y, eps=eps).item() for eps in (0.0, 0.1, 0.5, 2.0)]
    assert values == sorted(values)
    assert values[-1] == F.multi_similarity(z, y, mining=False).item()


def test_any_label_is_allowed_without_a_class_count():
    z = torch.randn(3, 4)
    near = F.multi_similarity(z, torch.tensor([7, 7, 1_000_000]), mining=False)
    assert torch.equal(near, F.multi_similarity(z, torch.tensor([0, 0, 1]), mining=False))
