"""Protocols against pytorch-metric-learning where test_protocols.py leaves off: folds, ties, duplicates, splits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from proxemics.evaluation import (
    Selection,
    cross_domain,
    evaluate_embeddings,
    leave_one_domain_out,
    musgrave,
    query_gallery,
    roth,
    single_domain,
    zero_shot,
)
from proxemics.evaluation.protocols import concatenate

accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"elsewhere_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_set = _load("test_protocols").make_set
NAMES = {"precision_at_1": "recall_at_1", "mean_average_precision_at_r": "map_at_r", "r_precision": "r_precision"}


def theirs(points: np.ndarray, labels: np.ndarray, part: Selection) -> dict[str, float]:
    """What pytorch-metric-learning gives for a selection, by our names.

    Their labels pass through float32, in which neighbours above 2^24 are one class; ours never do.
    """
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN

    calculator = accuracy.AccuracyCalculator(
        include=tuple(NAMES), k=len(part.gallery) - part.own, knn_func=CustomKNN(CosineSimilarity()),
        device=torch.device("cpu"),
    )  # fmt: skip
    rows, small = torch.from_numpy(np.asarray(points, np.float32)), torch.from_numpy(labels - labels.min())
    query, gallery = torch.from_numpy(part.query), torch.from_numpy(part.gallery)
    other = () if part.own else (rows[gallery], small[gallery])
    found = calculator.get_accuracy(rows[query], small[query], *other)
    return {name: float(found[key]) for key, name in NAMES.items()}


def numbers(kind: str, seed: int = 11) -> tuple[np.ndarray, np.ndarray]:
    points, frame = make_set(seed, kind)
    return points, frame["label"].to_numpy().astype(np.int64)


def test_their_labels_meet_in_float32_and_ours_do_not() -> None:
    """Why the labels are made small for them: above 2^24 every second class is another's."""
    points, labels = numbers("plain")
    assert labels.min() >= 2**24
    merged = labels.astype(np.float32).astype(np.int64)
    assert len(np.unique(merged)) < len(np.unique(labels))
    ours = evaluate_embeddings(points, labels, recall_at=(1,), bootstrap=0)
    small = evaluate_embeddings(points, labels - labels.min(), recall_at=(1,), bootstrap=0)
    assert dict(ours) == dict(small)
    assert dict(evaluate_embeddings(points, merged, recall_at=(1,), bootstrap=0)) != dict(ours)


def test_four_folds_separated_and_concatenated() -> None:
    parts = [numbers("plain", seed)[0] for seed in (11, 11, 11, 11)]
    labels = numbers("plain")[1]
    generator = np.random.default_rng(0)
    parts = [
        (part + generator.normal(0, 0.5, part.shape)).astype(np.float32) * scale
        for part, scale in zip(parts, (1, 9, 0.1, 3), strict=True)
    ]
    found = musgrave(parts, labels)
    everything = zero_shot({"label": labels.tolist()})
    each = [theirs(part, labels, everything) for part in parts]
    joined = theirs(concatenate(parts), labels, everything)
    for name in NAMES.values():
        assert found.separated[name] == pytest.approx(np.mean([one[name] for one in each]), abs=1e-6)
        assert found.concatenated[name] == pytest.approx(joined[name], abs=1e-6)
    assert found.concatenated["map_at_r"] != pytest.approx(found.separated["map_at_r"], abs=1e-3)


@pytest.mark.parametrize("kind", ["ties", "duplicates"])
def test_where_order_is_free_theirs_lies_between_our_bounds(kind: str) -> None:
    """They order equal similarities as their top-k happens to; the worst and the best order enclose that."""
    points, frame = make_set(12, kind)
    labels = frame["label"].to_numpy().astype(np.int64)
    table = {name: frame[name].tolist() for name in ("label", "domain", "role")}
    parts = [
        zero_shot({"label": table["label"]}),
        query_gallery(table, column="role", absent="keep"),
        cross_domain(table, "sketch", "photo", absent="keep"),
        *leave_one_domain_out(table, absent="keep").values(),
        *single_domain({name: table[name] for name in ("label", "domain")}, "photo").targets.values(),
    ]
    moved = 0
    for part in parts:
        other = (None, None) if part.own else (points[part.gallery], labels[part.gallery])
        ours = evaluate_embeddings(points[part.query], labels[part.query], *other, recall_at=(1,), bootstrap=0)
        found = theirs(points, labels, part)
        moved += ours.num_ties
        for name in NAMES.values():
            low, high = ours.bounds[name]
            assert low - 1e-6 <= found[name] <= high + 1e-6, (part.name, name)
            assert low <= ours[name] <= high
    assert moved > 0


def test_unseen_classes_in_unseen_domains_of_a_split_table() -> None:
    """Single-domain generalisation with what the model saw in the table: seen classes and the source take no part."""
    points, frame = make_set(13)
    order = sorted(set(frame["label"]))
    seen = frame["label"].isin(order[::2])
    split = np.where(seen, np.where(frame["domain"] == "photo", "train", "unused"), "test")
    labels = frame["label"].to_numpy().astype(np.int64)
    table = {"label": frame["label"].tolist(), "domain": frame["domain"].tolist(), "split": split.tolist()}
    parts = single_domain(table, "photo", across=True, absent="skip")
    assert set(parts.targets) == {"art", "sketch"}
    for domain, part in parts.targets.items():
        assert set(labels[part.query]) == set(labels[(split == "test") & (frame["domain"] == domain)])
        assert not set(labels[part.query]) & set(labels[seen])
        ours = evaluate_embeddings(points[part.query], labels[part.query], recall_at=(1,), bootstrap=0)
        assert {name: ours[name] for name in NAMES.values()} == pytest.approx(theirs(points, labels, part), abs=1e-6)
    for domain, part in parts.across.items():
        assert set(frame["domain"].to_numpy()[part.query]) == {domain}
        ours = evaluate_embeddings(
            points[part.query],
            labels[part.query],
            points[part.gallery],
            labels[part.gallery],
            recall_at=(1,),
            bootstrap=0,
        )
        assert {name: ours[name] for name in NAMES.values()} == pytest.approx(theirs(points, labels, part), abs=1e-6)


def test_roth_and_theirs_agree_where_nothing_is_lone() -> None:
    """Recall@1 is one number for all three; MAP@C lies below MAP@R by at most the share that the query itself takes."""
    points, labels = numbers("plain")
    known, count = np.unique(labels, return_counts=True)
    kept = np.isin(labels, known[count > 1])
    points, labels = points[kept], labels[kept]
    found = theirs(points, labels, zero_shot({"label": labels.tolist()}))
    ours = roth(points, labels, clustering=False)
    assert ours.num_lone == 0
    assert ours["recall_at_1"] == pytest.approx(found["recall_at_1"], abs=1e-6)
    assert ours["map_at_r"] == pytest.approx(found["map_at_r"], abs=1e-6)
    size = dict(zip(known.tolist(), count.tolist(), strict=True))
    share = np.array([(size[label] - 1) / size[label] for label in labels.tolist()])
    assert (ours.per_query["map_c_roth"] >= ours.per_query["map_at_r"] * share - 1e-12).all()
    assert (ours.per_query["map_1000_roth"] >= ours.per_query["map_c_roth"] - 1e-12).all()
