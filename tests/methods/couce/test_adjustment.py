"""Backdoor estimators, orthogonality terms and the ramp in their limiting cases."""

import pytest
import torch
from torch import Tensor

from proxemics.losses import NormSoftmax, ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus, SoftTriple
from proxemics.losses.build import build_loss
from proxemics.methods.couce import (
    attended,
    enumerated,
    ramp_weight,
    shifted,
    soft_orthogonality,
    spectral_orthogonality,
)
from proxemics.methods.couce.adjustment import draw_strata, softmax_scale
from proxemics.methods.couce.ramp import Ramp


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


LABELS = torch.tensor([0, 1, 2, 3, 0, 1])
PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.4])


def test_orthogonal_atoms_only_shrink_the_logits() -> None:
    z, w = torch.zeros(6, 8), torch.zeros(5, 8)
    z[:, :4], w[:, :4] = units(6, 4), units(5, 4, seed=1)
    rho = torch.linspace(0, 0.5, 6)
    for atom in torch.eye(8)[4:]:
        torch.testing.assert_close(shifted(z, atom, rho) @ w.T, z @ w.T / (1 + rho**2).sqrt()[:, None])


def test_no_shift_is_the_base_loss() -> None:
    z, atoms, still = units(6, 8), units(4, 8, seed=1), torch.zeros(6)
    for loss in (NormSoftmax(4, 8), ProxyAnchor(4, 8), ProxyNCAPlusPlus(4, 8), SoftTriple(4, 8, centers=2)):
        torch.testing.assert_close(loss(shifted(z, atoms[0], still), LABELS), loss(z, LABELS))
        torch.testing.assert_close(enumerated(z, LABELS, atoms, PRIOR, still, loss), loss(z, LABELS))
    same = lambda x: x  # noqa: E731 - an identity
    torch.testing.assert_close(attended(z, atoms, PRIOR, still, same, same), z)


@pytest.mark.parametrize("loss", [NormSoftmax(4, 8), ProxyNCAPlusPlus(4, 8, proxy_scale=2.0)])
def test_expected_mc_bounds_enum_from_above(loss: torch.nn.Module) -> None:
    z, atoms, rho = units(6, 8), units(4, 8, seed=1), torch.full((6,), 0.5)
    exact = sum(PRIOR[k] * loss(shifted(z, atoms[k], rho), LABELS) for k in range(4))
    literal = enumerated(z, LABELS, atoms, PRIOR, rho, loss)
    assert literal < exact
    draws = [
        loss(shifted(z, atoms[draw_strata(6, PRIOR, 0.5, torch.Generator().manual_seed(i))[0]], rho), LABELS)
        for i in range(400)
    ]
    assert torch.stack(draws).mean().item() == pytest.approx(exact.item(), rel=0.05)
    scale = softmax_scale(loss)
    p = sum(
        PRIOR[k] * (scale * loss.similarities(shifted(z, atoms[k], rho))).softmax(1)[torch.arange(6), LABELS]
        for k in range(4)
    )
    torch.testing.assert_close(literal, -p.log().mean())


def test_enum_of_other_losses_is_the_expectation() -> None:
    z, atoms, rho = units(6, 8), units(4, 8, seed=1), torch.full((6,), 0.5)
    loss = ProxyAnchor(4, 8)
    wanted = sum(PRIOR[k] * loss(shifted(z, atoms[k], rho), LABELS) for k in range(4))
    torch.testing.assert_close(enumerated(z, LABELS, atoms, PRIOR, rho, loss), wanted)
    assert softmax_scale(loss) is None
    assert softmax_scale(ProxyNCA(4, 8, exclude_positive=False)) == softmax_scale(ProxyNCAPlusPlus(4, 8)) == 18


