"""Every protocol against a float64 brute force with the definitions written out, and against pytorch-metric-learning.

The sets hold class sizes from 1 to 50, lone queries, ties, duplicates under other labels, and labels above 2^24.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import DataError, EvaluationError
from proxemics.evaluation import (
    clustering_scores,
    cross_domain,
    evaluate_embeddings,
    leave_one_domain_out,
    musgrave,
    musgrave_folds,
    query_gallery,
    roth,
    single_domain,
    zero_shot,
)
from proxemics.evaluation.assess import assess, for_choosing
from proxemics.evaluation.clustering import pair_f1
from proxemics.evaluation.protocols import concatenate
from proxemics.evaluation.protocols.roth_metrics import METRICS

spec = importlib.util.spec_from_file_location("protocol_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

KS = (1, 2, 4, 8)
DOMAINS = ("photo", "sketch", "art")
HARD = pytest.mark.parametrize("kind", ["plain", "ties", "duplicates"])


def make_set(seed: int, kind: str = "plain", *, largest: int = 50) -> tuple[np.ndarray, pd.DataFrame]:
    """Embeddings and a table: 24 classes over three domains; four of the classes have one picture."""
    generator = np.random.default_rng(seed)
    sizes = np.concatenate([[1, 1, 1, 1, largest], generator.integers(2, 14, 19)])
    codes = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    points = generator.normal(size=(len(sizes), 6))[codes] + generator.normal(size=(len(codes), 6))
    if kind == "ties":
        points = np.round(points / 2)
        points[np.abs(points).sum(axis=1) == 0, 0] = 1
    if kind == "duplicates":
        half = len(points) // 2
        points[half : 2 * half] = points[:half]
    frame = pd.DataFrame(
        {
            "path": [f"/p/{i}.jpg" for i in range(len(codes))],
            "label": [str(2**24 + code) for code in codes],  # neighbours that float32 cannot tell apart
            "domain": generator.choice(DOMAINS, len(codes)),
            "role": generator.choice(["query", "gallery"], len(codes)),
        }
    )
    return points.astype(np.float32), frame


def brute(embeddings, frame, query, gallery):
    """Reference values of one task; a row is never its own neighbour."""
    labels = frame["label"].to_numpy().astype(np.int64)
    if np.array_equal(query, gallery):
        return reference.evaluate(embeddings[query], labels[query], ks=KS)
    pairs = [(i, j) for i, row in enumerate(query) for j in np.flatnonzero(gallery == row)]
    return reference.evaluate(
        embeddings[query], labels[query], embeddings[gallery], labels[gallery], ks=KS, forbidden=pairs
    )


def where(frame, **wanted):
    kept = np.ones(len(frame), bool)
    for column, value in wanted.items():
        kept &= (frame[column] == value).to_numpy()
    return np.flatnonzero(kept)


def settings(protocol: str, **values) -> EvaluationConfig:
    return EvaluationConfig(protocol=protocol, bootstrap=0, recall_at=KS, absent="keep", **values)


def tasks_of(protocol: str, frame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The tasks of a protocol, written out by hand."""
    everything = np.arange(len(frame))
    if protocol == "zero_shot":
        return {"all": (everything, everything)}
    if protocol == "query_gallery":
        return {"all": (where(frame, role="query"), where(frame, role="gallery"))}
    if protocol == "cross_domain_pairs":
        pairs = itertools.permutations(sorted(DOMAINS), 2)
        return {f"{one} -> {other}": (where(frame, domain=one), where(frame, domain=other)) for one, other in pairs}
    if protocol == "cross_domain":
        return {"all": (where(frame, domain="sketch"), where(frame, domain="photo"))}
    if protocol == "leave_one_domain_out":
        return {name: (where(frame, domain=name), np.flatnonzero(frame["domain"] != name)) for name in sorted(DOMAINS)}
    return {name: (where(frame, domain=name),) * 2 for name in ("art", "sketch")}  # single_domain from photo


OPTIONS = {
    "cross_domain": {"query_domain": "sketch", "gallery_domain": "photo"},
    "single_domain": {"source_domain": "photo"},
}
PROTOCOLS = (
    "zero_shot",
    "query_gallery",
    "cross_domain",
    "cross_domain_pairs",
    "leave_one_domain_out",
    "single_domain",
)


