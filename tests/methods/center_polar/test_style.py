"""Expansion of feature statistics: the map, the gradient without a pass, and the ascent."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from proxemics.methods.base import Step
from proxemics.methods.center_polar.style import expand_style, gradient_at_rest, restyle, sign_step
from proxemics.models.embedder import Embedder


def maps(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_at_rest_it_is_the_identity() -> None:
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    torch.testing.assert_close(restyle(maps(), nothing, nothing), maps(), rtol=0, atol=1e-15)


def test_means_and_deviations_are_the_ones_asked_for() -> None:
    f, shift = maps(), torch.linspace(-0.5, 0.5, 12, dtype=torch.float64).view(3, 4)
    log_scale = shift.flip(1)
    found = restyle(f, shift, log_scale)
    mean, deviation = f.mean((2, 3)), f.std((2, 3), correction=0)
    torch.testing.assert_close(found.mean((2, 3)), mean + deviation * shift)
    torch.testing.assert_close(found.std((2, 3), correction=0), deviation * log_scale.exp())


def test_gradients_at_rest_are_those_of_autograd() -> None:
    f, weights = maps(), torch.randn(3, 4, 5, 6, dtype=torch.float64)
    shift, log_scale = (torch.zeros(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    value = (weights * restyle(f, shift, log_scale).sin()).sum()
    wanted = torch.autograd.grad(value, (shift, log_scale))
    for found, expected in zip(gradient_at_rest(f, weights * f.cos()), wanted, strict=True):
        torch.testing.assert_close(found, expected)


def test_sign_steps_stay_within_the_budget_and_bear_nan() -> None:
    delta, gradient = torch.zeros(4), torch.tensor([1.0, -1.0, 0.0, float("nan")])
    for _ in range(9):
        delta = sign_step(delta, gradient, size=0.1, budget=0.5)
    torch.testing.assert_close(delta, torch.tensor([-0.5, 0.5, 0.0, 0.0]))


def make_step(embedder: Embedder, images: Tensor, stage: str) -> Step:
    encoded, features = embedder.encode_with(images, [stage])
    labels = torch.zeros(len(images), dtype=torch.int64)
    return Step(
        z=encoded.unit,
        raw=encoded.raw,
        tokens=encoded.tokens,
        grid=encoded.grid,
        features=features,
        labels=labels,
        domains=labels,
        loss=torch.nn.Identity(),
        embedder=embedder,
        epoch=1,
        progress=0.5,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize(("trunk", "stage"), [("test_resnet", "layer1"), ("test_vit", "block0")])
def test_the_graph_of_the_clean_pass_serves_the_first_step(
    trunk: str, stage: str, model: Callable[..., Embedder], images: Tensor
) -> None:
    """Signs are those of a pass of its own, except where the gradient is next to nothing."""
    step = make_step(model(trunk), images, stage)
    goal = torch.nn.functional.normalize(torch.randn(16, generator=torch.Generator().manual_seed(1)), dim=0)
    options = {"steps": 1, "size": 0.1, "budget": 0.5}

    def objective(z: Tensor) -> Tensor:
        return -(z @ goal).mean()

    features = step.features[stage]
    _, quick = expand_style(step, features, objective, **options)  # type: ignore[arg-type]
    alone = replace(features, value=features.value.detach())
    _, slow = expand_style(step, alone, objective, **options)  # type: ignore[arg-type]
    for one, other in zip(quick, slow, strict=True):
        assert (one == other).float().mean() > 0.99
        assert one.abs().max() == pytest.approx(0.1)


@pytest.mark.parametrize(("trunk", "stage"), [("test_resnet", "layer1"), ("test_vit", "block0")])
@pytest.mark.parametrize("steps", [1, 3])
def test_ascent_raises_what_is_asked_for(
    trunk: str, stage: str, steps: int, model: Callable[..., Embedder], images: Tensor
) -> None:
    embedder = model(trunk)
    step = make_step(embedder, images, stage)
    goal = step.z.detach().mean(0)
    styled, delta = expand_style(
        step, step.features[stage], lambda z: (z @ goal).mean(), steps=steps, size=0.1, budget=0.25
    )
    assert not styled.value.requires_grad
    assert max(float(part.abs().max()) for part in delta) <= 0.25
    after, _ = embedder.encode_from(styled)
    assert float((after.unit @ goal).detach().mean()) < float((step.z @ goal).detach().mean())
    assert all(parameter.grad is None for parameter in embedder.parameters())


def test_class_and_register_tokens_are_left_alone(model: Callable[..., Embedder], images: Tensor) -> None:
    step = make_step(model("test_vit"), images, "block0")
    features = step.features["block0"]
    styled, _ = expand_style(step, features, lambda z: z[:, 0].mean(), steps=1, size=0.1, budget=0.5)
    front = features.value.shape[1] - features.as_map().flatten(2).shape[2]
    assert front >= 1
    assert torch.equal(styled.value[:, :front], features.value[:, :front])
    assert not torch.equal(styled.value[:, front:], features.value[:, front:])
