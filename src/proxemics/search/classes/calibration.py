"""Calibrate the thresholds of a model, on the validation classes of its run or on other pictures.

A threshold must come from classes that training never saw: on training classes pictures of one class lie closer, and
classes further apart, than on new ones. Test classes are not used either, so that a test of the threshold stays honest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd

from proxemics.__about__ import __version__
from proxemics.core.errors import DataError, EvaluationError
from proxemics.data.sources import load_table
from proxemics.data.split_files import load_split
from proxemics.data.table import fingerprint
from proxemics.evaluation.class_spread import LEVEL
from proxemics.evaluation.open_set import PICTURES, calibrate_identification
from proxemics.evaluation.operating_point import Kind, Threshold
from proxemics.evaluation.result import shorten
from proxemics.evaluation.threshold_file import Source, save_thresholds
from proxemics.evaluation.thresholds import MIN_ERRORS, calibrate_pairs, check_level
from proxemics.evaluation.trials import Template
from proxemics.evaluation.verification import check_target
from proxemics.models.bundle import load_labels
from proxemics.search.classes.book import Weighting
from proxemics.search.classes.pictures import OpenModel, embed_table, open_for_classes
from proxemics.search.classes.store import TENSORS, load_book
from proxemics.training import facts
from proxemics.training.log import Reporter, Silent

TARGETS: Mapping[Kind, float] = {"verify": 1e-3, "identify": 1e-2}
"""What is aimed at where no target is given."""


@dataclass(frozen=True)
class Wanted:
    """What to calibrate.

    Attributes:
        kind: ``verify`` or ``identify``.
        target: FMR or FPIR; None: that of :data:`TARGETS`.
        per_class: verify: also one threshold a class.
        gallery: identify: enrolled classes; None: as many as the class book holds, or all but one of those measured.
        pictures: identify: enrolled pictures of a class.
        template: identify: ``centroid`` or ``nearest``.
        cautious: take the upper end of the interval.
        level: confidence.
        min_errors: errors that must be expected at the target.
    """

    kind: Kind = "verify"
    target: float | None = None
    per_class: bool = False
    gallery: int | None = None
    pictures: tuple[int, ...] = PICTURES
    template: Template = "centroid"
    cautious: bool = False
    level: float = LEVEL
    min_errors: int = MIN_ERRORS


@dataclass(frozen=True)
class Calibrated:
    """What came out.

    Attributes:
        point: the threshold.
        source: what it was calibrated on.
        path: the file.
        sentence: what it was calibrated on, in words.
    """

    point: Threshold
    source: Source
    path: Path
    sentence: str


def calibrate_model(
    model: str | Path,
    wanted: Wanted,
    *,
    data: str | None = None,
    where: Mapping[str, str] | None = None,
    allow_seen: bool = False,
    out: str | Path | None = None,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Calibrated:
    """Calibrate and write ``thresholds.json`` beside the weights.

    Args:
        model: a run or a bundle.
        wanted: what to calibrate.
        data: other pictures; None takes the validation classes of the run.
        where: filter on their rows.
        allow_seen: accept classes whose names are those of training classes.
        out: another folder to write to.
        settings: assignments such as ``data.workers=2``.
        reporter: hears of progress.

    Raises:
        ProxemicsError: no pictures, classes of the training or pictures of the test, or too few for the target.
    """
    target = _checked_target(wanted)
    opened = open_for_classes(model)
    rows, split = calibration_rows(opened, data, where)
    trained = training_classes(opened)
    unseen = _check_classes(rows, trained, allow_seen)
    _refuse_test_pictures(opened, rows)
    units, lengths = embed_table(opened, rows, settings=settings, reporter=reporter or Silent(), task="calibrate")
    labels = rows["label"].to_list()
    if wanted.kind == "verify":
        point = calibrate_pairs(
            units, labels, target_fmr=target, per_class=wanted.per_class, cautious=wanted.cautious,
            level=wanted.level, min_errors=wanted.min_errors,
        )  # fmt: skip
    else:
        gallery, weighting = _book_facts(opened)
        point = calibrate_identification(
            units, labels, target_fpir=target, gallery=gallery if wanted.gallery is None else wanted.gallery,
            pictures=wanted.pictures, template=wanted.template, weights=lengths if weighting == "length" else None,
            cautious=wanted.cautious, level=wanted.level, min_errors=wanted.min_errors,
        )  # fmt: skip
    source = Source(
        data=str(data) if data is not None else str(model),
        split=split,
        fingerprint=fingerprint(rows),
        unseen=unseen,
        command=facts.command(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
    )
    path = save_thresholds(opened.home if out is None else out, opened.key, point, source)
    return Calibrated(point, source, path, describe_source(source, point, chosen=_chose_epoch(opened, split)))


def _checked_target(wanted: Wanted) -> float:
    """Refuse what cannot be calibrated before pictures are embedded for it."""
    target = TARGETS[wanted.kind] if wanted.target is None else wanted.target
    check_target(target, "target_fmr" if wanted.kind == "verify" else "target_fpir")
    check_level(wanted.level, wanted.min_errors)
    if wanted.kind == "identify" and wanted.per_class:
        raise EvaluationError("Thresholds by class are for comparing pairs; use --per-class with --for verify.")
    return target


def calibration_rows(
    model: OpenModel, data: str | None, where: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, str]:
    """Return the pictures to calibrate on, and ``val`` or ``all``.

    Raises:
        DataError: there are none.
    """
    if data is not None:
        return load_table(data, where=dict(where or {}) or None).reset_index(drop=True), "all"
    if model.run is None or not model.run.split.exists():
        raise DataError(
            f"{model.home} has no validation classes beside it; name pictures of classes that were not trained on with "
            "--data."
        )
    table = load_split(model.run.split)
    rows = table[table["split"] == "val"].reset_index(drop=True)
    if rows.empty:
        raise DataError(
            f"{model.run.path} was trained without validation classes; name pictures of classes that were not trained "
            "on with --data."
        )
    return rows, "val"


def training_classes(model: OpenModel) -> set[str] | None:
    """Return the names of the training classes; None where nothing tells them."""
    if model.run is not None and model.run.split.exists():
        table = load_split(model.run.split)
        return set(table.loc[table["split"] == "train", "label"])
    labels = load_labels(model.home)
    return None if labels is None else set(labels.names)


def describe_source(source: Source, point: Threshold, *, chosen: bool) -> str:
    """Say in one sentence what a threshold was calibrated on."""
    what = f"{point.pictures:,} pictures of {point.classes} classes"
    if source.split == "val":
        also = ", on which the epoch was chosen as well" if chosen else ""
        return f"Calibrated on the validation classes of the run: {what}{also}; the test classes were not looked at."
    known = {True: "that training did not see", False: "some of which training saw", None: "of unknown origin"}
    return f"Calibrated on {what} {known[source.unseen]}, from {source.data}."


def _check_classes(rows: pd.DataFrame, trained: set[str] | None, allow_seen: bool) -> bool | None:
    if trained is None:
        return None
    both = sorted(trained & set(rows["label"]))
    if both and not allow_seen:
        raise DataError(
            f"{len(both)} of {rows['label'].nunique()} classes have names of training classes ({shorten(both, 3)}). "
            "Pictures of classes that were trained on give a threshold that new classes do not keep; give other "
            "classes with --data, or --allow-seen if only the names agree."
        )
    return not both


def _refuse_test_pictures(model: OpenModel, rows: pd.DataFrame) -> None:
    if model.run is None or not model.run.split.exists():
        return
    table = load_split(model.run.split)
    tested = {str(Path(one).resolve()) for one in table.loc[table["split"] == "test", "path"]}
    shared = [one for one in rows["path"] if str(Path(one).resolve()) in tested]
    if shared:
        raise DataError(
            f"{len(shared)} pictures are test pictures of the run, e.g. {shared[0]}; test classes are looked at once, "
            "to measure. Calibrate on the validation classes, or on other pictures."
        )


def _book_facts(model: OpenModel) -> tuple[int | None, Weighting]:
    """How many classes are enrolled with this model, and how their pictures weigh."""
    if not (model.home / TENSORS).is_file():
        return None, "equal"
    book = load_book(model.home)
    if book.key != model.key:
        return None, "equal"
    return (len(book) or None), book.weighting


def _chose_epoch(model: OpenModel, split: str) -> bool:
    return split == "val" and model.run is not None and model.run.read_config().train.select != "last"