@HARD
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_equals_brute_force(protocol: str, kind: str) -> None:
    embeddings, frame = make_set(1, kind)
    found = assess(embeddings, frame, settings(protocol.removesuffix("_pairs"), **OPTIONS.get(protocol, {})))
    wanted = {name: brute(embeddings, frame, *rows) for name, rows in tasks_of(protocol, frame).items()}
    assert found.result.num_lone > 0
    for name in ("recall_at_1", "recall_at_8", "map_at_r", "r_precision", "map_c_roth"):
        values = [np.nanmean(one[name]) for one in wanted.values()]
        assert found.result[name] == pytest.approx(np.mean(values), abs=1e-12)  # each task once, whatever its size
        if len(values) > 1:
            assert [one[name] for one in found.tasks.values()] == pytest.approx(values, abs=1e-12)
            assert len({one.num_queries for one in found.tasks.values()}) > 1
        np.testing.assert_allclose(
            found.result.per_query[name], np.concatenate([one[name] for one in wanted.values()]), atol=1e-12
        )
    starts = np.cumsum([0, *(len(gallery) for _, gallery in tasks_of(protocol, frame).values())])
    order = [item[0] + start for one, start in zip(wanted.values(), starts, strict=False) for item in one["order"]]
    assert found.result.per_query["nearest"].tolist() == order
    gallery = np.concatenate([gallery for _, gallery in tasks_of(protocol, frame).values()])
    assert found.selection.gallery.tolist() == gallery.tolist()


def test_the_weighted_rows_average_to_the_mean_over_tasks() -> None:
    """What a paired comparison of runs rests on; intervals lie around the number."""
    embeddings, frame = make_set(2)
    evaluation = EvaluationConfig(protocol="single_domain", source_domain="photo", bootstrap=300, recall_at=KS)
    result = assess(embeddings, frame, evaluation).result
    assert result.num_lone > 0
    for name in ("recall_at_1", "map_at_r"):
        rows = result.per_query[name] * result.per_query["weight"]
        assert np.nanmean(rows) == pytest.approx(result[name], abs=1e-12)
        low, high = result.intervals[name]
        assert low < result[name] < high
    per_task = result.per_group("task")
    assert np.mean([one["map_at_r"] for one in per_task.values()]) == pytest.approx(result["map_at_r"], abs=1e-12)


def test_bounds_are_those_of_the_tasks() -> None:
    embeddings, frame = make_set(3, "ties")
    found = assess(embeddings, frame, settings("single_domain", source_domain="photo"))
    labels = frame["label"].to_numpy()
    for side, reading in enumerate(("pessimistic", "optimistic")):
        values = [
            np.nanmean(reference.evaluate(embeddings[rows], labels[rows], ks=KS, reading=reading)["map_at_r"])
            for rows, _ in tasks_of("single_domain", frame).values()
        ]
        assert found.result.bounds["map_at_r"][side] == pytest.approx(np.mean(values), abs=1e-12)


# --- single-domain generalisation -------------------------------------------------------------------------------------


def split_table(seen: str, tested: str = "photo sketch art") -> dict[str, list[str]]:
    """Classes a, b seen in some domains; c, d tested in others."""
    rows = [(label, domain, "train") for domain in seen.split() for label in "ab" for _ in range(2)]
    rows += [(label, domain, "test") for domain in tested.split() for label in "cd" for _ in range(3)]
    return {name: [row[i] for row in rows] for i, name in enumerate(("label", "domain", "split"))}


def test_single_domain_keeps_classes_and_domains_apart() -> None:
    table = split_table("photo")
    parts = single_domain(table, "photo", across=True)
    labels, domains = np.array(table["label"]), np.array(table["domain"])
    seen = set(labels[:4])
    assert sorted(parts.targets) == ["art", "sketch"]
    for name, one in parts.targets.items():
        assert set(domains[one.query]) == set(domains[one.gallery]) == {name}
        assert not set(labels[one.query]) & seen
        assert one.own
    assert set(domains[parts.within_source.query]) == {"photo"}
    assert not set(labels[parts.within_source.query]) & seen
    assert set(domains[parts.across["art"].gallery]) == {"photo"}
    assert list(parts.beside) == ["photo -> photo", "art -> photo", "sketch -> photo"]
    counted = sum(len(one.query) for one in parts.targets.values()) + len(parts.within_source.query)
    assert counted == table["split"].count("test")


