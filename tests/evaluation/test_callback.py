"""The collector and the callback for Lightning: the same numbers as an evaluation by hand, over processes too."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from warm_processes import Warm

from proxemics.core.errors import ConfigError, EvaluationError
from proxemics.evaluation import callback, evaluate_embeddings
from proxemics.evaluation.callback import Collector, find_lightning

SCRIPT = Path(__file__).with_name("_callback_processes.py")


def sample(images: int = 40, classes: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes + 2**40  # past what float32 and int32 hold
    centres = torch.randn(classes, 6, generator=generator)[torch.arange(images) % classes]
    return centres + torch.randn(images, 6, generator=generator), labels


def test_batches_add_up_to_the_whole() -> None:
    points, labels = sample()
    collector = Collector(recall_at=(1, 2))
    for rows in torch.arange(40).split(7):
        collector.add(points[rows].bfloat16().float(), labels[rows], rows)
    expected = evaluate_embeddings(points.bfloat16().float(), labels.numpy(), recall_at=(1, 2), bootstrap=0)
    assert len(collector) == 40
    assert dict(collector.evaluate()) == dict(expected)
    assert len(collector) == 0


def test_a_picture_that_comes_twice_counts_once() -> None:
    """User-pains 45: a padded sampler hands out some pictures again, and each would find its copy."""
    points, labels = sample()
    rows = torch.cat([torch.arange(40), torch.arange(5)])
    told, untold = Collector(recall_at=(1,)), Collector(recall_at=(1,))
    told.add(points[rows], labels[rows], rows)
    untold.add(points[rows], labels[rows])
    expected = evaluate_embeddings(points, labels.numpy(), recall_at=(1,), bootstrap=0)
    found = told.evaluate()
    assert (dict(found), found.num_queries) == (dict(expected), 40)
    assert untold.evaluate()["recall_at_1"] > expected["recall_at_1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), r"labels of type torch.int64 and shape \(2,\) for 3"),
        ((torch.zeros(3, 2), torch.zeros(3)), "labels of type torch.float32"),
        ((torch.zeros(3, 2), torch.arange(3), torch.rand(3)), "ids of type torch.float32"),
        ((torch.zeros(3), torch.arange(3)), r"Embeddings of shape \(3,\)"),
    ],
)
def test_batches_that_do_not_fit_are_refused(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        Collector().add(*arguments)


def test_nothing_and_wrong_k_are_refused() -> None:
    with pytest.raises(EvaluationError, match="No embeddings were added"):
        Collector().evaluate()
    with pytest.raises(EvaluationError, match="recall_at holds 0"):
        Collector(recall_at=(0,))


def test_two_processes_with_uneven_shares_get_the_numbers_of_one(warm: Warm, tmp_path: Path) -> None:
    """User-pains 45: 7 pictures on 2 ranks, one of them twice; the third batch goes to one process alone."""
    warm.run_ranks([str(SCRIPT), str(tmp_path)])
    points, labels = sample(7, 3)
    expected = evaluate_embeddings(points, labels.numpy(), recall_at=(1, 2), bootstrap=0)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["metrics"] == {name: float(value) for name, value in expected.items()}
        assert found["queries"] == expected.num_queries
        assert "add the number of each picture as ids" in found["refused"]


# --- Lightning --------------------------------------------------------------------------------------------------------

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def module_of(lightning: Any, *, outputs: str = "whole") -> Any:
    class Module(lightning.LightningModule):
        """A linear embedder that is trained to nothing in particular."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
            rows = self.layer(batch[0])
            return {"embeddings": rows, "labels": batch[1]} if outputs == "whole" else rows.mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    return Module()


