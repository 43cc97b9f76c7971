"""Every trainable parameter is in exactly one group (user-pains 30, 31)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxemics.core.config import OptimConfig
from proxemics.core.errors import TrainingError
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.probabilistic import ProbabilisticProxies, scale_last_linear
from proxemics.models.embedder import Embedder
from proxemics.training.groups import check_groups, make_optimizer, parameter_groups


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32, pooling="gem", freeze_bn=False)


@pytest.mark.parametrize("name", list(LOSSES))
def test_all_parameters_of_model_and_loss_are_optimised(name: str, embedder: Embedder) -> None:
    loss = build_loss(name, 4, 8, {})
    groups = parameter_groups(embedder, loss, OptimConfig(lr=0.01, proxy_lr_mult=50))
    inside = {id(p) for group in groups for p in group["params"]}
    everything = [*embedder.parameters(), *loss.parameters()]
    assert inside == {id(p) for p in everything if p.requires_grad}
    rates = {group["name"]: group["lr"] for group in groups}
    if any(p.requires_grad for p in loss.parameters()):
        assert rates["proxies"] == pytest.approx(0.5)
    assert rates["trunk"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("options", "factor"), [({}, 50.0), ({"head_rate": 1.0}, 1.0), ({"weight": 0.0}, 1.0), ({"init_norm": 9.0}, 1.0)]
)
def test_a_method_sets_the_rate_of_the_head(options: dict[str, float], factor: float, embedder: Embedder) -> None:
    loss, method = build_loss("proxy_anchor", 4, 8, {}), ProbabilisticProxies(4, 8, **options)
    optim = OptimConfig(lr=0.01, head_lr_mult=2)
    rates = {group["name"]: group["lr"] for group in parameter_groups(embedder, loss, optim, methods=[method])}
    assert rates["head"] == pytest.approx(0.02 * factor)
    assert rates["trunk"] == pytest.approx(0.01)


def test_a_lengthened_head_turns_as_fast_as_before() -> None:
    """A step of Adam is as long as its rate, so that on weights 50 times as long it would turn 50 times less."""
    x, away = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.eye(4)[:1]
    found = []
    for factor in (1.0, 50.0):
        torch.manual_seed(1)
        head = nn.Linear(5, 4, bias=False)
        scale_last_linear(head, factor)
        group = {"params": [head.weight], "lr": 0.01 * factor, "weight_decay": 0.0}
        optimizer = make_optimizer([group], OptimConfig(name="adam", eps=1e-12))
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cosine_similarity(head(x), away).sum().backward()
            optimizer.step()
        found.append(head.weight.detach() / factor)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_normalisation_and_biases_do_not_decay(embedder: Embedder) -> None:
    groups = parameter_groups(embedder, nn.Identity(), OptimConfig(weight_decay=0.3))
    for group in groups:
        for parameter in group["params"]:
            assert (group["weight_decay"] == 0.0) == (parameter.ndim <= 1)


def test_frozen_parameters_are_left_out() -> None:
    frozen = Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32, freeze_stages=2)
    groups = parameter_groups(frozen, nn.Identity(), OptimConfig())
    assert all(p.requires_grad for group in groups for p in group["params"])
    assert sum(len(group["params"]) for group in groups) < len(list(frozen.parameters()))


def test_a_parameter_in_two_groups_is_refused() -> None:
    layer = nn.Linear(2, 2)
    groups = [{"params": [layer.weight]}, {"params": [layer.weight, layer.bias]}]
    with pytest.raises(TrainingError, match=r"weight of Linear is in 2 optimiser groups"):
        check_groups(groups, [layer])


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop"])
def test_every_optimiser_takes_a_step(name: str) -> None:
    layer = nn.Linear(2, 1)
    before = layer.weight.detach().clone()
    groups = [{"name": "trunk", "params": list(layer.parameters()), "lr": 0.1, "base_lr": 0.1, "weight_decay": 0.0}]
    optimizer = make_optimizer(groups, OptimConfig(name=name))
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, layer.weight)
    assert type(optimizer).__name__.lower() == name
