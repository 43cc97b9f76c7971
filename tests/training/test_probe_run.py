"""Probing a bundle and a run from the pictures on, and the one test with trained networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import proxemics
from proxemics.core.config import make_config
from proxemics.core.errors import ConfigError, DataError, ModelError
from proxemics.data.confounded import ConfoundedSpec, write
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder
from proxemics.models.packaged import find_packaged
from proxemics.training.probe_run import embed_with, probe


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = ConfoundedSpec(train_classes=6, test_classes=6, per_class=6, size=48, rho=0.9)
    return write(spec, tmp_path_factory.mktemp("glyphs") / "set")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    embedder = Embedder("test_resnet", dim=16, weights="none", size=32)
    return save_bundle(embedder, tmp_path_factory.mktemp("bundle") / "bundle")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, glyphs: Path) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = [
        f"data.source={glyphs}", "data.size=32", "data.val_fraction=0.3", "data.workers=0",
        "model.trunk=test_resnet.r160_in1k", "model.weights=none", "model.dim=16", "model.freeze_bn=false",
        "train.epochs=1", "train.batch_size=8", "train.per_class=2", "train.tensorboard=false",
        "train.device=cpu", "evaluation.bootstrap=0", "evaluation.recall_at=[1]",
    ]  # fmt: skip
    proxemics.fit(make_config({}, settings), folder)
    return folder


def names(card: dict[str, Any]) -> set[str]:
    return {f"{one['probe']}/{one['name']}" for one in card["numbers"]}


def test_a_run_is_probed_on_its_test_classes_with_its_masks(run: Path) -> None:
    card = proxemics.probe(run, images=36)
    assert (card["pictures"], card["classes"], card["split"]) == (36, 6, "test")
    assert card["masks"]["source"] == "mask"
    assert {"background/follows", "nuisance/blur", "decodability/pasted", "certainty/auroc"} <= names(card)
    assert {"decodability/background", "decodability/domain", "decodability/rotation"} <= names(card)
    assert {"geometry/crowding", "geometry/gap"} <= names(card)
    assert not card["has_untrained"]  # these weights are in no package
    json.dumps(card, allow_nan=False)
    assert proxemics.probe(run, images=36) == card


def test_a_bundle_is_probed_on_other_pictures(bundle: Path, glyphs: Path) -> None:
    heard = Heard()
    card = probe(bundle, source=str(glyphs), where={"split": "test"}, only=["geometry", "background"], reporter=heard)
    assert (card["pictures"], card["probes"]) == (36, ["background", "geometry"])
    assert {name.partition("/")[0] for name in names(card)} == {"background", "geometry"}
    assert not {"geometry/crowding", "geometry/gap"} & names(card)
    assert heard.totals["probe"] == heard.done["probe"] > 0


class Heard:
    """A reporter that counts."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.totals[task], self.done[task] = total, done

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        self.done[task] += by

    def finish(self, task: str) -> None: ...

    def say(self, text: str) -> None: ...


def test_pictures_without_masks_get_estimated_ones(bundle: Path, tiny_folder: Path) -> None:
    card = probe(bundle, source=str(tiny_folder), images=24, only=["background"])
    assert card["masks"]["source"] == "automatic"
    assert "this model's own trunk" in card["masks"]["sentence"]


