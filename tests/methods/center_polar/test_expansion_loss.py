"""L_C3E by hand, its gradient, its bounds, and the Adam of ψ against the one of torch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from proxemics.methods.center_polar.adam import adam_step
from proxemics.methods.center_polar.expansion_loss import diversity, expansion_loss, own_and_best_rival
from proxemics.methods.center_polar.geodesic import angles_between


def units(*shape: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def test_by_hand() -> None:
    z, c, y = units(6, 4), units(5, 4, seed=1), torch.tensor([0, 1, 2, 3, 4, 0])
    goals = torch.linspace(0.5, 2.5, 6, dtype=torch.float64)
    wanted = 0.0
    for i in range(6):
        cosines = z[i] @ c.T
        wanted += max(float(goals[i] - torch.arccos(cosines[y[i]])), 0) / 6
        rival = max(float(cosines[j]) for j in range(5) if j != y[i])
        wanted += 0.7 * max(0.05 + rival - float(cosines[y[i]]), 0) / 6
    assert float(expansion_loss(z, y, c, goals, lambda_sem=0.7)) == pytest.approx(wanted, abs=1e-12)


def test_gradcheck() -> None:
    z, c, y = units(5, 4).requires_grad_(), units(5, 4, seed=1), torch.arange(5)
    goals = angles_between(z.detach(), c) + torch.tensor([0.3, -0.3, 0.2, 0.1, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: expansion_loss(a, y, c, goals), (z,))


def test_never_asked_beyond_the_target() -> None:
    """At and beyond φ* the first term is 0, with no gradient at all."""
    z, c, y = units(5, 4).requires_grad_(), units(5, 4, seed=1), torch.arange(5)
    goals = angles_between(z.detach(), c)
    loss = expansion_loss(z, y, c, goals - torch.tensor([0.0, 0.1, 0.2, 0.0, 1.0]), lambda_sem=0.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert z.grad is not None
    assert not z.grad.any()


def test_finite_at_the_centroid_and_without_a_rival() -> None:
    c = units(1, 4).float()
    z = c.expand(3, -1).clone().requires_grad_()
    loss = expansion_loss(z, torch.zeros(3, dtype=torch.int64), c, torch.full((3,), 0.4))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.4)
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_unknown_rivals_do_not_count() -> None:
    cosines, y = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([0])
    assert own_and_best_rival(cosines, y, torch.tensor([False, False, True]))[1].tolist() == [0.5]
    assert own_and_best_rival(cosines, y)[1].tolist() == pytest.approx([0.9])


def test_diversity_counts_up_to_a_half() -> None:
    scale = torch.full((3, 1, 1), 4.0)
    x = torch.zeros(2, 3, 4, 4, requires_grad=True)
    near, far = diversity(x, torch.full_like(x, 1.0), scale), diversity(x, torch.full_like(x, 3.0), scale)
    assert (float(near.detach()), float(far.detach())) == (0.25, 0.5)
    assert torch.autograd.grad(near, x)[0].abs().sum() > 0
    assert not torch.autograd.grad(far, x)[0].any()


def test_adam_is_the_one_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mine, theirs = torch.zeros(4, 3), torch.nn.Parameter(torch.zeros(4, 3))
    first, second, count = torch.zeros(4, 3), torch.zeros(4, 3), torch.tensor(0)
    optimizer = torch.optim.Adam([theirs], lr=0.02)
    for _ in range(20):
        theirs.grad = torch.randn(4, 3, generator=generator)
        adam_step(mine, theirs.grad, first, second, count, 0.02)
        optimizer.step()
    torch.testing.assert_close(mine, theirs.detach())
