"""The nivMF density and its expected likelihood: worked case, quadrature, limits, gradients, memory, extremes."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from proxemics.core.errors import LossError
from proxemics.methods.probabilistic import (
    el_nivmf,
    el_vmf,
    nivmf_log_density,
    stretched,
    vmf_log_density,
    vmf_log_normalizer,
)
from proxemics.methods.probabilistic.stretched import StretchOptions, stretched_logits

DETS = ("released", "mode", "exact", "none")
COMBINATIONS = [(det, stretch) for det in DETS for stretch in (True, False) if stretch or det != "exact"]
Integral = Callable[[Callable[[Tensor], Tensor]], Tensor]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_case(
    samples: int, batch: int, classes: int, dim: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    source = generator(1)
    u = torch.nn.functional.normalize(torch.randn(samples, batch, dim, dtype=dtype, generator=source), dim=-1)
    v = torch.randn(classes, dim, dtype=dtype, generator=source)
    k = torch.rand(classes, dim, dtype=dtype, generator=source) * 5 + 0.3
    return u, v, k


# --- the density ------------------------------------------------------------------------------------------------------


def test_worked_case(worked: SimpleNamespace) -> None:
    found = nivmf_log_density(worked.z, worked.proxies, worked.stretch)
    wanted = [
        [-0.138925, -1.517728, -1.517728],
        [-0.436052, 0.037828, -2.406617],
        [-0.158123, -1.473283, -0.257429],
        [-0.436052, -1.739950, 0.111902],
    ]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=6e-7, rtol=0)


def test_stretched_cosines_of_the_worked_case(worked: SimpleNamespace) -> None:
    g = (worked.stretch * worked.w).norm(dim=-1)
    found = (nivmf_log_density(worked.z, worked.w, worked.stretch, det="none") - vmf_log_normalizer(g, 3)) / g
    wanted = [
        [0.952563, 0.111111, 0.111111],
        [0.818182, 0.888889, -0.333333],
        [0.943880, 0.133333, 0.741261],
        [0.818182, 0, 0.925926],
    ]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=6e-7, rtol=0)


@pytest.mark.parametrize(("det", "stretch"), COMBINATIONS)
@pytest.mark.parametrize("normalizer", ["debye", "legacy-poly"])
def test_equals_the_broadcast_form(
    broadcast_log_density: Callable[..., Tensor], det: str, stretch: bool, normalizer: str
) -> None:
    u, v, k = random_case(1, 7, 5, 6)

    def log_normalizer(kappa: Tensor) -> Tensor:
        return vmf_log_normalizer(kappa, 6, normalizer=normalizer)  # type: ignore[arg-type]

    wanted = broadcast_log_density(u[0], v, k, det, stretch, log_normalizer)
    found = nivmf_log_density(u[0], v, k, det=det, stretch_sample=stretch, normalizer=normalizer)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted)
    shaped = nivmf_log_density(u[0, :6].view(2, 3, 6), v, k, det=det, stretch_sample=stretch, normalizer=normalizer)  # type: ignore[arg-type]
    torch.testing.assert_close(shaped, wanted[:6].view(2, 3, 5))


@pytest.mark.parametrize("stretch", [(1, 1, 12), (2, 5, 9), (5, 5, 5)])
def test_integrates_to_one_with_the_exact_determinant(stretch: tuple[float, ...], integral: Integral) -> None:
    mu, kappa = torch.tensor([[2.0, 1, -1]]).double(), torch.tensor([stretch]).double()
    total = integral(lambda u: nivmf_log_density(u, mu, kappa, det="exact")[:, 0].exp())
    assert total.item() == pytest.approx(1, abs=1e-10)
    if len(set(stretch)) > 1:
        assert abs(integral(lambda u: nivmf_log_density(u, mu, kappa)[:, 0].exp()).item() - 1) > 0.1


@pytest.mark.parametrize(("det", "stretch"), COMBINATIONS)
@pytest.mark.parametrize("dim", [3, 40])
def test_equal_stretches_give_the_vmf_up_to_a_constant(det: str, stretch: bool, dim: int) -> None:
    """K = cI: nivMF - vMF(c) is (M-1) log c, 0, 0 and 0 for the four determinants."""
    u, v, _ = random_case(1, 9, 4, dim)
    c = torch.tensor([0.5, 1.0, 4.0, 30.0], dtype=torch.float64)
    found = nivmf_log_density(u[0], v, c[:, None].expand(-1, dim), det=det, stretch_sample=stretch)  # type: ignore[arg-type]
    isotropic = vmf_log_density(u[0] @ torch.nn.functional.normalize(v, dim=-1).T, c, dim)
    constant = (dim - 1) * c.log() if det == "released" else torch.zeros(4).double()
    torch.testing.assert_close(found - isotropic, constant.expand(9, -1))


def test_without_stretching_the_draw_it_is_an_isotropic_density_of_another_proxy() -> None:
    u, v, k = random_case(1, 9, 4, 6)
    natural = k * torch.nn.functional.normalize(v, dim=-1)
    g = natural.norm(dim=-1)
    isotropic = vmf_log_density(u[0] @ torch.nn.functional.normalize(natural, dim=-1).T, g, 6)
    torch.testing.assert_close(nivmf_log_density(u[0], v, k, det="none", stretch_sample=False), isotropic)


def test_point_density_ignores_lengths_of_directions() -> None:
    u, v, k = random_case(1, 9, 4, 6)
    torch.testing.assert_close(nivmf_log_density(u[0], 7 * v, k), nivmf_log_density(u[0], v, k))


# --- logits over draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("det", "stretch"), COMBINATIONS)
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("block", [1 << 21, 1])
def test_values_and_gradients_equal_the_broadcast_form(
    broadcast_log_density: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
    det: str,
    stretch: bool,
    inner: bool,
    samples: int,
    block: int,
) -> None:
    """Also when the classes are visited in several blocks (of 64)."""
    monkeypatch.setattr(stretched, "BLOCK_BYTES", block)
    inputs = [*random_case(samples, 4, 150, 5), torch.tensor(0.3, dtype=torch.float64)]
    weights = torch.randn(4, 150, dtype=torch.float64, generator=generator())
    u, v, k, t = (values.requires_grad_() for values in inputs)

    logits, constant = stretched_logits(u, v, k, t, StretchOptions(det, stretch, "debye", inner))
    found = logits + constant / t
    density = broadcast_log_density(u, v, k, det, stretch, lambda kappa: vmf_log_normalizer(kappa, 5))
    wanted = (torch.logsumexp(density / t, 0) if inner else torch.logsumexp(density, 0) / t) - (
        math.log(samples) if inner else math.log(samples) / t
    )
    torch.testing.assert_close(found, wanted)
    gradients = torch.autograd.grad((found * weights).sum(), (u, v, k, t))
    expected = torch.autograd.grad((wanted * weights).sum(), (u, v, k, t))
    for gradient, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("det", "stretch"), [("released", True), ("exact", True), ("mode", False)])
def test_gradcheck(det: str, stretch: bool) -> None:
    u, v, k = random_case(2, 2, 2, 3)
    t = torch.tensor(0.5, dtype=torch.float64)

    def log_posterior(u: Tensor, v: Tensor, k: Tensor, t: Tensor) -> Tensor:
        options = StretchOptions(det, stretch)
        return torch.log_softmax(stretched_logits(u, v, k, t, options)[0], -1)

    inputs = [values.requires_grad_() for values in (u, v, k, t)]
    assert torch.autograd.gradcheck(log_posterior, inputs)
    assert torch.autograd.gradcheck(
        lambda u, v, k: nivmf_log_density(u[0], v, k, det=det, stretch_sample=stretch), inputs[:3]
    )  # type: ignore[arg-type]


def test_gradcheck_through_the_draws() -> None:
    z = (torch.randn(3, 5, dtype=torch.float64, generator=generator()) * 4).requires_grad_()
    _, v, k = random_case(1, 1, 4, 5)
    inputs = (z, v.requires_grad_(), k.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda z, v, k: el_nivmf(z, v, k, num_samples=3, temperature=0.4, generator=generator()), inputs
    )


def test_backward_may_be_called_twice() -> None:
    u, v, k = random_case(3, 4, 6, 5)
    v.requires_grad_()
    logits, _ = stretched_logits(u, v, k, torch.tensor(1.0).double(), StretchOptions())
    first, second = (torch.autograd.grad(logits.sum(), v, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


class _Largest(TorchDispatchMode):
    """Remember the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def test_no_tensor_over_draws_images_classes_and_dimensions() -> None:
    samples, batch, classes, dim = 3, 8, 50, 32
    z = (torch.randn(batch, dim, generator=generator()) * 4).requires_grad_()
    _, v, k = random_case(1, 1, classes, dim, torch.float32)
    v.requires_grad_()
    k.requires_grad_()
    with _Largest() as largest:
        el_nivmf(z, v, k, num_samples=samples, generator=generator()).logsumexp(1).sum().backward()
    assert largest.numel <= max(samples * batch * max(classes, dim), classes * dim)


