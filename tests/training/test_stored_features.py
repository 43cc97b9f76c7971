"""Stored features of frozen stages: what they hold, who shares them, and that training on them is training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from proxemics.core.config import make_config
from proxemics.core.errors import ConfigError, DataError
from proxemics.data.dataset import ImageDataset
from proxemics.data.transforms import TrainTransform
from proxemics.models.bundle import load_bundle
from proxemics.models.embedder import Embedder
from proxemics.training.pipeline import fit
from proxemics.training.stored_features import FeatureStore, StoredDataset, embed_stored, store_folder


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.set_num_threads(1)
    return Embedder("test_resnet", dim=16, weights="none", size=32, freeze_stages=3)


def pictures(folder: Path, *, train: bool, embedder: Embedder) -> ImageDataset:
    paths = sorted(folder.rglob("*.png")) or sorted(folder.rglob("*.jpg"))
    transform = TrainTransform(32) if train else embedder.preprocess
    return ImageDataset(paths[:10], np.zeros(len(paths[:10]), dtype=np.int64), transform=transform, seed=3)


def test_views_hold_the_features_of_the_augmented_pictures(
    tiny_folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    dataset = pictures(tiny_folder, train=True, embedder=embedder)
    store = FeatureStore.build(tmp_path / "s", embedder, lambda: dataset, stage="stage2", views=2)
    assert (len(store), store.num_views) == (10, 2)
    for epoch in (0, 1, 3):
        dataset.set_epoch(epoch % 2)
        images = embedder.preprocess.normalize(dataset.batch([4, 1])["image"])
        with torch.no_grad():
            wanted = embedder.eval().features_at(images, "stage2").value
        stored = StoredDataset(store, np.arange(10), np.zeros(10, dtype=np.int64))
        stored.set_epoch(epoch)
        batch = stored.batch([4, 1])
        assert batch["image"].dtype == torch.float16
        torch.testing.assert_close(batch["image"].float(), wanted, rtol=2e-3, atol=1e-4)
        assert batch["label"].tolist() == [4, 1]


def test_embedding_stored_features_is_embedding_the_pictures(
    tiny_folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    dataset = pictures(tiny_folder, train=False, embedder=embedder)
    store = FeatureStore.build(tmp_path / "s", embedder, lambda: dataset, stage="stage2")
    images = embedder.preprocess.normalize(dataset.batch(range(10))["image"])
    with torch.no_grad():
        raw = embedder.eval().encode(images).raw
    np.testing.assert_allclose(embed_stored(embedder, store), raw.numpy(), rtol=5e-3, atol=5e-3)


def test_a_store_is_completed_and_not_computed_again(tiny_folder: Path, embedder: Embedder, tmp_path: Path) -> None:
    dataset = pictures(tiny_folder, train=True, embedder=embedder)
    calls: list[int] = []

    def make() -> ImageDataset:
        calls.append(1)
        return dataset

    FeatureStore.build(tmp_path / "s", embedder, make, stage="stage2", views=1)
    first = (tmp_path / "s" / "view-000.npy").stat().st_mtime_ns
    done: list[tuple[int, int]] = []
    FeatureStore.build(tmp_path / "s", embedder, make, stage="stage2", views=2, progress=lambda *now: done.append(now))
    assert done[-1] == (20, 20)
    assert (tmp_path / "s" / "view-000.npy").stat().st_mtime_ns == first
    FeatureStore.build(tmp_path / "s", embedder, make, stage="stage2", views=2)
    assert len(calls) == 2


def test_the_name_depends_on_everything_that_decides_the_content(tiny_folder: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in sorted(tiny_folder.rglob("*.*"))[:3]]
    plain = {"paths": paths, "transform": TrainTransform(32), "seed": 0, "weights": "a", "stage": "stage2"}
    changes = [
        {"paths": paths[:2]}, {"transform": TrainTransform.strong(32)}, {"seed": 1}, {"weights": "b"},
        {"stage": "stage1"},
    ]  # fmt: skip
    names = {store_folder(tmp_path, **{**plain, **change}) for change in [{}, *changes]}
    assert len(names) == len(changes) + 1
    assert store_folder(tmp_path, **plain) == store_folder(tmp_path, **plain)


def test_features_that_do_not_fit_half_precision_are_refused(
    tiny_folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    dataset = pictures(tiny_folder, train=True, embedder=embedder)
    loud = Embedder("test_resnet", dim=16, weights="none", size=32, freeze_stages=3)
    with torch.no_grad():
        for parameter in loud.trunk.parameters():
            parameter.mul_(1e4)
    with pytest.raises(DataError, match="exceed half precision"):
        FeatureStore.build(tmp_path / "s", loud, lambda: dataset, stage="stage2")


def settings(tiny_settings: list[str], *more: str) -> list[str]:
    return [*tiny_settings, "model.freeze_bn=true", "model.freeze_stages=3", "train.epochs=2", *more]


def test_a_run_on_stored_features_is_the_run_on_pictures(tiny_settings: list[str], tmp_path: Path) -> None:
    """Same augmentation, same batches; only the rounding to half precision differs."""
    found = []
    for number, cache in enumerate(("memory", "features")):
        result = fit(make_config({}, settings(tiny_settings, f"data.cache={cache}")), tmp_path / str(number))
        log = pd.read_json(tmp_path / str(number) / "metrics.jsonl", lines=True)
        found.append(([row["metrics"]["map_at_r"] for row in result["rows"]], log["loss"].dropna().to_numpy()))
        assert not (tmp_path / str(number) / "cache").exists()
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0.05)
    np.testing.assert_allclose(found[0][0], found[1][0], atol=0.05)


def test_runs_share_a_store_and_a_lower_method_moves_the_entry(tiny_settings: list[str], tmp_path: Path) -> None:
    shared = settings(tiny_settings, "data.cache=features", f"data.cache_folder={tmp_path / 'store'}")
    fit(make_config({}, shared), tmp_path / "base")
    stores = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert all(name.startswith("stage2-") for name in stores)
    fit(make_config({}, [*shared, "methods.see={num_synthetic: 4}"]), tmp_path / "see")
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == stores
    fit(make_config({}, [*shared, "methods.msrci={layer: layer1}"]), tmp_path / "msrci")
    added = {path.name for path in (tmp_path / "store").iterdir()} - set(stores)
    assert added
    assert all(name.startswith("stage1-") for name in added)
    result = fit(make_config({}, [*shared, "methods.msrci={layer: pixel}"]), tmp_path / "pixel")
    assert result["rows"][0]["method"] == "msrci"
    bundles = [
        load_file(tmp_path / name / "bundle" / "model.safetensors") for name in ("base", "see", "msrci", "pixel")
    ]
    shapes = [{name: (value.shape, value.dtype) for name, value in one.items()} for one in bundles]
    assert all(one == shapes[0] for one in shapes)  # nothing of a method is left in the model
    with torch.no_grad():
        models = [load_bundle(tmp_path / name / "bundle").eval() for name in ("base", "msrci")]
        assert len({sum(1 for _ in model.modules()) for model in models}) == 1


def test_storing_what_is_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set model.freeze_stages=3, or data.cache=memory"):
        make_config({}, ["data.cache=features"])
