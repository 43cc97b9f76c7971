"""`proxemics embed --kappa`: lengths beside the embeddings, and a word on how to read them."""

from __future__ import annotations

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
    return call


def model(folder: Path, methods: dict | None, *, dim: int = 8, layer_norm: bool = False) -> Embedder:
    """Write what `embed` reads of a run: its bundle and, unless ``methods`` is None, its configuration."""
    embedder = Embedder("test_resnet", dim=dim, weights="none", size=32, layer_norm=layer_norm)
    save_bundle(embedder, folder / "bundle" if methods is not None else folder)
    if methods is not None:
        save_config(make_config({"methods": methods}), folder / "config.yaml")
    return embedder


QUICK = ("--set", "data.workers=0", "--set", "train.device=cpu")


def test_kappa_is_a_column_of_the_parquet_file(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    embedder = model(tmp_path / "run", {"probabilistic": {}})
    code, out, err = run("embed", "run", str(tiny_folder), "--out", "a.parquet", "--kappa", *QUICK)
    assert code == 0, err
    assert "column kappa of a.parquet" in out
    assert "higher is more certain" in err
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert table.columns.to_list() == ["path", "label", "domain", "kappa", "embedding"]
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
    assert table.columns.to_list() == ["path", "label", "domain", "kappa"]
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
