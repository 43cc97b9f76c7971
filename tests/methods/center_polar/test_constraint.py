"""C4 by hand, its limits, and what descent on it does."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from proxemics.core.errors import LossError
from proxemics.methods.center_polar.constraint import centripetal_constraint


def units(*shape: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def by_hand(q: Tensor, y: Tensor, c: Tensor, tau: float, margin: float, neighbours: int) -> tuple[Tensor, ...]:
    cosines = q @ c.T
    pull = torch.stack([1 - cosines[i, y[i]] for i in range(len(y))]).mean()
    cls = torch.stack([torch.logsumexp(cosines[i] / tau, 0) - cosines[i, y[i]] / tau for i in range(len(y))]).mean()
    parts = []
    for k in y.unique():
        mean = normalize(q[y == k].mean(0), dim=0)
        others = sorted((float(mean @ c[j]) for j in range(len(c)) if j != k), reverse=True)[:neighbours]
        parts.append(sum(max(value - margin, 0) ** 2 for value in others) / max(len(others), 1))
    return pull, cls, torch.tensor(parts, dtype=torch.float64).mean()


@pytest.mark.parametrize(("classes", "neighbours", "margin"), [(7, 3, 0.0), (7, 10, 0.1), (2, 10, -0.5)])
def test_by_hand(classes: int, neighbours: int, margin: float) -> None:
    q, c, y = units(12, 5), units(classes, 5, seed=1), torch.arange(12) % min(classes, 4)
    found = centripetal_constraint(q, y, c, tau=0.1, margin=margin, neighbours=neighbours)
    for part, wanted in zip(found, by_hand(q, y, c, 0.1, margin, neighbours), strict=True):
        torch.testing.assert_close(part, wanted)


def test_everything_at_orthogonal_centroids() -> None:
    c = torch.eye(6, dtype=torch.float64)
    y = torch.arange(12) % 6
    found = centripetal_constraint(c[y], y, c)
    assert float(found.pull) == 0
    assert float(found.sep) == 0
    assert float(found.cls) == pytest.approx(math.log1p(5 * math.exp(-10)))


def test_pull_points_to_the_centroid() -> None:
    q, c, y = units(6, 5).requires_grad_(), units(3, 5, seed=1), torch.arange(6) % 3
    (gradient,) = torch.autograd.grad(centripetal_constraint(q, y, c).pull, q)
    on_sphere = -(gradient - (gradient * q).sum(1, keepdim=True) * q)
    tangent = c[y] - (c[y] * q).sum(1, keepdim=True) * q
    torch.testing.assert_close(normalize(on_sphere, dim=1), normalize(tangent, dim=1).detach())


@pytest.mark.parametrize(("classes", "dim", "margin"), [(6, 6, 0.0), (5, 8, 0.0), (4, 4, -0.2)])
def test_descent_on_the_separation_reaches_the_margin(classes: int, dim: int, margin: float) -> None:
    free = units(classes, dim, seed=2).requires_grad_()
    y = torch.arange(classes)
    optimizer = torch.optim.Adam([free], lr=0.03)
    for _ in range(500):
        optimizer.zero_grad()
        z = normalize(free, dim=-1)
        centripetal_constraint(z, y, z.detach(), margin=margin).sep.backward()
        optimizer.step()
    z = normalize(free.detach(), dim=-1)
    highest = (z @ z.T).fill_diagonal_(-1).max()
    assert float(highest) <= margin + 1e-3


def test_gradcheck() -> None:
    q, c, y = units(6, 4).requires_grad_(), units(5, 4, seed=1).requires_grad_(), torch.tensor([0, 1, 1, 4, 4, 4])
    assert torch.autograd.gradcheck(lambda *a: centripetal_constraint(a[0], y, a[1], neighbours=2)[:2], (q, c))
    still = c.detach()
    assert torch.autograd.gradcheck(lambda a: centripetal_constraint(a, y, still, neighbours=2).sep, (q,))
    assert torch.autograd.grad(centripetal_constraint(q, y, c).sep, c, allow_unused=True) == (None,)


@pytest.mark.parametrize("case", ["one class in all", "one class in the batch", "one picture", "unknown", "duplicates"])
def test_edges_are_finite(case: str) -> None:
    c, y, known = units(5, 4).float(), torch.tensor([0, 1, 2, 0]), None
    if case == "one class in all":
        c, y = c[:1], torch.zeros(4, dtype=torch.int64)
    if case == "one class in the batch":
        y = torch.zeros(4, dtype=torch.int64)
    if case == "one picture":
        y = y[:1]
    if case == "unknown":
        known = torch.zeros(5, dtype=torch.bool)
    q = units(len(y), 4, seed=1).float().requires_grad_()
    if case == "duplicates":
        q = c[:1].expand(4, -1).clone().requires_grad_()
    found = centripetal_constraint(q, y, c, known=known)
    sum(found).backward()  # type: ignore[union-attr]
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()
    assert all(torch.isfinite(part) for part in found)
    if case in ("one class in all", "unknown"):
        assert float(found.cls.detach()) == 0
        assert float(found.sep.detach()) == 0


def test_half_precision_is_computed_in_float32() -> None:
    found = centripetal_constraint(units(4, 4).bfloat16(), torch.arange(4), units(4, 4, seed=1))
    assert {part.dtype for part in found} == {torch.float32}


def test_a_margin_that_cannot_be_met_is_refused() -> None:
    c, y = units(5, 4), torch.tensor([0])
    with pytest.raises(LossError, match=r"some pair of 5 centroids has a cosine of -0\.25 or more"):
        centripetal_constraint(c[:1], y, c, margin=-0.3)
    centripetal_constraint(c[:1], y, c, margin=-0.25)
    with pytest.raises(LossError, match="tau must be"):
        centripetal_constraint(c[:1], y, c, tau=0.0)
