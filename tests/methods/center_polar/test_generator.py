"""The generator: its filters against convolutions, its pictures, its learning and its memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from proxemics.core.errors import LossError
from proxemics.methods.base import Step
from proxemics.methods.center_polar import CenterPolar
from proxemics.methods.center_polar.expansion_loss import expansion_loss
from proxemics.methods.center_polar.filters import draw_kernels, filter_parts, filtered, instance_norm
from proxemics.methods.center_polar.generator import KERNELS, expand_pictures, initial_psi, render, respond, valid_range
from proxemics.methods.center_polar.geodesic import angles_between
from proxemics.methods.center_polar.learner import GeneratorLearner
from proxemics.models.embedder import Embedder


def convolved(images: Tensor, kernels: Tensor) -> Tensor:
    border = kernels.shape[-1] // 2
    padded = functional.pad(images, (border,) * 4, mode="replicate")
    return functional.conv2d(padded, kernels.flip(-1, -2))


@pytest.mark.parametrize("size", KERNELS)
@pytest.mark.parametrize("shape", [(20, 33), (8, 8)])
def test_filters_are_convolutions(size: int, shape: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    kernels, _ = draw_kernels(size, torch.Generator().manual_seed(1))
    torch.testing.assert_close(filtered(x, kernels), convolved(x, kernels), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(filter_parts(x, kernels).sum(2), convolved(x, kernels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("branch", range(4))
def test_pictures_by_hand(branch: int, images: Tensor) -> None:
    """Filter, instance norm, affine, filter back, tanh, mix: in the plain order."""
    psi = torch.tensor([[1.2, 0.8, 1.0], [0.3, 0.4, 0.5], [0.1, -0.1, 0.2], [0.2, 0.2, 0.1]])
    noise = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(3))
    black, white = torch.full((3, 1, 1), -2.5), torch.full((3, 1, 1), 2.7)
    found = render(respond(images, branch, torch.Generator().manual_seed(2)), psi, noise, (black, white))
    first, second = draw_kernels(KERNELS[branch], torch.Generator().manual_seed(2))
    scale, shift = psi[0] + psi[1] * noise[:, 0], psi[2] + psi[3] * noise[:, 1]
    affine = scale[..., None, None] * instance_norm(convolved(images, first)) + shift[..., None, None]
    look = torch.tanh(convolved(affine, second))
    wanted = 0.6 * (black + (white - black) * (look + 1) / 2) + 0.4 * images
    torch.testing.assert_close(found, wanted.maximum(black).minimum(white), rtol=1e-4, atol=1e-4)


def test_pictures_stay_valid_and_near_or_far_by_the_mix(images: Tensor, model: Callable[..., Embedder]) -> None:
    preprocess = model().preprocess
    black, white = valid_range(preprocess, images)
    psi = initial_psi() * 5
    for seed in range(5):
        made = expand_pictures(images, psi, preprocess, torch.Generator().manual_seed(seed))
        assert made.shape == images.shape
        assert (made >= black).all()
        assert (made <= white).all()
    same = expand_pictures(images, psi, preprocess, torch.Generator().manual_seed(0), mix=0.0)
    torch.testing.assert_close(same, images.maximum(black).minimum(white))
    grey = torch.tensor([[[0.0]], [[0.0]], [[0.0]]])
    assert torch.allclose(
        valid_range(preprocess, grey)[0] * torch.tensor(preprocess.std)[:, None, None],
        -torch.tensor(preprocess.mean)[:, None, None],
    )


def make_step(embedder: Embedder, images: Tensor, labels: Tensor, seed: int, epoch: int = 1) -> Step:
    with torch.no_grad():
        encoded, features = embedder.encode_with(images, ["pixel"])
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
        epoch=epoch,
        progress=0.9,
        generator=torch.Generator().manual_seed(seed),
    )


def mean_angle(learner: GeneratorLearner, embedder: Embedder, images: Tensor, centroids: Tensor) -> float:
    angles = []
    for seed in range(16):
        made = learner.pictures(images, embedder.preprocess, torch.Generator().manual_seed(100 + seed))
        with torch.no_grad():
            angles.append(angles_between(embedder(made), centroids).mean())
    return float(torch.stack(angles).mean())


def test_fifty_steps_raise_the_mean_angle_toward_the_target(
    model: Callable[..., Embedder], images: Tensor, labels: Tensor
) -> None:
    """ψ learns to move away from the clean embeddings on a frozen model, which gets no gradient."""
    embedder = model().eval()
    learner = GeneratorLearner(steps=1, rate=0.05, lambda_div=0.0, mix=0.6, pool=3)
    with torch.no_grad():
        centroids = embedder(images)
    own, targets = torch.arange(8), torch.full((8,), 0.5)
    before = mean_angle(learner, embedder, images, centroids)
    state = {name: value.clone() for name, value in embedder.state_dict().items()}
    for seed in range(50):
        step = make_step(embedder, images, labels, seed)
        learner.view(step, lambda z, rows: expansion_loss(z, own[rows], centroids, targets[rows], lambda_sem=0.0))
    after = mean_angle(learner, embedder, images, centroids)
    assert after > before * 1.1
    assert all(parameter.grad is None for parameter in embedder.parameters())
    assert all(torch.equal(value, state[name]) for name, value in embedder.state_dict().items())


def test_only_the_drawn_kernel_size_learns_and_counts(
    model: Callable[..., Embedder], images: Tensor, labels: Tensor
) -> None:
    learner = GeneratorLearner(steps=2, rate=1e-3, lambda_div=0.1, mix=0.6, pool=2)
    learner.view(make_step(model(), images, labels, 0), lambda z, _: z[:, 0].mean())
    assert sorted(learner.counts.tolist()) == [0, 0, 0, 2]
    branch = int(learner.counts.argmax())
    moved = (learner.psi != initial_psi()).flatten(1).any(1)
    assert moved.tolist() == [number == branch for number in range(4)]
    assert float((learner.psi - initial_psi()).abs().max()) <= 2.1e-3


def test_gradient_of_psi_is_the_slope_of_what_is_minimised(
    model: Callable[..., Embedder], images: Tensor, labels: Tensor
) -> None:
    """Central differences through pictures, a smooth model and diversity, with every draw held still."""
    embedder = model("test_vit").eval()
    learner = GeneratorLearner(steps=1, rate=1e-3, lambda_div=0.1, mix=0.6, pool=1)
    step = make_step(embedder, images, labels, 0)
    responses = respond(images, 1, torch.Generator().manual_seed(1))
    black, white = valid_range(embedder.preprocess, images)
    goal = functional.normalize(torch.randn(16, generator=torch.Generator().manual_seed(2)), dim=0)
    step.generator.manual_seed(5)
    found = learner._gradient(step, lambda z, _: (z @ goal).mean(), responses, 1, (black, white))
    step.generator.manual_seed(5)
    one, other = (torch.randn(8, 2, 3, generator=step.generator) for _ in range(2))

    def value(psi: Tensor) -> Tensor:
        made, again = (render(responses, psi, noise, (black, white))[::2] for noise in (one, other))
        with torch.no_grad():
            z = embedder(made)
        return (z @ goal).mean() - 0.1 * ((made - again).abs() / (white - black)).mean()

    for index in ((0, 0), (1, 1), (2, 2), (3, 0)):
        nudge = torch.zeros(4, 3)
        nudge[index] = 0.004
        psi = learner.psi[1]
        slope = (value(psi + nudge) - value(psi - nudge)) / 0.008
        assert float(found[index]) == pytest.approx(float(slope), rel=0.02, abs=8e-4)


def test_the_pool_keeps_the_psi_of_earlier_epochs(
    model: Callable[..., Embedder], images: Tensor, labels: Tensor
) -> None:
    embedder, learner = model(), GeneratorLearner(steps=1, rate=0.01, lambda_div=0.1, mix=0.6, pool=3)
    ends = []
    for epoch in range(1, 6):
        for number in range(2):
            step = make_step(embedder, images, labels, 10 * epoch + number, epoch)
            learner.view(step, lambda z, _: z[:, 0].mean())
        ends.append(learner.psi.clone())
        assert int(learner.used) == min(epoch, 3)
    assert torch.equal(learner.pool, torch.stack([ends[4], ends[3], ends[2]]))


def test_a_gradient_that_is_not_finite_moves_nothing(
    model: Callable[..., Embedder], images: Tensor, labels: Tensor
) -> None:
    learner = GeneratorLearner(steps=1, rate=0.01, lambda_div=0.0, mix=0.6, pool=1)
    learner.view(make_step(model(), images, labels, 0), lambda z, _: (z * float("nan")).sum())
    assert torch.equal(learner.psi, initial_psi())


def test_pictures_for_the_report(images: Tensor, model: Callable[..., Embedder]) -> None:
    preprocess = model().preprocess
    method = CenterPolar(5, 16)
    once, again = (method.expand_pictures(images, preprocess, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(once, again)
    assert (once - images).abs().mean() > 0.1
    with pytest.raises(LossError, match="expander='style' makes no pictures; use expander='generator'"):
        CenterPolar(5, 16, expander="style").expand_pictures(images, preprocess, torch.Generator())