@pytest.mark.parametrize(
    ("table", "source", "message"),
    [
        (split_table("photo sketch"), "photo", "the model also saw sketch"),
        (split_table("photo"), "photos", "no image has the source domain 'photos'.*Did you mean 'photo'"),
        (split_table("photo", "photo"), "photo", "no tested image lies outside"),
        ({**split_table("photo"), "label": ["c"] * 8 + list("cccddd") * 3}, "photo", "1 tested class.*also trained"),
    ],
)
def test_single_domain_refuses_leaks(table, source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        single_domain(table, source)


def test_single_domain_reports_the_source_beside_the_mean() -> None:
    embeddings, frame = make_set(4)
    found = assess(embeddings, frame, settings("single_domain", source_domain="photo", across=True))
    photo = where(frame, domain="photo")
    own = np.nanmean(brute(embeddings, frame, photo, photo)["map_at_r"])
    crossed = np.nanmean(brute(embeddings, frame, where(frame, domain="art"), photo)["map_at_r"])
    assert found.beside["photo -> photo"]["map_at_r"] == pytest.approx(own, abs=1e-12)
    assert found.beside["art -> photo"]["map_at_r"] == pytest.approx(crossed, abs=1e-12)
    assert set(found.tasks) == {"art", "sketch"}
    with pytest.raises(EvaluationError, match=r"needs evaluation\.source_domain"):
        assess(embeddings, frame, settings("single_domain"))
    assert for_choosing(settings("single_domain", source_domain="photo"), frame).protocol == "zero_shot"


@pytest.mark.parametrize(
    ("protocol", "options", "domains", "roles", "chosen"),
    [
        ("zero_shot", {}, "xx", "", "zero_shot"),
        ("query_gallery", {}, "xx", ["query", "gallery"], "query_gallery"),
        ("query_gallery", {}, "xx", ["", ""], "zero_shot"),
        ("query_gallery", {}, "xx", ["query", "query"], "zero_shot"),
        ("query_gallery", {}, "xx", None, "query_gallery"),  # and is refused there: the column is missing
        ("leave_one_domain_out", {}, "xy", "", "leave_one_domain_out"),
        ("leave_one_domain_out", {}, "xx", "", "zero_shot"),
        ("cross_domain", {"query_domain": "x", "gallery_domain": "y"}, "xy", "", "cross_domain"),
        ("cross_domain", {"query_domain": "x", "gallery_domain": "y"}, "xx", "", "zero_shot"),
        ("cross_domain", {"query_domain": "z"}, "xy", "", "zero_shot"),
        ("cross_domain", {"query_domain": "x"}, "xx", "", "zero_shot"),
        ("cross_domain", {}, "xy", "", "cross_domain"),
        ("cross_domain", {}, "xx", "", "zero_shot"),
        ("musgrave", {}, "xy", "", "zero_shot"),
        ("roth", {}, "xy", "", "zero_shot"),
    ],
)
def test_what_validation_classes_lack_is_not_asked_of_them(
    protocol: str, options: dict[str, str], domains: str, roles: list[str] | None, chosen: str
) -> None:
    columns = {"label": ["a", "a"], "domain": list(domains)} | ({} if roles is None else {"role": roles})
    assert for_choosing(settings(protocol, **options), pd.DataFrame(columns)).protocol == chosen


# --- Musgrave ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [8, 9, 11, 100])
def test_folds_hold_every_class_once(classes: int) -> None:
    generator = np.random.default_rng(classes)
    labels = generator.permutation(np.repeat(2**24 + np.arange(classes), generator.integers(1, 51, classes)))
    folds = musgrave_folds(labels)
    assert len(folds) == 4
    held = [set(labels[fold.val]) for fold in folds]
    assert set().union(*held) == set(labels)
    assert all(not a & b for a, b in itertools.combinations(held, 2))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for fold, classes_held in zip(folds, held, strict=True):
        assert sorted([*fold.train, *fold.val]) == list(range(len(labels)))
        assert not set(labels[fold.train]) & classes_held
    assert max(held[0]) < min(held[1])  # contiguous in sorted order
    assert max(held[2]) < min(held[3])


def test_numbers_are_sorted_as_numbers_and_too_few_classes_are_refused() -> None:
    assert musgrave_folds([10, 9, 8, 7, 6, 5, 2, 1])[0].classes == ("1", "2")
    with pytest.raises(DataError, match="7 training classes cannot make 4 folds"):
        musgrave_folds(list("abcdefg"))


@HARD
def test_separated_and_concatenated(kind: str) -> None:
    parts = [make_set(5, kind)[0] * scale for scale in (1, 7, 0.01, 100)]
    generator = np.random.default_rng(0)
    noise = [0.0 if kind != "plain" else generator.normal(size=part.shape) * 0.3 for part in parts]
    parts = [
        (part / np.linalg.norm(part, axis=1, keepdims=True) + one).astype(np.float32)
        for part, one in zip(parts, noise, strict=True)
    ]
    labels = make_set(5, kind)[1]["label"].to_numpy().astype(np.int64)
    found = musgrave(parts, labels, recall_at=KS)
    each = [reference.evaluate(part, labels, ks=KS) for part in parts]
    units = [part.astype(np.float64) / np.linalg.norm(part.astype(np.float64), axis=1, keepdims=True) for part in parts]
    joined = np.concatenate(units, axis=1) / 2  # four unit parts have length 2
    np.testing.assert_allclose(concatenate(parts), joined, atol=1e-7)
    for name in ("recall_at_1", "r_precision", "map_at_r"):
        assert found.separated[name] == pytest.approx(np.mean([np.nanmean(one[name]) for one in each]), abs=1e-12)
        expected = np.nanmean(reference.evaluate(concatenate(parts), labels, ks=KS)[name])
        assert found.concatenated[name] == pytest.approx(expected, abs=1e-12)


def test_concatenation_of_scaled_parts_and_of_wrong_ones() -> None:
    one = make_set(6)[0]
    np.testing.assert_array_equal(concatenate([one, one]), concatenate([one, one * 4]))
    assert np.linalg.norm(concatenate([one, one[:, :3]]), axis=1) == pytest.approx(1)
    with pytest.raises(EvaluationError, match="cannot be joined"):
        concatenate([one, one[:-1]])
    assert np.isfinite(concatenate([np.zeros((2, 3)), np.ones((2, 3))])).all()


# --- Roth -------------------------------------------------------------------------------------------------------------


def roth_by_hand(embeddings, labels):
    """Recall, mAP_c and mAP_1000 from the definitions: R counts the query, lone queries are 0."""
    similarity = reference.similarities(embeddings, embeddings)
    rows: dict[str, list[float]] = {"recall_at_1": [], "recall_at_8": [], "map_c_roth": [], "map_1000_roth": []}
    for i in range(len(labels)):
        same = labels == labels[i]
        items = reference.order(similarity[i], np.arange(len(labels)) != i, same)
        rel = same[items].astype(float)
        size = same.sum()  # with the query
        precision = np.cumsum(rel) / np.arange(1, len(rel) + 1)
        rows["recall_at_1"].append(rel[:1].max())
        rows["recall_at_8"].append(rel[:8].max())
        rows["map_c_roth"].append((precision * rel)[:size].sum() / size)
        rows["map_1000_roth"].append((precision * rel)[:1000].sum() / size)
    return {name: np.array(values) for name, values in rows.items()}


@HARD
def test_roth_equals_the_definitions(kind: str) -> None:
    embeddings, frame = make_set(7, kind)
    labels = frame["label"].to_numpy().astype(np.int64)
    found = assess(embeddings, frame, settings("roth")).result
    assert set(METRICS) <= set(found)
    assert found.num_lone == 4
    values = np.linalg.svd(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), compute_uv=False)
    spectrum = -np.log(len(values) * values / values.sum()).mean()
    assert found["rho_spectrum"] == pytest.approx(spectrum, rel=1e-5)
    for name, values in roth_by_hand(embeddings, labels).items():
        assert found[name] == pytest.approx(values.mean(), abs=1e-12)
        np.testing.assert_allclose(found.per_query[name], values, atol=1e-12)


