"""Draws from the vMF density: moments, distributions, gradients, extremes, and the defect kept for reproduction."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.probabilistic import sample_vmf, sampling, vmf_mean_resultant_length
from proxemics.methods.probabilistic.sampling import symmetric_beta


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def direction(dim: int, seed: int = 7) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(1, dim, generator=generator(seed)), dim=-1)


def draws(dim: int, kappa: float, count: int = 4000, sampler: str = "stable") -> tuple[Tensor, Tensor]:
    mu = direction(dim)
    return sample_vmf(mu, torch.tensor([kappa]), count, generator(), sampler=sampler)[:, 0], mu[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [2, 3, 16, 128, 512])
@pytest.mark.parametrize("kappa", [0.0, 0.1, 1.0, 10.0, 11.0, 50.0, 200.0, 1000.0, 1e5])
def test_mean_cosine_and_isotropy(dim: int, kappa: float) -> None:
    u, mu = draws(dim, kappa)
    assert (u.norm(dim=-1) - 1).abs().max() < 1e-6
    w = u.double() @ mu.double()
    mean = vmf_mean_resultant_length(torch.tensor(kappa, dtype=torch.float64), dim)
    assert (w.mean() - mean).abs() < 4 * w.std() / math.sqrt(len(w)) + 1e-9
    across = torch.nn.functional.normalize(u.double() - w[:, None] * mu.double(), dim=-1)
    # Uniform directions in the tangent space: mean 0 and covariance (I - μμᵀ) / (M-1), tested along fixed axes.
    axes = torch.linalg.qr(torch.cat([mu[:, None], torch.randn(dim, 2, generator=generator(3))], 1).double()).Q[
        :, 1:dim
    ]
    along = across @ axes[:, :2]
    assert along.mean(0).abs().max() < 4 / math.sqrt(len(w) * (dim - 1))
    assert (along.square().mean(0) * (dim - 1)).tolist() == pytest.approx([1.0] * along.shape[1], abs=0.13)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 3.0, 40.0, 2000.0])
def test_cosine_has_the_right_distribution_in_three_dimensions(kappa: float) -> None:
    u, mu = draws(3, kappa)
    w = (u.double() @ mu.double()).numpy()
    # P(W <= w) in a form that neither overflows nor cancels.
    below = (w + 1) / 2 if kappa == 0 else np.exp(kappa * (w - 1)) * np.expm1(-kappa * (w + 1)) / np.expm1(-2 * kappa)
    assert scipy.stats.kstest(np.clip(below, 0, 1), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("m", [1, 2, 3, 15, 511])
def test_proposals_are_beta_distributed(m: int) -> None:
    uniform = torch.rand(2, 5000, dtype=torch.float64, generator=generator())
    proposals = symmetric_beta(uniform[0], uniform[1], m)
    assert scipy.stats.kstest(proposals.numpy(), scipy.stats.beta(m / 2, m / 2).cdf).pvalue > 1e-3


def test_proposals_at_the_ends_of_the_uniform_variable() -> None:
    ends = symmetric_beta(torch.tensor([0.0, 1 - 1e-16]).double(), torch.zeros(2).double(), 4)
    assert torch.isfinite(ends).all()
    assert ((ends >= 0) & (ends <= 1)).all()


@pytest.mark.parametrize(
    ("dim", "kappa", "wrong"), [(512, 20, -0.73), (512, 100, -0.12), (512, 200, 0.22), (512, 500, 0.592)]
)
def test_legacy_sampler_is_wrong_as_published(dim: int, kappa: float, wrong: float) -> None:
    u, mu = draws(dim, kappa, sampler="legacy")
    assert (u @ mu).mean().item() == pytest.approx(wrong, abs=0.006)
    right = vmf_mean_resultant_length(torch.tensor(float(kappa)), dim).item()
    u, mu = draws(dim, kappa)
    assert (u @ mu).mean().item() == pytest.approx(right, abs=0.003)


@pytest.mark.parametrize("kappa", [0.5, 9.9])
def test_legacy_sampler_is_right_for_small_concentrations(kappa: float) -> None:
    torch.testing.assert_close(draws(16, kappa, sampler="legacy")[0], draws(16, kappa)[0])


@pytest.mark.parametrize(("dim", "tolerance"), [(16, 0.06), (128, 0.03), (512, 0.03)])
@pytest.mark.parametrize("kappa", [1.0, 20.0, 100.0, 500.0])
def test_pathwise_gradient_in_the_concentration(dim: int, tolerance: float, kappa: float) -> None:
    """It is the derivative of the mean cosine up to 1-3 %, as far as the left-out acceptance term allows."""
    mu, values = direction(dim), torch.full((4000,), kappa, requires_grad=True)
    u = sample_vmf(mu.expand(4000, -1), values, 1, generator())[0]
    (u @ mu[0]).sum().backward()
    at = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    vmf_mean_resultant_length(at, dim).backward()
    assert values.grad.mean().item() == pytest.approx(at.grad.item(), rel=tolerance)


@pytest.mark.parametrize("dim", [3, 20])
def test_gradcheck_for_given_noise(dim: int) -> None:
    mu = torch.randn(3, dim, dtype=torch.float64, generator=generator(1), requires_grad=True)
    kappa = torch.tensor([0.7, 12.0, 300.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, k: sample_vmf(m, k, 2, generator()), (mu, kappa))


@pytest.mark.parametrize("kappa", [0.0, 1e-30, 1e5, 1e12, 1e30])
@pytest.mark.parametrize("dim", [2, 3, 512])
def test_extremes_are_finite_forward_and_backward(kappa: float, dim: int) -> None:
    mu = direction(dim).expand(50, -1).clone().requires_grad_()
    values = torch.full((50,), kappa, requires_grad=True)
    u = sample_vmf(mu, values, 3, generator())
    (u * torch.randn(3, 50, dim, generator=generator(2))).sum().backward()
    assert (u.norm(dim=-1) - 1).abs().max() < 1e-6
    assert torch.isfinite(mu.grad).all()
    assert torch.isfinite(values.grad).all()
    if kappa >= 1e12:
        torch.testing.assert_close(u, mu.expand_as(u), atol=1e-4, rtol=0)


def test_a_zero_direction_gives_unit_vectors_and_no_gradient() -> None:
    mu = torch.zeros(20, 8, requires_grad=True)
    u = sample_vmf(mu, torch.zeros(20), 5, generator())
    assert (u.norm(dim=-1) - 1).abs().max() < 1e-6
    u[..., 0].sum().backward()
    assert torch.equal(mu.grad, torch.zeros_like(mu))


def test_length_of_the_direction_does_not_matter() -> None:
    mu, kappa = direction(32), torch.tensor([5.0])
    torch.testing.assert_close(sample_vmf(7 * mu, kappa, 3, generator()), sample_vmf(mu, kappa, 3, generator()))


def test_rows_are_drawn_with_their_own_concentration() -> None:
    mu = direction(64).expand(3, -1)
    u = sample_vmf(mu, torch.tensor([1.0, 100.0, 10000.0]), 1000, generator())
    wanted = vmf_mean_resultant_length(torch.tensor([1.0, 100.0, 10000.0]), 64)
    torch.testing.assert_close((u @ mu[0]).mean(0), wanted, atol=0.02, rtol=0)


def test_rows_that_are_never_accepted_get_the_mean_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_ROUNDS", 0)
    kappa = torch.tensor([0.0, 5.0, 500.0], requires_grad=True)
    mu = direction(16).expand(3, -1)
    u = sample_vmf(mu, kappa, 4, generator())
    wanted = vmf_mean_resultant_length(kappa.detach(), 16)
    torch.testing.assert_close(u @ mu[0], wanted.expand(4, -1), atol=1e-6, rtol=0)
    (u @ mu[0]).sum().backward()
    assert torch.isfinite(kappa.grad).all()
    assert (kappa.grad > 0).all()


def test_the_generator_alone_decides() -> None:
    mu, kappa, state = direction(8).expand(4, -1), torch.full((4,), 3.0), torch.get_rng_state()
    first, second = sample_vmf(mu, kappa, 2, generator(5)), sample_vmf(mu, kappa, 2, generator(5))
    assert torch.equal(first, second)
    assert not torch.equal(first, sample_vmf(mu, kappa, 2, generator(6)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(sample_vmf(mu, kappa, 2), sample_vmf(mu, kappa, 2))


def test_half_precision_is_computed_in_float32() -> None:
    mu, kappa = direction(32).bfloat16(), torch.tensor([40.0])
    u = sample_vmf(mu, kappa, 2, generator())
    assert u.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(sample_vmf(mu.float(), kappa, 2, generator()), u)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(LossError, match=r"mu of shape \(B, M\) and kappa of shape \(B,\), got \(1, 8\) and \(2,\)"):
        sample_vmf(direction(8), torch.zeros(2), 1)
    with pytest.raises(LossError, match="num_samples must be a whole number of at least 1, got 0"):
        sample_vmf(direction(8), torch.zeros(1), 0)
    with pytest.raises(LossError, match=r"sampler='stabel': use stable or legacy\. Did you mean 'stable'"):
        sample_vmf(direction(8), torch.zeros(1), 1, sampler="stabel")  # type: ignore[arg-type]
    with pytest.raises(LossError, match="dim must be a whole number of at least 2, got 1"):
        sample_vmf(torch.ones(1, 1), torch.zeros(1), 1)
