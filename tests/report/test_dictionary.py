"""The page on a dictionary: readings, veils, escaping, and the page itself in a browser where there is one."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.report.dictionary import overlay, readings, recall_rows, recall_verdict, summary_lines, write_dictionary
from proxemics.training.dictionary_view import AtomPicture, AtomView, DictionaryView, Part, SplitRecall

RECALL = SplitRecall(0.80, 0.40, 0.80, 0.41, 0.79, 1000)


def picture(number: int, *, heat: bool = True) -> AtomPicture:
    pixels = np.full((64, 64, 3), 20 * number, np.uint8)
    hot = np.array([[0.0, 1.0], [0.5, 0.0]], np.float32)
    return AtomPicture(
        f"/p/{number}.jpg", f"<b>class_{number}", "sea", 0.9 - number / 10, pixels, hot if heat else None
    )


def view(**changes: object) -> DictionaryView:
    sea = (Part("sea", 0.75, 0.5), Part("land", 0.25, 0.5))
    atoms = (
        AtomView(3, 0.3, 4, 2, (Part("gull", 0.75, 0.1), Part("tern", 0.25, 0.1)), sea, (picture(0), picture(1))),
        AtomView(0, 0.01, 0, 0, (), (), (picture(2),)),
    )
    whole = DictionaryView(
        dataset="birds", method="couce", checkpoint="After epoch 3 of 3.", gate="spatial", num_atoms=4, dim=16,
        used=2, coherence=0.05, orth=0.02, orth_random=0.25, energy=0.02, energy_background=0.9, recall=RECALL,
        num_pictures=40, num_training=50, num_unreadable=0, atoms=atoms,
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]  # names of fields, in a test


def test_what_the_recall_says() -> None:
    for recall, part in (
        (replace(RECALL, outside=0.70), "falls by 10.0 points (without as many random directions by 1.0)"),
        (replace(RECALL, outside=0.70, random_outside=0.69), "no better than as many random directions"),
        (replace(RECALL, outside=0.85), "rises by 5.0 points"),
        (replace(RECALL, inside=0.60), "alone finds 19.0 points more than as many random directions"),
        (RECALL, "no better than"),
        (replace(RECALL, outside=0.78, num_queries=100), "only 100 queries"),
        (replace(RECALL, outside=None), "nothing is left outside"),
        (None, "could not be read or evaluated"),
    ):
        assert part in recall_verdict(recall), recall
    # Two of a hundred queries are nothing to speak of.
    assert "falls" not in recall_verdict(replace(RECALL, outside=0.78, random_outside=0.80, num_queries=100))
    assert [name for name, _, _ in recall_rows(RECALL)][:2] == ["Whole embeddings", "Part in span(D)"]


@pytest.mark.parametrize(
    ("changes", "title", "part"),
    [
        ({"coherence": 0.9}, "Coherence", "nearly the same"),
        ({"coherence": 0.01}, "Coherence", "nearly orthogonal"),
        ({"orth": 0.02}, "L_orth", "Far below"),
        ({"orth": 0.26}, "L_orth", "neither avoid"),
        ({"orth": 1.0}, "L_orth", "4.0 times that"),
    ],
)
def test_how_numbers_are_read(changes: dict[str, float], title: str, part: str) -> None:
    found = {one.title: one.text for one in readings(view(**changes))}
    assert part in found[title]


def test_summary_for_the_terminal() -> None:
    text = "\n".join(summary_lines(view()))
    for part in ("couce: 4 atoms of 16 dimensions, 2 used", "L_orth 0.020", "1000 validation pictures", "span(D) 80.0"):
        assert part in text
    assert len(summary_lines(view(recall=None))) == 3


def test_the_veil_is_clear_where_the_atom_answers() -> None:
    uri = overlay(picture(1))
    assert uri is not None
    veil = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    alpha = np.asarray(veil)[..., 3]
    assert veil.mode == "RGBA"
    assert alpha[0, -1] == 0
    assert alpha[0, 0] == alpha[-1, -1] == alpha.max() > 150
    assert 0 < alpha[-1, 0] < alpha.max()
    assert overlay(picture(1, heat=False)) is None


def test_the_page(tmp_path: Path) -> None:
    html = write_dictionary(view(), tmp_path / "d.html").read_text(encoding="utf-8")
    assert "<b>class_0" not in html
    assert "&lt;b&gt;class_0" in html
    for part in (
        "Atom 3",
        "4 pictures of 2 classes",
        "prior 30.0",
        "No picture of the sample is nearer",
        "After epoch 3",
    ):
        assert part in html
    assert html.count('class="over"') == 3
    assert "left out" not in html
    worse = view(recall=None, num_unreadable=2, atoms=(replace(view().atoms[1], pictures=(picture(2, heat=False),)),))
    html = write_dictionary(worse, tmp_path / "d.html").read_text(encoding="utf-8")
    assert "2 of the training pictures that were drawn could not be read and are left out" in html
    assert 'class="over"' not in html
    assert "<table" not in html
    assert [path.name for path in tmp_path.iterdir()] == ["d.html"]
