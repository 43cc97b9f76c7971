"""Classes from 1, 3 or 5 pictures, without training: how often they are right, and what happens to strangers.

    python benchmarks/enrol.py --data DATA/index.csv --runs runs/enrol
    python benchmarks/enrol.py --table

A model, an embedding and the rows of a model that are in the folder of the runs are not computed again.

Sets: cub200_2010, cars196 and emoji (the latter frozen only). Models: the frozen EfficientNet-Lite0 at 160 px, and the
same trained for four epochs with Proxy Anchor (``none``) and with Proxy Anchor and EL-nivMF (``probabilistic``). All
that is measured is measured on the test classes, which no training and no calibration saw. Five draws of pictures and
classes; every number is a mean over them, intervals are over classes.

``closed`` rows: all test classes are enrolled with n pictures, the others are looked up. ``accuracy`` by the nearest
centroid, and differences to it, paired picture by picture: by the nearest enrolled picture (``nearest``), by the
predictive density (``vmf``), and with pictures weighted by the length of their raw embedding (``length``).

``verify`` rows: comparing pairs of pictures of test classes: AUC, EER, FNMR at FMR; the FMR that a threshold has which
was calibrated for 1 % on other classes (``fmr_at_calibrated``), or is the upper end of its interval
(``fmr_at_cautious``); and thresholds by class: half of the pictures of each class calibrate, and on the other half the
FMR of a class is off the target by ``off_target`` in the mean (over the target), with one threshold for all
(``common``), with the class's own (``own``), and with the two mixed (``mixed``, what ``--per-class`` does).

``open`` rows: a random half of the test classes is enrolled, the others are strangers. ``threshold`` says what the
threshold for the target FPIR was calibrated on: ``other_classes``, what ``proxemics calibrate`` uses (frozen: the
training half of the set; trained: the validation classes); ``cautious``, the upper end of that interval;
``enrolled``, the enrolled pictures themselves; ``alike``, for the frozen trunk, a random half of all classes, with the
enrolled and the strangers drawn from the other half, so that all three are alike by construction.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _enrol_embeddings import METHODS, embedded, frozen, rows_of, train, trained, unseen_rows
from _results import RESULTS, write_results
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.core.files import write_json
from proxemics.evaluation.class_spread import rate_interval
from proxemics.evaluation.intervals import class_intervals
from proxemics.evaluation.open_set import calibrate_identification
from proxemics.evaluation.operating_point import Threshold
from proxemics.evaluation.pair_scan import STEP, count_by_class, pair_set
from proxemics.evaluation.paired import class_sums, paired_bootstrap
from proxemics.evaluation.thresholds import calibrate_pairs
from proxemics.evaluation.verification import verify_embeddings
from proxemics.search.classes import ClassBook, decide
from proxemics.search.manifest import ModelKey

PICTURES = (1, 3, 5)
TARGET = 0.05
PAIR_TARGET = 0.01
DRAWS = 5
MIN_ERRORS = 10  # the enrolled pictures are few; the interval says what that means


@dataclass(frozen=True, eq=False)
class Set:
    """Embeddings of one model: (N, D) units, (N,) lengths of the raw ones, (N,) labels."""

    units: NDArray[np.float32]
    lengths: NDArray[np.float32]
    labels: NDArray[np.str_]

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Set:
        """Some of the pictures."""
        return Set(self.units[chosen], self.lengths[chosen], self.labels[chosen])

    @property
    def classes(self) -> NDArray[np.str_]:
        """Their names."""
        return np.unique(self.labels)

    def within(self, classes: NDArray[np.str_]) -> Set:
        """The pictures of some classes."""
        return self.of(np.isin(self.labels, classes))

    def enrolled(self, count: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """(N,) bool: ``count`` random pictures of every class, fewer where that would leave none to look up."""
        order = generator.random(len(self.labels))
        chosen = np.zeros(len(self.labels), dtype=bool)
        for name in self.classes:
            own = np.flatnonzero(self.labels == name)
            chosen[own[np.argsort(order[own])][: min(count, len(own) - 1)]] = True
        return chosen

    def book(self, weighting: str = "equal") -> ClassBook:
        """A class book of all pictures."""
        book = ClassBook(
            ModelKey(model="benchmark", dim=self.units.shape[1]),
            weighting="length" if weighting == "length" else "equal",
        )
        book.enrol(self.labels.tolist(), self.units, self.lengths)
        return book


def closed(test: Set, count: int) -> dict[str, Any]:
    """Accuracy over all test classes, and paired differences of other ways of choosing."""
    hits: dict[str, list[NDArray[np.float64]]] = {}
    classes: list[NDArray[np.str_]] = []
    for draw in range(DRAWS):
        chosen = test.enrolled(count, np.random.default_rng([draw, count]))
        gallery, probes = test.of(chosen), test.of(~chosen)
        answers = {"centroid": best(gallery.book(), probes), "nearest": nearest(gallery, probes)}
        if count > 1:
            answers["vmf"] = np.array([one.best for one in decide(gallery.book(), probes.units, None, by="vmf")])
            answers["length"] = best(gallery.book("length"), probes)
        for name, found in answers.items():
            hits.setdefault(name, []).append((found == probes.labels).astype(np.float64))
        classes.append(probes.labels)
    everything = np.concatenate(classes)
    _, codes = np.unique(everything, return_inverse=True)
    interval = class_intervals({"a": np.concatenate(hits["centroid"])}, codes.astype(np.int64))["a"]
    differences = {}
    for name in hits.keys() - {"centroid"}:
        sums = [
            class_sums(first, second, label)
            for first, second, label in zip(hits[name], hits["centroid"], classes, strict=True)
        ]
        found = paired_bootstrap(sums)
        differences[name] = {"difference": found.difference, "interval": [found.low, found.high]}
    return {
        "part": "closed", "pictures": count, "classes": len(test.classes),
        "accuracy": float(np.concatenate(hits["centroid"]).mean()), "interval": list(interval), "paired": differences,
    }  # fmt: skip


def best(book: ClassBook, probes: Set) -> NDArray[np.str_]:
    """Names of the nearest centroids."""
    return np.array(book.names)[(probes.units @ book.centroids().T).argmax(axis=1)]


def nearest(gallery: Set, probes: Set) -> NDArray[np.str_]:
    """Labels of the nearest enrolled pictures."""
    return gallery.labels[(probes.units @ gallery.units.T).argmax(axis=1)]


def verify(test: Set, other: Set) -> dict[str, Any]:
    """Errors of comparing pairs, and how thresholds carry over."""
    found = verify_embeddings(test.units, test.labels, fmr_at=(1e-1, PAIR_TARGET, 1e-3))
    point = calibrate_pairs(other.units, other.labels, target_fmr=PAIR_TARGET)
    return {
        "part": "verify", "target": PAIR_TARGET, "auc": found.auc, "auc_interval": list(found.intervals["auc"]),
        "eer": found.eer, "eer_interval": list(found.intervals["eer"]),
        "fnmr_at_fmr": {f"{one.target:g}": [one.fnmr, *(one.interval or ())] for one in found.points},
        "threshold": point.threshold, "threshold_interval": list(point.interval), "effective_pairs": point.effective,
        "calibration_classes": point.classes, "calibration_pairs": point.negatives,
        "calibrated_fmr": [point.false_match.low, point.false_match.high],
        "fmr_at_calibrated": fmr_at(test, point.threshold), "fmr_at_cautious": fmr_at(test, point.interval[1]),
        "off_target": off_target(test),
    }  # fmt: skip


def fmr_at(on: Set, threshold: float) -> list[float]:
    """FMR at a threshold with its interval."""
    counts = count_by_class(pair_set(on.units, on.labels), np.array([round(threshold / STEP) + 2**20]))
    rate = float(counts.fmr[0])
    return [rate, *(rate_interval(rate, counts.fmr_without[:, 0], units=len(on.classes) // 2) or ())]


def off_target(on: Set) -> dict[str, float]:
    """Mean distance of the FMR of a class from the target, over the target, on pictures that did not calibrate."""
    order = np.random.default_rng(7).random(len(on.labels))
    first = np.zeros(len(on.labels), dtype=bool)
    for name in on.classes:
        own = np.flatnonzero(on.labels == name)
        first[own[np.argsort(order[own])][: len(own) // 2]] = True
    learn, ask = on.of(first), on.of(~first)
    point = calibrate_pairs(learn.units, learn.labels, target_fmr=PAIR_TARGET, per_class=True)
    off: dict[str, list[float]] = {"common": [], "own": [], "mixed": []}
    for name in on.classes:
        seen, new = impostors(learn, name), impostors(ask, name)
        limits = {
            "common": point.threshold,
            "own": float(np.sort(seen)[::-1][int(PAIR_TARGET * len(seen))]) + STEP,
            "mixed": point.limit(name),
        }
        for key, limit in limits.items():
            off[key].append(abs((new >= limit).mean() - PAIR_TARGET) / PAIR_TARGET)
    return {key: float(np.mean(one)) for key, one in off.items()}


def impostors(on: Set, name: str) -> NDArray[np.float32]:
    """Scores of the pictures of a class with all others."""
    own = on.labels == name
    return (on.units[own] @ on.units[~own].T).ravel()


def open_set(test: Set, other: Set, everything: Set | None, count: int) -> list[dict[str, Any]]:
    """One row for each way of calibrating."""
    found: dict[str, list[Trial]] = {}
    for draw in range(DRAWS):
        for name, trial in open_draw(test, other, everything, count, np.random.default_rng([draw, count, 1])):
            found.setdefault(name, []).append(trial)
    return [{"part": "open", "pictures": count, "target": TARGET, **summary(name, one)} for name, one in found.items()]


@dataclass(frozen=True, eq=False)
class Trial:
    """One draw: (U,) strangers that were given a class, (K,) known ones that were not given theirs, with classes."""

    alarm: NDArray[np.float64]
    strangers: NDArray[np.str_]
    lost: NDArray[np.float64]
    known: NDArray[np.str_]
    threshold: Threshold
    gallery: int


def open_draw(
    test: Set, other: Set, everything: Set | None, count: int, generator: np.random.Generator
) -> Iterator[tuple[str, Trial]]:
    """Enrol half of the classes, and try each threshold."""
    names = generator.permutation(test.classes)
    yes, no = test.within(names[: len(names) // 2]), test.within(names[len(names) // 2 :])
    chosen = yes.enrolled(count, generator)
    gallery, size = yes.of(chosen), len(yes.classes)
    point = calibrated(other, size, count)
    yield "other_classes", attempt(gallery, yes.of(~chosen), no, point, size)
    yield "cautious", attempt(gallery, yes.of(~chosen), no, calibrated(other, size, count, cautious=True), size)
    with suppress(EvaluationError):  # too few enrolled pictures for the target
        yield "enrolled", attempt(gallery, yes.of(~chosen), no, calibrated(gallery, size, count), size)
    if everything is not None:
        names = generator.permutation(everything.classes)
        quarter = len(names) // 4
        learnt = everything.within(names[2 * quarter :])
        yes, no = everything.within(names[:quarter]), everything.within(names[quarter : 2 * quarter])
        chosen = yes.enrolled(count, generator)
        yield "alike", attempt(yes.of(chosen), yes.of(~chosen), no, calibrated(learnt, quarter, count), quarter)


def calibrated(on: Set, gallery: int, count: int, *, cautious: bool = False) -> Threshold:
    return calibrate_identification(
        on.units, on.labels, target_fpir=TARGET, gallery=gallery, pictures=[count], min_errors=MIN_ERRORS,
        cautious=cautious,
    )  # fmt: skip


def attempt(gallery: Set, known: Set, strangers: Set, point: Threshold, size: int) -> Trial:
    book = gallery.book()
    alarm = np.array([float(one.known) for one in decide(book, strangers.units, point)])
    answers = decide(book, known.units, point)
    lost = np.array([float(one.label != label) for one, label in zip(answers, known.labels, strict=True)])
    return Trial(alarm, strangers.labels, lost, known.labels, point, size)


def summary(name: str, trials: list[Trial]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "threshold": name,
        "value": float(np.mean([one.threshold.threshold for one in trials])),
        "calibrated_fpir": [
            float(np.mean([getattr(one.threshold.false_match, end) for one in trials])) for end in ("low", "high")
        ],
        "calibration_classes": trials[0].threshold.classes,
        "extrapolated": trials[0].threshold.extrapolated,
        "enrolled_classes": trials[0].gallery,
    }
    parts = {
        "fpir": ([one.alarm for one in trials], [one.strangers for one in trials]),
        "fnir": ([one.lost for one in trials], [one.known for one in trials]),
    }
    for key, (values, labels) in parts.items():
        joined = np.concatenate(values)
        _, codes = np.unique(np.concatenate(labels), return_inverse=True)
        low, high = class_intervals({"v": joined}, codes.astype(np.int64))["v"]
        row[key], row[f"{key}_interval"] = float(joined.mean()), [low, high]
    return row


def measure(name: str, runs: Path, sets: Callable[[], tuple[Set, Set, Set | None]]) -> list[dict[str, Any]]:
    """Rows of a model, from its file or anew."""
    file = runs / f"rows-{name}.json"
    if file.exists():
        known: list[dict[str, Any]] = json.loads(file.read_text())
        return known
    test, other, everything = sets()
    dataset, _, method = name.partition("-")
    about = {
        "dataset": dataset, "protocol": "test classes, unseen", "trunk": "tf_efficientnet_lite0", "size": 160,
        "base": "frozen" if method == "frozen" else "proxy_anchor", "method": method, "seed": 0, "draws": DRAWS,
    }  # fmt: skip
    rows = [named({**about, **verify(test, other)})]
    print(name, json.dumps(rows[0]), flush=True)
    for count in PICTURES:
        for row in (closed(test, count), *open_set(test, other, everything, count)):
            rows.append(named({**about, **row}))
            print(name, json.dumps(row), flush=True)
    write_json(file, rows)
    return rows


def frozen_sets(data: Path, dataset: str, runs: Path) -> tuple[Set, Set, Set]:
    rows = rows_of(data, dataset)
    everything = Set(*embedded(f"{dataset}-frozen", frozen, rows, runs), rows["label"].to_numpy(str))
    test = (rows["split"] == "test").to_numpy()
    return everything.of(test), everything.of(~test), everything


def trained_sets(data: Path, dataset: str, method: str, runs: Path, threads: int) -> tuple[Set, Set, None]:
    run = train(data, dataset, method, runs, threads)
    rows = unseen_rows(run)
    unseen = Set(*embedded(f"{dataset}-{method}", lambda: trained(run), rows, runs), rows["label"].to_numpy(str))
    test = (rows["split"] == "test").to_numpy()
    return unseen.of(test), unseen.of(~test), None


def named(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row its name in the result file."""
    parts = [row["dataset"], row["method"], row["part"], row.get("pictures"), row.get("threshold")]
    return {"name": "_".join(str(one) for one in parts if isinstance(one, int | str)), **row}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown for docs/enrol.md."""
    lines = ["| set, model | AUC | EER | FNMR at FMR 1 % | FMR, other classes | FMR, cautious | off target |"]
    lines.append("|" + "---|" * 7)
    for row in rows:
        if row["part"] == "verify":
            fnmr, off = row["fnmr_at_fmr"]["0.01"], row["off_target"]
            pairs = [("auc", row["auc"], row["auc_interval"]), ("eer", row["eer"], row["eer_interval"])]
            cells = [f"{row['dataset']}, {row['method']}", *(_share(value, ends) for _, value, ends in pairs)]
            cells += [_share(one[0], one[1:]) for one in (fnmr, row["fmr_at_calibrated"], row["fmr_at_cautious"])]
            cells.append(" / ".join(f"{off[key]:.2f}" for key in ("common", "own", "mixed")))
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| set, model | n | accuracy | nearest − centroid | vMF − centroid | weighted − equal |"]
    lines.append("|" + "---|" * 6)
    for row in rows:
        if row["part"] != "closed":
            continue
        cells = [f"{row['dataset']}, {row['method']}", str(row["pictures"]), _share(row["accuracy"], row["interval"])]
        for key in ("nearest", "vmf", "length"):
            one = row["paired"].get(key)
            cells.append("-" if one is None else _share(one["difference"], one["interval"], sign="+"))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| set, model | n | threshold from | threshold | FPIR | FNIR |", "|" + "---|" * 6]
    for row in rows:
        if row["part"] != "open":
            continue
        cells = [f"{row['dataset']}, {row['method']}", str(row["pictures"]), row["threshold"], f"{row['value']:.3f}"]
        cells += [_share(row[key], row[f"{key}_interval"]) for key in ("fpir", "fnir")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(value: float, interval: list[float], sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} [{100 * interval[0]:{sign}.1f}, {100 * interval[1]:{sign}.1f}]"


def main() -> None:
    """Train, embed, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="index.csv of the pictures")
    parser.add_argument("--runs", type=Path, default=Path("runs/enrol"))
    parser.add_argument("--datasets", nargs="+", default=["cub200_2010", "cars196", "emoji"])
    parser.add_argument("--trained", nargs="*", default=["cub200_2010", "cars196"], help="sets to train on as well")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of the result file and stop")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads((args.out / "enrol.json").read_text())["rows"]))
        return
    rows: list[dict[str, Any]] = []
    for dataset in args.datasets:
        rows += measure(f"{dataset}-frozen", args.runs, partial(frozen_sets, args.data, dataset, args.runs))
        for method in METHODS if dataset in args.trained else ():
            sets = partial(trained_sets, args.data, dataset, method, args.runs, args.threads)
            rows += measure(f"{dataset}-{method}", args.runs, sets)
    write_results("enrol", rows, packages=("torch", "numpy", "timm"), folder=args.out)
    print(table(rows))


if __name__ == "__main__":
    main()
