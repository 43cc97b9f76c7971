"""The data of the map: rows belong together, samples are drawn alike, and what is missing costs the map only."""

from __future__ import annotations

import base64
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.report import write_report
from proxemics.report.embedding_map import (
    NOT_ASKED,
    RIGHT,
    WRONG,
    describe_points,
    draw_static,
    embedding_map_part,
    map_payload,
    on_grid,
)
from proxemics.report.run_files import read_run
from proxemics.report.sprites import make_sprites

NONE = 2**32 - 1


def table() -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.DataFrame(
        {"path": list("abcde"), "label": ["x", "x", "y", "y", "z"], "domain": ["d", "e", "d", "e", None]}
    )
    queries = pd.DataFrame(
        {
            "path": ["c", "a", "e", "b"],
            "label": ["y", "x", "z", "x"],
            "nearest_path": ["b", "b", "a", "gone"],
            "nearest_label": ["x", "x", "x", "w"],
            "recall_at_1": [0.0, 1.0, np.nan, 0.0],
        }
    )
    return rows, queries


def test_points_know_their_answers() -> None:
    rows, queries = table()
    found = describe_points(rows, queries, total=9)
    assert found.states.tolist() == [RIGHT, WRONG, WRONG, NOT_ASKED, NOT_ASKED]
    assert list(found.taken_for) == ["x", "w", "x", "", "x"]
    assert found.nearest.tolist() == [1, NONE, 1, NONE, 0]  # a picture that is not on the map leads nowhere
    assert list(found.domains) == ["d", "e", "d", "e", ""]
    assert describe_points(rows, None, total=5).states.tolist() == [NOT_ASKED] * 5


def test_a_query_of_two_tasks_counts_once() -> None:
    rows, queries = table()
    twice = pd.concat([queries, queries.assign(nearest_label="z")], ignore_index=True)
    assert describe_points(rows, twice, total=5).states.tolist() == [RIGHT, WRONG, WRONG, NOT_ASKED, NOT_ASKED]


def decode(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_the_payload_says_the_same_as_the_run(full_run: Path) -> None:
    run = read_run(full_run)
    shown = embedding_map_part(run)
    assert shown is not None
    data = json.loads(map_payload(shown, make_sprites(shown.points.paths[:3], budget=10**6), "/"))
    frame = pd.read_parquet(full_run / "split.parquet")
    test = frame[frame["split"] == "test"].reset_index(drop=True)
    assert [data["root"] + path for path in data["paths"]] == test["path"].tolist()
    labels = [data["classes"][code] for code in decode(data["label"], "<u4")]
    assert labels == test["label"].tolist()
    assert [data["domains"][code] for code in decode(data["domain"], "<u4")] == test["domain"].tolist()
    queries = pd.read_parquet(full_run / "per_query.parquet").set_index("path").loc[test["path"]]
    wrong = (queries["label"] != queries["nearest_label"]).to_numpy()
    assert np.array_equal(decode(data["state"], "u1"), np.where(wrong, WRONG, RIGHT))
    assert [data["classes"][code] for code in decode(data["taken"], "<u4")] == queries["nearest_label"].tolist()
    assert test["path"].to_numpy()[decode(data["nearest"], "<u4")].tolist() == queries["nearest_path"].tolist()
    x, y = decode(data["layouts"][0]["x"], "<u2"), decode(data["layouts"][0]["y"], "<u2")
    grid = on_grid(shown.layouts[0].points)
    assert np.array_equal(x, grid[0])
    assert np.array_equal(y, grid[1])


def test_names_cannot_end_the_data(full_run: Path) -> None:
    shown = embedding_map_part(read_run(full_run))
    assert shown is not None
    evil = "</template><script>alert(1)</script>&lt;"
    points = replace(shown.points, labels=[evil, *shown.points.labels[1:]])
    text = map_payload(replace(shown, points=points), make_sprites([], budget=1), "")
    assert "<" not in text
    assert "&" not in text
    assert evil in json.loads(text)["classes"]


def test_a_large_split_is_sampled_the_same_way_each_time(full_run: Path) -> None:
    run = read_run(full_run)
    whole, first, second = (embedding_map_part(run, points=count) for count in (10**6, 50, 50))
    assert whole is not None
    assert first is not None
    assert second is not None
    assert len(first.points.paths) == 50
    assert first.points.total == len(whole.points.paths) == 360
    assert first.points.paths == second.points.paths
    assert len(set(first.points.labels)) > 15  # a sample, not a head
    assert embedding_map_part(run, points=0) is None


@pytest.mark.parametrize("damage", ["absent", "other length", "not an array", "not finite", "no split"])
def test_embeddings_that_do_not_fit_cost_the_map_only(full_run: Path, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(full_run, run)
    file = run / "embeddings.npy"
    vectors = np.load(file)
    if damage == "absent":
        file.unlink()
    elif damage == "not an array":
        file.write_bytes(b"nothing")
    elif damage == "no split":
        (run / "split.parquet").unlink()
    else:
        np.save(file, vectors[:-1] if damage == "other length" else vectors * np.nan)
    text = write_report(run, similarity=False).read_text()
    assert 'id="map"' not in text
    assert 'href="#map"' not in text
    assert 'id="classes"' in text


def test_both_axes_have_one_scale() -> None:
    x, y = on_grid(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 1.0]]))
    assert x.tolist() == [0, 65535, 0]
    assert int(y[0]) - int(y[2]) == pytest.approx(65535 / 4, abs=1)  # up is up


def test_the_drawing_has_the_colours_of_the_answers() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    uri = draw_static(points, np.array([RIGHT, WRONG, NOT_ASKED], np.uint8))
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    found = {colour: count for count, colour in picture.getcolors(10_000) or []}
    assert set(found) == {(255, 255, 255), (0x0A, 0x6F, 0xAC), (0xCE, 0x41, 0x00), (0x8A, 0x8F, 0x98)}
    assert min(found.values()) > 20
