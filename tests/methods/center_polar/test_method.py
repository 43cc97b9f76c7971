"""CenterPolar in a training step: what it adds, what it leaves alone, and what it remembers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import normalize

from proxemics.core.errors import LossError, TrainingError
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.base import Start
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation, angles_between
from proxemics.methods.center_polar.constraint import centripetal_constraint
from proxemics.methods.needs import check_batches
from proxemics.models.embedder import Embedder

EXPANDERS = ("generator", "style", "embedding", "none")
TRUNKS = [("test_resnet", "layer1"), ("test_vit", "block0")]
Model, TakeStep = Callable[..., Embedder], Callable[..., Any]


def gradients(run: Any, embedder: Embedder) -> dict[str, Tensor]:
    sum(run.terms.values()).backward()
    found = {name: p.grad.clone() for name, p in embedder.named_parameters() if p.grad is not None}
    embedder.zero_grad()
    return found


@pytest.mark.parametrize(("trunk", "layer"), TRUNKS)
@pytest.mark.parametrize("expander", EXPANDERS)
@pytest.mark.parametrize("centroid", ["ema", "batch", "joint"])
def test_a_step_is_finite_and_reaches_the_model(
    trunk: str,
    layer: str,
    expander: str,
    centroid: str,
    model: Model,
    take_step: TakeStep,
    images: Tensor,
    labels: Tensor,
) -> None:
    embedder = model(trunk)
    method = CenterPolar(5, 16, expander=expander, layer=layer, centroid=centroid)  # type: ignore[arg-type]
    run = take_step(embedder, [method], images, labels)
    names = {"base", "c4_pull", "c4_cls", "c4_sep"} | ({"c3e_base"} if expander != "none" else set())
    assert set(run.terms) == names
    assert all(torch.isfinite(value) and value.dtype == torch.float32 for value in run.terms.values())
    found = gradients(run, embedder)
    assert found
    assert all(torch.isfinite(value).all() for value in found.values())
    report = method.report()
    assert set(report) == (
        set()
        if expander == "none"
        else {"theta_clean", "theta_expanded", "theta_target", "theta_cap", "accuracy_expanded", "delta_max"}
    )
    assert all(math.isfinite(value) for value in report.values())
    torch.testing.assert_close(method.centroids[:4].norm(dim=1), torch.ones(4))


@pytest.mark.parametrize(
    "options",
    [
        {"expander": "none", "lambda_4": 0.0, "lambda_g": 0.0},
        {"expander": "none", "lambda_4": 0.0},
        *({"expander": e, "lambda_4": 0.0, "lambda_g": 0.0} for e in ("generator", "style", "embedding")),
    ],
)
def test_switched_off_it_is_the_base_run_bit_for_bit(
    options: dict[str, Any], model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    embedder = model()
    base = gradients(take_step(embedder, [], images, labels), embedder)
    method = CenterPolar(5, 16, **options)
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in method.state_dict().items()}
    run = take_step(embedder, [method], images, labels)
    assert set(run.terms) == {"base"}
    assert run.step.seen == []
    unused = torch.Generator().manual_seed(run.step.generator.initial_seed())
    assert torch.equal(run.step.generator.get_state(), unused.get_state())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    assert method.needs.stages == ()
    assert not method.needs.start
    found = gradients(run, embedder)
    assert all(torch.equal(value, base[name]) for name, value in found.items())


@pytest.mark.parametrize("expander", ["generator", "style"])
def test_views_leave_the_model_alone(
    expander: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    """No .grad, no running statistic, no training flag and no global random number is touched by the inner loop."""
    embedder = model()
    flags = {name: module.training for name, module in embedder.named_modules()}
    before = torch.get_rng_state()
    loss = build_loss("proxy_anchor", 5, 16, {}, generator=torch.Generator().manual_seed(0))
    method = CenterPolar(5, 16, expander=expander, inner_steps=2)  # type: ignore[arg-type]
    take_step(embedder, [method], images, labels, loss=loss)
    assert all(parameter.grad is None for parameter in [*embedder.parameters(), *loss.parameters()])
    assert {name: module.training for name, module in embedder.named_modules()} == flags
    assert torch.equal(torch.get_rng_state(), before)
    assert list(method.parameters()) == []


def test_terms_are_the_formulas(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    embedder, method = model(), CenterPolar(5, 16, lambda_4=0.3, lambda_g=0.7, lambda_s=2.0)
    loss = build_loss("norm_softmax", 5, 16, {}, generator=torch.Generator().manual_seed(0))
    run = take_step(embedder, [method], images, labels, loss=loss, look_back=False)
    step = run.step
    seen = step.seen[0]
    parts = centripetal_constraint(
        torch.cat([step.z, seen.z]), labels.repeat(2), method.centroids, known=method.centroids.any(1)
    )
    wanted = {
        "base": loss(step.raw, labels),
        "c3e_base": 0.7 * loss(seen.raw, labels),
        "c4_pull": 0.3 * parts.pull,
        "c4_cls": 0.3 * parts.cls,
        "c4_sep": 0.6 * parts.sep,
    }
    for name, value in wanted.items():
        torch.testing.assert_close(run.terms[name], value)


def test_embedding_expander_moves_to_the_target(
    model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    """On well separated centroids the mean expanded angle is the mean target, and accuracy is 1."""
    method = CenterPolar(5, 16, expander="embedding")
    embedder = model()
    run = take_step(embedder, [method], images, labels, begin=False, look_back=False, epoch=0)
    angle = torch.rand(5, 16, generator=torch.Generator().manual_seed(0))
    method.start(Start(angle, torch.arange(5), run.whole.loss, None))
    basis = torch.eye(16)[:5]
    method.centroids.copy_(basis)
    raw = normalize(basis[labels] + 0.1 * torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    step = run.step
    step.z = step.raw = raw.requires_grad_()
    step.epoch, step.seen = 1, []
    assert tuple(method.views(step)) == ()
    terms = method.terms(step)
    report = method.report()
    assert report["theta_expanded"] == pytest.approx(report["theta_target"], abs=1e-3)
    assert report["theta_clean"] + 10 < report["theta_expanded"] <= report["theta_cap"]
    assert report["accuracy_expanded"] == 1
    (gradient,) = torch.autograd.grad(sum(terms.values()), raw)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


@pytest.mark.parametrize("expander", ["generator", "style"])
def test_the_first_epoch_is_not_expanded(
    expander: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    method = CenterPolar(5, 16, expander=expander)  # type: ignore[arg-type]
    run = take_step(model(), [method], images, labels, epoch=0)
    assert run.step.seen == []
    assert set(run.terms) == {"base", "c4_pull", "c4_cls", "c4_sep"}
    assert method.report() == {}


def test_weights_alone(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    for options, wanted in (
        ({"lambda_g": 0.0}, {"base", "c4_pull", "c4_cls", "c4_sep"}),
        ({"lambda_4": 0.0}, {"base", "c3e_base"}),
        ({"lambda_s": 0.0}, {"base", "c3e_base", "c4_pull", "c4_cls"}),
    ):
        run = take_step(model(), [CenterPolar(5, 16, expander="style", **options)], images, labels)
        assert set(run.terms) == wanted
        assert len(run.step.seen) == 1


@pytest.mark.parametrize("mode", ["ema", "batch", "joint"])
def test_centroids_follow_what_the_mode_says(
    mode: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    method = CenterPolar(5, 16, centroid=mode, expander="style", momentum=0.8)  # type: ignore[arg-type]
    run = take_step(model(), [method], images, labels, look_back=False)
    before = method.centroids.clone()
    run.whole.look_back()
    z, seen = run.step.z, run.step.seen[0].z
    for k in range(4):
        rows = z[labels == k]
        if mode == "joint":
            rows = torch.cat([rows, seen[labels == k]])
        momentum = 0.0 if mode == "batch" else 0.8
        wanted = normalize(momentum * before[k] + (1 - momentum) * rows.mean(0), dim=0)
        torch.testing.assert_close(method.centroids[k], wanted)
    assert torch.equal(method.centroids[4], before[4])


def test_start_and_refresh_set_the_class_means(model: Model) -> None:
    method = CenterPolar(3, 16)
    raw, labels = torch.randn(12, 16, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    start = Start(raw, labels, torch.nn.Identity(), None)
    for call in (method.start, method.refresh):
        method.centroids.zero_()
        call(start)
        for k in range(3):
            wanted = normalize(normalize(raw[labels == k], dim=1).mean(0), dim=0)
            torch.testing.assert_close(method.centroids[k], wanted)


def test_reach_shrinks_after_an_epoch_of_lost_samples() -> None:
    method = CenterPolar(5, 16)
    for epoch, accuracy in ((1, 0.4), (1, 0.4), (1, 0.4)):
        method._judge(epoch, torch.tensor(accuracy))
        assert float(method.delta_max) == 0.5
    method._judge(2, torch.tensor(0.9))
    assert float(method.delta_max) == pytest.approx(0.45)
    method._judge(2, torch.tensor(0.2))
    method._judge(3, torch.tensor(0.2))
    assert float(method.delta_max) == pytest.approx(0.45)


@pytest.mark.parametrize("adaptive", [True, False])
def test_adaptive_rule_through_the_trainer(
    adaptive: bool, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    method = CenterPolar(5, 16, expander="style", adaptive=adaptive, lambda_sem=0.0)
    embedder = model()
    take_step(embedder, [method], images, labels, epoch=0)
    swapped = method.centroids[[1, 0, 3, 2, 4]].clone()
    for epoch, wanted in ((1, 0.5), (1, 0.5), (2, 0.45), (3, 0.405)):
        method.centroids.copy_(swapped)
        take_step(embedder, [method], images, labels, epoch=epoch, begin=False)
        assert method.report()["accuracy_expanded"] < 0.5
        assert method.report()["delta_max"] == pytest.approx(wanted if adaptive else 0.5)


@pytest.mark.parametrize("expander", ["generator", "style"])
def test_state_survives_a_checkpoint(
    expander: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    """Interrupted after a step and resumed, it takes the next one bit for bit."""
    embedder = model()
    one = CenterPolar(5, 16, expander=expander, pool=3)  # type: ignore[arg-type]
    for number in range(3):
        take_step(embedder, [one], images, labels, epoch=number + 1, seed=number, begin=number == 0)
    saved = save(one.state_dict())
    two = CenterPolar(5, 16, expander=expander, pool=3)  # type: ignore[arg-type]
    two.load_state_dict(load(saved))
    runs = [take_step(embedder, [m], images, labels, epoch=4, seed=9, begin=False) for m in (one, two)]
    for name, value in runs[0].terms.items():
        assert torch.equal(value, runs[1].terms[name])
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("expander", ["style", "embedding", "generator"])
def test_every_base_loss(
    name: str, expander: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    loss = build_loss(name, 5, 16, {}, generator=torch.Generator().manual_seed(0))
    embedder = model()
    run = take_step(embedder, [CenterPolar(5, 16, expander=expander)], images, labels, loss=loss)  # type: ignore[arg-type]
    found = gradients(run, embedder)
    assert all(torch.isfinite(value) for value in run.terms.values())
    assert all(torch.isfinite(value).all() for value in found.values())
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in loss.parameters())


@pytest.mark.parametrize("expander", EXPANDERS)
@pytest.mark.parametrize(
    "case", ["one class", "one picture of a class", "one picture", "duplicates", "one class in all"]
)
def test_odd_batches(
    expander: str, case: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    classes, begin = 5, True
    if case == "one class":
        labels = torch.full_like(labels, 2)
    if case == "one picture of a class":
        labels = torch.tensor([0, 1, 2, 3, 4, 0, 0, 0])
        begin = False
    if case == "one picture":
        images, labels, begin = images[:1], labels[:1], False
    if case == "duplicates":
        images = images[:1].expand(8, -1, -1, -1).contiguous()
    if case == "one class in all":
        classes, labels = 1, torch.zeros_like(labels)
    loss = build_loss("norm_softmax", classes, 16, {}, generator=torch.Generator().manual_seed(0))
    embedder = model()
    method = CenterPolar(classes, 16, expander=expander)  # type: ignore[arg-type]
    run = take_step(embedder, [method], images, labels, loss=loss, begin=begin)
    found = gradients(run, embedder)
    assert all(torch.isfinite(value) for value in run.terms.values())
    assert all(torch.isfinite(value).all() for value in found.values())
    assert all(math.isfinite(value) for value in method.report().values())
    assert torch.isfinite(method.centroids).all()


@pytest.mark.parametrize(("trunk", "layer"), TRUNKS)
@pytest.mark.parametrize("expander", ["generator", "style"])
def test_half_precision(
    trunk: str, layer: str, expander: str, model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    embedder = model(trunk)
    method = CenterPolar(5, 16, expander=expander, layer=layer, inner_steps=2)  # type: ignore[arg-type]
    run = take_step(embedder, [method], images, labels, autocast=True)
    assert all(torch.isfinite(value) and value.dtype == torch.float32 for value in run.terms.values())
    assert all(torch.isfinite(value).all() for value in gradients(run, embedder).values())
    assert {value.dtype for value in method.state_dict().values()} <= {torch.float32, torch.int64}


def test_style_works_while_the_trunk_is_frozen(
    model: Model, take_step: TakeStep, images: Tensor, labels: Tensor
) -> None:
    embedder = model()
    for parameter in embedder.trunk_parameters():
        parameter.requires_grad_(False)
    run = take_step(embedder, [CenterPolar(5, 16, expander="style")], images, labels)
    assert set(gradients(run, embedder)) == {"head.weight", "head.bias"}


def test_style_raises_the_mean_angle(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    """With centroids at the clean embeddings of one picture a class, all gain from moving away."""
    embedder, method = model(), CenterPolar(8, 16, expander="style", inner_steps=3, margin_s=0.0, lambda_sem=0.0)
    loss = build_loss("norm_softmax", 8, 16, {})
    take_step(embedder, [method], images, torch.arange(8), loss=loss)
    report = method.report()
    assert report["theta_target"] > report["theta_clean"]
    assert report["theta_expanded"] > report["theta_clean"]


def test_two_methods_side_by_side(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    """A second method does not change the numbers of the first."""
    embedder = model()
    alone = take_step(embedder, [CenterPolar(5, 16)], images, labels)
    both = take_step(embedder, [CenterPolar(5, 16), ExpansionEqualisation(5, 16)], images, labels)
    assert alone.step.seen[0].z.equal(both.step.seen[0].z)
    assert angles_between(alone.step.z, both.step.z).max() == 0


def test_needs(model: Model, take_step: TakeStep, images: Tensor, labels: Tensor) -> None:
    with pytest.raises(TrainingError, match=r"needs frozen batch normalisation; set model\.freeze_bn=true"):
        take_step(model(freeze_bn=False), [CenterPolar(5, 16)], images, labels)
    take_step(model(freeze_bn=False), [CenterPolar(5, 16, expander="embedding")], images, labels)
    with pytest.raises(TrainingError, match=r"needs 4 pictures of a class in a batch and train\.per_class=2"):
        check_batches(CenterPolar(5, 16, centroid="batch"), per_class=2, num_domains=1)
    check_batches(CenterPolar(5, 16), per_class=0, num_domains=1)
    assert CenterPolar(5, 16, centroid="joint").needs.refresh_epochs == 0
    with pytest.raises(LossError, match="has 4 classes and dimension 16, but CenterPolar was built with 5 and 16"):
        CenterPolar(5, 16).check(build_loss("norm_softmax", 4, 16, {}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expander": "styles"}, "Did you mean 'style'"),
        ({"centroid": "mean"}, "centroid='mean': use ema or batch or joint"),
        ({"margin_c": -0.3}, r"margin_c=-0\.3 cannot be met: some pair of 5 centroids has a cosine of -0\.25 or more"),
        ({"tau_c": 0.0}, "tau_c must be a finite number above 0, got 0.0"),
        ({"mix": 1.5}, "mix must be"),
        ({"inner_steps": 0}, "inner_steps must be a whole number of at least 1"),
        ({"lambda_4": -1.0}, "lambda_4 must be"),
        ({"phi_max_deg": 200.0}, "phi_max_deg must be"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LossError, match=message):
        CenterPolar(5, 16, **options)
