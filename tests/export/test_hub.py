"""A bundle goes to a hub and comes back the same, or not at all."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from proxemics.core.errors import ExportError, ModelError
from proxemics.export.hub import pull, push
from proxemics.export.source import open_source
from proxemics.models import Embedder, load_bundle, load_labels, save_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an export leaves it, with a made-up graph. Tests that change it copy it first."""
    embedder = Embedder("test_resnet", dim=8, weights="none", size=32)

    def more(new: Path) -> None:
        (new / "onnx").mkdir()
        (new / "onnx" / "model.onnx").write_bytes(b"graph")
        (new / "parity.json").write_text("{}\n")

    card = "---\nlicense: mit\nlibrary_name: proxemics\ntags:\n- x\n---\n\n# Card\n"
    folder = tmp_path_factory.mktemp("hub") / "bundle"
    return save_bundle(embedder, folder, labels=["owl", "auk"], card=card, more=more)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_folder_is_a_hub(address: str, bundle: Path, tmp_path: Path) -> None:
    repo = tmp_path / "my repo"
    assert push(bundle, address.format(str(repo).replace(" ", "%20") if "file" in address else repo)) == str(repo)
    assert sorted(content(repo)) == [
        "README.md", "config.json", "labels.json", "model.safetensors", "onnx/model.onnx", "parity.json",
        "preprocess.json",
    ]  # fmt: skip
    back = pull(address.format(str(repo).replace(" ", "%20") if "file" in address else repo), tmp_path / "back")
    assert content(back) == content(bundle)
    loaded, labels = load_bundle(back), load_labels(back)
    assert loaded.fingerprint() == load_bundle(bundle).fingerprint()
    assert labels is not None
    assert labels.names == ("owl", "auk")


def test_the_layout_is_that_of_the_hub(bundle: Path, tmp_path: Path) -> None:
    push(bundle, str(tmp_path / "repo"))
    head = yaml.safe_load((tmp_path / "repo" / "README.md").read_text().split("---\n")[1])
    assert head == {"license": "mit", "library_name": "proxemics", "tags": ["x"]}
    config = json.loads((tmp_path / "repo" / "config.json").read_text())
    assert config["library_name"] == config["model_type"] == "proxemics"
    assert set(config["sha256"]) == set(content(tmp_path / "repo")) - {"config.json"}


def test_a_bundle_without_a_card_gets_a_head(bundle: Path, tmp_path: Path) -> None:
    bare = save_bundle(load_bundle(bundle), tmp_path / "bare")
    for card in (None, "# By hand\n"):
        if card is not None:
            (bare / "card.md").write_text(card)
        push(bare, str(tmp_path / "repo"))
        text = (tmp_path / "repo" / "README.md").read_text()
        head = yaml.safe_load(text.split("---\n")[1])
        assert head == {
            "license": "unknown", "library_name": "proxemics", "pipeline_tag": "image-feature-extraction",
        }  # fmt: skip
        assert card is None or text.endswith(card)
    assert load_bundle(pull(str(tmp_path / "repo"), tmp_path / "back")).dim == 8


def test_the_newer_bundle_replaces_the_older_one_whole(bundle: Path, tmp_path: Path) -> None:
    repo, back = str(tmp_path / "repo"), tmp_path / "back"
    push(bundle, repo)
    pull(repo, back)
    other = save_bundle(Embedder("test_vit", dim=4, weights="none", size=32), tmp_path / "other")
    push(other, repo)
    assert not (tmp_path / "repo" / "onnx").exists()
    pull(repo, back)
    assert set(content(back)) == {"model.json", "model.safetensors", "preprocess.json", "card.md"}
    assert load_bundle(back).fingerprint() == load_bundle(other).fingerprint()


