"""Moving along great circles: the worked case, the identities, and what float32 keeps at the ends."""

import math

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.center_polar.geodesic import angles_between, centrifugal_step, outward_tangents


def units(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(values, dim=-1).to(dtype)


def test_worked_values() -> None:
    z = torch.tensor([[1, 2, 2]], dtype=torch.float64) / 3
    c = torch.tensor([[2, 1, 2]], dtype=torch.float64) / 3
    for delta, wanted in {
        0.2: (0.166074225, 0.765807963, 0.621254792),
        0.5: (-0.095065055, 0.856369844, 0.507536526),
    }.items():
        found = centrifugal_step(z, c, delta)[0]
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)


def test_unit_length_angle_and_distance_moved() -> None:
    z, c = units(50, 8), units(50, 8, seed=1)
    theta = angles_between(z, c)
    delta = torch.rand(50, dtype=torch.float64) * (math.pi - theta)
    moved = centrifugal_step(z, c, delta)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(angles_between(moved, c), theta + delta)
    torch.testing.assert_close((moved * z).sum(1), delta.cos())


def test_no_step_is_the_identity_bit_for_bit() -> None:
    z, c = units(20, 5, dtype=torch.float32), units(20, 5, seed=1, dtype=torch.float32)
    c[0] = z[0]
    assert torch.equal(centrifugal_step(z, c, 0.0), z)
    mixed = torch.zeros(20)
    mixed[3] = 0.1
    moved = centrifugal_step(z, c, mixed)
    assert torch.equal(moved[4:], z[4:])
    assert not torch.equal(moved[3], z[3])


@pytest.mark.parametrize("theta", [0.0, 1e-7, 1e-5, 2e-3, 0.1, 1.5, 3.0, math.pi - 2e-3, math.pi - 1e-5, math.pi])
def test_angles_in_float32(theta: float) -> None:
    """Right to a few units of the last digit near 0, and to 1e-6 anywhere."""
    c, u = units(1, 64), units(1, 64, seed=1)
    u = torch.nn.functional.normalize(u - (u * c).sum() * c, dim=-1)
    z = math.cos(theta) * c + math.sin(theta) * u
    found = float(angles_between(z.float(), c.float()))
    exact = float(angles_between(z.float().double(), c.float().double()))
    assert found == pytest.approx(exact, rel=2e-6, abs=1e-9 if theta < 1 else 5e-7)


@pytest.mark.parametrize("theta", [0.0, 1e-4, 2e-3, 0.5, math.pi - 2e-3, math.pi - 1e-4, math.pi])
def test_steps_in_float32(theta: float) -> None:
    """The tangent is random near the centroid and its antipode; angle and length hold all the same."""
    c, u = units(30, 64), units(30, 64, seed=1)
    u = torch.nn.functional.normalize(u - (u * c).sum(1, keepdim=True) * c, dim=-1)
    z = math.cos(theta) * c + math.sin(theta) * u
    delta = -0.3 if theta > 2 else 0.3
    moved = centrifugal_step(z.float(), c.float(), delta, torch.Generator().manual_seed(0))
    wanted = torch.full((30,), theta + delta)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(30), rtol=0, atol=5e-6)
    torch.testing.assert_close(angles_between(moved, c.float()), wanted, rtol=0, atol=5e-6)


def test_random_tangents_come_from_the_generator() -> None:
    c = units(4, 16, dtype=torch.float32)
    once, again, other = (centrifugal_step(c, c, 0.3, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not outward_tangents(c, c).any()


def test_gradcheck() -> None:
    z, c = units(4, 5).requires_grad_(), units(4, 5, seed=1).requires_grad_()
    delta = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *args: centrifugal_step(*args, noise=z.detach()), (z, c, delta))
    assert torch.autograd.gradcheck(angles_between, (z, c))


def test_gradients_stay_finite_where_the_tangent_is_lost() -> None:
    c = units(3, 8, dtype=torch.float32)
    z = torch.stack([c[0], -c[1], c[2]]).requires_grad_()
    (centrifugal_step(z, c, 0.2, torch.Generator()).square().sum() + angles_between(z, c).sum()).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_half_precision_is_computed_in_float32() -> None:
    z, c = units(3, 8).bfloat16(), units(3, 8, seed=1).bfloat16()
    assert centrifugal_step(z, c, 0.1).dtype == torch.float32


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(LossError, match=r"must both be \(B, M\) with M >= 2, got \(3, 4\) and \(5, 4\)"):
        centrifugal_step(torch.zeros(3, 4), torch.zeros(5, 4), 0.1)
    with pytest.raises(LossError, match="M >= 2"):
        centrifugal_step(torch.ones(3, 1), torch.ones(3, 1), 0.1)
    with pytest.raises(LossError, match=r"Angles must be one number or \(3,\), got \(2,\)"):
        centrifugal_step(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(2))