def test_the_horizon_cuts_long_classes() -> None:
    """A class of more than 1,000: the sum ends at 1,000 places, the divisor does not."""
    labels = np.concatenate([np.zeros(1300, int), np.ones(10, int)])
    embeddings = np.eye(2)[labels] + np.random.default_rng(0).normal(0, 1e-3, (1310, 2))
    found = roth(embeddings, labels, clustering=False)
    assert found["map_1000_roth"] == pytest.approx((1300 * 1000 / 1300 + 10 * 9 / 10) / 1310, abs=1e-12)
    assert found["map_at_r"] == 1
    usual = evaluate_embeddings(embeddings, labels, map_horizon=1000, bootstrap=0)
    assert usual["map_at_1000"] == pytest.approx(1, abs=1e-12)


def test_a_perfect_ranking_scores_below_one() -> None:
    labels = np.repeat(np.arange(4), 5)
    found = roth(np.eye(4)[labels], labels, clustering=False)
    assert found["map_c_roth"] == pytest.approx(0.8)
    assert found["map_1000_roth"] == pytest.approx(0.8)


def test_f1_counts_pairs() -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        classes, clusters = generator.integers(0, 5, 40), generator.integers(0, 6, 40) + 2**40
        both = said = true = 0
        for a, b in itertools.combinations(range(40), 2):
            same, together = classes[a] == classes[b], clusters[a] == clusters[b]
            both, said, true = both + (same and together), said + together, true + same
        precision, recall = both / said, both / true
        assert pair_f1(classes, clusters) == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-12)
    scores = clustering_scores(np.repeat(np.eye(3), 4, axis=0), np.arange(12) // 4)
    assert scores["f1"] == 1


def test_nmi_is_that_of_the_specification() -> None:
    from sklearn.metrics import normalized_mutual_info_score

    assert normalized_mutual_info_score([0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 2, 2]) == pytest.approx(0.739667, abs=1e-6)


# --- pytorch-metric-learning ------------------------------------------------------------------------------------------


def test_agrees_with_pytorch_metric_learning() -> None:
    """Where both define the same thing: precision at 1, R-precision and MAP@R, with a gallery of its own or none."""
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN

    embeddings, frame = make_set(8)
    # Their labels pass through float32, where neighbours above 2^24 are one class; ours never do.
    labels = torch.from_numpy(frame["label"].to_numpy().astype(np.int64) - 2**24)
    names = {"precision_at_1": "recall_at_1", "mean_average_precision_at_r": "map_at_r", "r_precision": "r_precision"}
    points = torch.from_numpy(embeddings)
    selections = {
        "zero_shot": [zero_shot(frame)],
        "query_gallery": [query_gallery(frame, column="role", absent="keep")],
        "cross_domain": [cross_domain(frame, "sketch", "photo", absent="keep")],
        "leave_one_domain_out": list(leave_one_domain_out(frame, absent="keep").values()),
        "single_domain": list(single_domain(frame[["label", "domain"]], "photo").targets.values()),
    }
    for protocol, parts in selections.items():
        theirs = []
        for part in parts:
            calculator = accuracy.AccuracyCalculator(
                include=tuple(names), k=len(part.gallery) - part.own, knn_func=CustomKNN(CosineSimilarity()),
                device=torch.device("cpu"),
            )  # fmt: skip
            query, gallery = torch.from_numpy(part.query), torch.from_numpy(part.gallery)
            other = () if part.own else (points[gallery], labels[gallery])
            theirs.append(calculator.get_accuracy(points[query], labels[query], *other))
        ours = assess(embeddings, frame, settings(protocol, **OPTIONS.get(protocol, {}))).result
        for their_name, name in names.items():
            expected = np.mean([one[their_name] for one in theirs])
            assert ours[name] == pytest.approx(expected, abs=1e-6), (protocol, name)