def test_temperatures_agree_for_one_draw_and_for_one() -> None:
    z = torch.randn(4, 6, dtype=torch.float64, generator=generator()) * 3
    _, v, k = random_case(1, 1, 5, 6)

    def logits(samples: int, temperature: float, position: str) -> Tensor:
        return el_nivmf(
            z,
            v,
            k,
            num_samples=samples,
            temperature=temperature,
            temperature_position=position,
            generator=generator(),  # type: ignore[arg-type]
        )

    torch.testing.assert_close(logits(1, 0.01, "inner"), logits(1, 0.01, "outer"))
    torch.testing.assert_close(logits(4, 1.0, "inner"), logits(4, 1.0, "outer"))
    # For a small temperature the best draw decides the inner form, and the outer one stays a mean.
    assert (logits(4, 0.01, "inner") > logits(4, 0.01, "outer") + 1).any()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_certain_images_are_points(worked: SimpleNamespace) -> None:
    """κ_z → ∞ with one draw: the density at the direction."""
    found = el_nivmf(worked.z * 1e12, worked.proxies, worked.stretch, num_samples=1, generator=generator())
    torch.testing.assert_close(found, nivmf_log_density(worked.z, worked.proxies, worked.stretch), atol=1e-4, rtol=0)


def test_many_draws_with_equal_stretches_give_the_closed_form(worked: SimpleNamespace) -> None:
    """K = κI, N = 20,000: EL-vMF + (M-1) log κ, within three standard errors; the variance falls as 1/N."""
    kappa = worked.kappa_p[:, None].expand(-1, 3)
    exact = el_vmf(worked.cosines, worked.kappa_z, worked.kappa_p, 3) + 2 * worked.kappa_p.log()

    def estimates(samples: int, runs: int) -> Tensor:
        many = worked.raw.repeat(runs, 1)
        found = el_nivmf(many, worked.proxies, kappa, num_samples=samples, generator=generator())
        return found.view(runs, 4, 3)

    # Standard error of a log-mean by that of many short runs of likelihoods.
    likelihoods = estimates(1, 20_000).exp()
    error = likelihoods.std(0) / likelihoods.mean(0) / math.sqrt(20_000)
    assert ((estimates(20_000, 1)[0] - exact).abs() < 3.5 * error).all()
    few, many = estimates(50, 400).exp().var(0), estimates(200, 400).exp().var(0)
    assert (few / many).mean().item() == pytest.approx(4, rel=0.2)


