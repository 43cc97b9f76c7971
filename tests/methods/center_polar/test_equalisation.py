"""The baseline: its two alignments, its place in a step, and where its samples end up."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.losses.build import build_loss
from proxemics.methods.base import Step
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation, angles_between
from proxemics.methods.center_polar.equalisation import divergence, mean_gap
from proxemics.models.embedder import Embedder

Model, TakeStep = Callable[..., Embedder], Callable[..., Any]
SIMILARITIES = torch.tensor(
    [[8 / 9, 1 / 9, 7 / 9], [7 / 9, 8 / 9, 0], [11 / 15, 2 / 15, 14 / 15], [1 / 9, 0, 8 / 9]], dtype=torch.float64
)


def test_divergence_worked_value_and_gradient() -> None:
    logits = (SIMILARITIES / 0.1).requires_grad_()
    other = logits.detach()[[2, 1, 0, 3]].requires_grad_()
    value = divergence(logits, other)
    assert float(value.detach()) == pytest.approx(0.4922865730, abs=1e-10)
    mine, theirs = torch.autograd.grad(value, (logits, other))
    torch.testing.assert_close(mine, ((logits.softmax(1) - other.softmax(1)) / 8).detach())
    torch.testing.assert_close(theirs, -mine)
    same = divergence(logits, logits.detach())
    assert float(same.detach()) == 0


def test_mean_gap_by_hand() -> None:
    z, other = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    y = torch.tensor([0, 0, 4, 4, 4, 1, 1])
    wanted = torch.stack([(z[y == k].mean(0) - other[y == k].mean(0)).square().sum() for k in (0, 1, 4)]).mean()
    torch.testing.assert_close(mean_gap(z, other, y), wanted)
    assert torch.autograd.gradcheck(lambda a, b: mean_gap(a, b, y), (z.requires_grad_(), other.requires_grad_()))


@pytest.mark.parametrize("align", ["mean", "kl"])
@pytest.mark.parametrize("name", ["proxy_anchor", "soft_triple", "potential_field", "proxy_nca"])
def test_a_step(align: str, name: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    embedder, method = model(), ExpansionEqualisation(5, 16, align=align)  # type: ignore[arg-type]
    loss = build_loss(name, 5, 16, {}, generator=torch.Generator().manual_seed(0))
    run = take_step(embedder, [method], images, labels, loss=loss)
    assert set(run.terms) == {"base", "expansion", "equalisation"}
    assert all(parameter.grad is None for parameter in [*embedder.parameters(), *loss.parameters()])
    sum(run.terms.values()).backward()
    assert all(torch.isfinite(value) for value in run.terms.values())
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in [*embedder.parameters(), *loss.parameters()])
    assert set(method.report()) == {"theta_clean", "theta_expanded"}
    assert int(method.learner.counts.sum()) == 1


def test_off_and_before_its_epoch(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    for options, epoch in (({"lambda_e": 0.0, "lambda_g": 0.0}, 5), ({}, 0)):
        method = ExpansionEqualisation(5, 16, **options)  # type: ignore[arg-type]
        run = take_step(model(), [method], images, labels, epoch=epoch)
        assert set(run.terms) == {"base"}
        assert run.step.seen == []
        assert int(method.learner.counts.sum()) == 0
    assert ExpansionEqualisation(5, 16, lambda_e=0.0, lambda_g=0.0).needs.stages == ()


def test_it_stays_nearer_to_the_centres_than_c3e(model: Model, pictures: Callable[..., Tensor]) -> None:
    """Forty steps on a frozen model, a class for every picture: the proxies hold samples back, C3E sends them out."""
    embedder, count = model().eval(), 16
    images, labels = pictures(count), torch.arange(count)
    with torch.no_grad():
        encoded, features = embedder.encode_with(images, ["pixel"])
    centroids = encoded.unit
    loss = build_loss("norm_softmax", count, 16, {})
    loss.set_class_means(centroids, labels)  # type: ignore[operator]
    mine = CenterPolar(count, 16, inner_lr=0.05, lambda_div=0.0, lambda_sem=0.0, margin_s=0.0, pool=1)
    mine.centroids.copy_(centroids)
    theirs = ExpansionEqualisation(count, 16, inner_lr=0.05, lambda_div=0.0, pool=1)

    def angle(method: CenterPolar | ExpansionEqualisation) -> float:
        found = []
        for seed in range(12):
            made = method.expand_pictures(images, embedder.preprocess, torch.Generator().manual_seed(1000 + seed))
            with torch.no_grad():
                found.append(angles_between(embedder(made), centroids).mean())
        return float(torch.stack(found).mean())

    before = angle(mine)
    assert angle(theirs) == before
    for method in (mine, theirs):
        for seed in range(40):
            step = Step(
                z=encoded.unit,
                raw=encoded.raw,
                tokens=encoded.tokens,
                grid=encoded.grid,
                features=features,
                labels=labels,
                domains=labels,
                loss=loss,
                embedder=embedder,
                epoch=1,
                progress=0.9,
                generator=torch.Generator().manual_seed(seed),
            )
            method.views(step)
    assert angle(theirs) < before < angle(mine)


def test_kl_needs_a_proxy_loss() -> None:
    method = ExpansionEqualisation(5, 16, align="kl")
    assert method.needs.proxies
    with pytest.raises(LossError, match="MultiSimilarity has none: use 'mean'"):
        method.check(build_loss("multi_similarity", 5, 16, {}))
    ExpansionEqualisation(5, 16).check(build_loss("multi_similarity", 5, 16, {}))
    with pytest.raises(LossError, match="align='median': use mean or kl"):
        ExpansionEqualisation(5, 16, align="median")  # type: ignore[arg-type]
