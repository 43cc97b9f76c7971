"""Which queries, mistakes, classes and domains are shown. User-pains 64, 101."""

from __future__ import annotations

import numpy as np
import pandas as pd

from proxemics.report.groups import group_queries
from proxemics.report.queries import extreme_queries, frequent_mistakes


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "path": [f"/p/{name}" for name in "abcdef"],
            "label": ["cat", "cat", "dog", "dog", "fox", "owl"],
            "domain": ["photo", "sketch", "photo", "sketch", "photo", "photo"],
            "nearest_path": [f"/p/{name}" for name in "bcdaec"],
            "nearest_label": ["cat", "dog", "dog", "cat", "dog", "dog"],
            "similarity": [0.9, 0.8, 0.7, 0.95, 0.5, 0.6],
            "neighbours": [["/p/b", "/p/zz"], ["/p/c"], ["/p/d"], ["/p/a", "/p/c"], ["/p/d"], ["/p/c"]],
            "neighbour_similarities": [[0.9, np.nan], [0.8], [0.7], [0.95, 0.2], [0.5], [0.6]],
            "average_precision": [1.0, 0.0, 1.0, 0.0, np.nan, 0.0],
            "recall_at_1": [1.0, 0.0, 1.0, 0.0, np.nan, 0.0],
        }
    )


def test_worst_are_the_most_confident_mistakes_first() -> None:
    worst, _ = extreme_queries(table(), None)
    assert [query.path for query in worst] == ["/p/d", "/p/b", "/p/f"]


def test_best_are_the_hardest_successes_one_a_class() -> None:
    _, best = extreme_queries(table(), None)
    assert [query.path for query in best] == ["/p/c", "/p/a"]


def test_queries_without_a_partner_are_left_out() -> None:
    worst, best = extreme_queries(table(), None)
    assert "/p/e" not in {query.path for query in (*worst, *best)}


def test_neighbours_know_their_class_from_the_split() -> None:
    split = pd.DataFrame({"path": ["/p/zz"], "label": ["cat"]})
    _, best = extreme_queries(table(), split)
    assert [(one.label, one.correct) for one in best[1].neighbours] == [("cat", True), ("cat", True)]
    _, best = extreme_queries(table(), None)
    assert [(one.label, one.correct, one.similarity) for one in best[1].neighbours] == [
        ("cat", True, 0.9),
        ("unknown", None, None),
    ]


def test_a_table_without_neighbour_lists_still_shows_the_nearest() -> None:
    worst, _ = extreme_queries(table().drop(columns=["neighbours", "neighbour_similarities"]), None)
    assert [(one.path, one.label, one.correct) for one in worst[0].neighbours] == [("/p/a", "cat", False)]


def test_only_so_many_are_shown() -> None:
    many = pd.concat([table()] * 30, ignore_index=True)
    worst, best = extreme_queries(many, None, worst=20, best=1)
    assert (len(worst), len(best)) == (20, 1)


def test_perfect_retrieval_has_no_worst_queries() -> None:
    worst, best = extreme_queries(table()[lambda frame: frame["average_precision"] == 1], None)
    assert worst == []
    assert len(best) == 2


def test_mistakes_count_pairs_of_classes() -> None:
    many = pd.concat([table(), table()[lambda frame: frame["path"] == "/p/b"]], ignore_index=True)
    (pair,) = frequent_mistakes(many)
    assert (pair.label, pair.taken_for, pair.count, pair.share) == ("cat", "dog", 2, 2 / 3)
    assert (pair.path, pair.nearest_path) == ("/p/b", "/p/c")


def test_classes_come_worst_first_and_those_without_a_number_last() -> None:
    groups = group_queries(table(), "label")
    assert [(group.name, group.queries, group.recall) for group in groups] == [
        ("owl", 1, 0.0),
        ("cat", 2, 0.5),
        ("dog", 2, 0.5),
        ("fox", 1, None),
    ]
    assert (groups[1].taken_for, groups[1].taken_count) == ("dog", 1)


def test_domains_are_grouped_too() -> None:
    assert [(group.name, group.queries) for group in group_queries(table(), "domain")] == [("sketch", 2), ("photo", 4)]
    assert group_queries(table(), "camera") == []
