"""Embeddings and lengths of all rows on every process, and what a run keeps of the lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lightning_fabric import Fabric
from PIL import Image
from warm_processes import Warm

from proxemics.core.config import EvaluationConfig, make_config
from proxemics.evaluation.assess import assess
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.models.embedder import Embedder
from proxemics.training.log import Silent
from proxemics.training.results import save_per_query
from proxemics.training.shards import embed_rows, embed_rows_with_certainty, share_bounds

SCRIPT = Path(__file__).with_name("_shards_two_processes.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for number in range(5):
        pixels = generator.normal(128, 10 + 20 * number, (70, 80, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path / f"{number}.png")
    return path


@pytest.mark.parametrize(("rows", "processes"), [(0, 2), (1, 2), (7, 3), (8, 4)])
def test_shares_cover_all_rows_once(rows: int, processes: int) -> None:
    bounds = share_bounds(rows, processes)
    assert [row for start, end in bounds for row in range(start, end)] == list(range(rows))
    sizes = [end - start for start, end in bounds]
    assert max(sizes) - min(sizes) <= 1


def test_one_process_embeds_as_the_extraction_does(folder: Path) -> None:
    config = make_config({}, ["data.workers=0"])
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64)
    rows = pd.DataFrame({"path": sorted(str(path) for path in folder.glob("*.png"))})
    kept = {"fabric": Fabric(accelerator="cpu", devices=1), "cache": None, "reporter": Silent(), "task": "embed"}
    units, kappa = embed_rows_with_certainty(config, embedder, rows, **kept)
    expected = extract_with_certainty(embedder, rows["path"].to_list())
    np.testing.assert_array_equal(units, expected[0])
    np.testing.assert_array_equal(kappa, expected[1])
    np.testing.assert_array_equal(embed_rows(config, embedder, rows, **kept), units)


def test_two_processes_get_all_rows_in_order(warm: Warm, folder: Path) -> None:
    """Five pictures, so the shares differ in size."""
    warm.run_ranks([str(SCRIPT), str(folder), "2"])
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64)
    units, kappa = extract_with_certainty(embedder, sorted(folder.glob("*.png")))
    for number in (0, 1):
        with np.load(folder / f"of-{number}.npz", allow_pickle=False) as found:
            np.testing.assert_allclose(found["units"], units, atol=1e-6)
            np.testing.assert_allclose(found["kappa"], kappa, rtol=1e-5)


def test_the_table_of_queries_holds_both_lengths(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "path": [f"{number}.png" for number in range(12)],
            "label": list("aabbcc") * 2,
            "domain": ["photo"] * 6 + ["sketch"] * 6,
        }
    )
    raw = generator.normal(size=(12, 4)).astype(np.float32)
    kappa = np.linalg.norm(raw, axis=1).astype(np.float32)
    evaluation = EvaluationConfig(protocol="cross_domain", query_domain="sketch", gallery_domain="photo", bootstrap=0)
    found = assess(raw / kappa[:, None], frame, evaluation, kappa=kappa)
    save_per_query(found, frame, tmp_path / "with.parquet")
    table = pd.read_parquet(tmp_path / "with.parquet")
    length = dict(zip(frame["path"], kappa, strict=True))
    assert table["path"].to_list() == frame["path"].to_list()[6:]
    assert table["kappa"].to_list() == [length[path] for path in table["path"]]
    assert table["nearest_kappa"].to_list() == [length[path] for path in table["nearest_path"]]
    assert table["nearest_kappa"].dtype == np.float32

    save_per_query(assess(raw, frame, evaluation), frame, tmp_path / "without.parquet")
    assert not {"kappa", "nearest_kappa"} & set(pd.read_parquet(tmp_path / "without.parquet").columns)