def trainer_of(lightning: Any, folder: Path, *callbacks: Any, **settings: Any) -> Any:
    return lightning.Trainer(
        callbacks=list(callbacks), logger=False, accelerator="cpu", enable_progress_bar=False, default_root_dir=folder,
        enable_model_summary=False, **{"max_epochs": 2, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_it_logs_what_an_evaluation_by_hand_gives(package: str, tmp_path: Path) -> None:
    """With the sanity check on (one batch of one class, which could not be evaluated), and a monitor on the number."""
    lightning = pytest.importorskip(package)
    points, labels = sample()
    order = labels.argsort()
    loader = DataLoader(TensorDataset(points[order], labels[order]), 5)
    hook = callback._callback(package)(recall_at=(1, 2))
    best = lightning.callbacks.ModelCheckpoint(tmp_path, monitor="val/map_at_r", mode="max", save_last=True)
    stop = lightning.callbacks.EarlyStopping("val/recall_at_2", mode="max", patience=9)
    module = module_of(lightning)
    trainer = trainer_of(lightning, tmp_path, hook, best, stop, num_sanity_val_steps=1)
    trainer.fit(module, loader, loader)
    with torch.no_grad():
        expected = evaluate_embeddings(module.layer(points[order]), labels[order].numpy(), recall_at=(1, 2))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for name in ("recall_at_1", "recall_at_2", "map_at_r"):
        assert logged[f"val/{name}"] == pytest.approx(float(expected[name]), abs=1e-6)
    assert hook.result is not None
    assert hook.result.num_queries == 40
    assert best.best_model_path
    assert isinstance(hook, lightning.Callback)


@pytest.mark.parametrize(("base", "package"), [PACKAGES, PACKAGES[::-1]])
@pytest.mark.filterwarnings("ignore")
def test_the_callback_of_one_package_serves_the_other(base: str, package: str, tmp_path: Path) -> None:
    """Both may be installed, and a process may have imported the one before the other."""
    lightning = pytest.importorskip(package)
    pytest.importorskip(base)
    points, labels = sample()
    loaders = [DataLoader(TensorDataset(points + shift, labels), 8) for shift in (0, 50)]
    hook = callback._callback(base)(recall_at=(1,), prefix="unseen_", dataloader=1)
    trainer = trainer_of(lightning, tmp_path, hook)
    module = module_of(lightning)
    trainer.validate(module, loaders, verbose=False)
    with torch.no_grad():
        expected = evaluate_embeddings(module.layer(points + 50), labels.numpy(), recall_at=(1,))
    assert float(trainer.callback_metrics["unseen_map_at_r"]) == pytest.approx(float(expected["map_at_r"]), abs=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_an_output_without_embeddings_is_told(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    points, labels = sample()
    trainer = trainer_of(lightning, tmp_path, callback.RetrievalCallback())
    with pytest.raises(EvaluationError, match=r"Module\.validation_step returned Tensor; RetrievalCallback needs"):
        trainer.validate(module_of(lightning, outputs="loss"), DataLoader(TensorDataset(points, labels), 8))


def test_the_class_is_one_for_all_who_ask_and_can_be_pickled_by_name() -> None:
    """Launchers that start processes anew send their callbacks along."""
    pytest.importorskip("lightning")
    kind = callback.RetrievalCallback
    assert kind is callback.RetrievalCallback
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert "validation_step" in (kind.__doc__ or "")
    with pytest.raises(AttributeError, match="no attribute 'RetrievalCalback'"):
        callback.RetrievalCalback  # noqa: B018 - the look-up is what is tested


IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import proxemics.evaluation.callback as callback
assert not {"lightning", "pytorch_lightning"} & set(sys.modules)
try:
    callback.RetrievalCallback
except Exception as error:
    print(type(error).__name__, error)
else:
    print([name for name in ("lightning", "pytorch_lightning") if name in sys.modules][0])
"""


@pytest.mark.parametrize("release", callback.MALICIOUS)
@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_releases_of_an_attacker_are_refused_before_they_are_imported(
    package: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of that version stands in front of the real one, and would run code on import."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise SystemExit('the code of the attacker ran')\n")
    facts = tmp_path / f"{package}-{release}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {release}\n")
    if package == "lightning":
        done = subprocess.run(
            [sys.executable, "-c", IMPORT, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stdout.startswith(f"ConfigError lightning {release} was published by an attacker")
        return
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setitem(sys.modules, package, np)  # imported already, so it is asked first
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    with pytest.raises(ConfigError, match=rf"pytorch_lightning {release} was published by an attacker; remove it"):
        find_lightning()
