"""Probabilistic proxies as a method: the loss it adds, its parameters, its limits, and what it must leave alone."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.losses import NormSoftmax, ProxyAnchor, SoftTriple
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.base import Start, Step
from proxemics.methods.probabilistic import (
    ProbabilisticProxies,
    b_vmf,
    el_nivmf,
    el_vmf,
    kl_vmf,
    l2_similarity,
    nivmf_log_density,
    released_proxy_anchor,
    vmf_log_density,
)
from proxemics.methods.probabilistic.criterion import SETTINGS

DISTANCES = tuple(SETTINGS)
WITH_PROXIES = [name for name in LOSSES if hasattr(build_loss(name, 3, 4), "proxies")]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_step(raw: Tensor, labels: Tensor, loss: nn.Module, *, seed: int = 0) -> Step:
    return Step(
        z=torch.nn.functional.normalize(raw, dim=-1),
        raw=raw,
        tokens=raw[:, None],
        labels=labels,
        domains=torch.zeros_like(labels),
        loss=loss,
        epoch=0,
        progress=0.0,
        generator=generator(seed),
    )


def batch(size: int = 12, dim: int = 16, classes: int = 5, scale: float = 5.0) -> tuple[Tensor, Tensor]:
    return torch.randn(size, dim, generator=generator(1)) * scale, torch.arange(size) % classes


def build(distance: str = "el-nivmf", classes: int = 5, dim: int = 16, **options: object) -> ProbabilisticProxies:
    return ProbabilisticProxies(classes, dim, distance=distance, **options)  # type: ignore[arg-type]


def vary(method: ProbabilisticProxies) -> None:
    """Make the concentrations of the classes differ."""
    if method.distance != "cos":
        with torch.no_grad():
            method.kappa.mul_(0.5 + torch.rand(method.kappa.shape, generator=generator(3)))


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", DISTANCES)
def test_loss_is_the_softmax_of_its_similarity(distance: str, worked: SimpleNamespace) -> None:
    """Every distance on the worked case in float64, against its public function."""
    method = build(distance, 3, 3, temperature=0.7, num_samples=4, concentration=2.0).double()
    vary(method)
    loss = NormSoftmax(3, 3).double()
    with torch.no_grad():
        loss.proxies.copy_(worked.proxies)
    found = method.terms(make_step(worked.raw, worked.labels, loss))["probabilistic"]
    kappa = method.kappa.detach() if distance != "cos" else None
    similarity = {
        "cos": lambda: worked.cosines,
        "l2": lambda: l2_similarity(worked.cosines, worked.kappa_z, kappa),
        "vmf": lambda: vmf_log_density(worked.cosines, kappa, 3),
        "nivmf": lambda: nivmf_log_density(worked.z, worked.proxies, kappa),
        "el-vmf": lambda: el_vmf(worked.cosines, worked.kappa_z, kappa, 3),
        "b-vmf": lambda: b_vmf(worked.cosines, worked.kappa_z, kappa, 3),
        "kl-vmf": lambda: kl_vmf(worked.cosines, worked.kappa_z, kappa, 3),
        "el-nivmf": lambda: (
            0.7 * el_nivmf(worked.raw, worked.proxies, kappa, num_samples=4, temperature=0.7, generator=generator())
        ),
    }[distance]()
    own = similarity.gather(1, worked.labels[:, None])[:, 0]
    wanted = (torch.logsumexp(similarity / 0.7, 1) - own / 0.7).mean()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_reach_embeddings_directions_concentrations_and_temperature(distance: str) -> None:
    raw, labels = batch()
    raw.requires_grad_()
    loss, method = ProxyAnchor(5, 16, generator=generator()), build(distance)
    method.terms(make_step(raw, labels, loss))["probabilistic"].backward()
    for values in (raw, loss.proxies, *method.parameters()):
        assert torch.isfinite(values.grad).all()
        assert values.grad.abs().max() > 0


@pytest.mark.parametrize("distance", DISTANCES)
def test_what_the_length_of_an_embedding_changes(distance: str) -> None:
    """Twice as long: other logits for all that know the length; the same for Cos, vMF and nivMF of points."""
    raw, _ = batch()
    method, directions = build(distance), torch.randn(5, 16, generator=generator(2))
    vary(method)
    short, long = (torch.log_softmax(method.logits(raw * f, directions, generator()), -1) for f in (1, 2))
    if distance in ("cos", "vmf", "nivmf"):
        torch.testing.assert_close(short, long, rtol=1e-4, atol=2e-4)
    else:
        assert (short - long).abs().max() > 1e-3


@pytest.mark.parametrize("distance", DISTANCES)
def test_length_of_directions_does_not_matter(distance: str) -> None:
    raw, _ = batch()
    method, directions = build(distance), torch.randn(5, 16, generator=generator(2))
    one = torch.log_softmax(method.logits(raw, directions, generator()), -1)
    torch.testing.assert_close(
        torch.log_softmax(method.logits(raw, 7 * directions, generator()), -1), one, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("distance", [d for d in DISTANCES if d != "el-nivmf"])
def test_order_of_classes_and_images_does_not_matter(distance: str) -> None:
    raw, labels = batch()
    loss, method = NormSoftmax(5, 16, generator=generator()), build(distance)
    vary(method)
    value = method.terms(make_step(raw, labels, loss))["probabilistic"]
    rows, classes = torch.randperm(12, generator=generator()), torch.randperm(5, generator=generator())
    with torch.no_grad():
        loss.proxies.copy_(loss.proxies[classes].clone())
        if distance != "cos":
            method.kappa.copy_(method.kappa[classes].clone())
    again = method.terms(make_step(raw[rows], torch.argsort(classes)[labels[rows]], loss))["probabilistic"]
    torch.testing.assert_close(again, value, rtol=1e-4, atol=1e-5)


def test_several_proxies_form_a_mixture() -> None:
    """Our reading for (C, K, M): the mean of the K densities; equal proxies are like one."""
    raw, _ = batch()
    one, three = build("vmf", temperature=1.0), build("vmf", num_proxies=3, temperature=1.0)
    directions = torch.randn(5, 16, generator=generator(2))
    same = directions[:, None].expand(-1, 3, -1)
    torch.testing.assert_close(three.logits(raw, same), one.logits(raw, directions))
    different = torch.randn(5, 3, 16, generator=generator(2))
    parts = torch.stack([one.logits(raw, different[:, k]) for k in range(3)], -1)
    torch.testing.assert_close(three.logits(raw, different), torch.logsumexp(parts, -1) - math.log(3))


# --- together with a base loss ----------------------------------------------------------------------------------------


def test_omega_weighs_the_base_loss() -> None:
    assert build(omega=5.0).base_weight == 5
    assert build(omega=0.0).base_weight == 0
    assert build(omega=5.0, guidance="released").base_weight == 0
    assert build(weight=0.0, omega=5.0).base_weight == 1


def test_between_omega_zero_and_infinity() -> None:
    """L / ω tends to the base loss; ω = 0 is the probabilistic loss alone."""
    raw, labels = batch()
    loss = ProxyAnchor(5, 16, generator=generator())
    base, alone = loss(raw, labels), build().terms(make_step(raw, labels, loss))["probabilistic"]

    def total(omega: float) -> Tensor:
        method = build(omega=omega)
        return method.base_weight * base + sum(method.terms(make_step(raw, labels, loss)).values())

    torch.testing.assert_close(total(0.0), alone)
    torch.testing.assert_close(total(1e9) / 1e9, base, rtol=1e-4, atol=1e-4)


def test_released_guide_takes_the_place_of_the_base_loss() -> None:
    raw, labels = batch()
    loss = NormSoftmax(5, 16, generator=generator())
    terms = build(omega=0.3, guidance="released").terms(make_step(raw, labels, loss))
    torch.testing.assert_close(terms["guidance"], 0.3 * released_proxy_anchor(raw, labels, proxies=loss.proxies))
    assert set(build(omega=0.0, guidance="released").terms(make_step(raw, labels, loss))) == {"probabilistic"}


def test_switched_off_it_adds_nothing_and_draws_nothing() -> None:
    raw, labels = batch()
    method, loss, head = build(weight=0.0), ProxyAnchor(5, 16), nn.Linear(16, 16)
    step, before = make_step(raw, labels, loss), [p.detach().clone() for p in (*loss.parameters(), *head.parameters())]
    state = step.generator.get_state()
    assert method.terms(step) == {}
    assert torch.equal(step.generator.get_state(), state)
    assert not method.needs.start
    method.start(Start(raw=raw, labels=labels, loss=loss, head=head))
    assert all(torch.equal(a, b) for a, b in zip(before, (*loss.parameters(), *head.parameters()), strict=True))


def test_draws_come_from_the_generator_of_the_step() -> None:
    raw, labels = batch()
    loss, method, state = ProxyAnchor(5, 16, generator=generator()), build(), torch.get_rng_state()
    values = [method.terms(make_step(raw, labels, loss, seed=seed))["probabilistic"] for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", WITH_PROXIES)
@pytest.mark.parametrize("distance", ["el-vmf", "el-nivmf"])
@pytest.mark.parametrize("kind", ["plain", "one class", "duplicates", "zero vectors", "huge", "at the proxies"])
def test_finite_on_every_proxy_loss(name: str, distance: str, kind: str) -> None:
    loss = build_loss(name, 5, 16, generator=generator())
    method = build(distance, num_proxies=loss.proxies.shape[1] if loss.proxies.ndim == 3 else 1)
    raw, labels = batch()
    method.check(loss)
    if kind == "one class":
        labels = torch.zeros_like(labels)
    if kind == "duplicates":
        raw = raw[:1].expand(12, -1).clone()
    if kind == "zero vectors":
        raw = torch.zeros_like(raw)
    if kind == "huge":
        raw = raw * 1e5
    if kind == "at the proxies":
        raw = 18 * loss.proxies.detach().reshape(5, -1, 16)[labels, 0].clone()
    raw.requires_grad_()
    term = method.terms(make_step(raw, labels, loss))["probabilistic"]
    term.backward()
    for values in (term, raw.grad, loss.proxies.grad, *(p.grad for p in method.parameters())):
        assert torch.isfinite(values).all()


@pytest.mark.parametrize("distance", DISTANCES)
def test_autocast_and_half_precision_are_computed_in_float32(distance: str) -> None:
    raw, labels = batch()
    loss, method = ProxyAnchor(5, 16, generator=generator()), build(distance)
    value = method.terms(make_step(raw, labels, loss))["probabilistic"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(method.terms(make_step(raw, labels, loss))["probabilistic"], value)
    assert method.terms(make_step(raw.bfloat16(), labels, loss))["probabilistic"].dtype == torch.float32


# --- parameters and start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "shape"), [("el-vmf", (15,)), ("l2", (15,)), ("nivmf", (15, 16)), ("el-nivmf", (15, 16))]
)
def test_parameters_and_their_rates(distance: str, shape: tuple[int, ...]) -> None:
    method = build(distance, num_proxies=3)
    assert {name: tuple(p.shape) for name, p in method.named_parameters()} == {"kappa": shape, "log_temperature": ()}
    temperature, concentration, _ = SETTINGS[distance]
    assert method.temperature.item() == pytest.approx(temperature)
    assert (method.concentrations() == concentration).all()
    assert method.rates() == {"kappa": 4.0, "log_temperature": 0.04}


def test_defaults_of_the_release() -> None:
    method = ProbabilisticProxies(5, 16)
    facts = (method.distance, method.omega, method.num_samples, method.concentration, method.norm_multiplier)
    assert facts == ("el-nivmf", 5.0, 5, 18.0, 50.0)
    assert method.temperature.item() == pytest.approx(0.003)
    assert (method.stretch.det, method.stretch.stretch_sample, method.stretch.inner) == ("released", True, True)
    assert (method.sampler, method.normalizer, method.kappa_floor) == ("stable", "debye", 0.1)


def test_the_cosine_has_no_concentration_and_a_fixed_temperature_does_not_learn() -> None:
    method = build("cos", learn_temperature=False)
    assert [name for name, p in method.named_parameters() if p.requires_grad] == []
    assert method.rates() == {"log_temperature": 0.04}


def test_own_directions_need_no_proxies() -> None:
    raw, labels = batch()
    torch.manual_seed(0)  # the directions are drawn from the global generator
    method = build(share_directions=False, omega=0.0)
    assert not method.needs.proxies
    terms = method.terms(make_step(raw, labels, nn.Module()))
    terms["probabilistic"].backward()
    assert method.directions.shape == (5, 1, 16)
    assert method.directions.grad.abs().max() > 0
    # Xavier-normal with the concentration as its gain.
    assert method.directions.std().item() == pytest.approx(18 * math.sqrt(2 / 21), rel=0.25)


def test_temperature_and_concentrations_stay_positive_whatever_the_optimiser_does() -> None:
    raw, labels = batch()
    loss, method = ProxyAnchor(5, 16, generator=generator()), build("el-vmf")
    optimizer = torch.optim.SGD(method.parameters(), lr=3.0)
    for _ in range(5):
        optimizer.zero_grad()
        method.terms(make_step(raw, labels, loss))["probabilistic"].backward()
        torch.nn.utils.clip_grad_value_(method.parameters(), 1.0)
        optimizer.step()
        assert (method.concentrations() >= 0.1).all()
        assert method.temperature > 0
    assert all(torch.isfinite(p).all() for p in method.parameters())


def test_start_scales_the_head_and_points_to_the_class_means() -> None:
    features, labels = batch()
    head, loss, method = nn.Linear(16, 16), ProxyAnchor(5, 16), build()
    raw = head(features).detach()
    assert method.needs.start
    method.start(Start(raw=raw, labels=labels, loss=loss, head=head))
    torch.testing.assert_close(head(features), 50 * raw, rtol=1e-4, atol=1e-4)
    for c in range(5):
        mean = raw[labels == c].mean(0)
        torch.testing.assert_close(loss.proxies[c].detach(), 18 * mean / mean.norm())


def test_start_can_scale_to_a_wanted_length() -> None:
    features, labels = batch()
    head, loss = nn.Linear(16, 16), ProxyAnchor(5, 16)
    before = loss.proxies.detach().clone()
    method = build(init_norm=200.0, warm_start=False)
    method.start(Start(raw=head(features).detach(), labels=labels, loss=loss, head=head))
    assert head(features).norm(dim=-1).mean().item() == pytest.approx(200, rel=1e-4)
    assert torch.equal(loss.proxies, before)


def test_nothing_to_start_asks_for_no_pass_over_the_data() -> None:
    assert not build("cos", warm_start=False).needs.start
    assert build("cos").needs.start
    assert build("el-vmf", warm_start=False).needs.start


def test_state_can_be_saved_and_loaded() -> None:
    one, other = build(num_proxies=2), build(num_proxies=2)
    vary(one)
    other.load_state_dict(one.state_dict())
    raw, _ = batch()
    directions = torch.randn(5, 2, 16, generator=generator())
    assert torch.equal(one.logits(raw, directions, generator()), other.logits(raw, directions, generator()))


# --- behaviour --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", DISTANCES)
def test_learns_separable_classes(distance: str) -> None:
    """Standalone (ω = 0) from a random start, embeddings as free parameters of a linear head."""
    torch.manual_seed(0)
    centres = torch.randn(4, 12, generator=generator(5))
    labels = torch.arange(40) % 4
    inputs = centres[labels] + 0.3 * torch.randn(40, 12, generator=generator(6))
    head, loss = nn.Linear(12, 8), ProxyAnchor(4, 8, generator=generator())
    method = ProbabilisticProxies(4, 8, distance=distance, omega=0.0)  # type: ignore[arg-type]
    method.start(Start(raw=head(inputs).detach(), labels=labels, loss=loss, head=head))
    groups = [
        {"params": head.parameters(), "lr": 1e-2},
        {"params": loss.proxies, "lr": 0.05},
        *({"params": [p], "lr": 0.05 * method.rates()[name]} for name, p in method.named_parameters()),
    ]
    optimizer = torch.optim.Adam(groups)
    for number in range(60):
        optimizer.zero_grad()
        sum(method.terms(make_step(head(inputs), labels, loss, seed=number)).values()).backward()
        optimizer.step()
    cosines = (
        torch.nn.functional.normalize(head(inputs), dim=-1) @ torch.nn.functional.normalize(loss.proxies, dim=-1).T
    )
    assert (cosines.argmax(1) == labels).float().mean() == 1


def test_erased_pictures_become_less_certain() -> None:
    """Two classes of eight pictures: all right after training, and |z~| falls when parts are erased (qualitative)."""
    torch.manual_seed(0)
    pattern = torch.randn(2, 1, 12, 12, generator=generator(5))
    labels = torch.arange(16) % 2
    pictures = pattern[labels] + 0.3 * torch.randn(16, 1, 12, 12, generator=generator(6))
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 16)
    )
    loss, method = ProxyAnchor(2, 16, generator=generator()), build("el-vmf", classes=2, omega=0.0, init_norm=20.0)
    method.start(Start(raw=net(pictures).detach(), labels=labels, loss=loss, head=net))
    optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters(), *method.parameters()], lr=3e-3)
    source = generator(7)

    def erase(images: Tensor) -> Tensor:
        images = images.clone()
        for image in images:
            top, left = torch.randint(0, 6, (2,), generator=source).tolist()
            image[:, top : top + 7, left : left + 7] = 0
        return images

    for number in range(80):
        # Erased pictures are seen in training too, as with random erasing: they are harder, and so less certain.
        inputs = torch.cat([pictures, erase(pictures)])
        optimizer.zero_grad()
        sum(method.terms(make_step(net(inputs), labels.repeat(2), loss, seed=number)).values()).backward()
        optimizer.step()
    with torch.no_grad():
        clean, erased = net(pictures), torch.stack([net(erase(pictures)) for _ in range(10)])
        cosines = torch.nn.functional.normalize(clean, dim=-1) @ torch.nn.functional.normalize(loss.proxies, dim=-1).T
    assert (cosines.argmax(1) == labels).all()
    assert erased.norm(dim=-1).mean() < clean.norm(dim=-1).mean()


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_other_proxies_than_it_was_built_for_are_refused() -> None:
    build().check(ProxyAnchor(5, 16))
    build(num_proxies=4).check(SoftTriple(5, 16, centers=4))
    with pytest.raises(
        LossError, match=r"SoftTriple has 5 classes, 4 proxies a class and dimension 16, but Prob.* 5, 1 and 16"
    ):
        build().check(SoftTriple(5, 16, centers=4))
    with pytest.raises(LossError, match="ProxyAnchor has 6 classes"):
        build().check(ProxyAnchor(6, 16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "el_vmf"}, r"distance='el_vmf': use cos or l2 .*\. Did you mean 'el-vmf'"),
        ({"guidance": "paper"}, "guidance='paper': use base or released"),
        ({"det": "exact", "stretch_sample": False}, "has no meaning with stretch_sample=False"),
        ({"guidance": "released", "num_proxies": 2}, "guidance='released' knows one proxy a class"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0"),
        ({"omega": -1.0}, "omega must be a finite number at least 0, got -1"),
        ({"concentration": 0.05}, r"concentration must be a finite number at least 0\.1, got 0\.05"),
        ({"floor_gradient": "clmp"}, r"floor_gradient='clmp': .* Did you mean 'clamp'"),
        ({"sampler": "fast"}, "sampler='fast': use stable or legacy"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"dim": 1}, "dim must be a whole number of at least 2, got 1"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(LossError, match=message):
        build(**options)  # type: ignore[arg-type]


def test_labels_outside_the_classes_are_refused() -> None:
    raw, labels = batch()
    with pytest.raises(LossError, match="Label 5 in row 11 is outside"):
        build().terms(make_step(raw, torch.cat([labels[:11], torch.tensor([5])]), ProxyAnchor(5, 16)))