def test_uncertain_images_say_nothing() -> None:
    """κ_z = 0: all images look alike, up to the noise of the draws, and equal classes get equal posteriors."""
    v = torch.nn.functional.normalize(torch.randn(6, 32, dtype=torch.float64, generator=generator()), dim=-1)
    found = el_nivmf(
        torch.zeros(1, 32).double(), v, torch.full((6, 32), 2.0).double(), num_samples=20_000, generator=generator()
    )
    torch.testing.assert_close(torch.softmax(found, -1), torch.full((1, 6), 1 / 6).double(), atol=5e-3, rtol=0)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_float32_keeps_the_digits_that_a_small_temperature_needs(broadcast_log_density: Callable[..., Tensor]) -> None:
    """M = 512, κ ≈ 18, t = .003: the density is about 2,300 and its differences decide."""
    source = generator(2)
    u = torch.nn.functional.normalize(torch.randn(5, 8, 512, generator=source), dim=-1)
    v, k = torch.randn(40, 512, generator=source), 18 + torch.randn(40, 512, generator=source)
    logits, _ = stretched_logits(u, v, k, torch.tensor(0.003), StretchOptions())
    density = broadcast_log_density(
        u.double(), v.double(), k.double(), "released", True, lambda kappa: vmf_log_normalizer(kappa, 512)
    )
    exact = torch.logsumexp(density / 0.003, 0)
    torch.testing.assert_close(logits.double() - logits[:, :1], exact - exact[:, :1], atol=0.02, rtol=1e-5)
    assert density.mean() > 2000


