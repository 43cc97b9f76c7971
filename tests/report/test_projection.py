"""Embeddings in the plane. User-pains 97 and 98."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.core.errors import ConfigError, ProxemicsError
from proxemics.report import write_report
from proxemics.report.embedding_map import embedding_map_part
from proxemics.report.projection import ITERATIONS, cached_tsne, check_projection, pca, tsne
from proxemics.report.run_files import read_run


def clusters(count: int, dim: int = 8) -> np.ndarray:
    draw = np.random.default_rng(0)
    centres = 10 * draw.normal(size=(3, dim))
    return (centres[np.arange(count) % 3] + draw.normal(size=(count, dim))).astype(np.float32)


def test_pca_is_that_of_the_singular_values() -> None:
    values = clusters(50)
    found = pca(values)
    centred = values - values.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    expected = left[:, :2] * singular[:2]
    assert np.allclose(np.abs(found.points), np.abs(expected), atol=1e-4)
    assert f"hold {100 * (singular[:2] ** 2).sum() / (singular**2).sum():.0f} %" in found.note


def test_pca_does_not_depend_on_signs_or_rows() -> None:
    values, order = clusters(40), np.random.default_rng(1).permutation(40)
    assert np.allclose(pca(values[order]).points, pca(values).points[order], atol=1e-4)


@pytest.mark.parametrize("values", [np.ones((1, 4)), np.ones((5, 4)), np.arange(3.0)[:, None]])
def test_pca_of_next_to_nothing(values: np.ndarray) -> None:
    points = pca(values).points
    assert points.shape == (len(values), 2)
    assert np.isfinite(points).all()


def test_perplexity_above_the_number_of_points_is_lowered() -> None:
    """User-pains 98: perplexity > n handled."""
    found = tsne(clusters(12), perplexity=30)
    assert found.points.shape == (12, 2)
    assert np.isfinite(found.points).all()
    assert "The perplexity was lowered from 30" in found.note
    assert "too few for t-SNE" in tsne(clusters(4)).note


def test_tsne_tells_its_progress_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """User-pains 98: t-SNE optional, with progress and a cache."""
    steps: list[int] = []
    values, cache = clusters(40), tmp_path / "map.json"
    assert cached_tsne(values, cache) is None
    first = tsne(values, cache=cache, progress=steps.append)
    assert 0.5 * ITERATIONS <= sum(steps) <= ITERATIONS
    assert min(steps) > 0
    assert len(steps) > 3
    assert capsys.readouterr().out == ""  # what scikit-learn prints is for us alone
    steps.clear()
    again = tsne(values, cache=cache, progress=steps.append)
    assert steps == []
    assert np.allclose(again.points, first.points, rtol=1e-4, atol=1e-4)
    kept = cached_tsne(values, cache)
    assert kept is not None
    assert np.array_equal(kept.points, again.points)
    # Other embeddings, another perplexity: not these points.
    assert cached_tsne(values[:30], cache) is None
    assert cached_tsne(values + 1, cache) is None
    assert cached_tsne(values, cache, perplexity=5) is None


@pytest.mark.parametrize("text", ["", "[]", '{"key": 3}', "not json"])
def test_a_damaged_cache_is_no_cache(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.json").write_text(text)
    assert cached_tsne(clusters(20), tmp_path / "map.json") is None


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tsne(clusters(12), cache=tmp_path / "file" / "map.json").points.shape == (12, 2)


def test_clusters_stay_together() -> None:
    points = tsne(clusters(60), perplexity=10).points
    groups = [points[start::3] for start in range(3)]
    within = max(float(np.linalg.norm(group - group.mean(axis=0), axis=1).mean()) for group in groups)
    between = min(
        float(np.linalg.norm(groups[a].mean(axis=0) - groups[b].mean(axis=0))) for a, b in ((0, 1), (0, 2), (1, 2))
    )
    assert between > 2 * within


def test_what_is_not_installed_is_found_out_before_any_work(
    full_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User-pains 97: all optional dependencies checked before work starts."""
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "sklearn" else find(name, *rest)  # noqa: E731 - one line is enough
    monkeypatch.setattr("proxemics.report.projection.find_spec", hidden)
    with pytest.raises(ProxemicsError, match=r"t-SNE needs scikit-learn.*pip install 'proxemics\[train\]'"):
        write_report(tmp_path / "not even a folder", projection="tsne")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ProxemicsError, match="needs jinja2"):
        write_report(tmp_path / "not even a folder")


def test_wrong_options_say_so() -> None:
    assert check_projection("tsne", 5) == "tsne"
    with pytest.raises(ConfigError, match=r"--projection tnse: no such projection\. Did you mean 'tsne'\? Use pca"):
        check_projection("tnse")
    with pytest.raises(ConfigError, match="--perplexity 0: give a positive number"):
        check_projection("tsne", 0)


def test_a_tsne_is_shown_again_beside_the_components(full_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(full_run, run)
    values = np.load(run / "embeddings.npy")[:60]
    np.save(run / "embeddings.npy", values)
    frame = pd.read_parquet(run / "split.parquet")
    test = frame[frame["split"] == "test"].head(60)
    pd.concat([frame[frame["split"] != "test"], test]).to_parquet(run / "split.parquet")
    text = write_report(run, projection="tsne", similarity=False).read_text()
    assert 'name="map-layout"' in text
    assert json.loads((run / "map_tsne.json").read_text())["points"]
    again = embedding_map_part(read_run(run))
    assert again is not None
    assert [layout.name for layout in again.layouts] == ["tsne", "pca"]
    (run / "map_tsne.json").unlink()
    without = embedding_map_part(read_run(run))
    assert without is not None
    assert [layout.name for layout in without.layouts] == ["pca"]
