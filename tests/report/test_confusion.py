"""Which classes are taken for which: counts, pictures of both sides, the matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd

from proxemics.report.confusion import confusion_part


def table() -> pd.DataFrame:
    rows = [
        ("cat", "dog"),
        ("cat", "dog"),
        ("cat", "cat"),
        ("dog", "cat"),
        ("dog", "dog"),
        ("fox", "dog"),
        ("owl", "owl"),
    ]
    return pd.DataFrame(
        {
            "path": [f"q{number}" for number in range(len(rows))],
            "label": [label for label, _ in rows],
            "nearest_path": [f"n{number}" for number in range(len(rows))],
            "nearest_label": [other for _, other in rows],
            "similarity": [0.5, 0.9, 0.8, 0.7, 0.6, np.nan, 0.4],
        }
    )


def test_pairs_are_counted_with_both_sides() -> None:
    part = confusion_part(table())
    assert part is not None
    assert (part.wrong, part.total, part.more) == (4, 7, 0)
    assert [(one.label, one.taken_for, one.count, round(one.share, 3)) for one in part.pairs] == [
        ("cat", "dog", 2, 0.667),
        ("fox", "dog", 1, 1.0),
        ("dog", "cat", 1, 0.5),
    ]
    assert [(one.path, one.nearest, one.similarity) for one in part.pairs[0].examples] == [
        ("q1", "n1", 0.9),
        ("q0", "n0", 0.5),
    ]
    assert part.pairs[1].examples[0].similarity is None


def test_the_matrix_sums_to_the_queries() -> None:
    part = confusion_part(table())
    assert part is not None
    assert part.matrix is not None
    assert part.matrix.labels == ("cat", "dog", "fox")
    counts = [[cell.count for cell in row] for row in part.matrix.rows]
    assert counts == [[1, 2, 0], [1, 1, 0], [0, 1, 0]]
    assert part.matrix.others == (0, 0, 0)
    assert [cell.pair for cell in part.matrix.rows[0]] == [None, 0, None]
    assert part.matrix.rows[1][0].pair == 2


def test_what_is_left_out_is_told() -> None:
    part = confusion_part(table(), pairs=1, size=2)
    assert part is not None
    assert len(part.pairs) == 1
    assert part.more == 2
    assert part.matrix is not None
    assert part.matrix.labels == ("cat", "dog")
    assert part.matrix.rows[1][0].pair is None  # counted, and too rare for the list


def test_nothing_wrong_is_no_section() -> None:
    frame = table()
    assert confusion_part(frame[frame["label"] == frame["nearest_label"]]) is None
    assert confusion_part(None) is None
    assert confusion_part(frame.drop(columns="nearest_path")) is None
    frame["nearest_path"] = None
    assert confusion_part(frame) is None
