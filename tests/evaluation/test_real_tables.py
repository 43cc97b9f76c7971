"""The study on real pictures without training: its tables, its protocols, its statistics and its plan."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import real_methods
from _real_protocols import EMOJI, MEASURES, PACS_TARGETS, across, mean, measure_sums, pair_sums, subtract, within
from _real_rows import numbers, per_class, seconds
from _real_study import CHOOSERS, Study
from _real_summary import differences, table, verdicts
from _real_tables import PACS_TRAIN, SETS, check, counts, write_tables

from proxemics.core.errors import EvaluationError
from proxemics.core.files import write_json
from proxemics.evaluation import evaluate_embeddings
from proxemics.methods.build import Shapes, build_methods
from proxemics.report.compare import compare
from proxemics.report.compare_rows import read_compared
from proxemics.training.sweep.plan import load_plan

PLAN = Path(real_methods.__file__).with_name("real_methods.yaml")
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
KNOWN = {
    "cub200_2010": {"used": (2990, 100), "test": (3043, 100)},
    "cars196": {"used": (3134, 98), "test": (3120, 98)},
    "grocery": {"used": (1025, 41), "test": (997, 40)},
    "emoji": {"used": (1134, 806), "test": (4556, 754)},
    "pacs_unseen": {"used": (600, 4), "test": (1730, 3)},
    "pacs_all": {"used": (1050, 7), "test": (3065, 7)},
}


def index() -> pd.DataFrame:
    """A small index with the shape of the real one."""
    rows = []
    for name in ("cub200_2010", "cars196"):
        rows += [(name, f"c{c:02}", "photo", c < 15, f"{i}.jpg") for c in range(30) for i in range(4)]
    for c in range(30):
        rows += [("grocery", f"g{c:02}", "natural", c < 15, f"{i}.jpg") for i in range(3)]
        rows.append(("grocery", f"g{c:02}", "iconic", c < 15, "0.jpg"))
    for c in range(80):
        for style in EMOJI:
            tones = ["default", "light", "dark"] if c % 4 == 0 and not style.startswith("fluent") else ["default"]
            rows += [("emoji", f"e{c:02}", style, c < 50, f"{tone}.webp") for tone in tones]
    for label in (*PACS_TRAIN, "horse", "house", "person"):
        for domain in (*PACS_TARGETS, "photo"):
            rows += [("pacs", label, domain, None, f"{i}.jpg") for i in range(10)]
    frame = pd.DataFrame(rows, columns=["dataset", "label", "domain", "train", "file"])
    frame["path"] = frame["dataset"] + "/" + frame["domain"] + "/" + frame["label"] + "/" + frame["file"]
    frame["split"] = frame["train"].map({True: "train", False: "test"}).fillna("any")
    return frame[["path", "dataset", "label", "domain", "split"]]


@pytest.mark.parametrize("name", list(SETS))
def test_a_table_tests_what_nobody_trained_or_chose_on(name: str) -> None:
    made = SETS[name](index())
    check(name, made)
    assert list(made.columns) == ["path", "label", "domain", "split"]
    groups = {name: made[made["split"] == name] for name in ("train", "val", "test")}
    used = pd.concat([groups["train"], groups["val"]])
    if name.startswith("pacs"):
        assert set(used["domain"]) == {"photo"}
        assert groups["val"].groupby("label").size().eq(2).all()
        assert groups["train"].groupby("label").size().eq(8).all()
        assert set(groups["train"]["label"]) == set(groups["val"]["label"])
    else:
        assert not set(groups["train"]["label"]) & set(groups["val"]["label"])
    if name == "pacs_all":
        assert set(groups["test"]["domain"]) == set(PACS_TARGETS)
        assert groups["test"]["label"].nunique() == 7
    else:
        assert not set(used["label"]) & set(groups["test"]["label"])
    if name == "emoji":
        assert set(used["domain"]) == {"noto"}
        assert set(groups["test"]["domain"]) == set(EMOJI)
        assert (groups["val"].groupby("label").size() > 1).sum() >= 2  # some that can be queries


def test_a_leak_is_refused() -> None:
    made = SETS["cars196"](index())
    made.loc[made.index[0], "label"] = made[made["split"] == "test"]["label"].iloc[0]
    with pytest.raises(SystemExit, match="1 test classes"):
        check("cars196", made)
    with pytest.raises(SystemExit, match="twice"):
        check("cars196", pd.concat([SETS["cars196"](index())] * 2))
    with pytest.raises(SystemExit, match="no pictures for val"):
        check("cars196", made[made["split"] != "val"])


@pytest.mark.data
@pytest.mark.parametrize("name", list(SETS))
def test_the_real_tables_have_the_counts_of_their_readme(name: str, tmp_path: Path) -> None:
    if not (DATA / "index.csv").exists():
        pytest.skip("the real pictures are not here")
    made = pd.read_csv(write_tables(DATA, tmp_path, [name])[name])
    found = counts(made)
    used = made[made["split"] != "test"]
    assert (len(used), used["label"].nunique()) == KNOWN[name]["used"]
    assert found["test"] == KNOWN[name]["test"]
    assert all((DATA / path).exists() for path in made["path"].iloc[::200])


def test_a_table_is_written_once(tmp_path: Path) -> None:
    index().to_csv(tmp_path / "index.csv", index=False)
    first = write_tables(tmp_path, tmp_path / "tables", list(SETS))
    times = {name: path.stat().st_mtime_ns for name, path in first.items()}
    again = write_tables(tmp_path, tmp_path / "tables", list(SETS))
    assert times == {name: path.stat().st_mtime_ns for name, path in again.items()}


def rows_and_embeddings() -> tuple[pd.DataFrame, Any]:
    generator = np.random.default_rng(0)
    labels = np.repeat([f"k{i}" for i in range(12)], 6)
    domains = np.tile(["a", "a", "a", "b", "b", "c"], 12)
    centres = generator.normal(size=(12, 16))
    vectors = centres[np.repeat(np.arange(12), 6)] + 1.2 * generator.normal(size=(72, 16))
    order = generator.permutation(72)
    return pd.DataFrame({"label": labels[order], "domain": domains[order]}), vectors[order].astype(np.float32)


def test_pairs_are_those_of_a_plain_evaluation() -> None:
    rows, vectors = rows_and_embeddings()
    sums = pair_sums(vectors, rows, [("a", "a"), ("b", "c"), ("c", "b")])
    a, b, c = (np.flatnonzero(rows["domain"] == name) for name in "abc")
    labels = rows["label"].to_numpy()
    own = evaluate_embeddings(vectors[a], labels[a], recall_at=(1,), bootstrap=0)
    other = evaluate_embeddings(vectors[b], labels[b], vectors[c], labels[c], recall_at=(1,), bootstrap=0)
    for metric in ("recall_at_1", "map_at_r"):
        assert mean(sums, [("a", "a")], metric) == pytest.approx(own[metric])
        assert mean(sums, [("b", "c")], metric) == pytest.approx(other[metric])
    assert set(sums["count"]) == {1, 2, 3}


def test_the_mean_over_pairs_counts_each_pair_once() -> None:
    rows, vectors = rows_and_embeddings()
    pairs = across("abc")
    sums = pair_sums(vectors, rows, pairs)
    each = [mean(sums, [pair], "recall_at_1") for pair in pairs]
    assert mean(sums, pairs, "recall_at_1") == pytest.approx(np.mean(each))
    assert len(set(each)) > 1
    assert measure_sums(sums, pairs, "recall_at_1").count.sum() == pytest.approx(len(pairs))


def test_the_sums_of_a_row_are_what_compare_reads(tmp_path: Path) -> None:
    files = []
    for method, seed in itertools.product(("none", "see"), (0, 1)):
        rows, vectors = rows_and_embeddings()
        rows["domain"] = rows.groupby("label").cumcount().map(dict(enumerate((*EMOJI, "noto"))))
        vectors = vectors + (method == "see") * np.random.default_rng(seed).normal(size=vectors.shape)
        sums = pair_sums(vectors.astype(np.float32), rows, across(EMOJI))
        row = {"dataset": "emoji", "base": "proxy_anchor", "method": method, "augmentation": "plain", "seed": seed}
        row |= {"trunk": "t", "size": 1, "split": "test", **numbers(sums, "emoji"), "fingerprint": "x"}
        files.append({**row, "per_class": per_class(sums, "emoji")})
    write_json(tmp_path / "rows.json", {"schema": 1, "rows": files})
    (line,) = [line for part in compare(read_compared([str(tmp_path / "rows.json")])).parts for line in part.lines][1:]
    assert line.entries[0].difference is not None
    estimate = line.entries[0].difference.estimate
    assert estimate.low <= estimate.difference <= estimate.high


def test_lone_queries_are_left_out() -> None:
    rows, vectors = rows_and_embeddings()
    rows.loc[rows["label"] == "k0", "domain"] = "alone"
    rows.loc[rows.index[rows["label"] == "k0"][0], "domain"] = "a"
    sums = pair_sums(vectors, rows, [("a", "a"), ("a", "b")])
    assert "k0" not in set(sums["label"])


def test_what_cannot_be_measured_is_named() -> None:
    rows, vectors = rows_and_embeddings()
    with pytest.raises(EvaluationError, match="'z'"):
        pair_sums(vectors, rows, [("a", "z")])
    with pytest.raises(EvaluationError, match="71 embeddings"):
        pair_sums(vectors[1:], rows, [("a", "a")])
    sums = pair_sums(vectors, rows, within("ab"))
    with pytest.raises(EvaluationError, match="not evaluated"):
        measure_sums(sums, across("ab"), "recall_at_1")
    with pytest.raises(EvaluationError, match="different queries"):
        subtract(measure_sums(sums, [("a", "a")], "map_at_r"), measure_sums(sums[:-3], within("ab"), "map_at_r"))


def test_no_source_picture_is_in_what_counts_as_unseen() -> None:
    assert len(MEASURES["emoji"]["across styles"]) == 20
    assert len(MEASURES["emoji"]["across unseen styles"]) == 12
    assert not any("noto" in pair for pair in MEASURES["emoji"]["across unseen styles"])
    for name in ("pacs_unseen", "pacs_all"):
        assert not any("photo" in pair for key in ("within targets", "across targets") for pair in MEASURES[name][key])


def study_rows() -> tuple[list[dict[str, Any]], dict[tuple[Any, ...], pd.DataFrame]]:
    rows, sums = [], {}
    rates = {"none": 0.40, "see": 0.50, "el_nivmf": 0.41, "couce": 0.52, "center_polar": 0.35, "combined": 0.60}
    for dataset, domain in (("cub200_2010", "photo"), ("cars196", "photo")):
        for augmentation, more in (("plain", 0.0), ("strong", 0.15)):
            for method, rate in rates.items():
                for seed in range(5):
                    hits = np.random.default_rng(seed).random((40, 25)) < rate + (more if method == "none" else 0)
                    row = {
                        "dataset": dataset, "base": "proxy_anchor", "method": method, "parts": method,
                        "augmentation": augmentation, "seed": seed,
                        "metrics": {"recall_at_1": hits.mean(), "map_at_r": hits.mean() / 2},
                    }  # fmt: skip
                    rows.append(row)
                    sums[dataset, method, augmentation, seed] = pd.DataFrame(
                        {
                            "query": domain, "gallery": domain, "label": [f"c{i:02}" for i in range(40)], "count": 25,
                            "recall_at_1": hits.sum(1).astype(float), "map_at_r": hits.sum(1) / 2,
                        }
                    )  # fmt: skip
    frozen = {"dataset": "cub200_2010", "base": "frozen", "method": "frozen", "parts": "frozen"}
    metrics = {"recall_at_1": 0.3, "map_at_r": 0.1}
    return [*rows, {**frozen, "augmentation": "plain", "seed": 0, "metrics": metrics}], sums


def test_a_gain_counts_against_the_base_with_the_same_augmentation() -> None:
    rows, sums = study_rows()
    found = differences(
        rows,
        lambda row: sums[row["dataset"], row["method"], row["augmentation"], row["seed"]],
        resamples=300,
    )

    def one(**asked: Any) -> dict[str, Any]:
        (entry,) = [entry for entry in found if all(entry[key] == value for key, value in asked.items())]
        return entry

    shared = {"dataset": "cub200_2010", "metric": "recall_at_1"}
    see = one(method="see", augmentation="plain", kind="base", **shared)
    low, high = see["interval"]
    assert low < see["difference"] < high
    assert see["difference"] == pytest.approx(0.1, abs=0.03)
    assert low > 0
    assert see["p_holm"] >= see["p"]
    assert one(method="see", augmentation="strong", kind="base", **shared)["difference"] < 0
    assert one(method="none", augmentation="strong", kind="augmentation", **shared)["difference"] > 0.1
    assert one(method="see", augmentation="plain", kind="strong base", **shared)["interval"][1] < 0
    assert len([entry for entry in found if entry["kind"] == "single" and entry["augmentation"] == "plain"]) == 16

    said = {(entry["method"], entry["augmentation"]): entry for entry in verdicts(found)}
    assert said["see", "plain"]["above"] == ["cars196", "cub200_2010"]
    assert said["see", "plain"]["beyond_augmentation"] == []
    assert said["center_polar", "plain"]["below"] == ["cars196", "cub200_2010"]
    assert said["see", "strong"]["above"] == []
    assert said["combined", "plain"]["beats_every_single"] == ["cars196", "cub200_2010"]
    text = table({"rows": rows, "differences": found, "verdicts": verdicts(found)})
    assert text.count("| combined (combined) |") == 4
    assert "| frozen | frozen | plain |  | 30.0 |" in text


def test_pacs_counts_as_one_set() -> None:
    shared = {"base": "proxy_anchor", "method": "see", "augmentation": "plain", "kind": "base", "metric": "recall_at_1"}
    found = [
        {**shared, "dataset": name, "measure": "within targets", "interval": [0.1, 0.2]}
        for name in ("pacs_unseen", "pacs_all")
    ]
    assert verdicts(found)[0]["above"] == ["pacs"]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(load_plan(PLAN), tmp_path, {})


def test_the_plan_pairs_every_variant_with_strong_augmentation(study: Study) -> None:
    plain = [name for name in study.plan.variants if not name.endswith(".strong")]
    assert len(study.plan.variants) == 2 * len(plain)
    assert list(study.plan.datasets) == list(CHOOSERS) == list(SETS)
    for name in plain:
        one, two = (study.cell("emoji", full, {}, 0).config for full in (name, f"{name}.strong"))
        assert (one.data.augmentation, two.data.augmentation) == ("plain", "strong")
        assert (one.methods, one.loss) == (two.methods, two.loss)
        build_methods(one.methods, Shapes(4, one.model.dim))
    assert [len(study.variants[group]) for group in ("proxy_anchor", "combined", "norm_softmax")] == [5, 4, 3]


def test_every_variant_gets_as_many_trials_with_the_same_rates(study: Study) -> None:
    for group in ("proxy_anchor", "norm_softmax"):
        rates: dict[tuple[str, str], list[float]] = {}
        for cell in study.trials(group):
            assert cell.config.data.augmentation == "plain"
            rates.setdefault((cell.dataset, cell.variant), []).append(cell.config.optim.lr)
        assert len(rates) == 2 * len(study.variants[group])
        assert len({tuple(one) for one in rates.values()}) == 1
        assert all(len(set(one)) == 4 for one in rates.values())
    assert study.trials("combined") == []  # its parts are not chosen yet


def finish(cells: Any, value: Any) -> None:
    for cell in cells:
        write_json(cell.run.result, {"history": [{"val": {"map_at_r": value(cell)}}]})


def test_settings_go_from_the_choosers_to_their_neighbours_and_into_the_combination(study: Study) -> None:
    finish(study.trials("proxy_anchor"), lambda cell: cell.config.optim.lr * (1 if cell.dataset == "emoji" else -1))
    low, high = (sorted(cell.config.optim.lr for cell in study.trials("proxy_anchor"))[at] for at in (0, -1))
    for cell in study.final("proxy_anchor", list(CHOOSERS)):
        assert cell.config.optim.lr == (high if CHOOSERS[cell.dataset] == "emoji" else low)
    combined = study.trials("combined")
    assert len(combined) == 8
    parts = study.chosen("emoji", "couce")
    assert parts is not None
    for cell in combined:
        if cell.dataset == "emoji" and "couce" in cell.variant:
            assert {key: cell.settings[key] for key in parts.settings} == parts.settings
    finish(combined, lambda cell: float(cell.variant == "couce+center_polar"))
    final = study.final("combined", ["pacs_all"])
    assert [cell.variant for cell in final[:2]] == ["couce+center_polar", "couce+center_polar.strong"]
    assert len(final) == 2 * len(study.plan.seeds)
    reused = {cell.name for cell in study.final("proxy_anchor", ["emoji"])} & {
        cell.name for cell in study.trials("proxy_anchor")
    }
    assert len(reused) == 5  # the best trials are runs that count


def test_the_first_runs_are_the_most_telling(study: Study) -> None:
    first = next(phase for phase in study.phases(guess=True) if phase.name == "single methods, first sets")
    assert [cell.dataset for cell in first.cells[::10]][:3] == ["cub200_2010", "emoji", "pacs_unseen"]
    assert [cell.variant for cell in first.cells[:4]] == [
        "proxy_anchor", "proxy_anchor.strong", "couce", "couce.strong",
    ]  # fmt: skip


def test_the_estimate_of_time_grows_with_methods_and_pictures(study: Study) -> None:
    sizes = {"train": (2400, 80), "val": (600, 20), "test": (3000, 100)}
    base, both = (study.cell("cub200_2010", name, {}, 0) for name in ("proxy_anchor", "couce+center_polar"))
    assert seconds(base, sizes) < seconds(both, sizes) < 6 * seconds(base, sizes)
    assert seconds(base, {**sizes, "train": (4800, 80)}) > seconds(base, sizes)
