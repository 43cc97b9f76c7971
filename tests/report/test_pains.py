"""What users of other tools report, tried on the report: user-pains 57, 64, 95, 97, 98, 100, 101, 102."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.core.files import read_json, write_json
from proxemics.data.split_files import save_split
from proxemics.evaluation import evaluate_embeddings
from proxemics.report import write_report
from proxemics.report.explain import explain


@pytest.fixture(scope="module")
def html(full_run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(full_run, out=tmp_path_factory.mktemp("pains") / "r.html").read_text(encoding="utf-8")


def test_numbers_that_coincide_by_construction_are_named(full_run: Path, tmp_path: Path) -> None:
    """User-pains 57: "c_recall equals e_recall?" """
    draw = np.random.default_rng(0)
    found = evaluate_embeddings(draw.normal(size=(12, 4)), np.repeat(np.arange(6), 2), recall_at=(1, 12))
    before = read_json(full_run / "result.json")
    changed = {**before, "rows": [{**before["rows"][0], "notes": list(found.notes)}, *before["rows"][1:]]}
    try:
        write_json(full_run / "result.json", changed)
        text = write_report(full_run, out=tmp_path / "r.html", points=0, similarity=False).read_text()
    finally:
        write_json(full_run / "result.json", before)
    assert "c_recall and e_recall of other reports coincide by construction" in text
    assert "recall_at_1, r_precision and map_at_r coincide by construction" in text
    assert "Recall@12 is 1 by construction" in text


def test_the_predictions_behind_the_numbers_are_shown_and_named(html: str, full_run: Path) -> None:
    """User-pains 64: "where are the predicted labels behind the metric?" """
    assert "per_query.parquet" in html
    queries = pd.read_parquet(full_run / "per_query.parquet")
    wrong = queries[queries["label"] != queries["nearest_label"]]
    row = wrong.sort_values("average_precision").iloc[0]
    assert row["path"] in html
    assert f"taken for <strong>{row['nearest_label']}" in html.replace("<wbr>", "") or row["nearest_label"] in html


def test_every_number_has_an_explanation_and_an_arrow(html: str, comparison: str) -> None:
    """User-pains 100: users do not understand which score says what."""
    for page in (html, comparison):
        for head in re.findall(r"<th scope=\"col\"[^>]*>(?:<button[^>]*>)?(Recall@\d+|MAP@R)(.*?)</th>", page):
            assert "higher is better" in head[1], head
        for title in {"Recall@1", "MAP@R"}:
            name = {"Recall@1": "recall_at_1", "MAP@R": "map_at_r"}[title]
            assert explain(name).text in page
    tiles = re.findall(r'<article class="tile">.*?</article>', html, re.DOTALL)
    assert len(tiles) >= 4
    for tile in tiles:
        assert "higher is better" in tile or "lower is better" in tile
    numbers = re.findall(r'<th scope="row"><span class="metric">(.*?)</th>', html, re.DOTALL)
    assert len(numbers) >= 25
    for number in numbers:
        text = re.search(r"<small>(.+?)</small>", number)
        assert text is not None, number
        assert len(text[1]) > 10
        assert "No explanation is known" not in text[1]
    for part in ("cosine similarity to the query, at most 1", "length of the embedding", "AP@R"):
        assert part in html


def test_the_worst_queries_are_a_sheet_with_paths(html: str, full_run: Path) -> None:
    """User-pains 101: a matrix of pictures, query and gallery, after the evaluation."""
    queries = pd.read_parquet(full_run / "per_query.parquet").set_index("path")
    rows = re.findall(r'<li class="query" id="worst-\d+" data-path="([^"]+)"(.*?)</ol>', html, re.DOTALL)
    assert len(rows) == 20
    for path, row in rows:
        assert re.findall(r'title="([^"]+\.png)" decoding', row) == [path, *queries.loc[path, "neighbours"]]
    precision = [queries.loc[path, "average_precision"] for path, _ in rows]
    assert precision == sorted(precision)


@pytest.mark.slow
def test_the_report_needs_no_network_and_no_account(full_run: Path, tmp_path: Path) -> None:
    """User-pains 102: a process whose sockets are closed writes the whole report."""
    program = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from proxemics.report import write_report\n"
        "write_report(sys.argv[1], out=sys.argv[2])\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(full_run), str(tmp_path / "r.html")],
        env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r.html").read_text()
    assert 'id="similarity"' in text
    assert 'id="map"' in text


@pytest.mark.slow
def test_twenty_thousand_points_with_thumbnails(tmp_path: Path, browser: Any) -> None:
    """User-pains 95: below 25 MB, no sheet above 4096 px, pictures that are not square; opens and draws every point."""
    draw = np.random.default_rng(0)
    paths = []
    for number in range(200):
        path = tmp_path / "p" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        small = draw.integers(0, 256, (9, 7, 3), dtype=np.uint8)
        size = (160, 40 + number % 200)
        Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)
        paths.append(path)
    rows = []
    for number in range(20_000):  # hard links: as many files, each with its own path
        copy = tmp_path / "all" / f"class {number % 700}" / f"a rather long name of a picture {number}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.link(paths[number % 200], copy)
        rows.append({"path": str(copy), "label": copy.parent.name, "domain": "", "split": "test"})
    run = tmp_path / "run"
    run.mkdir()
    frame = pd.DataFrame(rows)
    save_split(frame, run / "split.parquet")
    np.save(run / "embeddings.npy", draw.normal(size=(20_000, 64)).astype(np.float32))
    nearest = draw.integers(0, 20_000, 20_000)
    queries = frame.assign(
        nearest_path=frame["path"].to_numpy()[nearest],
        nearest_label=frame["label"].to_numpy()[nearest],
        similarity=draw.random(20_000),
        recall_at_1=(frame["label"].to_numpy() == frame["label"].to_numpy()[nearest]).astype(float),
        average_precision=draw.random(20_000),
        kappa=draw.random(20_000).astype(np.float32),
    )
    queries.drop(columns="split").to_parquet(run / "per_query.parquet")
    write_json(run / "result.json", {"rows": [{"metrics": {"recall_at_1": 0.1, "map_at_r": 0.5}}]})
    page = write_report(run)
    assert page.stat().st_size < 25_000_000
    text = page.read_text()
    sheets = re.findall(r'<template class="sheet">([^<]*)</template>', text)
    assert len(sheets) > 20
    for sheet in sheets:
        assert max(Image.open(io.BytesIO(base64.b64decode(sheet))).size) <= 4096
    browser.get(page.as_uri())
    shown = browser.execute_script("return document.querySelector('section.map').dataset.drawn")
    assert shown == "20000"
    assert browser.execute_script("return performance.getEntriesByName('map-drawn').length") == 1
    browser.execute_script("document.querySelector('section.map').map.choose(19999)")
    card = browser.execute_script("return document.querySelector('.mapcard code').title")
    assert card == rows[-1]["path"]
