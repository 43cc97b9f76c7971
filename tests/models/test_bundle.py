"""Bundles on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
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


def test_hashes_of_what_decides_a_vector_are_recorded(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b", labels=["a"], card="card")
    about = json.loads((folder / "model.json").read_text())
    assert sorted(about["files"]) == ["labels.json", "model.safetensors", "preprocess.json"]
    assert about["files"]["labels.json"] == hashlib.sha256((folder / "labels.json").read_bytes()).hexdigest()
    assert about["preprocess_fingerprint"] == embedder.preprocess.fingerprint()
    (folder / "card.md").write_text("corrected by hand")
    load_bundle(folder)  # a card decides nothing
    text = (folder / "preprocess.json").read_text()
    (folder / "preprocess.json").write_text(text.replace("70", "71"))
    with pytest.raises(ModelError, match=r"preprocess.json is not the file that was exported: its hash differs"):
        load_bundle(folder)


def test_a_changed_tensor_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b")
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match="do not belong together"):
        load_bundle(folder)


def test_a_bundle_of_schema_1_still_loads(embedder: Embedder, tmp_path: Path) -> None:
    """As the first version wrote them: without hashes."""
    folder = save_bundle(embedder, tmp_path / "b", labels=["owl"])
    about = json.loads((folder / "model.json").read_text())
    old = {name: about[name] for name in ("kind", "version", "arguments", "weights", "fingerprint")}
    (folder / "model.json").write_text(json.dumps({"schema": 1, **old}))
    assert load_bundle(folder).fingerprint() == embedder.fingerprint()
    labels = load_labels(folder)
    assert labels is not None
    assert labels.names == ("owl",)
    save_bundle(embedder, folder)
    assert json.loads((folder / "model.json").read_text())["schema"] == 2


def test_more_files_are_written_before_the_folder_is_seen(embedder: Embedder, tmp_path: Path) -> None:
    def more(new: Path) -> None:
        assert not (tmp_path / "b").exists()
        (new / "onnx").mkdir()
        (new / "onnx" / "model.onnx").write_bytes(b"graph")

    folder = save_bundle(embedder, tmp_path / "b", more=more)
    assert "onnx/model.onnx" in json.loads((folder / "model.json").read_text())["files"]
    load_bundle(folder)

    def fails(new: Path) -> None:
        raise ModelError("no graph today")

    before = (folder / "model.json").read_bytes()
    with pytest.raises(ModelError, match="no graph today"):
        save_bundle(embedder, folder, more=fails)
    assert (folder / "model.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_other_verbs_added_stays_while_the_model_is_the_same(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b")
    for name in ("thresholds.json", "classes.json", "classes.safetensors", "parity.json", "probe.json"):
        (folder / name).write_text(name)
    save_bundle(embedder, folder)
    kept = {"thresholds.json", "classes.json", "classes.safetensors"}
    assert {path.name for path in folder.iterdir()} - {"model.json", "model.safetensors", "preprocess.json"} == kept
    assert (folder / "classes.json").read_text() == "classes.json"

    def more(new: Path) -> None:
        (new / "classes.json").write_text("newer")

    save_bundle(embedder, folder, more=more)
    assert (folder / "classes.json").read_text() == "newer"
    assert not (folder / "classes.safetensors").exists()  # the two belong together
    assert (folder / "thresholds.json").exists()
    save_bundle(Embedder("test_vit", dim=8, weights="none", preprocess=embedder.preprocess), folder)
    assert not (folder / "thresholds.json").exists()
    assert not (folder / "classes.json").exists()


def test_another_preprocessing_ends_thresholds_too(embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b")
    (folder / "thresholds.json").write_text("{}")
    other = shutil.copytree(folder, tmp_path / "c")
    save_bundle(embedder, other)
    assert (other / "thresholds.json").exists()
    was = embedder.preprocess
    try:
        embedder.preprocess = was.model_copy(update={"resize": 71})
        save_bundle(embedder, other)
    finally:
        embedder.preprocess = was
    assert not (other / "thresholds.json").exists()


@pytest.mark.parametrize("name", ["onnx/notes.txt", "onnx", "extra", "onnx/deep/model.onnx"])
def test_unknown_files_and_folders_are_never_replaced(name: str, embedder: Embedder, tmp_path: Path) -> None:
    folder = save_bundle(embedder, tmp_path / "b")
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    if name == "extra":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("mine")
    with pytest.raises(ModelError, match="and would be replaced; choose another folder"):
        save_bundle(embedder, folder)
    assert (folder / name).exists()


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
