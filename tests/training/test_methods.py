"""Every method in the training loop: the contract, composition, two processes, kill and resume."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from warm_processes import Warm

from proxemics.core.config import make_config
from proxemics.core.errors import LossError, TrainingError
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.base import Batch, Method, Needs, Step, View
from proxemics.methods.build import METHODS, Shapes, build_methods, methods_label
from proxemics.methods.couce import ODBA
from proxemics.methods.needs import check_needs
from proxemics.models.embedder import Embedder
from proxemics.training.build import build_run_methods
from proxemics.training.method_contract import CHECKS, check_method
from proxemics.training.step import TrainingStep

SCRIPT = Path(__file__).with_name("_method_processes.py")
ON: dict[str, dict[str, Any]] = {
    "see": {"num_synthetic": 4, "rho_min": 0.4},
    "probabilistic": {},
    "odba": {"atoms": 8},
    "msrci": {"lambda_a": 0.5},
    "couce": {"odba": {"atoms": 8}},
    "center_polar": {},
    "expansion_equalisation": {},
}
OFF: dict[str, dict[str, Any]] = {
    "see": {"weight": 0},
    "probabilistic": {"weight": 0},
    "odba": {"atoms": 8, "lambda_b": 0, "lambda_o": 0},
    "msrci": {"lambda_v": 0, "lambda_a": 0},
    "couce": {"odba": {"atoms": 8, "lambda_b": 0, "lambda_o": 0}, "msrci": {"lambda_v": 0, "lambda_a": 0}},
    "center_polar": {"lambda_g": 0, "lambda_4": 0},
    "expansion_equalisation": {"lambda_g": 0, "lambda_e": 0},
}
WITH_PROXIES = [name for name in LOSSES if hasattr(build_loss(name, 3, 4), "proxies")]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("method_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name: str) -> None:
    done = check_method(
        lambda shapes: build_methods({name: ON[name]}, shapes)[0],
        off=lambda shapes: build_methods({name: OFF[name]}, shapes)[0],
    )
    assert done == tuple(CHECKS)


class Careless(Method):
    """Breaks the contract in one way at a time."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.needs = Needs(stages=("stage1",))
        self.count = 0
        self.register_buffer("memory", torch.zeros(1))

    def views(self, step: Step) -> list[View]:
        if self.fault == "gradient":
            step.z.sum().backward(retain_graph=True)
        return []

    def terms(self, step: Step) -> dict[str, Tensor]:
        self.count += 1
        value = 1 - step.z.mean()
        if self.fault == "global":
            value = value + torch.rand(())
        if self.fault == "state":
            value = value * self.count
        if self.fault == "nan":
            value = value / (step.labels[1:] - step.labels[:-1]).abs().max()
        return {} if self.fault == "silent" else {"careless": value.double() if self.fault == "dtype" else value}

    def after_step(self, step: Step) -> None:
        if self.fault == "shape":
            self.memory = torch.zeros(2)

    def rates(self) -> dict[str, float]:
        return {"nothing": 2.0} if self.fault == "rates" else {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("gradient", "left a gradient on"),
        ("global", "drawn from the global generator"),
        ("state", "goes on differently"),
        ("nan", "not finite with one class"),
        ("dtype", "not a scalar float32"),
        ("shape", "changed its shape"),
        ("silent", "no term at all"),
        ("rates", "no trainable parameters"),
    ],
)
def test_the_contract_finds_faults(fault: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        check_method(lambda shapes: Careless(fault))


def test_the_contract_finds_a_method_that_is_never_off() -> None:
    with pytest.raises(TrainingError, match="with all weights 0 there are terms careless"):
        check_method(lambda shapes: Careless(""), off=lambda shapes: Careless(""))


@pytest.mark.parametrize("trunk", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("loss", WITH_PROXIES)
def test_all_methods_together_on_every_proxy_loss(loss: str, trunk: str) -> None:
    embedder = Embedder(trunk, dim=16, weights="none", size=32)
    base = build_loss(loss, 5, 16, {}, generator=torch.Generator().manual_seed(0))
    layer = embedder.stages[2]
    config = {
        "see": ON["see"],
        "probabilistic": {"warm_start": False},
        "couce": {"odba": {"atoms": 8}, "msrci": {"layer": layer, "lambda_a": 0.5}},
        "center_polar": {"expander": "style", "layer": layer},
    }
    proxies = base.proxies
    methods = build_methods(config, Shapes(5, 16, proxies.shape[1] if proxies.ndim == 3 else 1))
    step = TrainingStep(embedder, base, methods).train()
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    none = torch.zeros_like(labels)
    terms = step(Batch(embedder.stage_features("pixel", images), labels, none, none), 6, 0.5, 0)
    assert {"base", "see", "probabilistic"} < set(terms)
    assert len(terms) >= 7
    torch.stack(list(terms.values())).sum().backward()
    gradients = [p.grad for p in embedder.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in gradients)
    assert any(g.abs().max() > 0 for g in gradients)


PAIRED = {
    "see": {}, "probabilistic": {"warm_start": False}, "odba": {"atoms": 8, "start_epoch": 0},
    "msrci": {"layer": "stage2", "lambda_a": 0.5}, "center_polar": {"expander": "style", "layer": "stage2"},
    "expansion_equalisation": {},
}  # fmt: skip


def terms_of(config: dict[str, Any], loss: str, trunk: str) -> dict[str, Tensor]:
    """The terms of a step late in a run, with every dictionary filled, on the same model and pictures."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        embedder = Embedder(trunk, dim=16, weights="none", size=32)
        base = build_loss(loss, 5, 16, {}, generator=torch.Generator().manual_seed(0))
        named = {
            name: options | ({"layer": embedder.stages[2]} if "layer" in options else {})
            for name, options in config.items()
        }
        proxies = base.proxies
        methods = build_methods(named, Shapes(5, 16, proxies.shape[1] if proxies.ndim == 3 else 1))
        for part in (part for method in methods for part in method.modules()):
            if isinstance(part, ODBA):
                part.filled.copy_(torch.tensor([len(part.collected), 10, 1]))
        step = TrainingStep(embedder, base, methods).train()
        labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        none = torch.zeros_like(labels)
        return step(Batch(embedder.stage_features("pixel", images), labels, none, none), 6, 0.5, 0)


@pytest.mark.parametrize("trunk", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("loss", WITH_PROXIES)
def test_every_pair_has_the_terms_of_both(loss: str, trunk: str) -> None:
    alone = {name: set(terms_of({name: options}, loss, trunk)) for name, options in PAIRED.items()}
    assert {"odba_backdoor", "odba_orth"} < alone["odba"]
    for first, second in itertools.combinations(PAIRED, 2):
        together = terms_of({name: PAIRED[name] for name in (first, second)}, loss, trunk)
        assert set(together) == alone[first] | alone[second], (first, second)
        assert all(value.isfinite() for value in together.values()), (first, second)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"odba": {}, "couce": {}}, "ODBA and CouCE both bring ODBA, .* give its options inside the one"),
        ({"couce": {}, "msrci": {}}, "CouCE and MSRCI both bring MSRCI"),
        ({"odba": {"orth": "project"}, "probabilistic": {"omega": 5.0}}, "ODBA and ProbabilisticProxies both decide"),
        ({"probabilistic": {}, "couce": {"odba": {"orth": "project"}}}, "ProbabilisticProxies and CouCE both decide"),
    ],
)
def test_methods_that_would_undo_each_other_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LossError, match=message):
        build_methods(config, Shapes(10, 128))


class Named(Method):
    """A method of somebody else, with a term called like that of SEE."""

    def terms(self, step: Step) -> dict[str, Tensor]:
        return {"see": 1 - step.z.mean()}


def test_two_terms_of_one_name_are_refused() -> None:
    embedder = Embedder("test_resnet", dim=16, weights="none", size=32)
    base = build_loss("proxy_anchor", 5, 16, {}, generator=torch.Generator().manual_seed(0))
    methods = [*build_methods({"see": {}}, Shapes(5, 16)), Named()]
    step = TrainingStep(embedder, base, methods).train()
    labels = torch.tensor([0, 0, 1, 1])
    none = torch.zeros_like(labels)
    batch = Batch(embedder.stage_features("pixel", torch.randn(4, 3, 32, 32)), labels, none, none)
    with pytest.raises(TrainingError, match="Named has a term 'see', and so has another"):
        step(batch, 6, 0.5, 0)


def test_what_a_model_cannot_give_is_said_before_any_work() -> None:
    headless = Embedder("test_resnet", dim=0, weights="none", size=32)
    (method,) = build_methods({"probabilistic": {}}, Shapes(5, headless.dim))
    with pytest.raises(TrainingError, match="scales the linear head of the model, which has none"):
        check_needs(method, headless, build_loss("proxy_anchor", 5, headless.dim, {}, generator=torch.Generator()))


@pytest.fixture(scope="module")
def two_processes(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    warm.run_ranks([str(SCRIPT), str(folder)])
    return folder


@pytest.mark.parametrize("name", load_script().CASES)
def test_two_processes_equal_one_on_the_joined_batch(name: str, two_processes: Path) -> None:
    torch.set_num_threads(1)
    single = load_script().outcome(name)
    assert any(key.startswith("term.") and key != "term.base" for key in single)
    for number in (0, 1):
        found = load_file(two_processes / f"{name}-{number}.safetensors")
        assert set(found) == set(single)
        for key, value in single.items():
            if not value.is_floating_point():
                assert torch.equal(found[key], value), f"{name} {key} rank {number}"
                continue
            close = float(value.abs().max()) * 2e-4 + 1e-7
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=close, msg=f"{name} {key} rank {number}")


def test_rates_of_methods_become_groups() -> None:
    from proxemics.core.config import OptimConfig
    from proxemics.training.groups import parameter_groups

    embedder = Embedder("test_resnet", dim=16, weights="none", size=32)
    loss = build_loss("proxy_anchor", 5, 16, {})
    methods = build_methods({"probabilistic": {}}, Shapes(5, 16))
    groups = {g["name"]: g for g in parameter_groups(embedder, loss, OptimConfig(lr=1e-4), methods=methods)}
    assert groups["proxies"]["lr"] == pytest.approx(1e-2)
    assert groups["methods_kappa"]["lr"] == pytest.approx(4e-2)
    assert groups["methods_log_temperature"]["lr"] == pytest.approx(4e-4)
    with pytest.raises(TrainingError, match=r"Careless.rates\(\) names 'nothing'"):
        parameter_groups(embedder, loss, OptimConfig(), methods=[Careless("rates")])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"methods": {"sea": {}}}, "Unknown method 'sea'. Did you mean 'see'"),
        ({"methods": {"see": {"wieght": 1}}}, "methods.see has no option 'wieght'. Did you mean 'weight'"),
        ({"methods": {"see": {"weight": "much"}}}, "methods.see.weight: .* got 'much'"),
        ({"methods": {"couce": {"odba": {"atom": 3}}}}, "methods.couce.odba has no option 'atom'"),
        ({"methods": {"couce": {"odba": 3}}}, "methods.couce.odba holds options"),
        ({"methods": {"center_polar": {"centroid": "batch"}}, "train": {"per_class": 2, "batch_size": 8}}, "needs 4"),
        ({"methods": {"msrci": {"layer": "layer9"}}}, "has no stage 'layer9'"),
        ({"methods": {"see": {}}, "loss": {"name": "margin"}}, "choose a proxy loss|has none"),
    ],
)
def test_wrong_settings_are_one_sentence(setting: dict[str, Any], message: str) -> None:
    embedder = Embedder("test_resnet", dim=16, weights="none", size=32)
    config = make_config(setting)
    loss = build_loss("multi_similarity" if config.loss.name == "margin" else config.loss.name, 5, 16, {})
    with pytest.raises((LossError, TrainingError, ValueError), match=message) as caught:
        build_run_methods(config, loss, embedder, num_domains=1)
    assert "\n" not in str(caught.value)


def test_options_of_parts_reach_them() -> None:
    (couce,) = build_methods({"couce": {"odba": {"atoms": 8}, "msrci": {"layer": ["stem", "stage1"]}}}, Shapes(5, 16))
    assert couce.odba.num_atoms == 8
    assert set(couce.needs.stages) == {"stem", "stage1"}
    assert methods_label({"couce": None, "probabilistic": {}}) == "couce+el_nivmf"
