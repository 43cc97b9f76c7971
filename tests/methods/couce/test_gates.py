"""Gates and background descriptors on maps whose background is known."""

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.couce import background_descriptors, channel_gate, profile_gate, spatial_gate
from proxemics.methods.couce.background import pool_channels, pool_places
from proxemics.methods.couce.gates import resize_gate, soft_gate

OBJECT = torch.tensor([16, 17, 23, 24, 30, 31])


def scene(noise: float = 0.0, seed: int = 0) -> Tensor:
    """A constant background on a 7x7 grid and an object of 6 places with a few strong channels."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((3, 49, 64), 0.5) + noise * torch.randn(3, 49, 64, generator=generator)
    tokens[:, OBJECT, :8] += 4 * torch.rand(3, 6, 8, generator=generator) + 2
    return tokens


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_object_is_closed_and_the_background_open(noise: float) -> None:
    gate = spatial_gate(scene(noise))
    outside = torch.ones(49, dtype=torch.bool)
    outside[OBJECT] = False
    assert gate[:, OBJECT].mean() < 0.1
    assert gate[:, outside].mean() > 0.5
    assert gate[:, outside].mean() == pytest.approx(0.67, abs=0.03)


def test_any_factor_on_the_map_leaves_the_gate() -> None:
    tokens = scene(0.1)
    for factor in (1e-6, 1e6):
        torch.testing.assert_close(spatial_gate(tokens * factor), spatial_gate(tokens), atol=1e-4, rtol=1e-4)


def test_without_structure_the_gate_is_a_half() -> None:
    assert torch.equal(soft_gate(torch.full((2, 5), 7.0)), torch.full((2, 5), 0.5))
    assert torch.equal(soft_gate(torch.zeros(2, 5)), torch.full((2, 5), 0.5))
    assert torch.equal(spatial_gate(torch.rand(2, 1, 8)), torch.full((2, 1), 0.5))
    rounding = torch.full((1, 4), 1.0) + torch.tensor([0.0, 1.2e-7, 0.0, 0.0])
    assert torch.equal(soft_gate(rounding), torch.full((1, 4), 0.5))


def test_channels_that_respond_everywhere_are_open() -> None:
    tokens = scene()
    gate = channel_gate(tokens)
    assert gate.shape == (3, 64)
    assert gate[:, :8].mean() < 0.1
    assert gate[:, 8:].mean() > 0.6


@pytest.mark.parametrize("shape", [(3, 6), (40, 6), (5, 2, 6)])
def test_profile_is_the_variance_over_classes(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(2, 9, 6, generator=generator, dtype=torch.float64)
    proxies = torch.randn(shape, generator=generator, dtype=torch.float64)
    table = places @ torch.nn.functional.normalize(proxies, dim=-1).flatten(0, -2).T
    torch.testing.assert_close(profile_gate(places, proxies), soft_gate(table.var(-1, correction=0)))


def test_resizing() -> None:
    gate = torch.rand(2, 16)
    assert torch.equal(resize_gate(gate, (4, 4), (4, 4)), gate)
    coarse = resize_gate(gate, (4, 4), (2, 2))
    torch.testing.assert_close(coarse, gate.view(2, 2, 2, 2, 2).mean((2, 4)).flatten(1))
    fine = resize_gate(gate, (4, 4), (8, 8))
    assert fine.shape == (2, 64)
    torch.testing.assert_close(fine.mean(1), gate.mean(1), atol=1e-5, rtol=1e-5)
    with pytest.raises(LossError, match="the tokens of this trunk form none"):
        resize_gate(gate, (4, 4), (16, 1))


def test_descriptors_see_the_background_only() -> None:
    tokens = torch.zeros(1, 49, 3)
    tokens[0, :, 2] = 1
    tokens[0, OBJECT] = torch.tensor([9.0, 0.0, 0.0])
    found = background_descriptors(tokens, spatial_gate(tokens), lambda x: x)
    assert found[0, 2] > 0.99
    tokens.requires_grad_()
    assert not background_descriptors(tokens, spatial_gate(tokens), lambda x: x).requires_grad


def test_pooling() -> None:
    tokens = torch.rand(2, 5, 3)
    torch.testing.assert_close(pool_places(tokens, torch.full((2, 5), 0.3)), tokens.mean(1))
    torch.testing.assert_close(pool_channels(tokens, torch.full((2, 3), 0.3)), tokens.mean(1))
    assert pool_places(tokens.bfloat16(), torch.rand(2, 5)).dtype == torch.float32
    assert torch.isfinite(pool_places(tokens, torch.zeros(2, 5))).all()
