"""`export`: from a run to a bundle that is complete, measured and safe to replace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import proxemics.export
from proxemics import runtime
from proxemics.core.errors import ConfigError, DataError, ExportError, ModelError
from proxemics.data.split_files import load_split
from proxemics.export import write
from proxemics.export.write import export
from proxemics.models import Embedder, load_bundle, load_labels, save_bundle
from proxemics.runtime.layout import KNOWN
from proxemics.training.run_folder import RunFolder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_the_bundle_is_complete(exported: tuple) -> None:
    run, bundle, written = exported
    assert names(bundle) == [
        "card.md", "certainty.json", "labels.json", "model.json", "model.safetensors", "onnx/model.fp16.onnx",
        "onnx/model.int8.onnx", "onnx/model.onnx", "parity.json", "preprocess.json", "probe.json",
    ]  # fmt: skip
    assert set(names(bundle)) <= set(KNOWN)
    assert written["files"] == {name: (bundle / name).stat().st_size for name in names(bundle)}
    model = load_bundle(bundle)
    assert model.fingerprint() == load_bundle(run / "bundle").fingerprint() == written["fingerprint"]
    labels, trained_on = load_labels(bundle), load_labels(run / "bundle")
    assert labels == trained_on
    assert labels is not None
    assert runtime.load(bundle, threads=1).labels == labels.names
    assert [path.name for path in bundle.parent.iterdir() if path.name.startswith(".")] == []


def test_every_precision_is_compared_and_measured(exported: tuple) -> None:
    run, bundle, written = exported
    parity = read(bundle / "parity.json")
    assert parity == written["parity"]
    by_name = {one["precision"]: one for one in parity["variants"]}
    assert list(by_name) == ["float32", "float16", "int8"]
    worst = {name: max(row["max_difference"] for row in one["parity"]) for name, one in by_name.items()}
    assert worst["float32"] < 1e-5 < worst["float16"] < worst["int8"] < 0.5
    assert by_name["float16"]["bytes"] < 0.6 * by_name["float32"]["bytes"]
    assert by_name["int8"]["bytes"] < 0.5 * by_name["float32"]["bytes"]
    stored = read(run / "result.json")["rows"][0]
    drift = parity["drift"]
    assert drift["queries"] == stored["num_queries"]
    assert drift["pictures"] == "the test pictures of the run"
    # The stored number comes from the fast engine; both are of the same pictures and the same model.
    assert abs(drift["recall_at_1"] - stored["metrics"]["recall_at_1"]) < 0.1
    for name, one in by_name.items():
        assert [row["batch"] for row in one["parity"]] == [1, 3, 17]
        difference = one["drift"]["recall_at_1"] - drift["recall_at_1"]
        assert one["drift"]["drift"] == pytest.approx(difference)
        low, high = one["drift"]["interval"]
        assert low <= difference <= high
        assert 0 <= one["drift"]["changed"] <= 1
        assert abs(difference) <= one["drift"]["changed"] + 1e-9
        model = runtime.load(bundle, precision=name, threads=1)
        assert model.precision == name
    assert by_name["float32"]["drift"]["changed"] == 0
    assert "no bf16" in parity["left_out"]["bfloat16"]


def test_calibration_pictures_are_not_test_pictures(exported: tuple) -> None:
    from proxemics.export.sample import choose_pictures
    from proxemics.export.source import open_source

    found = choose_pictures(open_source(exported.run), data=None, where=None, images=0)
    split = load_split(RunFolder(exported.run).split).set_index("path")["split"]
    assert found.tested is not None
    assert found.calibration is not None
    assert set(split[found.tested["path"]]) == {"test"}
    assert set(split[found.calibration["path"]]) == {"train"}


def test_certainty_says_what_a_length_means(exported: tuple) -> None:
    run, bundle, _ = exported
    certainty = read(bundle / "certainty.json")
    assert certainty["trained"] is True
    queries = pd.read_parquet(run / "per_query.parquet")
    wrong = queries["nearest_label"] != queries["label"]
    assert certainty["queries"] == len(queries)
    assert certainty["errors"] == wrong.sum()
    for row in certainty["levels"]:
        kept = queries["kappa"] >= row["kappa"]
        assert (row["queries"], row["errors"]) == (kept.sum(), wrong[kept].sum())
    assert certainty["levels"][-1]["kept"] == 1
    # The lengths that the runtime gives are on the same scale.
    lengths = runtime.load(bundle, threads=1).lengths(queries["path"].to_list())
    np.testing.assert_allclose(lengths, queries["kappa"], rtol=0.2)


def test_nothing_of_the_machine_travels(exported: tuple, tiny_folder: Path) -> None:
    places = {str(tiny_folder.parent), str(exported.run.parent), str(Path.home()) + "/"}
    for name in names(exported.bundle):
        content = (exported.bundle / name).read_bytes()
        assert not [place for place in places if place.encode() in content], name


def test_the_card_tells_the_story(exported: tuple) -> None:
    run, bundle, _ = exported
    card = (bundle / "card.md").read_text()
    assert card.startswith(
        '---\nlicense: "apache-2.0"\nlibrary_name: proxemics\npipeline_tag: image-feature-extraction'
    )
    headings = [line for line in card.splitlines() if line.startswith("#")]
    assert headings == [
        "# test_resnet.r160_in1k trained on photos", "## Use", "## Training", "## Numbers", "## What it leans on",
        "## Certainty", "## Limits", "## Licences", "## Exported files",
    ]  # fmt: skip
    row = read(run / "result.json")["rows"][0]
    low, high = (100 * end for end in row["intervals"]["recall_at_1"])
    assert f"| this model | {100 * row['metrics']['recall_at_1']:.1f} ({low:.1f}–{high:.1f})" in card
    assert "| trunk before training |" in card
    assert "methods: probabilistic; seed 0" in card
    assert "The test classes were not in training." in card
    assert "| Hubness ↓ |" in card
    assert "| kappa at least |" in card
    assert "| this model | Apache-2.0 |" in card
    assert "| starting weights | none needed: training started from random weights |" in card
    assert "| training pictures | not stated |" in card
    assert "| int8 | onnx/model.int8.onnx |" in card
    assert all(line.count("|") == 7 + 1 for line in card.splitlines() if "onnx/model" in line and line.startswith("|"))


def test_a_bundle_is_exported_again_and_keeps_what_it_knows(exported: tuple, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(exported.bundle, tmp_path / "moved"))
    card = (bundle / "card.md").read_text()
    (bundle / "card.md").write_text(card.replace("## Limits\n", "## Limits\n\n- Not for mushrooms.\n"))
    (bundle / "thresholds.json").write_text('{"a": 1}')
    written = export(bundle, tmp_path / "again", precision=["float32"], licence="MIT")
    again = tmp_path / "again"
    assert written["fingerprint"] == exported.written["fingerprint"]
    for name in ("certainty.json", "probe.json", "thresholds.json", "labels.json", "onnx/model.onnx"):
        assert (again / name).read_bytes() == (bundle / name).read_bytes(), name
    changed = (again / "card.md").read_text()
    assert changed.startswith('---\nlicense: "mit"\n')
    assert "- Not for mushrooms." in changed
    assert "| this model | MIT |" in changed
    assert changed.count("## Exported files") == 1
    assert "onnx/model.int8.onnx" not in changed
    assert "Recall@1 was not measured: a bundle does not hold its pictures; name some with --data." in changed
    numbers = card.partition("## Numbers")[2].partition("## What")[0]
    assert numbers
    assert numbers in changed
    parity = read(again / "parity.json")
    assert parity["compared_on"] == "noise"
    assert parity["drift"] is None
    assert parity["variants"][0]["drift"] is None


def test_without_onnx_in_place(exported: tuple, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(exported.bundle, tmp_path / "moved"))
    (bundle / "classes.json").write_text("{}")
    (bundle / "classes.safetensors").write_bytes(b"x")
    written = export(bundle, bundle, onnx=False)
    assert written["parity"]["variants"] == []
    assert not (bundle / "onnx").exists()
    assert (bundle / "classes.safetensors").read_bytes() == b"x"
    assert "No ONNX: it was left out (--no-onnx)." in (bundle / "card.md").read_text()
    assert load_bundle(bundle).fingerprint() == written["fingerprint"]


def test_the_probe_of_another_model_stays_behind(exported: tuple, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(exported.bundle, tmp_path / "moved"))
    probe = read(bundle / "probe.json")
    probe["model"]["fingerprint"] = "0" * 64
    (bundle / "probe.json").write_text(json.dumps(probe))
    export(bundle, tmp_path / "out", onnx=False)
    assert not (tmp_path / "out" / "probe.json").exists()


def test_a_run_whose_lengths_were_not_trained_says_so(exported: tuple, tmp_path: Path) -> None:
    run = Path(shutil.copytree(exported.run, tmp_path / "run"))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("probabilistic: {}", "probabilistic: {distance: cos}"))
    assert "distance: cos" in (run / "config.yaml").read_text()
    written = export(run, tmp_path / "out", onnx=False)
    assert written["certainty"] is False
    certainty = read(tmp_path / "out" / "certainty.json")
    assert certainty["levels"] == []
    assert "No term of the training loss looked at lengths" in certainty["meaning"]
    unknown = save_bundle(load_bundle(run / "bundle"), tmp_path / "bare")
    assert export(unknown, tmp_path / "out2", onnx=False)["certainty"] is None
    assert "Not known: the model was exported without its run." in (tmp_path / "out2" / "card.md").read_text()


def test_wrong_wishes_cost_nothing(exported: tuple, tiny_folder: Path, tmp_path: Path) -> None:
    run, bundle, _ = exported
    out = tmp_path / "out"
    for message, options in {
        r"Unknown precision 'int9'\. Did you mean 'int8'\?": {"precision": ["int9"]},
        r"precision bf16: ONNX Runtime has no bf16": {"precision": ["bf16"]},
        r"--precision and --data are about the ONNX files": {"onnx": False, "precision": ["int8"]},
        r"--where needs --data": {"where": {"label": "a"}},
        r"images=3; give 0 for all test pictures, or 8 and more": {"images": 3},
    }.items():
        with pytest.raises(ConfigError, match=message):
            export(run, out, **options)
    with pytest.raises(ConfigError, match=r"int8 needs pictures to calibrate on, but a bundle does not hold"):
        export(bundle, out, precision=["int8"])
    with pytest.raises(DataError, match=r"holds no model; give a run folder or a bundle folder"):
        export(tmp_path, out)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copyfile(run / "config.yaml", unfinished / "config.yaml")
    with pytest.raises(DataError, match=r"is not finished; give its `proxemics train` command again"):
        export(unfinished, out)
    assert not out.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(ModelError, match=r"is no bundle \(it holds 'thesis.tex'\)"):
        export(run, tmp_path / "mine", onnx=False)


def test_pictures_that_are_gone_are_told(exported: tuple, tmp_path: Path) -> None:
    from proxemics.export.sample import choose_pictures
    from proxemics.export.source import open_source

    run = Path(shutil.copytree(exported.run, tmp_path / "run"))
    table = pd.read_parquet(run / "split.parquet")
    table["path"] = "/nowhere/" + table.index.astype(str) + ".png"
    table.to_parquet(run / "split.parquet")
    found = choose_pictures(open_source(run), data=None, where=None, images=0)
    assert found.tested is None
    assert "pictures of the run are gone, e.g. /nowhere/" in found.said


def test_other_pictures_are_shared_out(exported: tuple, tiny_folder: Path) -> None:
    from proxemics.export.sample import choose_pictures
    from proxemics.export.source import open_source

    source = open_source(exported.bundle)
    found = choose_pictures(source, data=str(tiny_folder), where=None, images=0)
    assert found.tested is not None
    assert found.calibration is not None
    assert len(found.calibration) == 24
    assert len(found.tested) == 72
    assert not set(found.tested["path"]) & set(found.calibration["path"])
    assert found.said == "all pictures of photos that int8 was not calibrated on"
    some = choose_pictures(source, data=str(tiny_folder), where=None, images=20)
    assert some.tested is not None
    assert len(some.tested) == 20
    assert some.tested["label"].value_counts().min() >= 2


def test_an_export_that_fails_leaves_the_old_bundle(
    exported: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(exported.bundle, tmp_path / "b"))
    before = {name: (bundle / name).read_bytes() for name in names(bundle)}

    def fails(*arguments: object) -> dict:
        raise ExportError("the trunk is too odd")

    monkeypatch.setattr(write, "write_variants", fails)
    with pytest.raises(ExportError, match="too odd"):
        export(exported.run, bundle)
    assert {name: (bundle / name).read_bytes() for name in names(bundle)} == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_room_can_be_called(exported: tuple, tmp_path: Path) -> None:
    """`proxemics.export` is a room and, for those who write `proxemics.export(run, out)`, the function."""
    written = proxemics.export(exported.bundle, tmp_path / "out", onnx=False)
    assert written["fingerprint"] == exported.written["fingerprint"]
    assert proxemics.export.export is export
    with pytest.raises(AttributeError, match="no attribute 'expert'"):
        proxemics.export.expert  # noqa: B018 - the access is the test


@pytest.mark.slow
@pytest.mark.data
def test_real_weights_on_real_pictures(shared_data: Path, tmp_path: Path) -> None:
    """EfficientNet-Lite0: float32 and float16 lose nothing, int8 little."""
    torch.set_num_threads(1)
    bundle = save_bundle(Embedder("auto", dim=0, size=128), tmp_path / "bundle")
    written = export(
        bundle, tmp_path / "out", source=str(shared_data / "index.csv"), where={"dataset": "cub200_2010"}, images=300
    )
    drift = {one["precision"]: one["drift"] for one in written["parity"]["variants"]}
    assert written["parity"]["drift"]["recall_at_1"] > 0.3  # 38.7 when it was written
    assert drift["float32"]["changed"] == 0
    assert drift["float16"]["min_cosine"] > 0.999
    assert drift["int8"]["mean_cosine"] > 0.97
    assert abs(drift["int8"]["drift"]) < 0.1
    assert written["licences"]["weights"] == "apache-2.0"
