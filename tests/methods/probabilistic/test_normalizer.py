"""The vMF normaliser and mean length against 40-digit Bessel functions, tables, closed forms and limits."""

import math

import mpmath
import pytest
import torch

from proxemics.core.errors import LossError
from proxemics.methods.probabilistic import vmf_log_normalizer, vmf_mean_resultant_length
from proxemics.methods.probabilistic.normalizer import log_inverse_area

DIMS = (2, 3, 4, 5, 8, 16, 49, 50, 51, 64, 128, 512, 2048)
KAPPAS = (0.0, 1e-4, 0.1, 1.0, 10.0, 50.0, 200.0, 1000.0, 1e4, 1e5)


def exact(kappa: float, dim: int) -> tuple[float, float, float]:
    """log C(κ) - log C(0), A(κ) and A'(κ) from 40 digits."""
    with mpmath.workdps(40):
        k, nu = mpmath.mpf(kappa), mpmath.mpf(dim) / 2 - 1
        if k == 0:
            return 0.0, 0.0, 1 / dim
        lower, upper = mpmath.besseli(nu, k), mpmath.besseli(nu + 1, k)
        value = nu * mpmath.log(k / 2) - mpmath.log(lower) - mpmath.loggamma(nu + 1)
        length = upper / lower
        return float(value), float(length), float(1 - length**2 - (dim - 1) * length / k)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-12), (torch.float32, 3e-7)])
def test_value_and_derivative_have_all_their_digits(dim: int, dtype: torch.dtype, tolerance: float) -> None:
    for number in KAPPAS:
        kappa = torch.tensor(number, dtype=dtype, requires_grad=True)
        value, length, slope = exact(kappa.item(), dim)
        found = vmf_log_normalizer(kappa, dim, centred=True)
        assert found.dtype == dtype
        assert found.item() == pytest.approx(value, rel=tolerance, abs=0)
        (gradient,) = torch.autograd.grad(found, kappa, create_graph=True)
        assert gradient.item() == pytest.approx(-length, rel=tolerance, abs=0)
        assert vmf_mean_resultant_length(kappa, dim).item() == pytest.approx(length, rel=tolerance, abs=0)
        (second,) = torch.autograd.grad(gradient, kappa)
        # The second derivative falls as M/κ² and loses digits in float32 for M far below κ, but never its size.
        assert second.item() == pytest.approx(-slope, rel=tolerance if dtype == torch.float64 else 5e-4, abs=0)


@pytest.mark.parametrize(
    ("dim", "table"),
    [
        (128, (-0.003906, -0.389460, -9.146598, -31.991988, -97.449560, -345.163566, -803.131479)),
        (512, (-0.000977, -0.097638, -2.429954, -9.588838, -36.565372, -185.941321, -540.258916)),
    ],
)
def test_table(dim: int, table: tuple[float, ...]) -> None:
    kappa = torch.tensor([1.0, 10, 50, 100, 200, 500, 1000])
    for dtype in (torch.float32, torch.float64):
        found = vmf_log_normalizer(kappa.to(dtype), dim, centred=True)
        assert found.tolist() == pytest.approx(table, abs=6e-7, rel=2e-7)


def test_values_at_zero() -> None:
    assert log_inverse_area(128) == pytest.approx(127.053, abs=5e-4)
    assert log_inverse_area(512) == pytest.approx(867.968, abs=5e-4)
    assert log_inverse_area(2) == pytest.approx(-math.log(2 * math.pi))
    assert vmf_log_normalizer(torch.zeros(()), 512).item() == pytest.approx(log_inverse_area(512))


def test_mean_lengths() -> None:
    found = vmf_mean_resultant_length(torch.tensor([10.0, 50, 100, 200, 500]), 512)
    assert found.tolist() == pytest.approx([0.0195, 0.0967, 0.1884, 0.3444, 0.6117], abs=6e-5)
    found = vmf_mean_resultant_length(torch.tensor([50.0, 100, 200, 500]), 128)
    assert found.tolist() == pytest.approx([0.3448, 0.5483, 0.7312, 0.8809], abs=6e-5)


