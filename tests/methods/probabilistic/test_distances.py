"""Closed-form similarities: worked case, quadrature, limits, gradients and extremes."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.probabilistic import (
    b_vmf,
    el_vmf,
    kl_vmf,
    l2_similarity,
    probability_product,
    vmf_log_density,
    vmf_log_normalizer,
    vmf_mean_resultant_length,
)

Integral = Callable[[Callable[[Tensor], Tensor]], Tensor]
CLOSED = {"el": el_vmf, "b": b_vmf, "kl": kl_vmf}


def close(found: Tensor, wanted: list[list[float]], tolerance: float = 6e-7) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=tolerance, rtol=0)


def test_worked_case(worked: SimpleNamespace) -> None:
    three = (worked.cosines, worked.kappa_z, worked.kappa_p, 3)
    close(
        el_vmf(*three),
        [
            [-1.567926, -2.750383, -1.546243],
            [-1.711715, -1.461226, -3.140146],
            [-1.656661, -2.952837, -1.001061],
            [-2.661550, -2.959636, -1.341956],
        ],
    )
    close(
        b_vmf(*three),
        [
            [-0.056403, -0.598359, -0.233846],
            [-0.113699, -0.078599, -0.910874],
            [-0.223145, -0.824404, -0.079008],
            [-0.479045, -0.679189, -0.144998],
        ],
    )
    close(
        -kl_vmf(*three),
        [
            [0.223879, 2.430869, 1.189934],
            [0.447758, 0.341333, 4.324238],
            [0.748643, 2.796592, 0.337663],
            [1.791031, 2.729374, 0.742177],
        ],
    )
    close(
        vmf_log_density(worked.cosines, worked.kappa_p, 3),
        [
            [-1.070116, -4.006803, -1.379445],
            [-1.403450, -0.895692, -6.046111],
            [-1.536783, -3.917914, -0.446111],
            [-3.403450, -4.451247, -0.712778],
        ],
    )
    lengths = worked.proxies.norm(dim=-1)
    close(
        -l2_similarity(worked.cosines, worked.kappa_z, lengths),
        [[2, 16, 4], [4, 2, 18], [12, 30, 6], [16, 18, 2]],
        1e-12,
    )


def log_vmf(u: Tensor, mu: Tensor, kappa: Tensor) -> Tensor:
    return vmf_log_normalizer(kappa, 3) + kappa * (u @ mu)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 4.0, 50.0])
def test_vmf_integrates_to_one(kappa: float, integral: Integral) -> None:
    mu = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    total = integral(lambda u: log_vmf(u, mu, torch.tensor(kappa, dtype=torch.float64)).exp())
    assert total.item() == pytest.approx(1, abs=1e-10)


def test_closed_forms_equal_quadrature(worked: SimpleNamespace, integral: Integral) -> None:
    for i in range(4):
        for c in range(3):
            image = (worked.z[i], worked.kappa_z[i])
            proxy = (worked.w[c], worked.kappa_p[c])
            arguments = (worked.cosines[i : i + 1, c : c + 1], worked.kappa_z[i : i + 1], worked.kappa_p[c : c + 1], 3)
            el = integral(lambda u, a=image, b=proxy: (log_vmf(u, *a) + log_vmf(u, *b)).exp()).log()
            b = integral(lambda u, a=image, b=proxy: ((log_vmf(u, *a) + log_vmf(u, *b)) / 2).exp()).log()
            ppk = integral(lambda u, a=image, b=proxy: (0.8 * (log_vmf(u, *a) + log_vmf(u, *b))).exp()).log()
            kl = integral(lambda u, a=image, b=proxy: log_vmf(u, *a).exp() * (log_vmf(u, *a) - log_vmf(u, *b)))
            assert el_vmf(*arguments).item() == pytest.approx(el.item(), abs=1e-8)
            assert b_vmf(*arguments).item() == pytest.approx(b.item(), abs=1e-8)
            assert kl_vmf(*arguments).item() == pytest.approx(-kl.item(), abs=1e-8)
            assert probability_product(*arguments, exponent=0.8).item() == pytest.approx(ppk.item(), abs=1e-8)


@pytest.mark.parametrize("dim", [3, 128, 512])
def test_equal_densities_are_at_distance_zero_and_no_others_nearer(dim: int) -> None:
    source = torch.Generator().manual_seed(0)
    kappa = torch.rand(6, dtype=torch.float64, generator=source) * 50
    directions = torch.nn.functional.normalize(torch.randn(6, dim, dtype=torch.float64, generator=source), dim=-1)
    cosines = directions @ directions.T
    for similarity in (b_vmf, kl_vmf):
        table = similarity(cosines, kappa, kappa, dim)
        torch.testing.assert_close(table.diagonal(), torch.zeros(6).double(), atol=1e-9, rtol=0)
        assert (table <= 1e-9).all()
    table = el_vmf(cosines, kappa, kappa, dim)
    torch.testing.assert_close(table, table.T)


def test_certain_and_uncertain_images(worked: SimpleNamespace) -> None:
    certain = el_vmf(worked.cosines, torch.full((4,), 1e4).double(), worked.kappa_p, 3)
    assert (certain - vmf_log_density(worked.cosines, worked.kappa_p, 3)).abs().max() < 1e-2
    uncertain = el_vmf(worked.cosines, torch.zeros(4).double(), worked.kappa_p, 3)
    torch.testing.assert_close(uncertain, torch.full((4, 3), -math.log(4 * math.pi)).double(), atol=1e-6, rtol=0)


def test_equal_lengths_make_cosines_of_everything(worked: SimpleNamespace) -> None:
    five = torch.full((3,), 5.0).double()
    shifted = vmf_log_density(worked.cosines, five, 3) - 5 * worked.cosines
    torch.testing.assert_close(shifted, shifted[:1, :1].expand_as(shifted))
    l2 = l2_similarity(worked.cosines, torch.full((4,), 2.0).double(), five)
    torch.testing.assert_close(l2, 2 * 2 * 5 * worked.cosines - 29)
    for table in (l2, vmf_log_density(worked.cosines, five, 3)):
        assert torch.equal(table.argmax(1), worked.cosines.argmax(1))


def test_gradient_by_the_cosine(worked: SimpleNamespace) -> None:
    """(q - 1[c=y]) / t times 1, 2 κ_z κ_p and A(κ_3) κ_z κ_p / κ_3."""
    t = 0.7
    cosines = worked.cosines.clone().requires_grad_()
    kappa_z, kappa_p = worked.kappa_z[:, None], worked.kappa_p[None]
    kappa_3 = (kappa_z**2 + kappa_p**2 + 2 * kappa_z * kappa_p * worked.cosines).sqrt()
    cases = {
        "cos": (cosines, torch.ones(4, 3).double()),
        "l2": (l2_similarity(cosines, worked.kappa_z, worked.kappa_p), 2 * kappa_z * kappa_p),
        "el": (
            el_vmf(cosines, worked.kappa_z, worked.kappa_p, 3),
            vmf_mean_resultant_length(kappa_3, 3) * kappa_z * kappa_p / kappa_3,
        ),
    }
    for similarity, factor in cases.values():
        loss = torch.nn.functional.cross_entropy(similarity / t, worked.labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, cosines)
        posterior = torch.softmax(similarity / t, 1) - torch.nn.functional.one_hot(worked.labels, 3)
        torch.testing.assert_close(gradient, factor * posterior / t)


@pytest.mark.parametrize("name", list(CLOSED))
@pytest.mark.parametrize("dim", [3, 128])
def test_gradcheck(name: str, dim: int, worked: SimpleNamespace) -> None:
    inputs = [values.clone().requires_grad_() for values in (worked.cosines, worked.kappa_z, worked.kappa_p)]
    assert torch.autograd.gradcheck(lambda c, z, p: CLOSED[name](c, z, p, dim), inputs)


@pytest.mark.parametrize("name", list(CLOSED))
@pytest.mark.parametrize("kappa_z", [0.0, 18.0, 1e5])
@pytest.mark.parametrize("kappa_p", [0.0, 18.0, 1e5])
@pytest.mark.parametrize("dim", [3, 512])
def test_float32_extremes(name: str, kappa_z: float, kappa_p: float, dim: int) -> None:
    """Opposite, orthogonal and equal directions; κ = 0 and 1e5 in any combination."""
    cosines = torch.tensor([[-1.0, 0.0, 1.0]], requires_grad=True)
    z, p = torch.tensor([kappa_z], requires_grad=True), torch.full((3,), kappa_p, requires_grad=True)
    table = CLOSED[name](cosines, z, p, dim)
    table.sum().backward()
    assert torch.isfinite(table).all()
    for values in (cosines, z, p):
        assert torch.isfinite(values.grad).all()


@pytest.mark.parametrize("name", list(CLOSED))
def test_float32_and_autocast_follow_float64(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    cosines = torch.rand(5, 7, generator=source) * 2 - 1
    z, p = torch.rand(5, generator=source) * 100, torch.rand(7, generator=source) * 100
    exact = CLOSED[name](cosines.double(), z.double(), p.double(), 512)
    torch.testing.assert_close(CLOSED[name](cosines, z, p, 512).double(), exact, rtol=3e-6, atol=2e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(CLOSED[name](cosines, z, p, 512), CLOSED[name](cosines, z, p, 512))
        assert CLOSED[name](cosines.bfloat16(), z, p, 512).dtype == torch.float32


def test_centred_tables_differ_by_one_constant(worked: SimpleNamespace) -> None:
    three = (worked.cosines, worked.kappa_z, worked.kappa_p, 3)
    constant = torch.full((4, 3), -math.log(4 * math.pi)).double()
    torch.testing.assert_close(el_vmf(*three) - el_vmf(*three, centred=True), constant)
    points = (worked.cosines, worked.kappa_p, 3)
    torch.testing.assert_close(vmf_log_density(*points) - vmf_log_density(*points, centred=True), constant)


def test_errors_say_what_to_do(worked: SimpleNamespace) -> None:
    with pytest.raises(LossError, match=r"Cosines must have shape \(B, C\), kappa_z \(B,\) and kappa_p \(C,\)"):
        el_vmf(worked.cosines, worked.kappa_p, worked.kappa_z, 3)
    with pytest.raises(LossError, match="exponent must be a finite number above 0, got 0"):
        probability_product(worked.cosines, worked.kappa_z, worked.kappa_p, 3, exponent=0)
