"""The two potentials, near duplicates, and the limit on proxies."""

from __future__ import annotations

import pytest
import torch

from proxemics.losses import PotentialField
from proxemics.losses import functional as F


def _pair(angle: float, same: bool, delta: float = 0.3, alpha: float = 2.0):
    """ψ of one pair at an angle and its slope by the angle, from two samples of which the proxies are far apart."""
    angle = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros((), dtype=torch.float64)
    z = torch.stack([torch.stack([zero + 1, zero, zero, zero]), torch.stack([angle.cos(), angle.sin(), zero, zero])])
    w = torch.eye(4, dtype=torch.float64)[2:, None]
    y = torch.tensor([0, 0 if same else 1])
    value = F.potential_field(z, y, proxies=w, delta=delta, alpha=alpha)
    rest = F.potential_field(z[:1], y[:1], proxies=w, delta=delta, alpha=alpha)
    (slope,) = torch.autograd.grad(value, angle)
    return value.item() - rest.item(), slope.item()


@pytest.mark.parametrize("same", [True, False])
def test_potentials(same):
    inside, slope_inside = _pair(0.1, same)
    outside, slope_outside = _pair(0.9, same)
    if same:
        assert slope_inside == pytest.approx(0, abs=1e-9)  # no pull once together: no collapse
        assert slope_outside > 0  # energy rises with distance: attraction
        assert inside < outside
    else:
        assert slope_inside < 0  # energy falls with distance: repulsion
        assert slope_outside == pytest.approx(0, abs=1e-9)  # local only
        assert inside > outside


@pytest.mark.parametrize("same", [True, False])
def test_continuous_at_the_radius(same):
    angle = 2 * torch.asin(torch.tensor(0.15, dtype=torch.float64)).item()  # r = 0.3 = delta
    below, above = (_pair(angle + shift, same)[0] for shift in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-5)


def test_attraction_fades_with_distance():
    assert _pair(0.5, True)[1] > 2 * _pair(1.0, True)[1] > 4 * _pair(2.5, True)[1]


def test_near_duplicates_in_float32():
    """2 - 2cos loses all digits at r = 1e-3; the distance of near pairs that repel must come from their difference."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 32, generator=generator)
    z = torch.cat([z, z + 1e-4 * torch.randn(1, 32, generator=generator)])
    w = torch.randn(2, 1, 32, generator=generator)
    y = torch.tensor([0, 1])
    value = F.potential_field(z, y, proxies=w)
    exact = F.potential_field(z.double(), y, proxies=w.double())
    assert value.item() == pytest.approx(exact.item(), rel=1e-3)
    same = F.potential_field(z[:1].expand(2, 32), y, proxies=w)
    assert same.item() == pytest.approx(2e12, rel=1e-3)  # the floor 1e-4 to the power -3, twice


def test_limit_keeps_the_classes_of_the_batch():
    """C·K over the limit: all proxies of the batch's classes and random others; equal draws after a resume."""
    generator = torch.Generator().manual_seed(1)
    loss = PotentialField(50, 8, proxies_per_class=3, max_proxies=30, generator=generator)
    z, y = torch.randn(10, 8, generator=generator), torch.arange(10) % 5
    loss(z, y).backward()
    touched = (loss.proxies.grad != 0).any(2)
    assert bool(touched[:5].all())
    assert int(touched.sum()) <= 30
    values = [loss(z, y).item() for _ in range(3)]
    assert len(set(values)) == 3
    other = PotentialField(50, 8, proxies_per_class=3, max_proxies=30)
    other.load_state_dict(loss.state_dict())
    assert other(z, y).item() == loss(z, y).item()


def test_limit_below_the_batch_still_takes_its_classes():
    loss = PotentialField(20, 4, proxies_per_class=4, max_proxies=1)
    loss(torch.randn(6, 4), torch.arange(6)).backward()
    assert bool((loss.proxies.grad[6:] == 0).all())
    assert bool((loss.proxies.grad[:6] != 0).any())


def test_no_limit_is_exact():
    generator = torch.Generator().manual_seed(2)
    z, y = torch.randn(6, 4, generator=generator), torch.arange(6)
    w = torch.randn(20, 4, 4, generator=generator)
    assert torch.equal(F.potential_field(z, y, proxies=w, max_proxies=0), F.potential_field(z, y, proxies=w))


def test_says_when_it_draws():
    assert PotentialField(50, 8, proxies_per_class=3, max_proxies=30).stochastic
    assert not PotentialField(50, 8, proxies_per_class=3, max_proxies=0).stochastic
    assert not PotentialField(50, 8, proxies_per_class=3).stochastic
