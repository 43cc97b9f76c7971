"""Enrol, forget and look up classes of a model on disk: the class book, the thresholds and an index together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.operating_point import Threshold
from proxemics.evaluation.threshold_file import load_thresholds, thresholds_path
from proxemics.search.classes.book import ClassBook, Enrolled, Weighting
from proxemics.search.classes.decide import By, Decision, decide
from proxemics.search.classes.pictures import OpenModel, class_pictures, embed_table, open_for_classes, picture_files
from proxemics.search.classes.rows import enrolled_rows, put_rows, take_rows
from proxemics.search.classes.store import TENSORS, changing_book, load_book
from proxemics.search.index import Index
from proxemics.search.items import Meta
from proxemics.training.log import Reporter


@dataclass(frozen=True)
class EnrolReport:
    """What an enrolment did.

    Attributes:
        enrolled: classes added and extended, and those that are nearly the same as another.
        pictures: that were enrolled.
        classes: in the book now.
        folder: of the book.
        weighting: of the book.
        rows: rows of the index that were added and replaced; None without an index.
        threshold: what nearness was compared with; None without a calibration.
    """

    enrolled: Enrolled
    pictures: int
    classes: int
    folder: Path
    weighting: Weighting
    rows: tuple[int, int] | None
    threshold: float | None


def enrol_folder(
    model: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    book: str | Path | None = None,
    index: str | None = None,
    weighting: Literal["auto", "equal", "length"] = "auto",
    replace: bool = False,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> EnrolReport:
    """Add classes from a folder of pictures.

    Args:
        model: a run or a bundle.
        folder: pictures of one class, or class folders.
        name: of the one class; the folder's name if None.
        book: folder of the class book; beside the weights if None.
        index: address of an index that gets the pictures as rows too.
        weighting: ``auto``: as an existing book does, and equally in a new one.
        replace: forget what the classes had before.
        settings: assignments such as ``data.workers=2``.
        reporter: hears of progress.

    Raises:
        ProxemicsError: no model, no pictures, or an index or a book of another model. Then nothing was changed.
    """
    opened = open_for_classes(model)
    frame = class_pictures(folder, name)
    place = opened.home if book is None else Path(book)
    with ExitStack() as stack:
        opened_index = None if index is None else stack.enter_context(Index.open(index))
        if opened_index is not None:
            opened_index.manifest.check(opened.key)
        units, lengths = embed_table(opened, frame, settings=settings, reporter=reporter, task="enrol")
        threshold = identify_threshold(opened)
        chosen = _weighting(place, weighting)
        with changing_book(place, opened.key, weighting=chosen, create=True) as classes:
            labels = frame["label"].to_list()
            if replace:
                classes.forget(one for one in dict.fromkeys(labels) if one in classes)
            limit = None if threshold is None else threshold.threshold
            done = classes.enrol(labels, units, lengths, threshold=limit)
            rows = None if opened_index is None else _into_index(opened_index, frame, units, labels, replace=replace)
        return EnrolReport(done, len(frame), len(classes), place, classes.weighting, rows, limit)


def forget_classes(
    model: str | Path, names: Sequence[str], *, book: str | Path | None = None, index: str | None = None
) -> tuple[list[str], int | None]:
    """Remove classes from the book, and the rows that were enrolled with them from an index.

    Returns:
        The names that were removed, and how many rows were; None without an index.

    Raises:
        ProxemicsError: a class is not enrolled, or the book or index is of another model. Then nothing was changed.
    """
    opened = open_for_classes(model)
    place = opened.home if book is None else Path(book)
    with ExitStack() as stack:
        opened_index = None if index is None else stack.enter_context(Index.open(index))
        if opened_index is not None:
            opened_index.manifest.check(opened.key)
        with changing_book(place, opened.key) as classes:
            gone = classes.forget(names)
            # Before the book is saved: where the index cannot be changed, the classes can be forgotten later.
            rows = None if opened_index is None else take_rows(opened_index, enrolled_rows(opened_index, gone))
    return gone, rows


def identify_pictures(
    model: str | Path,
    pictures: Sequence[str | Path],
    *,
    book: str | Path | None = None,
    threshold: float | None = None,
    by: By = "centroid",
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> tuple[list[str], list[Decision], Threshold | float | None, ClassBook]:
    """Give pictures an enrolled class, or the answer "unknown".

    Args:
        model: a run or a bundle.
        pictures: files and folders.
        book: folder of the class book; beside the weights if None.
        threshold: a cosine instead of the calibrated threshold.
        by: see :func:`~proxemics.search.classes.decide.decide`.
        settings: assignments such as ``data.workers=2``.
        reporter: hears of progress.

    Returns:
        Paths, answers, the threshold that was used (None: no calibration, so every picture got a class), and the book.

    Raises:
        ProxemicsError: no model, picture or class, or a book of another model.
    """
    if threshold is not None and math.isnan(threshold):
        raise EvaluationError(f"threshold={threshold}: a score is a cosine; give a number from -1 to 1.")
    opened = open_for_classes(model)
    classes = load_book(opened.home if book is None else book, opened.key)
    frame = picture_files(pictures)
    units, lengths = embed_table(opened, frame, settings=settings, reporter=reporter, task="identify")
    used: Threshold | float | None = identify_threshold(opened) if threshold is None else threshold
    return frame["path"].to_list(), decide(classes, units, used, by=by, lengths=lengths), used, classes


def identify_threshold(model: OpenModel) -> Threshold | None:
    """Return the calibrated threshold to identify with, or None where there is none.

    Raises:
        EvaluationError: the file belongs to another model or is damaged.
    """
    if not thresholds_path(model.home).exists():
        return None
    found = load_thresholds(model.home, model.key)
    return None if found.identify is None else found.identify.point


def _weighting(place: Path, asked: str) -> Weighting | None:
    """The weighting to insist on: that which was asked for, None for an existing book, or that of a new one."""
    if asked == "auto":
        return None if (place / TENSORS).is_file() else "equal"
    if asked == "length":
        return "length"
    if asked != "equal":
        raise EvaluationError(f"weighting={asked!r}: give auto, equal or length.")
    return "equal"


def _into_index(
    index: Index, frame: pd.DataFrame, units: NDArray[np.float32], labels: Sequence[str], *, replace: bool
) -> tuple[int, int]:
    before = enrolled_rows(index, list(dict.fromkeys(labels))) if replace else []
    ids = frame["id"].to_list()
    meta: list[Meta] = [{"label": label, "path": path} for label, path in zip(labels, frame["path"], strict=True)]
    done = put_rows(index, ids, units, meta)
    kept = set(ids)
    take_rows(index, [one for one in before if one not in kept])
    return done
