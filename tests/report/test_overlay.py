"""Similarity maps as pictures, and the section that shows them."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.evaluation.similarity import similarity_map
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder
from proxemics.report import write_report
from proxemics.report.overlay import overlay, relative_heat, veil
from proxemics.report.run_files import read_run
from proxemics.report.similarity import similarity_part, worst_confusions
from proxemics.training.similarity_run import CACHE, similarity_of_run


@pytest.fixture
def run(full_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(full_run, tmp_path / "run")
    return tmp_path / "run"


def pairs_of(run: Path, count: int = 3) -> list[tuple[str, str]]:
    return [(query, nearest) for query, nearest, *_ in worst_confusions(read_run(run).queries, count=count)]


def test_the_largest_part_is_clear_and_what_speaks_against_is_dark() -> None:
    values = np.array([[0.4, 0.2], [0.0, -0.3]])
    alpha = np.asarray(veil(relative_heat(values), 2))[..., 3]
    assert alpha[0, 0] == 0
    assert alpha[1, 0] == alpha[1, 1] == alpha.max() > 150
    assert alpha[0, 1] == pytest.approx(alpha.max() / 2, abs=1)
    assert not relative_heat(np.array([[-1.0, np.nan]])).any()


def test_an_overlay_keeps_the_picture_where_it_counts() -> None:
    picture = np.full((60, 90, 3), (200, 100, 50), np.uint8)
    shown = overlay(picture, np.array([[1.0, 0.0, 0.0]]))
    assert shown.size == (90, 60)
    assert shown.getpixel((5, 30)) == (200, 100, 50)
    assert sum(shown.getpixel((85, 30))) < 130  # type: ignore[arg-type]  # a tuple, of an RGB picture
    assert overlay(Image.fromarray(picture), np.zeros((2, 2))).getpixel((0, 0)) != (200, 100, 50)


def test_worst_confusions_are_wrong_and_different() -> None:
    frame = pd.DataFrame(
        {
            "path": list("abcdefg"),
            "label": ["x", "y", "x", "x", "x", "z", "z"],
            "nearest_path": ["b", "a", "p", "q", "r", "s", None],
            "nearest_label": ["y", "x", "y", "y", "x", "y", None],
            "similarity": [0.9, 0.9, 0.8, 0.7, 0.99, 0.1, np.nan],
        }
    )
    # b to a mirrors a to b; d would be a third pair of x and y; e is right; g has no nearest picture.
    assert worst_confusions(frame) == [("a", "b", "x", "y"), ("c", "p", "x", "y"), ("f", "s", "z", "y")]
    assert worst_confusions(frame, count=1) == [("a", "b", "x", "y")]
    assert worst_confusions(None) == []


def test_maps_of_a_run_are_those_of_its_model(run: Path) -> None:
    pairs = pairs_of(run)
    found = similarity_of_run(run, pairs)
    assert [(one.query, one.neighbour) for one in found] == pairs
    embedder = load_bundle(run / "bundle")
    for one in found:
        maps = similarity_map(embedder, one.query, one.neighbour)
        assert one.cosine == pytest.approx(maps.cosine)
        assert np.allclose(one.query_map, maps.query, atol=1e-5)
        assert one.query_map.sum() == pytest.approx(one.cosine, abs=1e-4)
        assert one.neighbour_map.sum() == pytest.approx(one.cosine, abs=1e-4)


def test_maps_are_computed_once(run: Path) -> None:
    pairs = pairs_of(run)
    first = similarity_of_run(run, pairs)
    kept = json.loads((run / CACHE).read_text())
    kept["pairs"][0]["cosine"] = 0.125
    (run / CACHE).write_text(json.dumps(kept))
    again = similarity_of_run(run, pairs)
    assert again[0].cosine == 0.125
    assert np.allclose(again[1].query_map, first[1].query_map, atol=1e-5)
    # One more pair: the others are still read.
    assert similarity_of_run(run, pairs_of(run, 4))[0].cosine == 0.125
    # Another model: nothing of the old one is shown.
    shutil.rmtree(run / "bundle")
    save_bundle(Embedder("test_resnet", weights="none", size=64, dim=8, seed=3, freeze_bn=False), run / "bundle")
    assert similarity_of_run(run, pairs)[0].cosine not in (0.125, pytest.approx(first[0].cosine, abs=1e-6))


@pytest.mark.parametrize("text", ["", "[]", '{"model": 1}', '{"model": "x", "pairs": [{}]}'])
def test_a_damaged_file_is_computed_again(run: Path, text: str) -> None:
    (run / CACHE).write_text(text)
    assert len(similarity_of_run(run, pairs_of(run, 1))) == 1


def test_pictures_that_are_gone_cost_their_pair_only(run: Path, tmp_path: Path) -> None:
    query, nearest = pairs_of(run, 1)[0]
    found = similarity_of_run(run, [(query, str(tmp_path / "gone.png")), (query, nearest)])
    assert [(one.query, one.neighbour) for one in found] == [(query, nearest)]


def test_no_model_no_maps(run: Path) -> None:
    shutil.rmtree(run / "bundle")
    assert similarity_of_run(run, pairs_of(run)) == []
    assert similarity_part(read_run(run)) is None
    assert 'id="similarity"' not in write_report(run, points=0).read_text()


def test_the_section_shows_pairs_as_the_model_saw_them(run: Path) -> None:
    text = write_report(run, points=0).read_text()
    section = re.search(r'<section id="similarity".*?</section>', text, re.DOTALL)
    assert section is not None
    assert section[0].count('class="over"') == 2 * 12
    assert "pools by averaging, so this is an exact sum" in section[0]
    uri = re.search(r'<img src="data:image/jpeg;base64,([^"]+)" width="224"', section[0])
    assert uri is not None
    assert Image.open(io.BytesIO(base64.b64decode(uri[1]))).size == (64, 64)  # the size of the model
    assert 'id="similarity"' not in write_report(run, points=0, similarity=False).read_text()


def test_each_pooling_says_how_its_maps_were_made(run: Path) -> None:
    for pooling, words in (("gem", "gradient × activation at the pooled places"), ("cls", "from a class token")):
        trunk, size = ("test_vit", 160) if pooling == "cls" else ("test_resnet", 64)
        shutil.rmtree(run / "bundle")
        save_bundle(Embedder(trunk, weights="none", size=size, dim=8, pooling=pooling), run / "bundle")
        part = similarity_part(read_run(run), count=1)
        assert part is not None
        assert words in part.how