def test_closed_form_in_three_dimensions() -> None:
    kappa = torch.logspace(-3, 5, 50, dtype=torch.float64)
    closed = kappa.log() - math.log(4 * math.pi) - kappa - torch.log1p(-torch.exp(-2 * kappa)) + math.log(2)
    torch.testing.assert_close(vmf_log_normalizer(kappa, 3), closed, rtol=1e-12, atol=1e-12)
    length = 1 / torch.tanh(kappa) - 1 / kappa
    torch.testing.assert_close(vmf_mean_resultant_length(kappa, 3), length, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", DIMS)
def test_falls_from_zero_on_and_is_finite_to_the_end(dim: int) -> None:
    kappa = torch.cat([torch.zeros(1), torch.logspace(-3, 8, 200)]).requires_grad_()
    values = vmf_log_normalizer(kappa, dim, centred=True)
    assert (values.diff() < 0).all()
    values.sum().backward()
    assert kappa.grad[0] == 0
    assert torch.isfinite(kappa.grad).all()
    assert (kappa.grad.diff() <= 3e-6).all()
    assert (kappa.grad >= -1).all()
    assert kappa.grad[-1] == pytest.approx(-1, abs=1e-4)


@pytest.mark.parametrize("kappa", [0.0, 1e5, 1e15, 1e30])
@pytest.mark.parametrize("dim", [2, 3, 128, 512])
def test_float32_extremes(kappa: float, dim: int) -> None:
    values = torch.tensor(kappa, requires_grad=True)
    found = vmf_log_normalizer(values, dim)
    (gradient,) = torch.autograd.grad(found, values, create_graph=True)
    (second,) = torch.autograd.grad(gradient, values)
    assert torch.isfinite(torch.stack([found, gradient, second])).all()


@pytest.mark.parametrize("dim", [2, 3, 10, 49, 128])
def test_gradcheck(dim: int) -> None:
    kappa = torch.tensor([0.0, 0.3, 2.0, 17.0, 400.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k: vmf_log_normalizer(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: vmf_log_normalizer(k, dim), kappa)
    assert torch.autograd.gradcheck(lambda k: vmf_mean_resultant_length(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: vmf_mean_resultant_length(k, dim), kappa)


def test_half_precision_is_computed_in_float32() -> None:
    kappa = torch.tensor([10.0, 100.0], dtype=torch.bfloat16, requires_grad=True)
    found = vmf_log_normalizer(kappa, 512, centred=True)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, vmf_log_normalizer(kappa.float(), 512, centred=True))
    found.sum().backward()
    assert kappa.grad.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(vmf_log_normalizer(kappa.float(), 512, centred=True), found)


def test_released_fit_is_wrong_as_published() -> None:
    kappa = torch.tensor([50.0, 100, 200, 500, 1000], dtype=torch.float64)
    error = vmf_log_normalizer(kappa, 512, normalizer="legacy-poly") - vmf_log_normalizer(kappa, 512)
    assert error[:2].abs().max() < 0.11
    assert error[2:].tolist() == pytest.approx([-2.2, -56, -428], rel=0.02)
    error = vmf_log_normalizer(kappa, 128, normalizer="legacy-poly") - vmf_log_normalizer(kappa, 128)
    assert error[:3].tolist() == pytest.approx([-0.25, -3.5, -41], rel=0.05)
    other = vmf_log_normalizer(kappa, 64, normalizer="legacy-poly")
    torch.testing.assert_close(other, vmf_log_normalizer(kappa, 512, normalizer="legacy-poly"))


@pytest.mark.parametrize(("dim", "limit"), [(512, 515), (128, 146)])
def test_released_fit_pulls_harder_than_any_likelihood_can(dim: int, limit: float) -> None:
    kappa = torch.tensor([limit - 3, limit + 3], dtype=torch.float64, requires_grad=True)
    vmf_log_normalizer(kappa, dim, normalizer="legacy-poly").sum().backward()
    assert -kappa.grad[0] < 1 < -kappa.grad[1]


def test_later_fit() -> None:
    kappa = torch.tensor([0.0, 100, 300, 500, 1000], dtype=torch.float64, requires_grad=True)
    fitted = vmf_log_normalizer(kappa, 512, normalizer="legacy-power")
    error = (fitted - vmf_log_normalizer(kappa, 512)).tolist()
    assert error[0] == pytest.approx(-1.7, abs=0.05)
    assert max(abs(value) for value in error[1:4]) < 0.9
    assert error[4] == pytest.approx(-50, abs=1)
    fitted.sum().backward()
    assert torch.isfinite(kappa.grad).all()
    assert vmf_log_normalizer(torch.zeros(()), 1024, normalizer="legacy-power").item() == 2095
    with pytest.raises(LossError, match="fitted for dim 512 and 1024, got dim=128; use 'debye'"):
        vmf_log_normalizer(kappa, 128, normalizer="legacy-power")


def test_errors_say_what_to_do() -> None:
    with pytest.raises(LossError, match="dim must be a whole number of at least 2, got 1"):
        vmf_log_normalizer(torch.zeros(2), 1)
    with pytest.raises(LossError, match="dim must be a whole number of at least 2, got 0"):
        vmf_mean_resultant_length(torch.zeros(2), 0)
    with pytest.raises(LossError, match=r"normalizer='legacy': use debye or legacy-poly or legacy-power\."):
        vmf_log_normalizer(torch.zeros(2), 3, normalizer="legacy")  # type: ignore[arg-type]