def test_enrolled_classes_are_sent_only_when_asked(bundle: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(bundle, tmp_path / "own"))
    for name in ("classes.json", "classes.safetensors", "thresholds.json"):
        (own / name).write_text("{}")
    push(own, str(tmp_path / "repo"))
    assert (tmp_path / "repo" / "thresholds.json").exists()
    assert not (tmp_path / "repo" / "classes.json").exists()
    push(own, str(tmp_path / "repo"), classes=True)
    assert content(pull(str(tmp_path / "repo"), tmp_path / "back")) == content(own)


def test_a_bundle_of_schema_1_goes_there_and_back(bundle: Path, tmp_path: Path) -> None:
    old = save_bundle(load_bundle(bundle), tmp_path / "old")
    about = json.loads((old / "model.json").read_text())
    kept = {name: about[name] for name in ("kind", "version", "arguments", "weights", "fingerprint")}
    (old / "model.json").write_text(json.dumps({"schema": 1, **kept}))
    push(old, str(tmp_path / "repo"))
    back = pull(str(tmp_path / "repo"), tmp_path / "back")
    assert json.loads((back / "model.json").read_text()) == {"schema": 1, **kept}
    assert load_bundle(back).fingerprint() == about["fingerprint"]


def spoil(name: str) -> Callable[[Path], object]:
    def change(repo: Path) -> None:
        data = bytearray((repo / name).read_bytes())
        data[-2] ^= 1
        (repo / name).write_bytes(data)

    return change


