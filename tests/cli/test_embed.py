"""`proxemics embed`: the files and words it leaves; lengths beside the embeddings, and how to read them."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.cli.main import main
from proxemics.core.config import make_config, save_config
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point itself; returns exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        told = capfd.readouterr()
        return (code if isinstance(code, int) else 1), told.out, " ".join(told.err.split())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path / "cache"))
    return call


def model(folder: Path, methods: dict | None, *, dim: int = 8, layer_norm: bool = False) -> Embedder:
    """Write what `embed` reads of a run: its bundle and, unless ``methods`` is None, its configuration."""
    embedder = Embedder("test_resnet", dim=dim, weights="none", size=32, layer_norm=layer_norm)
    save_bundle(embedder, folder / "bundle" if methods is not None else folder)
    if methods is not None:
        save_config(make_config({"methods": methods}), folder / "config.yaml")
    return embedder


QUICK = ("--set", "train.device=cpu")


def test_kappa_is_a_column_of_the_parquet_file(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    embedder = model(tmp_path / "run", {"probabilistic": {}})
    code, out, err = run("embed", "run", str(tiny_folder), "--out", "a.parquet", "--kappa", *QUICK)
    assert code == 0, err
    assert "column kappa of a.parquet" in out
    assert "higher is more certain" in err
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert table.columns.to_list() == ["id", "path", "label", "domain", "kappa", "embedding"]
    units, kappa = extract_with_certainty(embedder, table["path"].to_list())
    np.testing.assert_allclose(table["kappa"], kappa, rtol=1e-5)
    np.testing.assert_allclose(np.stack(table["embedding"]), units, atol=1e-5)
    assert table["kappa"].dtype == np.float32
    assert table["kappa"].nunique() > 1


def test_kappa_is_a_column_beside_the_npy_file(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "run", {})
    code, out, err = run("embed", "run", str(tiny_folder), "--out", "a.npy", "--kappa", *QUICK)
    assert code == 0, err
    assert "column kappa of a.csv" in out
    assert "kappa was not trained to mean certainty" in err
    table = pd.read_csv(tmp_path / "a.csv")
    assert table.columns.to_list() == ["id", "path", "label", "domain", "kappa"]
    assert np.load(tmp_path / "a.npy", allow_pickle=False).shape == (96, 8)
    assert (table["kappa"] > 0).all()


def test_without_the_option_the_files_are_as_before(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    code, out, err = run("embed", "bundle", str(tiny_folder), "--out", "a.parquet", *QUICK)
    assert (code, "appa" in out + err) == (0, False)
    assert "kappa" not in pd.read_parquet(tmp_path / "a.parquet").columns


def test_a_bundle_does_not_know_and_quiet_says_nothing(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    arguments = ("embed", "bundle", str(tiny_folder), "--kappa", *QUICK)
    assert "a bundle does not tell how it was trained" in run(*arguments)[2]
    code, _, err = run(*arguments, "--quiet")
    assert (code, err) == (0, "")


def test_where_all_lengths_are_equal_kappa_is_refused(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None, dim=0, layer_norm=True)
    code, _, err = run("embed", "bundle", str(tiny_folder), "--kappa", *QUICK)
    assert code == 2
    assert err.startswith("Error: --kappa: the model in bundle ends in a layer norm without a head")
    assert not (tmp_path / "embeddings.parquet").exists()


def test_the_engine_and_the_rate_are_told(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    code, out, err = run("embed", "bundle", str(tiny_folder), *QUICK)
    assert code == 0
    assert err.startswith("Engine: torch float32, ")
    assert "(an ONNX file is not worth writing for so few pictures (96))" in err
    assert re.search(r"96 pictures in [\d.]+ s, \d+ pictures/s, read and embedded\.$", err)
    assert out == "Embeddings: embeddings.parquet (96 x 8, float32, unit length)\n"


def test_a_zip_of_a_folder_gives_the_vectors_of_the_folder(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    shutil.make_archive(str(tmp_path / "photos"), "zip", tiny_folder)
    assert run("embed", "bundle", str(tiny_folder), "--out", "a.parquet", *QUICK)[0] == 0
    assert run("embed", "bundle", "photos.zip", "--out", "b.parquet", *QUICK)[0] == 0
    folder, archive = pd.read_parquet(tmp_path / "a.parquet"), pd.read_parquet(tmp_path / "b.parquet")
    assert folder["id"].to_list() == archive["id"].to_list()
    np.testing.assert_array_equal(np.stack(folder["embedding"]), np.stack(archive["embedding"]))
    assert archive["path"].iloc[0] == f"{tmp_path}/photos.zip!/class é00/0.png"


def test_unreadable_pictures_stop_or_are_skipped_and_listed(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    shutil.copytree(tiny_folder, tmp_path / "photos")
    (tmp_path / "photos" / "class é00" / "0.png").write_bytes(b"x")
    code, _, err = run("embed", "bundle", "photos", *QUICK)
    assert code == 2
    assert "0.png cannot be read: it is not a picture" in err
    assert not (tmp_path / "embeddings.parquet").exists()
    code, out, _ = run("embed", "bundle", "photos", "--on-error", "skip", *QUICK)
    assert code == 0
    assert "Left out: 1 pictures that cannot be read, listed in embeddings.unreadable.csv" in out
    assert pd.read_csv(tmp_path / "embeddings.unreadable.csv")["id"].to_list() == ["class é00/0.png"]


def test_labels_domains_and_kept_columns_of_a_table(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    rows = [(f"class é0{n}/0.png", f"genus{n // 2}", "noon", n) for n in range(4)]
    pd.DataFrame(rows, columns=["path", "genus", "hour", "year"]).to_csv(tmp_path / "t.csv", index=False)
    shutil.copytree(tiny_folder, tmp_path, dirs_exist_ok=True)
    settings = ("--set", "data.label=genus", "--set", "data.domain=hour", "--keep", "year")
    code, _, err = run("embed", "bundle", "t.csv", "--where", "genus=genus1", *settings, *QUICK)
    assert code == 0, err
    table = pd.read_parquet(tmp_path / "embeddings.parquet")
    assert table.columns.to_list() == ["id", "path", "label", "domain", "year", "embedding"]
    assert table[["label", "domain", "year"]].values.tolist() == [["genus1", "noon", "2"], ["genus1", "noon", "3"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "a.csv"), "the name must end in .parquet or .npy"),
        (("--engine", "onnx"), "Unknown engine 'onnx'."),
        (("--engine", "ray:onnx"), "Unknown engine 'onnx'."),
        (("--ray-address", "127.0.0.1:6379"), "--ray-address 127.0.0.1:6379 goes with --engine ray"),
        (("--where", "genus"), "--where 'genus': write COLUMN=VALUE."),
        (("--set", "data.size=64"), "--set data.size: it changes nothing here. Settings of `embed`: data.label,"),
        (("--set", "data.siz=64"), "data.siz: no such key"),
        (("--engine", "onnxruntime", "--precision", "bf16"), "onnxruntime has no bf16"),
    ],
)
def test_wrong_options_end_with_one_line(
    run: Run, tiny_folder: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    model(tmp_path / "bundle", None)
    code, out, err = run("embed", "bundle", str(tiny_folder), *arguments, *QUICK)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert words in err
    assert not list(tmp_path.glob("*.part"))


def test_the_root_that_an_error_names_works(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    model(tmp_path / "bundle", None)
    (tmp_path / "lists").mkdir()
    paths = [f"{tiny_folder.name}/class é00/{number}.png" for number in range(2)]
    pd.DataFrame({"path": [f"{tiny_folder.parent}/{path}" for path in paths]}).to_csv(tmp_path / "lists" / "t.csv")
    code, _, err = run("embed", "bundle", "lists/t.csv", *QUICK)
    assert code == 2
    assert "leaves the root" in err
    assert "set data.root=" in err
    code, _, err = run("embed", "bundle", "lists/t.csv", "--set", f"data.root={tiny_folder.parent}", *QUICK)
    assert code == 0, err
    assert pd.read_parquet(tmp_path / "embeddings.parquet")["id"].to_list() == paths
