"""`proxemics probe` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from proxemics.cli.main import main
from proxemics.cli.probe import _place
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return save_bundle(Embedder("test_resnet", dim=16, weights="none", size=32), tmp_path / "bundle")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    code = stopped.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def test_it_writes_the_card_and_prints_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], bundle: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "card.json"
    where = ["probe", str(bundle), "--data", str(tiny_folder), "--images", "24", "--out", str(out), "-q"]
    assert call(monkeypatch, *where, "--only", "geometry,certainty") == 0
    shown = capfd.readouterr().out
    assert "Hubness" in shown
    assert "AUROC of certainty" in shown
    assert "Goes with the background" not in shown
    card = json.loads(out.read_text())
    assert card["probes"] == ["geometry", "certainty"]
    assert call(monkeypatch, *where, "--only", "geometry", "--only", "certainty", "--json") == 0
    assert json.loads(capfd.readouterr().out) == card
    assert not (bundle / "probe.json").exists()


def test_a_card_that_says_more_is_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], bundle: Path, tiny_folder: Path
) -> None:
    where = ["probe", str(bundle), "--data", str(tiny_folder), "--images", "24", "-q"]
    assert call(monkeypatch, *where, "--only", "geometry,certainty") == 0
    assert capfd.readouterr().out.endswith(f"Card: {bundle / 'probe.json'}\n")
    before = (bundle / "probe.json").read_bytes()
    assert call(monkeypatch, *where, "--only", "geometry") == 0
    assert "Card: " + str(bundle / "probe-part.json") in capfd.readouterr().out
    assert (bundle / "probe.json").read_bytes() == before
    assert json.loads((bundle / "probe-part.json").read_text())["probes"] == ["geometry"]
    assert call(monkeypatch, *where, "--only", "geometry,certainty,nuisance") == 0
    assert json.loads((bundle / "probe.json").read_text())["probes"] == ["nuisance", "geometry", "certainty"]


@pytest.mark.parametrize(
    ("change", "own", "place"),
    [
        ({}, True, "probe.json"),
        ({"probes": ["geometry"]}, True, "probe-part.json"),
        ({"probes": ["geometry", "certainty", "nuisance"], "pictures": 2000}, True, "probe.json"),
        ({"pictures": 24}, True, "probe-part.json"),
        ({"has_untrained": False}, True, "probe-part.json"),
        ({"source": "other.csv", "split": "all"}, False, "probe-part.json"),
        ({"where": {"site": "north"}}, False, "probe-part.json"),
        ({"numbers": []}, True, "probe-part.json"),
        ({"model": {"fingerprint": "b"}, "pictures": 9}, True, "probe.json"),
        ({"model": {"fingerprint": "b"}, "pictures": 9}, False, "probe-part.json"),
        ({"source": "b.csv", "pictures": 9, "probes": []}, True, "probe.json"),  # there is a card of other pictures
    ],
)
def test_where_a_card_goes(tmp_path: Path, change: dict[str, object], own: bool, place: str) -> None:
    card = {
        "source": "a.csv", "split": "test", "where": {}, "probes": ["geometry", "certainty"], "pictures": 1000,
        "model": {"fingerprint": "a"}, "numbers": [{"probe": "decodability", "name": "camera"}],
    }  # fmt: skip
    there = {**card, "has_untrained": True}
    (tmp_path / "probe.json").write_text(json.dumps(there))
    assert _place(tmp_path, {**there, **change}, own=own) == tmp_path / place
    del there["where"]  # an older card
    (tmp_path / "probe.json").write_text(json.dumps(there))
    assert _place(tmp_path, {**card, "has_untrained": True, **change}, own=own) == tmp_path / place
    (tmp_path / "probe.json").write_text("{")
    assert _place(tmp_path, {**card, "has_untrained": True}, own=own) == tmp_path / "probe.json"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "colour"], "'colour' is no probe"),
        (["--images", "1"], "images=1; give 8 or more"),
        (["--cause", "camera"], "no column 'camera'"),
        (["--split", "tset"], "--split 'tset': use test, val or train."),
        (["--where", "label"], "--where 'label': write COLUMN=VALUE"),
    ],
)
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    bundle: Path,
    tiny_folder: Path,
    arguments: list[str],
    words: str,
) -> None:
    assert call(monkeypatch, "probe", str(bundle), "--data", str(tiny_folder), *arguments) == 2
    error = capfd.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert error.startswith("Error: ")


def test_a_bundle_alone_has_no_pictures(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], bundle: Path
) -> None:
    assert call(monkeypatch, "probe", str(bundle)) == 2
    assert "name the pictures to probe with --data" in capfd.readouterr().err