def edit(**changes: object) -> Callable[[Path], object]:
    def change(repo: Path) -> None:
        config = json.loads((repo / "config.json").read_text())
        (repo / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def listing(name: str) -> Callable[[Path], object]:
    def change(repo: Path) -> None:
        config = json.loads((repo / "config.json").read_text())
        config["sha256"][name] = "0" * 64
        (repo / "config.json").write_text(json.dumps(config))

    return change


DAMAGE = {
    "weights": (spoil("model.safetensors"), "model.safetensors of .* is not the file that was sent"),
    "graph": (spoil("onnx/model.onnx"), "onnx/model.onnx of .* is not the file that was sent"),
    "card": (spoil("README.md"), "README.md of .* is not the file that was sent"),
    "missing": (lambda repo: (repo / "preprocess.json").unlink(), "has no preprocess.json, which its config.json"),
    "no config": (lambda repo: (repo / "config.json").unlink(), "holds no config.json"),
    "another": (edit(library_name="transformers"), "something else wrote it"),
    "no bundle": (edit(bundle=[]), "something else wrote it"),
    "outside": (listing("../../escape.txt"), r"lists '../../escape.txt', which is no file of a bundle"),
    "pickle": (listing("pytorch_model.bin"), "lists 'pytorch_model.bin', which is no file of a bundle"),
    "half": (edit(sha256={}), "is no bundle: it has no model.safetensors"),
    "newer": (edit(bundle={"schema": 99, "version": "9.0", "arguments": {}}), "Proxemics 9.0, which is newer"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_nothing_damaged_or_foreign_comes_in(kind: str, bundle: Path, tmp_path: Path) -> None:
    repo, out = tmp_path / "repo", tmp_path / "out"
    push(bundle, str(repo))
    pull(str(repo), out)
    before = content(out)
    damage, message = DAMAGE[kind]
    damage(repo)
    with pytest.raises((ExportError, ModelError), match=message) as error:
        pull(str(repo), out)
    assert "\n" not in str(error.value)
    assert content(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "repo"]


def test_what_cannot_be_sent_is_told(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is no bundle: it has no model.safetensors"):
        push(tmp_path, str(tmp_path / "repo"))
    run = tmp_path / "run"
    shutil.copytree(bundle, run / "bundle")
    with pytest.raises(ModelError, match=r"is a run folder; export it first: proxemics export .*run --out bundle"):
        push(run, str(tmp_path / "repo"))
    spoil("onnx/model.onnx")(run / "bundle")
    with pytest.raises(ModelError, match=r"model.onnx is not the file that was exported"):
        push(run / "bundle", str(tmp_path / "repo"))
    assert not (tmp_path / "repo").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"it holds 'notes.txt'"):
        push(bundle, str(tmp_path / "mine"))
    with pytest.raises(ExportError, match=r"There is no folder .*nowhere"):
        pull(str(tmp_path / "nowhere"), tmp_path / "out")


def test_a_card_in_another_encoding_is_told(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(bundle, folder)
    (folder / "card.md").write_bytes("# Vögel\n".encode("latin-1"))
    for act in (lambda: push(folder, str(tmp_path / "hub")), lambda: open_source(folder)):
        with pytest.raises(ModelError, match=r"card\.md is no UTF-8 text .*save it as UTF-8"):
            act()
    assert not (tmp_path / "hub").exists()


def test_a_missing_package_is_named(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ExportError, match=r"pip install 'proxemics\[hub\]'. A folder needs none"):
        push(bundle, "ada/birds")
    with pytest.raises(ExportError, match=r"pip install 'proxemics\[hub\]'"):
        pull("ada/birds", tmp_path / "out")
    push(bundle, str(tmp_path / "repo"))


def test_without_a_network_there_is_one_line(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client does under HF_HUB_OFFLINE=1, which it reads when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    for act in (lambda: push(bundle, "ada/birds"), lambda: pull("ada/birds", tmp_path / "out")):
        with pytest.raises(ExportError) as error:
            act()
        text = str(error.value)
        assert text.startswith("The model hub did not take part in 'ada/birds': ")
        assert text.endswith("or give a folder (./folder or file:///folder).")
        assert "\n" not in text
        assert "secret" not in text
    assert not (tmp_path / "out").exists()


def verb(*arguments: object, home: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Run the real command; the client reads its address when it is imported."""
    program = "from proxemics.cli.main import main; main()"
    added = {"OMP_NUM_THREADS": "1", "HF_HOME": str(home), "HF_TOKEN": "secret", "HF_ENDPOINT": address}
    variables = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | added
    return subprocess.run(
        [sys.executable, "-c", program, "hub", *map(str, arguments)], capture_output=True, text=True, env=variables
    )


@pytest.mark.slow
def test_the_real_client_sends_and_fetches(bundle: Path, tmp_path: Path) -> None:
    """The client of the hub against a server of this test; see the top of that file."""
    place = Path(__file__).with_name("_hub_server.py")
    spec = importlib.util.spec_from_file_location("_hub_server", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hub = module.Hub()
    try:
        hub.repositories["ada/birds"] = {"onnx/model.int8.onnx": b"of an older bundle", "notes.txt": b"by hand"}
        done = verb("push", bundle, "ada/birds", "--json", home=tmp_path / "home", address=hub.address)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"pushed": f"{hub.address}/ada/birds"}
        assert hub.created[0]["visibility"] == "private"
        files = hub.repositories["ada/birds"]
        assert files.pop("notes.txt") == b"by hand"
        assert "onnx/model.int8.onnx" not in files
        assert files["model.safetensors"] == (bundle / "model.safetensors").read_bytes()

        files["pytorch_model.bin"] = b"a pickle"
        out = tmp_path / "out"
        done = verb("pull", "ada/birds", "--out", out, home=tmp_path / "home", address=hub.address)
        assert done.returncode == 0, done.stderr
        assert content(out) == content(bundle)
        assert not [line for line in hub.asked if "pytorch_model.bin" in line]

        files["preprocess.json"] += b" "
        done = verb("pull", "ada/birds", "--out", out, home=tmp_path / "other home", address=hub.address)
        assert done.returncode == 2
        assert done.stderr == (
            "Error: preprocess.json of ada/birds is not the file that was sent: its hash differs. Fetch or push the "
            "model again.\n"
        )
        done = verb("pull", "ada/fish", "--out", out, home=tmp_path / "home", address=hub.address)
        assert done.returncode == 2
        assert "Error: The model hub did not take part in 'ada/fish': 404" in done.stderr
    finally:
        hub.shutdown()
        hub.server_close()