def test_a_cause_of_your_own_is_decoded(bundle: Path, glyphs: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(glyphs)
    frame["path"] = [str(glyphs.parent / path) for path in frame["path"]]
    frame["camera"] = np.where(np.arange(len(frame)) % 2, "a", "b")
    frame["weight"] = np.linspace(0, 1, len(frame))
    for column in ("mask", "background"):
        frame = frame.drop(columns=column)
    frame.to_csv(tmp_path / "own.csv", index=False)
    config = str(tmp_path / "own.csv")
    with pytest.raises(DataError, match="leaves the root"):
        probe(bundle, source=config)
    frame["path"] = [str(Path(path).relative_to(glyphs.parent)) for path in frame["path"]]
    target = glyphs.parent / "own.csv"
    frame.to_csv(target, index=False)
    card = probe(bundle, source=str(target), images=40, only=["decodability"], causes=["camera", "weight"])
    assert {"decodability/camera", "decodability/weight"} <= names(card)
    with pytest.raises(DataError, match=r"no column 'camra' to decode.*Did you mean 'camera'"):
        probe(bundle, source=str(target), causes=["camra"])


def test_what_is_wrong_is_said(bundle: Path, glyphs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'geometri' is no probe.*Did you mean 'geometry'"):
        probe(bundle, source=str(glyphs), only=["geometri"])
    with pytest.raises(ConfigError, match="images=3; give 8 or more"):
        probe(bundle, source=str(glyphs), images=3)
    with pytest.raises(DataError, match="name the pictures to probe with --data"):
        probe(bundle)
    with pytest.raises(DataError, match="holds no model"):
        probe(tmp_path)
    lonely = pd.read_csv(glyphs).drop_duplicates("label")
    lonely.to_csv(glyphs.parent / "lonely.csv", index=False)
    with pytest.raises(DataError, match="needs 8 pictures of two classes"):
        probe(bundle, source=str(glyphs.parent / "lonely.csv"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError):
        probe(tmp_path, source=str(glyphs))


def test_raw_embeddings_come_as_in_evaluation(bundle: Path) -> None:
    embedder = load_bundle(bundle)
    pictures = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    raw = embed_with(embedder, "cpu")(pictures)
    assert torch.equal(raw, embedder.encode(embedder.preprocess.normalize(pictures)).raw)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_packaged("tf_efficientnet_lite0") is None, reason="the package with the weights is absent")
def test_a_model_trained_on_tied_backgrounds_scores_worse(tmp_path: Path) -> None:
    cards = {}
    for rho in (0.0, 0.95):
        spec = ConfoundedSpec(train_classes=40, test_classes=40, per_class=12, size=64, rho=rho)
        settings = [
            f"data.source={write(spec, tmp_path / f'set{rho}')}", "data.size=64", "data.val_fraction=0.1",
            "data.workers=0", "model.dim=64", "loss.name=norm_softmax", "train.epochs=12",
            "train.batch_size=32", "train.per_class=4",
            "train.tensorboard=false", "train.device=cpu", "evaluation.bootstrap=0", "evaluation.recall_at=[1]",
        ]  # fmt: skip
        proxemics.fit(make_config({}, settings), tmp_path / f"run{rho}")
        card = probe(tmp_path / f"run{rho}", images=160, only=["background", "decodability", "geometry"])
        cards[rho] = {f"{one['probe']}/{one['name']}": one["value"] for one in card["numbers"]}
    honest, confounded = cards[0.0], cards[0.95]
    # Measured: follows .20 and .73, drift .44 and .71, shares .24 and .61, R@1 .26 and .06, pasted .61 and .90.
    assert confounded["background/follows"] > honest["background/follows"] + 0.2
    assert confounded["background/drift_swapped"] > honest["background/drift_swapped"] + 0.1
    assert confounded["background/nearest_shares"] > honest["background/nearest_shares"] + 0.15
    assert confounded["background/recall_clean"] < honest["background/recall_clean"] - 0.1
    assert confounded["decodability/pasted"] > honest["decodability/pasted"] + 0.1
    assert confounded["decodability/background"] > honest["decodability/background"] + 0.15
    assert confounded["geometry/gap"] > honest["geometry/gap"] + 0.2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_packaged("tf_efficientnet_lite0") is None, reason="the package with the weights is absent")
def test_a_model_that_never_saw_a_nuisance_suffers_more_from_it(tmp_path: Path) -> None:
    """Both are asked about the same upright pictures in even light; one was trained on turned glyphs in any light."""
    cards, sets = {}, {}
    for name, rotation, illumination in (("naive", 0.0, 0.0), ("exposed", 90.0, 1.0)):
        spec = ConfoundedSpec(
            train_classes=40, test_classes=40, per_class=12, size=64, rho=0.0, rotation=rotation,
            illumination=illumination,
        )  # fmt: skip
        sets[name] = write(spec, tmp_path / f"set_{name}")
        settings = [
            f"data.source={sets[name]}", "data.size=64", "data.val_fraction=0.1", "data.workers=0", "model.dim=64",
            "loss.name=norm_softmax", "train.epochs=12", "train.batch_size=32", "train.per_class=4",
            "train.tensorboard=false", "train.device=cpu", "evaluation.bootstrap=0", "evaluation.recall_at=[1]",
        ]  # fmt: skip
        proxemics.fit(make_config({}, settings), tmp_path / name)
        card = probe(tmp_path / name, source=str(sets["naive"]), where={"split": "test"}, images=160, only=["nuisance"])
        cards[name] = {f"{one['probe']}/{one['name']}": one["value"] for one in card["numbers"]}
    assert cards["exposed"]["nuisance/rotation"] > cards["naive"]["nuisance/rotation"] + 0.05
    assert cards["exposed"]["nuisance/light"] > cards["naive"]["nuisance/light"] + 0.02
