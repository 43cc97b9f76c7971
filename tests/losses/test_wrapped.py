"""Losses of pytorch-metric-learning under our contract: which keep it, what is added, and what is refused."""

from __future__ import annotations

import builtins
import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from proxemics.core.config import make_config
from proxemics.core.errors import LossError
from proxemics.losses import ProxyAnchor, ProxyLoss, build_loss, check_loss
from proxemics.losses.contract import CHECKS
from proxemics.losses.pml import WrappedLoss, WrappedProxyLoss, build_wrapped, wrap
from proxemics.methods import SEE
from proxemics.methods.needs import check_needs
from proxemics.training.pipeline import fit

pml = pytest.importorskip("pytorch_metric_learning.losses")

PROXY = (
    "ProxyAnchorLoss", "ProxyNCALoss", "NormalizedSoftmaxLoss", "CosFaceLoss", "ArcFaceLoss", "SubCenterArcFaceLoss",
    "SoftTripleLoss", "SphereFaceLoss", "LargeMarginSoftmaxLoss",
)  # fmt: skip
PAIR = (
    "MultiSimilarityLoss", "ContrastiveLoss", "TripletMarginLoss", "MarginLoss", "NTXentLoss", "SupConLoss", "NCALoss",
    "LiftedStructureLoss", "AngularLoss", "FastAPLoss",
)  # fmt: skip
SEVERAL = {"SubCenterArcFaceLoss": 3, "SoftTripleLoss": 10}


