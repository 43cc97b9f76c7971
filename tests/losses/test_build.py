"""Building losses from names and options: every mistake is named, with the nearest right word."""

from __future__ import annotations

import inspect

import pytest
import torch

from proxemics.core.errors import LossError
from proxemics.losses import LOSSES, MetricLoss, NormSoftmax, ProxyLoss, build_loss, loss_options


def test_names():
    assert list(LOSSES) == [
        "norm_softmax",
        "proxy_nca",
        "proxy_nca_pp",
        "proxy_anchor",
        "soft_triple",
        "cosface",
        "arcface",
        "pd_loss",
        "potential_field",
        "multi_similarity",
        "margin",
    ]


DEFAULTS = {
    "norm_softmax": {"sigma": 0.05},
    "proxy_nca": {"scale": 3.0, "exclude_positive": True},
    "proxy_nca_pp": {"scale": 3.0},
    "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
    "cosface": {"margin": 0.35, "scale": 64.0},
    "arcface": {"margin_rad": 0.5, "scale": 64.0},
    "soft_triple": {"centers": 10, "la": 20.0, "gamma": 0.1, "tau": 0.2, "delta": 0.01},
    "pd_loss": {"eps": 1e-6, "variance": "population", "temperature": 1.0},
    "potential_field": {"delta": 0.2, "alpha": 3.0, "proxies_per_class": 15},
    "multi_similarity": {"alpha": 2.0, "beta": 50.0, "lam": 0.5, "eps": 0.1},
    "margin": {"margin": 0.2, "beta": 1.2, "nu": 0.0, "cutoff": 0.5, "upper": 1.4},
}


@pytest.mark.parametrize("name", LOSSES)
def test_defaults_of_the_specification(name):
    options = loss_options(name)
    assert options | DEFAULTS[name] == options


@pytest.mark.parametrize("name", LOSSES)
def test_build(name):
    loss = build_loss(name, 7, 9)
    assert isinstance(loss, LOSSES[name])
    assert (loss.num_classes, loss.dim) == (7, 9)
    for key, value in loss_options(name).items():
        assert f"{key}={value!r}" in repr(loss) or key in ("seed", "beta", "proxies_per_class")


def test_functional_and_module_have_the_same_defaults():
    from proxemics.losses import functional

    pairs = {name: name for name in LOSSES if name != "margin"}
    for name, function in pairs.items():
        given = inspect.signature(getattr(functional, function)).parameters
        for key, value in loss_options(name).items():
            if key in given:
                assert given[key].default == value, (name, key)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("proxy_ancor", {}, "Unknown loss 'proxy_ancor'. Did you mean 'proxy_anchor'? Known losses: norm_softmax, "),
        ("proxy_anchor", {"alfa": 1}, "has no option 'alfa'. Did you mean 'alpha'? Options: alpha, delta."),
        ("proxy_anchor", {"generator": 1}, "has no option 'generator'."),
        ("proxy_anchor", {"alpha": "32"}, "Option 'alpha' of loss 'proxy_anchor' must be a number, got '32' (str)."),
        ("proxy_anchor", {"alpha": True}, "must be a number, got True (bool)."),
        ("proxy_anchor", {"alpha": -1}, "alpha must be a finite number above 0, got -1."),
        ("proxy_anchor", {"alpha": float("nan")}, "alpha must be a finite number above 0, got nan."),
        ("soft_triple", {"centers": 2.5}, "must be a whole number, got 2.5 (float)."),
        ("soft_triple", {"centers": 0}, "centers must be a whole number of at least 1, got 0."),
        ("proxy_nca", {"exclude_positive": 1}, "must be true or false, got 1 (int)."),
        ("proxy_nca", {"label_smoothing": 0.1}, "Set exclude_positive=False, or label_smoothing=0."),
        ("proxy_nca", {"proxy_scale": "a"}, "must be a number or null, got 'a' (str)."),
        (
            "pd_loss",
            {"variance": "unbaised"},
            "variance must be 'population' or 'unbiased', got 'unbaised'. Did you mean",
        ),
        ("potential_field", {"reduction": "avg"}, "reduction must be 'sum' or 'mean', got 'avg'."),
        ("margin", {"upper": 0.3}, "upper must be at least cutoff=0.5, got 0.3."),
        (
            "arcface",
            {"margin_rad": 28.6},
            "margin_rad must be a finite number at least 0 and at most 1.5708, got 28.6.",
        ),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(LossError) as error:
        build_loss(name, 5, 4, options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["proxy_nca", "pd_loss"])
def test_one_class_is_refused_where_others_are_needed(name):
    with pytest.raises(LossError, match="needs at least 2 classes, got 1"):
        build_loss(name, 1, 4)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("proxy_nca", "pd_loss")])
def test_one_class_works_elsewhere(name):
    z = torch.randn(4, 3, requires_grad=True)
    value = build_loss(name, 1, 3)(z, torch.zeros(4, dtype=torch.int64))
    value.backward()
    assert value.isfinite()
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_generator_fixes_the_start(name):
    first, second = (build_loss(name, 5, 4, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    other = build_loss(name, 5, 4, generator=torch.Generator().manual_seed(4))
    for (key, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)
        if key == "proxies":
            assert not torch.equal(a, other.state_dict()[key])


def test_every_loss_with_proxies_is_a_proxy_loss():
    for name, kind in LOSSES.items():
        assert issubclass(kind, MetricLoss)
        assert issubclass(kind, ProxyLoss) == hasattr(build_loss(name, 3, 4), "proxies")


@pytest.mark.parametrize("name", LOSSES)
def test_state_is_tensors_only(name, tmp_path):
    """user-pains 35: the state loads with weights_only=True and fits into safetensors, which knows tensors alone."""
    loss = build_loss(name, 5, 4)
    assert all(isinstance(value, torch.Tensor) for value in loss.state_dict().values())
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    build_loss(name, 5, 4).load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))


def test_changed_class_count_does_not_load():
    """user-pains 34: proxies of another shape are an error, not a silent new start."""
    with pytest.raises(RuntimeError, match="size mismatch for proxies"):
        NormSoftmax(6, 4).load_state_dict(NormSoftmax(5, 4).state_dict())