@pytest.mark.parametrize("kappa_z", [0.0, 1e-3, 1e5])
@pytest.mark.parametrize("kappa_p", [0.1, 18.0, 1e5])
@pytest.mark.parametrize("stretch", [True, False])
def test_extremes_are_finite_forward_and_backward(kappa_z: float, kappa_p: float, stretch: bool) -> None:
    z = torch.nn.functional.normalize(torch.randn(4, 64, generator=generator()), dim=-1) * kappa_z
    z.requires_grad_()
    v = torch.randn(3, 64, generator=generator(1), requires_grad=True)
    k = torch.full((3, 64), kappa_p)
    k[0, :32] = 1e5
    k.requires_grad_()
    t = torch.tensor(0.003, requires_grad=True)
    logits = el_nivmf(z, v, k, temperature=t, stretch_sample=stretch, centred=True, generator=generator())
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    for values in (z, v, k, t):
        assert torch.isfinite(values.grad).all()
    assert torch.isfinite(logits).all()


def test_one_class_duplicates_and_zero_vectors_are_finite() -> None:
    z = torch.zeros(3, 8)
    z[1:] = 4.0
    v = torch.zeros(1, 8, requires_grad=True)
    z.requires_grad_()
    for det in DETS:
        logits = el_nivmf(z, v, torch.ones(1, 8), det=det, generator=generator())  # type: ignore[arg-type]
        logits.sum().backward()
        assert torch.isfinite(logits).all()
        assert torch.isfinite(z.grad).all()
        assert torch.equal(v.grad, torch.zeros_like(v))


def test_a_zero_point_is_finite() -> None:
    _, v, k = random_case(1, 1, 4, 6)
    points = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
    for det in DETS:
        found = nivmf_log_density(points, v, k, det=det)  # type: ignore[arg-type]
        assert torch.isfinite(found).all()


def test_autocast_changes_nothing() -> None:
    z = (torch.randn(6, 32, generator=generator()) * 4).requires_grad_()
    _, v, k = random_case(1, 1, 7, 32, torch.float32)
    v.requires_grad_()
    plain = el_nivmf(z, v, k, generator=generator())
    gradients = torch.autograd.grad(plain.logsumexp(1).sum(), (z, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = el_nivmf(z, v, k, generator=generator())
        mixed_gradients = torch.autograd.grad(mixed.logsumexp(1).sum(), (z, v))
    assert torch.equal(mixed, plain)
    for one, other in zip(gradients, mixed_gradients, strict=True):
        assert torch.equal(one, other)
    half = el_nivmf(z.bfloat16(), v, k, generator=generator())
    assert half.dtype == torch.float32


def test_errors_say_what_to_do() -> None:
    u, v, k = random_case(1, 2, 3, 4)
    with pytest.raises(LossError, match=r"kappa must be above 0 everywhere, got 0; clamp it"):
        nivmf_log_density(u[0], v, torch.zeros(3, 4).double())
    with pytest.raises(LossError, match=r"got \(2, 4\), \(3, 4\) and \(3,\)"):
        el_nivmf(u[0], v, k[:, 0])
    with pytest.raises(LossError, match="no meaning with stretch_sample=False; use stretch_sample=True, or det='mode'"):
        nivmf_log_density(u[0], v, k, det="exact", stretch_sample=False)
    with pytest.raises(
        LossError, match=r"det='release': use released or mode or exact or none\. Did you mean 'released'"
    ):
        el_nivmf(u[0], v, k, det="release")  # type: ignore[arg-type]
    with pytest.raises(LossError, match=r"temperature_position='iner': use inner or outer\. Did you mean 'inner'"):
        el_nivmf(u[0], v, k, temperature_position="iner")  # type: ignore[arg-type]
    with pytest.raises(LossError, match="temperature must be a finite number above 0, got 0"):
        el_nivmf(u[0], v, k, temperature=0.0)