@pytest.mark.parametrize("name", [*PROXY, *PAIR])
def test_it_keeps_the_contract(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check_loss(lambda classes, dim: build_loss(f"pml.{name}", classes, dim)) == tuple(CHECKS)


@pytest.mark.parametrize("name", PROXY)
def test_proxies_are_their_class_vectors(name: str) -> None:
    """In our layout, as a view: what a method writes there is what their loss computes with."""
    loss = build_wrapped(name, 4, 6)
    assert isinstance(loss, WrappedProxyLoss)
    assert isinstance(loss, ProxyLoss)
    several = SEVERAL.get(name, 1)
    assert loss.proxies.shape == ((4, 6) if several == 1 else (4, several, 6))
    (parameter,) = loss.parameters()
    assert loss.proxies.data_ptr() == parameter.data_ptr()
    directions = torch.eye(6)[:4]
    with torch.no_grad():
        loss.proxies.copy_(directions if several == 1 else directions[:, None].expand(4, several, 6))
    table = loss.similarities(2 * directions)
    torch.testing.assert_close(table, torch.eye(4))
    right, wrong = loss(directions, torch.arange(4)), loss(directions, torch.arange(4).roll(1))
    assert right < wrong
    table.sum().backward()
    assert parameter.grad is not None
    if several > 1:
        with pytest.raises(LossError, match="Class means cannot start"):
            loss.set_class_means(directions, torch.arange(4))
    else:
        loss.set_class_means(-directions, torch.arange(4))
        torch.testing.assert_close(loss.similarities(directions).diagonal(), -torch.ones(4))


def test_the_value_is_theirs_and_ours() -> None:
    theirs = pml.ProxyAnchorLoss(5, 8)
    loss, own = wrap(theirs, num_classes=5, dim=8), ProxyAnchor(5, 8)
    with torch.no_grad():
        own.proxies.copy_(loss.proxies)
    z, labels = torch.randn(7, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    assert loss(z, labels) == theirs(z, labels)
    torch.testing.assert_close(loss(z, labels), own(z, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_no_parameter_is_cast(dtype: torch.dtype) -> None:
    """User-pains 17: their forward casts the parameters to the type of the embeddings, and they stay so."""
    bare = pml.ProxyAnchorLoss(3, 4)
    bare(torch.randn(2, 4).to(dtype), torch.tensor([0, 1]))
    assert bare.proxies.dtype == dtype  # what the wrapper prevents
    loss = build_wrapped("ProxyAnchorLoss", 3, 4)
    value = loss(torch.randn(2, 4).to(dtype), torch.tensor([0, 1]))
    assert loss.proxies.dtype == torch.float32
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_miner_chooses_the_pairs() -> None:
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    z, labels = torch.randn(12, 8, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
    theirs, miner = pml.MultiSimilarityLoss(), MultiSimilarityMiner(epsilon=0.1)
    loss = wrap(theirs, num_classes=3, dim=8, miner=miner)
    assert isinstance(loss, WrappedLoss)
    assert loss(z, labels) == theirs(z, labels, miner(z, labels))
    assert loss(z, labels) != theirs(z, labels)
    assert loss(z[:0], labels[:0]) == 0


def test_what_does_not_fit_is_refused() -> None:
    theirs = pml.ProxyAnchorLoss(10, 8)
    with pytest.raises(LossError, match=r"holds 10 vectors of dimension 8.*not those of 10 classes of dimension 4"):
        wrap(theirs, num_classes=10, dim=4)
    with pytest.raises(LossError, match="not those of 3 classes"):
        wrap(theirs, num_classes=3, dim=8)
    with pytest.raises(LossError, match="takes a loss of pytorch-metric-learning, got type"):
        wrap(pml.ProxyAnchorLoss, num_classes=10, dim=8)
    with pytest.raises(LossError, match=r"Label 10 in row 1 is outside 0\.\.9"):
        wrap(theirs, num_classes=10, dim=8)(torch.randn(2, 8), torch.tensor([0, 10]))
    assert not hasattr(wrap(pml.ManifoldLoss(l=8, K=10), num_classes=10, dim=8), "proxies")
    with pytest.raises(Exception, match="SEE works on proxies and WrappedLoss has none"):
        check_needs(SEE(), None, wrap(pml.MultiSimilarityLoss(), num_classes=3, dim=8))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pml.ProxyAnchorLos", {}, r"has no loss 'ProxyAnchorLos'. Did you mean 'ProxyAnchorLoss'\?"),
        ("pml.ProxyAnchorLoss", {"alfa": 3}, r"no option 'alfa'. Did you mean 'alpha'\? Options: margin, alpha"),
        ("pml.ProxyAnchorLoss", {"distance": "cosine"}, "Objects such as a distance are given from Python"),
        ("pml.ProxyAnchorLoss", {"num_classes": 3}, "no option 'num_classes'"),
        ("pml.GenericPairLoss", {}, "cannot be built from its name: .*mat_based_loss.*use wrap"),
        ("pml_anchor", {}, "and those of pytorch-metric-learning, as in pml.ProxyAnchorLoss"),
    ],
)
def test_a_wrong_name_or_option_is_told(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LossError, match=message):
        build_loss(name, 5, 8, options)


def test_an_absent_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pytorch_metric_learning"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LossError, match="pip install pytorch-metric-learning"):
        build_loss("pml.ProxyAnchorLoss", 5, 8)


def test_state_and_copies_are_whole() -> None:
    loss = build_wrapped("SoftTripleLoss", 4, 6, {"centers_per_class": 2})
    assert isinstance(loss, WrappedProxyLoss)
    other = build_wrapped("SoftTripleLoss", 4, 6, {"centers_per_class": 2})
    other.load_state_dict(loss.state_dict())
    z, labels = torch.randn(3, 6), torch.tensor([0, 1, 3])
    assert other(z, labels) == loss(z, labels) == copy.deepcopy(loss)(z, labels)
    assert isinstance(loss.inner, nn.Module)


def test_a_run_is_killed_and_goes_on(tiny_settings: list[str], tmp_path: Path) -> None:
    """Weights of their loss are in optimiser and checkpoint: a resumed run ends with the same numbers, bit for bit."""
    chosen = ["loss.name=pml.NormalizedSoftmaxLoss", "train.select=last", "methods.see={num_synthetic: 2, weight: 0.1}"]
    whole = fit(make_config({}, [*tiny_settings, *chosen, "train.epochs=2"]), tmp_path / "whole")

    class Stop(Exception):
        pass

    class Killer:
        def __init__(self) -> None:
            self.steps = 0

        def say(self, text: str) -> None: ...
        def start(self, task: str, total: int, *, done: int = 0) -> None: ...
        def finish(self, task: str) -> None: ...

        def advance(self, task: str, count: int = 1, *, note: str = "") -> None:
            self.steps += task == "train"
            if self.steps == 3:
                raise Stop

    config = make_config({}, [*tiny_settings, *chosen, "train.epochs=2"])
    with pytest.raises(Stop):
        fit(config, tmp_path / "parts", reporter=Killer())
    again = fit(config, tmp_path / "parts")
    assert again["rows"][0]["metrics"] == whole["rows"][0]["metrics"]
    assert again["rows"][0]["base"] == "pml.NormalizedSoftmaxLoss"
    assert again["rows"][0]["method"] == "see"
