"""The distance-weighted sampler and the margin loss beside its golden value."""

from __future__ import annotations

import pytest
import torch

from proxemics.losses import MarginLoss
from proxemics.losses import functional as F
from proxemics.losses.fused import unit_rows
from proxemics.losses.margin import _draw, sampling_weights


def _distances(z, anchors, others):
    z = unit_rows(z)
    return (z[anchors] - z[others]).norm(dim=1)


def test_accepted_distances_are_flat():
    """Raw distances of random unit vectors pile up at √2; drawn ones spread over [0.5, 1.4] (specification 2.10)."""
    generator = torch.Generator().manual_seed(0)
    dim, count = 64, 1500
    z = unit_rows(torch.randn(count, dim, generator=generator))
    # add vectors at chosen angles to the first rows, so that every distance occurs
    near = unit_rows(
        z[:500] + torch.rand(500, 1, generator=generator) * 1.5 * unit_rows(torch.randn(500, dim, generator=generator))
    )
    z = torch.cat([z, near])
    labels = torch.arange(len(z)) // 2
    anchors, _, negatives = F.distance_weighted_triplets(z, labels, generator=generator)
    drawn = _distances(z, anchors, negatives)
    every = torch.cdist(z, z).flatten()
    edges = torch.linspace(0.5, 1.4, 10)
    inside = lambda d: torch.histogram(d[(d >= 0.5) & (d <= 1.4)], edges)[0] / len(d)  # noqa: E731
    raw_share, drawn_share = inside(every), inside(drawn)
    assert float(drawn_share.sum()) == pytest.approx(1.0, abs=0.35)  # below 0.5 counts as 0.5
    raw_low = raw_share[:5].sum() / raw_share.sum()
    drawn_low = drawn_share[:5].sum() / drawn_share.sum()
    assert float(raw_low) < 0.01
    assert float(drawn_low) > 0.3


def test_frequencies_follow_the_weights():
    """20,000 draws for one anchor against the exact probabilities, within 4 standard errors."""
    angles = torch.tensor([0.0, 0.1, 0.7, 0.9, 1.1, 1.3, 2.0])
    z = torch.stack([angles.cos(), angles.sin(), torch.zeros(7), torch.zeros(7)], dim=1)
    labels = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    weights = sampling_weights(z, labels[:, None] == labels, 0.5, 1.4)
    distances = 2 * (angles / 2).sin()
    logits = F.log_weights(distances.clamp_min(0.5), 4)
    logits[:2] = -torch.inf  # own class
    logits[6] = -torch.inf  # at 1.68, beyond 1.4
    expected = logits.softmax(0)
    torch.testing.assert_close(weights[0] / weights[0].sum(), expected)
    draws = 20_000
    drawn = _draw(weights, torch.zeros(draws, dtype=torch.int64), torch.Generator().manual_seed(1))
    share = torch.bincount(drawn, minlength=7) / draws
    assert bool(((share - expected).abs() <= 4 * (expected * (1 - expected) / draws).sqrt()).all()), share
    assert bool((share[[0, 1, 6]] == 0).all())


def test_triplets_are_valid():
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(40, 8, generator=generator)
    labels = torch.randint(6, (40,), generator=generator)
    anchors, positives, negatives = F.distance_weighted_triplets(z, labels, generator=generator)
    counts = torch.bincount(labels)
    assert len(anchors) == int((counts * (counts - 1)).sum())  # one negative for each ordered positive pair
    assert bool((anchors != positives).all())
    assert torch.equal(labels[anchors], labels[positives])
    assert bool((labels[anchors] != labels[negatives]).all())


def test_far_negatives_are_drawn_only_when_there_is_no_other():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.0], [-1.0, 0.01]])
    anchors, _, negatives = F.distance_weighted_triplets(z, torch.tensor([0, 0, 1, 1]))
    assert len(anchors) == 4  # all negatives lie at 2, beyond 1.4: uniform draw
    assert bool(((anchors < 2) != (negatives < 2)).all())
    z = torch.cat([z, torch.tensor([[0.0, 1.0]])])  # one negative within reach (√2 > 1.4, so move it in)
    z[4] = torch.tensor([0.5, 0.9])
    for seed in range(20):
        anchors, _, negatives = F.distance_weighted_triplets(
            z, torch.tensor([0, 0, 1, 1, 2]), generator=torch.Generator().manual_seed(seed)
        )
        assert bool((negatives[anchors < 2] == 4).all())


@pytest.mark.parametrize("labels", [[2, 2, 2, 2], [0, 1, 2, 3]])
def test_no_triplet_gives_zero_with_a_graph(labels):
    """user-pains 25: one class (no negative) and no positive pair."""
    loss = MarginLoss(4, 3)
    z = torch.randn(4, 3, requires_grad=True)
    value = loss(z, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert bool((z.grad == 0).all())
    assert bool((loss.beta.grad == 0).all())


def test_draws_depend_on_the_seed_and_go_on_after_a_resume():
    """user-pains 32: the state dict carries the sampler, so the next step after a resume draws the same negatives."""
    generator = torch.Generator().manual_seed(5)
    z, y = torch.randn(40, 8, generator=generator), torch.arange(40) % 5

    def run(loss, steps):
        return [loss(z, y).item() for _ in range(steps)]

    straight = run(MarginLoss(5, 8), 6)
    assert run(MarginLoss(5, 8), 6) == straight
    assert run(MarginLoss(5, 8, seed=1), 6) != straight
    assert len(set(straight)) == 6  # every step draws anew
    first = MarginLoss(5, 8)
    assert run(first, 3) == straight[:3]
    resumed = MarginLoss(5, 8)
    resumed.load_state_dict(first.state_dict())
    assert run(resumed, 3) == straight[3:]


def test_draws_leave_the_global_generator_alone():
    """With the sampler's own generator, nothing else in a run moves."""
    loss = MarginLoss(5, 8)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loss(torch.ones(10, 8), torch.arange(10) % 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_beta_learns_the_boundary_of_its_class():
    loss = MarginLoss(3, 4, upper=1.5)
    loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).backward()  # positives at √2 > β - m, negatives at √2 > β + m
    torch.testing.assert_close(loss.beta.grad, torch.tensor([-0.5, -0.5, 0.0]))
