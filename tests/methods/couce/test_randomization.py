"""The amplitude randomisation against the definition written out on the half spectrum, in float64."""

from itertools import product

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.couce import amplitude_randomization, amplitudes, band_masks
from proxemics.methods.couce import randomization as module
from proxemics.methods.couce.draws import draw_strengths
from proxemics.methods.couce.spectrum import band_index, energy_weights, radius

SIZES = [(7, 7), (8, 8), (14, 9), (9, 14), (1, 1), (5, 1), (1, 6)]
BANDS = (0.0, 1 / 3, 2 / 3, 1.0)


def maps(height: int, width: int, count: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spectrum(features: Tensor) -> Tensor:
    return torch.fft.rfft2(features, norm="ortho")


def reference(features: Tensor, strengths: Tensor, partners: Tensor, bands: tuple[float, ...] = BANDS) -> Tensor:
    """mix, as it stands in the docstring, with a graph made by autograd."""
    whole = spectrum(features)
    size = whole.abs()
    phase = whole / size
    weights = torch.einsum("nb,bhw->nhw", strengths, band_masks(*features.shape[2:], bands).to(strengths))[:, None]
    other = size[partners].detach()
    return torch.fft.irfft2(((1 - weights) * size + weights * other) * phase, s=features.shape[2:], norm="ortho")


def test_cells_of_the_bands() -> None:
    for side, counts in ((8, [6, 20, 14]), (28, [75, 215, 130])):
        assert torch.bincount(band_index(side, side, BANDS).flatten()).tolist() == counts


@pytest.mark.parametrize("size", SIZES)
def test_masks_sum_to_one_everywhere(size: tuple[int, int]) -> None:
    for bands in (BANDS, (0.0, 1.0), (0.0, 0.1, 0.2, 0.9, 1.0)):
        masks = band_masks(*size, bands)
        assert masks.shape == (len(bands) - 1, size[0], size[1] // 2 + 1)
        assert torch.equal(masks.sum(0), torch.ones(size[0], size[1] // 2 + 1).double())
    assert float(radius(*size).max()) <= 1


def test_edges_are_half_open_and_the_last_closed() -> None:
    """8x8 has cells of radius exactly 0.5 (f = (±1/4, 1/4)) and 1 (Nyquist both ways)."""
    index = band_index(8, 8, (0.0, 0.5, 1.0))
    assert index[2, 2] == index[6, 2] == 1
    assert index[4, 4] == 1
    assert index[0, 2] == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_strength_or_the_own_partner_is_the_identity(size: tuple[int, int], dtype: torch.dtype) -> None:
    features = maps(*size, dtype=dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    still = amplitude_randomization(features, eta=(0.0, 0.0, 0.0))
    torch.testing.assert_close(still, features, atol=tolerance, rtol=tolerance)
    itself = amplitude_randomization(features, partners=torch.arange(4))
    torch.testing.assert_close(itself, features, atol=3 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("size", SIZES)
def test_mix_is_the_definition(size: tuple[int, int]) -> None:
    features, partners = maps(*size), torch.tensor([1, 2, 3, 0])
    strengths = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = amplitude_randomization(features, strengths=strengths, partners=partners)
    torch.testing.assert_close(found, reference(features, strengths, partners), atol=1e-12, rtol=1e-12)
    given = amplitude_randomization(features, strengths=strengths, partner_amplitudes=amplitudes(features[partners]))
    torch.testing.assert_close(given, found, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("size", "band"), product(SIZES[:3], range(3)))
def test_one_band_at_a_time(size: tuple[int, int], band: int) -> None:
    """Outside the band nothing changes, inside stand the partner's amplitudes, and phases stay everywhere."""
    features, partners = maps(*size), torch.tensor([2, 3, 1, 0])
    strengths = torch.zeros(4, 3, dtype=torch.float64)
    strengths[:, band] = 1
    before, after = (
        spectrum(x) for x in (features, amplitude_randomization(features, strengths=strengths, partners=partners))
    )
    inside = (band_index(*size, BANDS) == band).expand_as(before)
    torch.testing.assert_close(after[~inside], before[~inside], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(after[inside].abs(), before[partners][inside].abs(), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(after / after.abs(), before / before.abs(), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_scale_by_one_factor_scales_the_map(size: tuple[int, int]) -> None:
    features = maps(*size)
    factor = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)[:, None]
    found = amplitude_randomization(features, mode="scale", strengths=factor.expand(4, 3))
    torch.testing.assert_close(found, features * factor[..., None, None], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_energy(size: tuple[int, int]) -> None:
    features, partners = maps(*size), torch.tensor([1, 0, 3, 2])
    weights = energy_weights(*size)
    whole = (spectrum(features).abs().square() * weights).sum((-2, -1))
    torch.testing.assert_close(whole, features.square().sum((-2, -1)))
    strengths = torch.full((4, 3), 0.3, dtype=torch.float64)
    size_of = spectrum(features).abs()
    wanted = ((0.7 * size_of + 0.3 * size_of[partners]).square() * weights).sum((-2, -1))
    found = amplitude_randomization(features, strengths=strengths, partners=partners)
    torch.testing.assert_close(found.square().sum((-2, -1)), wanted)


@pytest.mark.parametrize("mode", ["mix", "swap", "scale"])
def test_keep_dc_keeps_the_means(mode: str) -> None:
    features = maps(8, 8) + 2
    options = {"mode": mode, "probability": 1.0, "eta": (1.0, 1.0, 1.0), "partners": torch.tensor([1, 2, 3, 0])}
    kept = amplitude_randomization(features, keep_dc=True, **options, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kept.mean((2, 3)), features.mean((2, 3)))
    moved = amplitude_randomization(features, **options, generator=torch.Generator().manual_seed(0))
    assert (moved.mean((2, 3)) - features.mean((2, 3))).abs().max() > 1e-3
    assert (kept - features).abs().max() > 1e-2


@pytest.mark.parametrize("size", [(5, 5), (4, 6)])
@pytest.mark.parametrize("keep_dc", [False, True])
@pytest.mark.parametrize("mode", ["mix", "scale"])
def test_the_gradient_is_exact(size: tuple[int, int], keep_dc: bool, mode: str) -> None:
    features = maps(*size, count=2).requires_grad_()
    strengths = torch.rand(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    others = amplitudes(maps(*size, count=2, seed=5))

    def change(x: Tensor) -> Tensor:
        return amplitude_randomization(
            x, mode=mode, strengths=strengths, partner_amplitudes=others, keep_dc=keep_dc  # type: ignore[arg-type]
        )  # fmt: skip

    assert torch.autograd.gradcheck(change, (features,))


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (14, 9)])
def test_the_gradient_is_that_of_the_definition_and_partners_get_none(size: tuple[int, int]) -> None:
    one, other = (maps(*size).requires_grad_() for _ in range(2))
    strengths = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    partners, weight = torch.tensor([1, 2, 3, 0]), maps(*size, seed=9)
    (amplitude_randomization(one, strengths=strengths, partners=partners) * weight).sum().backward()
    (reference(other, strengths, partners) * weight).sum().backward()
    torch.testing.assert_close(one.grad, other.grad, atol=1e-9, rtol=1e-9)
    alone = maps(*size).requires_grad_()
    amplitude_randomization(alone, strengths=strengths, partners=partners)[0].sum().backward()
    assert alone.grad is not None
    assert not alone.grad[1:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dead_and_constant_channels_have_finite_gradients(dtype: torch.dtype) -> None:
    features = maps(8, 8, dtype=dtype)
    features[0, 0], features[1, 1], features[2] = 0, 3, 0
    features.requires_grad_()
    found = amplitude_randomization(features, strengths=torch.ones(4, 3), partners=torch.tensor([3, 3, 3, 0]))
    found.square().sum().backward()
    assert torch.isfinite(found).all()
    assert torch.isfinite(features.grad).all()
    assert features.grad.abs().max() < 1e4
    torch.testing.assert_close(amplitudes(found)[0, 0], amplitudes(features)[3, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["mix", "scale"])
@pytest.mark.parametrize("cells", [1, 300, 1 << 20])
def test_working_in_parts_changes_nothing(mode: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for limit in (1 << 20, cells):
        monkeypatch.setattr(module, "CPU_CELLS", limit)
        features = maps(7, 9, count=5).requires_grad_()
        generator = torch.Generator().manual_seed(0)
        found = amplitude_randomization(features, mode=mode, generator=generator)  # type: ignore[arg-type]
        found.square().sum().backward()
        with torch.no_grad():
            again = amplitude_randomization(features, mode=mode, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        torch.testing.assert_close(again, found)
        outcomes.append((found, features.grad))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    features = maps(14, 9, dtype=torch.float32).to(dtype).requires_grad_()
    options = {"strengths": torch.rand(4, 3), "partners": torch.tensor([1, 2, 3, 0])}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = amplitude_randomization(features, **options)
    assert found.dtype == dtype
    assert torch.equal(found, amplitude_randomization(features.float(), **options).to(dtype))
    found.float().sum().backward()
    assert features.grad.dtype == dtype
    assert torch.isfinite(features.grad).all()


def test_arguments_are_left_alone_and_layout_does_not_matter() -> None:
    features = maps(8, 8)
    kept, generator = features.clone(), torch.Generator()
    plain = amplitude_randomization(features, generator=generator.manual_seed(0))
    other = amplitude_randomization(
        features.contiguous(memory_format=torch.channels_last), generator=generator.manual_seed(0)
    )
    torch.testing.assert_close(other, plain)
    assert torch.equal(features, kept)
    assert amplitude_randomization(features[:0]).shape == (0, 3, 8, 8)
    torch.testing.assert_close(amplitude_randomization(features[:1]), features[:1])


def test_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    mix = draw_strengths(4000, 3, eta=(0.5, 1.0, 0.0), generator=generator)
    assert mix.min() >= 0
    assert (mix.amax(0) <= torch.tensor([0.5, 1.0, 0.0])).all()
    torch.testing.assert_close(mix.mean(0), torch.tensor([0.25, 0.5, 0.0]), atol=0.02, rtol=0)
    swap = draw_strengths(4000, 2, mode="swap", probability=0.3, generator=generator)
    assert set(swap.unique().tolist()) == {0.0, 1.0}
    assert abs(float(swap.mean()) - 0.3) < 0.03
    each = draw_strengths(4000, 3, mode="swap", probability=(0.0, 0.5, 1.0), generator=generator)
    assert [float(each[:, 0].max()), float(each[:, 2].min())] == [0.0, 1.0]
    assert abs(float(each[:, 1].mean()) - 0.5) < 0.03
    scale = draw_strengths(4000, 2, mode="scale", sigma=0.5, generator=generator).log()
    assert float(scale.abs().max()) <= 0.5 + 1e-6
    assert abs(float(scale.mean())) < 0.02
    assert abs(float(scale.std()) - 0.5 / 3**0.5) < 0.02


def test_bad_arguments_are_refused_with_a_sentence() -> None:
    features = maps(4, 4)
    with pytest.raises(LossError, match=r"bands=\(0, 0\.5\): the edges must rise from 0 to 1"):
        amplitude_randomization(features, bands=(0, 0.5))
    with pytest.raises(LossError, match=r"eta=\(0\.5,\): give one number for each of the 3 bands"):
        amplitude_randomization(features, eta=(0.5,))
    with pytest.raises(LossError, match=r"a number in eta must be a finite number at least 0 and at most 1, got 2"):
        amplitude_randomization(features, eta=(0.5, 1, 2))
    with pytest.raises(LossError, match=r"probability=\(0\.5,\): give one number for all or each of the 3 bands"):
        amplitude_randomization(features, mode="swap", probability=(0.5,))
    with pytest.raises(LossError, match=r"probability must be a finite number at least 0 and at most 1, got 2"):
        amplitude_randomization(features, mode="swap", probability=(0.5, 1, 2))
    with pytest.raises(LossError, match=r"mode='mixed': use mix or scale or swap\. Did you mean 'mix'"):
        amplitude_randomization(features, mode="mixed")  # type: ignore[arg-type]
    with pytest.raises(LossError, match=r"strengths must be \(4, 3\), one a band, got \(4, 2\)"):
        amplitude_randomization(features, strengths=torch.zeros(4, 2))
    with pytest.raises(LossError, match=r"partners must be \(4,\), got \(3,\)"):
        amplitude_randomization(features, partners=torch.arange(3))
    with pytest.raises(LossError, match=r"partner_amplitudes must be \(4, 3, 4, 3\), got \(4, 3, 4, 4\)"):
        amplitude_randomization(features, partner_amplitudes=features)
    with pytest.raises(LossError, match=r"Maps must be floating \(B, C, H, W\), got torch\.int64 \(2, 2\)"):
        amplitude_randomization(torch.zeros(2, 2).long())
