"""CouCE, MSRCI and ODBA through the training step, on a small ResNet and a small ViT."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError, ModelError, TrainingError
from proxemics.core.seeds import torch_generator
from proxemics.losses import MultiSimilarity, NormSoftmax, ProxyAnchor
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.base import Method
from proxemics.methods.couce import MSRCI, ODBA, CouCE, amplitude_randomization, symmetric_kl
from proxemics.methods.couce.gates import resize_gate, spatial_gate

WITH_PROXIES = [name for name in LOSSES if hasattr(build_loss(name, 3, 4), "proxies")]
LAYERS = {"test_resnet": "layer2", "test_vit": "block2"}


def odba(*, ready: bool = True, **options: object) -> ODBA:
    """16-d and early; ``ready``: with a dictionary from random descriptors."""
    method = ODBA(16, **({"atoms": 6, "start_epoch": 0} | options))  # type: ignore[arg-type]
    if ready:
        method.filled[2] = 1
    return method


def couce(trunk: str = "test_resnet", **options: object) -> CouCE:
    return CouCE(16, odba=odba(), msrci=MSRCI(layer=LAYERS[trunk], lambda_a=0.5, **options))  # type: ignore[arg-type]


OFF: dict[str, Callable[[], Method]] = {
    "couce": lambda: CouCE(16, odba=odba(lambda_b=0.0, lambda_o=0.0), msrci=MSRCI(lambda_v=0.0)),
    "odba": lambda: odba(lambda_b=0.0, lambda_o=0.0, orth="project", estimator="nwgm"),
    "msrci": lambda: MSRCI(lambda_v=0.0, layer=("pixel", "layer1")),
}


@pytest.mark.parametrize("trunk", LAYERS)
def test_terms_and_gradients(world, trunk: str) -> None:
    here = world(couce(trunk), trunk=trunk)
    terms = here.terms()
    assert set(terms) == {"base", "odba_backdoor", "odba_orth", "msrci_invariance", "msrci_view"}
    assert all(torch.isfinite(value) and value.dtype == torch.float32 for value in terms.values())
    gradients = here.gradients(terms)
    assert all(torch.isfinite(value).all() for value in gradients.values() if value is not None)
    for name in list(terms):
        alone = here.gradients({name: here.terms()[name]})
        moved = sum(float(value.abs().sum()) for value in alone.values() if value is not None)
        assert moved > 0, name
    here.step.look_back()
    report = here.method.report()
    assert set(report) == {
        "gate_mean", "gate_open", "coherence", "atoms_used", "orth", "orth_random", "span_energy", "divergence",
        "view_cosine", "batch_recall", "batch_recall_span", "batch_recall_rest",
        *(f"gate_bin_{place}" for place in range(10)),
    }  # fmt: skip
    assert sum(report[f"gate_bin_{place}"] for place in range(10)) == pytest.approx(1)
    assert report["orth_random"] == 6 / 16
    assert 0 < report["gate_mean"] < 1
    assert -1 <= report["view_cosine"] <= 1


@pytest.mark.parametrize("name", OFF)
def test_switched_off_the_run_is_the_base_run(world, name: str) -> None:
    torch.manual_seed(0)
    here, base = world(OFF[name]()), world(None)
    generator = torch.get_rng_state()
    method = here.method
    before = {key: value.clone() for key, value in method.state_dict().items()}
    terms, plain = here.terms(), base.terms()
    assert list(terms) == ["base"]
    assert torch.equal(terms["base"], plain["base"])
    found, wanted = here.gradients(terms), base.gradients(plain)
    assert all(
        (a is None and b is None) or torch.equal(a, b) for a, b in zip(found.values(), wanted.values(), strict=True)
    )
    here.step.look_back()
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert method.report() == {}
    assert torch.equal(torch.get_rng_state(), generator)
    assert method.needs.stages == ()


def test_the_global_generator_is_left_alone(world) -> None:
    state = torch.get_rng_state()
    method = CouCE(16, odba=odba(estimator="nwgm", orth="srip"), msrci=MSRCI(layer=("layer1", "layer2"), pick="one"))
    assert torch.equal(torch.get_rng_state(), state)
    here = world(method)
    state = torch.get_rng_state()
    here.terms()
    assert torch.equal(torch.get_rng_state(), state)


def test_one_part_can_be_off(world) -> None:
    only_msrci = CouCE(16, odba=odba(lambda_b=0.0, lambda_o=0.0), msrci=MSRCI())
    assert set(world(only_msrci).terms()) == {"base", "msrci_invariance"}
    only_odba = world(CouCE(16, odba=odba(), msrci=MSRCI(lambda_v=0.0))).terms()
    assert set(only_odba) == {"base", "odba_backdoor", "odba_orth"}
    for key, value in world(odba()).terms().items():
        assert torch.equal(only_odba[key], value)


@pytest.mark.parametrize("name", WITH_PROXIES)
def test_finite_on_every_proxy_loss(world, name: str) -> None:
    method = couce(top_negatives=2)
    here = world(method, loss=name)
    terms = here.terms()
    assert len(terms) == 5
    for value in [*terms.values(), *(g for g in here.gradients(terms).values() if g is not None)]:
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("one_class", [False, True])
def test_tiny_and_one_class_batches(world, size: int, one_class: bool) -> None:
    for options in ({"fraction": 1.0}, {"fraction": 0.5}, {"fraction": 1.0, "mode": "swap"}):
        here = world(couce(**options), size=size, one_class=one_class)
        terms = here.terms()
        gradients = here.gradients(terms)
        for value in [*terms.values(), *(g for g in gradients.values() if g is not None)]:
            assert torch.isfinite(value).all()
        assert ("msrci_view" in terms) == (size == 2 or options["fraction"] == 1)


def test_autocast(world) -> None:
    here = world(couce())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = here.terms()
    assert all(value.dtype == torch.float32 and torch.isfinite(value) for value in terms.values())
    here.gradients(terms)
    assert all(value.dtype in (torch.float32, torch.int64) for value in here.method.state_dict().values())


def test_the_ramp_multiplies_all_terms(world) -> None:
    method = couce()
    late = world(method).terms(epoch=10)
    early = world(couce()).terms(epoch=0, progress=0.0)
    for name in ("odba_backdoor", "odba_orth", "msrci_invariance", "msrci_view"):
        rate = torch.exp(torch.tensor(-5.0))
        # The dictionary moves by another momentum in the first epoch, which changes the terms of ODBA a little.
        tolerance = 0.2 if name.startswith("odba") else 1e-5
        torch.testing.assert_close(early[name] / rate, late[name], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(early["base"], late["base"])
    no_ramp = CouCE(16, odba=odba(), msrci=MSRCI(lambda_a=0.5), ramp_epochs=0)
    torch.testing.assert_close(world(no_ramp).terms(epoch=0)["msrci_view"], late["msrci_view"])


# --- MSRCI ------------------------------------------------------------------------------------------------------------


def test_the_terms_by_hand(world) -> None:
    here = world(MSRCI(fraction=1.0, lambda_a=0.5, keep_dc=True))
    terms, step = here.terms(), here.step.taken[0][1]
    stage = here.embedder.encode_with(here.batch.features.value, ["layer2"])[1]["layer2"]
    again = here.method.draw(replace(step, generator=method_generator(3)))
    changed = amplitude_randomization(stage.as_map(), strengths=again.strengths, partners=again.partners, keep_dc=True)
    z = here.embedder.encode_from(stage.with_map(changed))[0].unit
    divergence = symmetric_kl(here.loss.similarities(step.z), here.loss.similarities(z))
    torch.testing.assert_close(terms["msrci_invariance"].detach(), divergence.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        terms["msrci_view"].detach(), 0.5 * here.loss(z, here.batch.labels).detach(), atol=1e-4, rtol=1e-4
    )


def method_generator(seed: int) -> torch.Generator:
    return torch_generator(seed, "method", 0, device=torch.device("cpu"))


@pytest.mark.parametrize("options", [{"eta": (0.0, 0.0, 0.0)}, {"mode": "scale", "sigma": 0.0}])
def test_without_strength_the_views_agree(world, options: dict) -> None:
    here = world(MSRCI(**options))
    terms = here.terms()
    assert terms["msrci_invariance"].item() == pytest.approx(0, abs=1e-6)
    assert here.method.report()["view_cosine"] == pytest.approx(1, abs=1e-5)


def test_the_pixels_of_a_picture_alone(world) -> None:
    here = world(MSRCI(layer="pixel", fraction=0.5, lambda_a=1.0))
    terms = here.terms()
    seen = here.step.taken[0][1].seen[0]
    assert seen.rows.tolist() == [1, 3, 5]
    assert seen.labels.tolist() == here.batch.labels[[1, 3, 5]].tolist()
    assert len(seen.z) == 3
    assert len(terms) == 3


@pytest.mark.parametrize("trunk", LAYERS)
def test_several_layers(world, trunk: str) -> None:
    layers = ("layer3", "layer1") if trunk == "test_resnet" else ("block4", "block1")
    here = world(MSRCI(layer=layers, fraction=0.5), trunk=trunk)
    terms = here.terms()
    here.gradients(terms)
    both = terms["msrci_invariance"]
    assert both > 0
    singles = {
        world(MSRCI(layer=name, fraction=0.5), trunk=trunk).terms()["msrci_invariance"].item() for name in layers
    }
    assert both.item() not in singles
    found = set()
    for seed in range(8):
        one = world(MSRCI(layer=layers, pick="one"), trunk=trunk)
        one.terms(seed=seed)
        found.add(one.step.taken[0][1].seen[0].z.sum().item())
    assert len(found) > 1
    whole = world(MSRCI(layer=layers, eta=(0.0, 0.0, 0.0)), trunk=trunk).terms()
    assert whole["msrci_invariance"].item() == pytest.approx(0, abs=1e-6)


def test_pick_one_uses_each_layer(world) -> None:
    found = []
    for seed in range(12):
        method = MSRCI(layer=("layer1", "layer2"), pick="one")
        here = world(method)
        names: list[str] = []
        change = method._change
        method._change = lambda step, name, *rest, **more: names.append(name) or change(step, name, *rest, **more)  # type: ignore[method-assign]  # noqa: B023 - used at once
        here.terms(seed=seed)
        assert len(names) == 1
        found += names
    assert set(found) == {"layer1", "layer2"}


def test_foreground_only_spares_the_background(world) -> None:
    here = world(MSRCI(fraction=1.0, foreground_only=True))
    changed = []
    views = here.method.views
    here.method.views = lambda step: changed.extend(views(step)) or changed  # type: ignore[method-assign]
    here.terms()
    step = here.step.taken[0][1]
    before = here.embedder.encode_with(here.batch.features.value, ["layer2"])[1]["layer2"].as_map()
    draw = here.method.draw(replace(step, generator=method_generator(3)))
    free = amplitude_randomization(before, strengths=draw.strengths, partners=draw.partners)
    gate = resize_gate(spatial_gate(step.tokens), step.grid, before.shape[2:]).view(-1, 1, *before.shape[2:])
    wanted = gate * before + (1 - gate) * free
    torch.testing.assert_close(changed[0].features.as_map(), wanted, atol=1e-4, rtol=1e-4)


def test_relu_cuts_the_changed_map(world) -> None:
    for cut in (False, True):
        here = world(MSRCI(relu=cut, mode="swap", probability=1.0))
        views, seen = here.method.views, []
        here.method.views = lambda step, views=views, seen=seen: seen.extend(views(step)) or seen  # type: ignore[method-assign]
        here.terms()
        assert bool((seen[0].features.as_map() < 0).any()) != cut


def test_proxies_can_be_left_out_of_the_divergence(world) -> None:
    for held in (False, True):
        here = world(MSRCI(detach_proxies=held))
        gradients = here.gradients({"only": here.terms()["msrci_invariance"]})
        assert (gradients["loss.proxies"] is None) == held


def test_vit_keeps_its_class_token(world) -> None:
    here = world(MSRCI(fraction=1.0, layer="block2"), trunk="test_vit")
    views, seen = here.method.views, []
    here.method.views = lambda step: seen.extend(views(step)) or seen  # type: ignore[method-assign]
    here.terms()
    clean = here.embedder.encode_with(here.batch.features.value, ["block2"])[1]["block2"].value
    torch.testing.assert_close(seen[0].features.value[:, 0], clean[:, 0])
    assert (seen[0].features.value[:, 1:] - clean[:, 1:]).abs().max() > 1e-3


# --- ODBA -------------------------------------------------------------------------------------------------------------


def test_no_room_for_a_shift_gives_the_base_loss(make_step) -> None:
    raw, labels = torch.randn(6, 16), torch.arange(6) % 4
    for estimator in ("mc", "enum", "nwgm"):
        method = odba(rho_max=0.0, estimator=estimator, lambda_b=1.0, lambda_o=0.0)
        for loss in (NormSoftmax(4, 16), ProxyAnchor(4, 16)):
            step = make_step(raw, labels, loss)
            torch.testing.assert_close(method.terms(step)["odba_backdoor"], loss(raw, labels))


def test_gradients_reach_embeddings_and_nothing_else(make_step) -> None:
    raw = torch.randn(6, 16, requires_grad=True)
    method = odba(lambda_b=0.0)
    method.terms(make_step(raw, torch.arange(6) % 4))["odba_orth"].backward()
    assert raw.grad.abs().max() > 0
    assert method.dictionary.grad is None
    assert not method.dictionary.requires_grad
    loss = NormSoftmax(4, 16)
    odba(lambda_b=0.0, orth_proxies=True).terms(make_step(raw, torch.arange(6) % 4, loss))["odba_orth"].backward()
    assert loss.proxies.grad.abs().max() > 0


def test_it_waits_for_the_dictionary_and_the_epoch(make_step) -> None:
    method = ODBA(16, atoms=8, start_epoch=1, ramp_epochs=0)
    first = method.dictionary.clone()
    for number in range(20):
        raw = torch.randn(4, 16, generator=torch.Generator().manual_seed(number))
        terms = method.terms(make_step(raw, torch.arange(4), epoch=0 if number < 15 else 1))
        assert method.seeded == (number >= 9)
        assert torch.equal(method.dictionary, first) == (number < 9)
        assert bool(terms) == (number >= 15)
        torch.testing.assert_close(method.dictionary.norm(dim=1), torch.ones(8))
    early = ODBA(16, atoms=8, start_epoch=0)
    assert early.terms(make_step(torch.randn(4, 16), torch.arange(4), epoch=3)) == {}
    big = ODBA(16, atoms=8, start_epoch=0)
    for _ in range(10):
        assert not big.seeded
        big.terms(make_step(torch.randn(300, 16), torch.arange(300) % 4))
    assert big.seeded
    assert big.filled.tolist() == [120, 10, 1]


def test_first_epoch_moves_faster_and_unused_atoms_start_anew(make_step) -> None:
    raw, labels = torch.nn.functional.normalize(torch.randn(6, 16), dim=1), torch.arange(6) % 4
    moves = []
    for epoch in (0, 1):
        method = odba(soft_orth_step=0.0, update_gate="none", centre=False)
        before = method.dictionary.clone()
        method.terms(make_step(raw, labels, epoch=epoch))
        moves.append(float((method.dictionary - before).norm()))
    assert moves[0] > 5 * moves[1]
    method = odba(patience=3, soft_orth_step=0.0, centre=False)
    row = raw[:1].expand(6, -1)
    for _ in range(3):
        method.terms(make_step(row.clone(), labels))
    assert int((method.idle == 0).sum()) == 6
    assert float((method.dictionary @ raw[0]).sort().values[-2]) > 0.999


def test_accumulated_parts_keep_their_graphs(make_step) -> None:
    raw = torch.randn(6, 16, requires_grad=True)
    method = odba()
    parts = [method.terms(make_step(raw, torch.arange(6) % 4, seed=i)) for i in range(2)]
    torch.stack([value for terms in parts for value in terms.values()]).sum().backward()
    assert torch.isfinite(raw.grad).all()


OPTIONS: list[dict[str, object]] = [
    *({"extract_gate": name} for name in ("spatial", "border", "channel", "profile", "none")),
    {"gate_stage": "layer2"},
    {"gate_stage": "layer2", "extract_gate": "border"},
    {"update_gate": "class"},
    {"update_gate": "none"},
    {"estimator": "enum"},
    {"centre": False},
    {"estimator": "nwgm"},
    {"orth": "srip"},
    {"orth_proxies": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_runs(world, options: dict) -> None:
    here = world(odba(**options))
    terms = here.terms()
    assert set(terms) == {"base", "odba_backdoor", "odba_orth"}
    gradients = here.gradients(terms)
    assert all(torch.isfinite(value).all() for value in gradients.values() if value is not None)
    if options.get("estimator") == "nwgm":
        assert here.method.query.grad.abs().max() > 0
        assert here.method.key.grad.abs().max() > 0
    assert here.method.report()["gate_mean"] > 0


def test_projection_takes_the_place_of_the_base_loss(world) -> None:
    here = world(odba(orth="project", lambda_b=0.0))
    assert here.method.base_weight == 0
    terms = here.terms()
    assert set(terms) == {"base"}
    plain = world(None).terms()["base"]
    assert (terms["base"] - plain).abs().item() > 1e-4
    waiting = world(odba(orth="project", lambda_b=0.0, ready=False)).terms()
    torch.testing.assert_close(waiting["base"], plain)


def test_a_restart_goes_on_bit_for_bit(world) -> None:
    def run(method: Method, first: int, last: int) -> list[Tensor]:
        here, found = world(method), []
        for number in range(first, last):
            terms = here.terms(epoch=number // 4, progress=number / 16, seed=number)
            here.step.look_back()
            found.append(torch.stack([terms[name].detach() for name in sorted(terms)]))
        return found

    def make() -> CouCE:
        return CouCE(16, odba=ODBA(16, atoms=6, patience=5), msrci=MSRCI())

    whole = run(make(), 0, 14)
    first = make()
    run(first, 0, 9)
    resumed = make()
    state = {key: value.clone() for key, value in first.state_dict().items()}
    assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in make().state_dict().items()}
    resumed.load_state_dict(state)
    for one, other in zip(run(resumed, 9, 14), whole[9:], strict=True):
        assert torch.equal(one, other)


def test_nothing_is_left_in_the_model(world) -> None:
    assert list(world(couce()).embedder.state_dict()) == list(world(None).embedder.state_dict())
    assert list(couce().parameters()) == []


def test_bad_options_are_refused_with_a_sentence(world) -> None:
    with pytest.raises(LossError, match="64 atoms need an embedding of dimension 64 or more, got 16; use at most 16"):
        CouCE(16)
    with pytest.raises(LossError, match="estimator='enum' runs the loss once an atom and 32 are too many"):
        ODBA(64, atoms=32, estimator="enum")
    with pytest.raises(LossError, match="gate_stage='layer2' belongs to extract_gate='spatial'"):
        ODBA(64, extract_gate="channel", gate_stage="layer2")
    with pytest.raises(LossError, match="orth='project' with 64 atoms leaves nothing of dimension 64"):
        ODBA(64, orth="project")
    with pytest.raises(LossError, match="orth_proxies adds to the orthogonality term"):
        ODBA(128, orth="project", orth_proxies=True)
    with pytest.raises(LossError, match=r"update_gate='atoms': use atom or class or none\. Did you mean 'atom'"):
        ODBA(64, update_gate="atoms")  # type: ignore[arg-type]
    with pytest.raises(LossError, match="momentum must be a finite number at least 0 and at most 1, got 2"):
        ODBA(64, momentum=2)
    with pytest.raises(LossError, match=r"layer=\('layer1', 'layer1'\): name one stage, or several different ones"):
        MSRCI(layer=("layer1", "layer1"))
    with pytest.raises(LossError, match="fraction must be a finite number above 0 and at most 1, got 0"):
        MSRCI(fraction=0)
    with pytest.raises(LossError, match="top_negatives must be a whole number of at least 1, got 0"):
        MSRCI(top_negatives=0)
    with pytest.raises(LossError, match="ODBA was built for dimension 64, and the loss for 16; give both the same"):
        world(ODBA(64))
    with pytest.raises(ModelError, match="has no stage 'layer2'"):
        world(MSRCI(), trunk="test_vit")
    with pytest.raises(TrainingError, match="CouCE works on proxies and MultiSimilarity has none"):
        world(couce(), loss="multi_similarity")
    assert set(world(odba(), loss="multi_similarity").terms()) == {"base", "odba_backdoor", "odba_orth"}
    with pytest.raises(LossError, match="MSRCI compares similarities to classes and MultiSimilarity has none"):
        MSRCI().check(MultiSimilarity(3, 4))
