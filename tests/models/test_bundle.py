"""Bundles on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from proxemics.core.errors import ModelError
from proxemics.data.preprocess import Preprocess
from proxemics.models import Embedder, load_bundle, load_labels, save_bundle


@pytest.fixture
def embedder() -> Embedder:
    """A model that uses what can go wrong: fixed size, other preprocessing, learnt pooling, layer norm."""
    preprocess = Preprocess(size=64, resize=70, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    return Embedder(
        "test_vit",
        dim=8,
        pooling="gem",
        weights="none",
        layer_norm=True,
        preprocess=preprocess,
        freeze_stages=1,
        seed=3,
    ).eval()


def test_round_trip(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "a" / "bundle", labels=["owl", "auk"], card="# Card\n")
    assert sorted(path.name for path in folder.iterdir()) == [
        "card.md",
        "labels.json",
        "model.json",
        "model.safetensors",
        "preprocess.json",
    ]
    loaded = load_bundle(folder)
    assert not loaded.training
    assert loaded.arguments == embedder.arguments
    assert loaded.preprocess == embedder.preprocess
    assert loaded.fingerprint() == embedder.fingerprint()
    labels = load_labels(folder)
    assert labels is not None
    assert labels.names == ("owl", "auk")  # the order of the numbers, not of the alphabet
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(images), embedder(images))
    assert load_labels(save_bundle(embedder, tmp_path / "plain")) is None


def test_an_older_bundle_is_replaced_whole(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b", labels=["a"], card="old")
    save_bundle(embedder, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors", "preprocess.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]  # no temporary folders left


def test_a_folder_of_something_else_is_never_replaced(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ModelError, match=r"is no bundle \(it holds 'thesis.tex'\) and would be replaced"):
        save_bundle(embedder, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    with pytest.raises(ModelError, match="would be replaced"):
        save_bundle(embedder, tmp_path / "thesis.tex")


def test_a_failed_write_leaves_the_old_bundle(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b")
    before = (folder / "model.json").read_bytes()
    with pytest.raises(Exception, match="appears twice"):
        save_bundle(embedder, folder, labels=["a", "a"])
    assert (folder / "model.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="Cannot write the bundle"):
        save_bundle(embedder, tmp_path / "file" / "bundle")


def test_only_tensors_and_json_are_written(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b", labels=["a"])
    about = json.loads((folder / "model.json").read_text())
    assert about["arguments"]["trunk"] == "test_vit"
    assert set(load_file(folder / "model.safetensors")) == set(embedder.state_dict())
    modes = {oct((folder / name).stat().st_mode & 0o444) for name in ("model.json", "model.safetensors")}
    assert len(modes) == 1  # both can be read by the same people


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "model.json").read_text())
    about.update(changes)
    (folder / "model.json").write_text(json.dumps(about))


def test_broken_bundles_are_named(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is no bundle: it has no model.safetensors\. Give the folder"):
        load_bundle(tmp_path)
    folder = save_bundle(embedder, tmp_path / "b")
    edit(folder, schema=99, version="9.0")
    with pytest.raises(ModelError, match=r"was written by Proxemics 9\.0, which is newer; update"):
        load_bundle(folder)
    edit(folder, schema=1, fingerprint="0")
    with pytest.raises(ModelError, match="do not belong together"):
        load_bundle(folder)
    edit(folder, arguments={**embedder.arguments, "pooing": "avg"})
    with pytest.raises(ModelError, match=r"unknown argument 'pooing'\. Did you mean 'pooling'\?"):
        load_bundle(folder)
    edit(folder, arguments={**embedder.arguments, "dim": 9})
    with pytest.raises(ModelError, match=r"model.safetensors does not fit its model.json: .*head.weight"):
        load_bundle(folder)
    edit(folder, arguments=[1])
    with pytest.raises(ModelError, match="does not describe a bundle"):
        load_bundle(folder)
    file = save_bundle(embedder, tmp_path / "c") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(ModelError, match="Copy the whole bundle again"):
        load_bundle(file.parent)
