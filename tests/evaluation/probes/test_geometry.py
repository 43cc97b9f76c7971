"""Geometry against sums written out, and at the extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.probes.geometry import (
    compactness,
    effective_rank,
    hubness,
    proxy_crowding,
    random_like,
    seen_unseen,
)


def test_hubness_counts_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(60, 5, generator=generator).double())
    near = (rows @ rows.t()).fill_diagonal_(-9).topk(4).indices
    counts = np.bincount(near.numpy().ravel(), minlength=60).astype(float)
    spread = counts - counts.mean()
    found = hubness(rows, k=4)
    assert found.skewness == pytest.approx((spread**3).mean() / (spread**2).mean() ** 1.5)
    assert found.never == (counts == 0).mean()
    assert found.most == counts.max()


def test_a_hub_shows() -> None:
    spokes = torch.eye(40) + 0.05 * random_like((40, 40))
    with_hub = torch.cat([torch.ones(1, 40), spokes])  # near to all
    assert hubness(with_hub, k=2).most == 40
    assert hubness(with_hub, k=2).skewness > 4 > hubness(random_like((200, 20)), k=10).skewness
    with pytest.raises(EvaluationError, match="two or more"):
        hubness(torch.ones(1, 3))


def test_effective_rank_extremes_and_scale() -> None:
    assert effective_rank(torch.ones(50, 8)) == pytest.approx(1)
    assert effective_rank(torch.eye(8).repeat(3, 1)) == pytest.approx(8)
    assert 7.5 < effective_rank(random_like((4000, 8))) <= 8
    rows = random_like((30, 6)) + 0.5
    assert effective_rank(rows) == pytest.approx(effective_rank(7 * rows))
    two = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    share = np.array([3.0, 1.0]) / 4
    assert effective_rank(two) == pytest.approx(math.exp(-(share * np.log(share)).sum()))


def test_compactness_is_the_mean_over_pairs() -> None:
    rows, codes = random_like((12, 4)).double(), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3])
    cosines = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).t()
    same = torch.from_numpy(codes[:, None] == codes)
    other = ~torch.eye(12, dtype=torch.bool)
    found = compactness(rows, codes)
    assert found.within == pytest.approx(float(cosines[same & other].mean()))
    assert found.between == pytest.approx(float(cosines[~same].mean()))
    assert compactness(torch.ones(4, 3), np.array([0, 0, 1, 1])).gap == pytest.approx(0)
    with pytest.raises(EvaluationError, match="two classes"):
        compactness(torch.ones(3, 2), np.zeros(3, dtype=np.int64))


def test_crowding_of_several_proxies_a_class() -> None:
    proxies = random_like((5, 3, 6))
    units = torch.nn.functional.normalize(proxies, dim=-1).double()
    worst = [
        max(float((units[a] @ units[b].t()).max()) for b in range(5) if b != a) for a in range(5)
    ]  # fmt: skip
    assert proxy_crowding(3 * proxies) == pytest.approx(np.mean(worst))
    # Proxies of one class may coincide.
    assert proxy_crowding(torch.eye(4)[:, None].repeat(1, 2, 1)) == 0
    with pytest.raises(EvaluationError, match="C >= 2"):
        proxy_crowding(torch.ones(1, 3))


def test_seen_and_unseen_are_cut_to_the_same_size() -> None:
    draw = torch.Generator().manual_seed(0)
    seen_classes, unseen_classes = np.repeat(np.arange(20), 9), np.repeat(np.arange(6), 4)
    centres = torch.eye(20)
    seen = centres[seen_classes] + 0.02 * torch.randn(180, 20, generator=draw)
    unseen = torch.randn(24, 20, generator=draw)
    found = seen_unseen(seen, seen_classes, unseen, unseen_classes)
    assert (found.classes, found.per_class) == (6, 4)
    assert found.seen == 1
    assert found.unseen < 0.5
    same = seen_unseen(seen, seen_classes, seen[:90], seen_classes[:90])
    assert same.gap == 0
    with pytest.raises(EvaluationError, match="both sides"):
        seen_unseen(seen, seen_classes, unseen[:4], unseen_classes[:4])
