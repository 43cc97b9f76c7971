"""Stanford Online Products: 22,634 products in 12 kinds; the official lists divide the classes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Download, Expected, Part, Release

KINDS = (
    *("bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle", "lamp", "mug", "sofa", "stapler", "table"),
    "toaster",
)
RELEASE = Release(
    name="sop",
    title="Stanford Online Products",
    needed=("Ebay_train.txt", "Ebay_test.txt"),
    inner=("Stanford_Online_Products",),
    where=(
        "Put the unpacked Stanford_Online_Products.zip there; see cvgl.stanford.edu/projects/lifted_struct (the old "
        "FTP address is reported dead)."
    ),
    licence="Pictures from eBay; for research.",
    expected=Expected({"train": Part(59551, 11318), "test": Part(60502, 11316)}),
    downloads=(Download("Stanford_Online_Products.zip", md5="7f73d41a2f44250d4779881525aea32e", source="users"),),
)
_HEADER = "image_id class_id super_class_id path"


def load_sop(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read SOP with its official split.

    Args:
        root: the folder ``Stanford_Online_Products``, or the one that holds it.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table: ``label`` is the class number of the lists (from 1), ``super_class`` is one of :data:`KINDS`,
        ``domain`` is empty.

    Raises:
        DataError: a file is missing, the lists overlap, a test class has one picture, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    rows = [row for split in ("train", "test") for row in _rows(folder, split)]
    classes = len({row[1] for row in rows}) if expected is None else sum(p.classes for p in expected.parts.values())
    if expected is not None:
        numbers = layout.whole_numbers([row[1] for row in rows], "the lists")
        layout.check_numbers(numbers, first=1, count=classes, what="Ebay_train.txt and Ebay_test.txt")
    frame = pd.DataFrame(rows, columns=["path", "label", "super_class", "split"])
    layout.check_disjoint(frame, RELEASE)
    layout.check_disjoint(frame, RELEASE, column="path", what="path")
    layout.check_parts(frame, "split", expected, RELEASE)
    sizes = frame[frame["split"] == "test"].groupby("label").size()
    if int(sizes.min()) < 2:
        raise DataError(
            f"Stanford Online Products: test class {sizes.idxmin()} has one picture; each needs two, or it has no "
            "positive."
        )
    layout.check_files(frame["path"], RELEASE)
    return layout.finish(frame, RELEASE, folder)


def _rows(folder: Path, split: str) -> list[tuple[str, str, str, str]]:
    path = folder / f"Ebay_{split}.txt"
    if layout.read_lines(path)[0].split() != _HEADER.split():
        raise DataError(f"{path} does not start with the line {_HEADER!r}. Copy it again from the official release.")
    rows = []
    for _, label, kind, picture in layout.read_fields(path, 4, skip=1):
        number = int(kind) if kind.isdigit() else 0
        if not 1 <= number <= len(KINDS):
            raise DataError(f"{path}: the super class {kind!r} is not one of 1..{len(KINDS)}.")
        rows.append((str(folder / picture), label, KINDS[number - 1], split))
    return rows
