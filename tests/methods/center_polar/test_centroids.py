"""Centroids: the moving average, the whole pass, and what is known."""

import torch
from torch.nn.functional import normalize

from proxemics.methods.center_polar.centroids import batch_means, centroids_of, updated_centroids, working_centroids


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    z = normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)
    return z, torch.tensor([3, 0, 3, 3, 1, 0, 1, 5, 0])


def test_moving_average_by_hand() -> None:
    z, y = batch()
    c = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=-1)
    found = updated_centroids(c, z, y, momentum=0.9)
    for k in range(6):
        wanted = c[k]
        if (y == k).any():
            wanted = 0.9 * c[k] + 0.1 * z[y == k].mean(0)
            wanted = wanted / wanted.norm()
        torch.testing.assert_close(found[k], wanted)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6, dtype=torch.float64))
    assert torch.equal(found[[2, 4]], c[[2, 4]])


def test_no_momentum_gives_the_batch_means() -> None:
    z, y = batch()
    classes, means = batch_means(z, y)
    assert classes.tolist() == [0, 1, 3, 5]
    found = updated_centroids(torch.zeros(6, 4, dtype=torch.float64), z, y, momentum=0.0)
    torch.testing.assert_close(found[classes], normalize(means, dim=-1))
    assert not found[[2, 4]].any()


def test_a_mean_of_zero_leaves_the_centroid() -> None:
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    c = torch.tensor([[0.0, 1.0]])
    assert torch.equal(updated_centroids(c, z, torch.tensor([0, 0]), momentum=0.0), c)
    nothing = torch.zeros(1, 2)
    assert torch.equal(updated_centroids(nothing, z, torch.tensor([0, 0]), momentum=0.9), nothing)


def test_whole_pass_counts_directions_not_lengths() -> None:
    raw = torch.tensor([[10.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    old = torch.tensor([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]])
    found = centroids_of(raw, torch.tensor([0, 0, 2]), old)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8], [1.0, 0.0]]))


def test_working_centroids() -> None:
    z, y = batch()
    z.requires_grad_()
    stored = torch.zeros(6, 4, dtype=torch.float64)
    stored[0] = stored[4] = torch.tensor([0.0, 0, 0, 1])
    found, known = working_centroids(stored, z, y, batch=False)
    assert not found.requires_grad
    assert known.tolist() == [True, True, False, True, True, True]
    assert torch.equal(found[[0, 4]], stored[[0, 4]])
    torch.testing.assert_close(found[3], normalize(z.detach()[y == 3].mean(0), dim=0))
    found, known = working_centroids(stored, z, y, batch=True)
    assert found.requires_grad
    assert torch.equal(found[4], stored[4])
    torch.testing.assert_close(found[0], normalize(z[y == 0].mean(0), dim=0))