def test_strata_follow_the_prior() -> None:
    strata, rho = draw_strata(20000, PRIOR, 0.5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.bincount(strata) / 20000, PRIOR, atol=0.02, rtol=0)
    assert 0 <= rho.min() <= rho.max() <= 0.5
    assert rho.mean().item() == pytest.approx(0.25, abs=0.01)
    certain, _ = draw_strata(100, torch.tensor([0.0, 1.0, 0.0]), 0.5, torch.Generator().manual_seed(0))
    assert certain.unique().tolist() == [1]


def test_soft_orthogonality_has_the_scale_of_chance() -> None:
    z = units(4000, 512).requires_grad_()
    atoms = torch.nn.Parameter(torch.linalg.qr(torch.randn(512, 64, generator=torch.Generator().manual_seed(2)))[0].T)
    value = soft_orthogonality(z, atoms)
    assert value.item() == pytest.approx(64 / 512, rel=0.03)
    value.backward()
    assert atoms.grad is None
    torch.testing.assert_close(z.grad, 2 * z.detach() @ atoms.detach().T @ atoms.detach() / 4000)


def test_spectral_orthogonality_is_the_worst_direction() -> None:
    z, atoms = units(50, 16).double(), torch.eye(5, 16).double()
    table = z @ atoms.T
    top = torch.linalg.eigvalsh(table.T @ table / 50)[-1]
    start = torch.ones(5).double()
    near = spectral_orthogonality(z, atoms, start, 200)
    torch.testing.assert_close(near, top)
    two = spectral_orthogonality(z, atoms, start)
    assert two <= top + 1e-12
    assert two > 0.8 * top
    assert top < soft_orthogonality(z, atoms)


def test_ramp() -> None:
    assert [ramp_weight(t, 5) for t in (0, 5, 6)] == pytest.approx([torch.exp(torch.tensor(-5.0)).item(), 1, 1])
    assert ramp_weight(0, 0) == 1
    values = [ramp_weight(t / 10, 5) for t in range(60)]
    assert values == sorted(values)


def test_the_clock_counts_steps_and_survives_a_restart(make_step) -> None:
    raw, labels, ramp = torch.randn(2, 4), torch.tensor([0, 1]), Ramp(5)
    found, wanted = [], []
    for epoch in range(7):
        for place in range(4):
            progress = (epoch * 4 + place) / 28
            step = make_step(raw, labels, epoch=epoch, progress=progress, steps_per_epoch=4)
            found.append(ramp.weight(step))
            assert ramp.weight(step) == found[-1]  # the second part of an accumulated step
            wanted.append(ramp_weight(epoch + place / 4, 5))
            if place == 2:
                state, ramp = ramp.state_dict(), Ramp(5)
                ramp.load_state_dict(state)
    assert found == pytest.approx(wanted)


def test_gradients_of_every_estimator() -> None:
    """In float64 against finite differences; the largest eigenvalue once its direction has settled."""
    draw = torch.Generator().manual_seed(0)
    z, atoms = (torch.randn(rows, 6, generator=draw, dtype=torch.float64) for rows in (4, 3))
    atoms = torch.nn.functional.normalize(atoms)
    prior, rho = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.1, 0.2, 0.3, 0.0]).double()
    labels = torch.tensor([0, 1, 2, 0])
    query, key = (torch.randn(2, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    z.requires_grad_()

    def unit(x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x)

    assert torch.autograd.gradcheck(lambda x: shifted(unit(x), atoms[[0, 1, 2, 0]], rho), (z,))
    assert torch.autograd.gradcheck(
        lambda x: attended(unit(x), atoms, prior, rho, lambda a: a @ query.t(), lambda d: d @ key.t()), (z,)
    )
    for name in ("norm_softmax", "proxy_nca_pp", "proxy_anchor"):
        loss = build_loss(name, 3, 6, {}, generator=torch.Generator().manual_seed(1)).double()
        assert torch.autograd.gradcheck(
            lambda x, loss=loss: enumerated(unit(x), labels, atoms, prior, rho, loss), (z,), atol=1e-4
        ), name
    start = torch.ones(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: spectral_orthogonality(unit(x), atoms, start, 500), (z,))
