"""iNaturalist 2018: 8,142 species; the class split for retrieval is that of Brown et al. (Smooth-AP, ECCV 2020)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Download, Expected, Part, Release

_ADDRESS = "https://ml-inat-competition-datasets.s3.amazonaws.com/2018"
_LISTS = "Inat_dataset_splits/Inaturalist_{}_set1.txt"
RELEASE = Release(
    name="inaturalist2018",
    title="iNaturalist 2018",
    needed=("train_val2018", _LISTS.format("train"), _LISTS.format("test")),
    inner=("iNaturalist2018", "inaturalist"),
    where=(
        "Put the unpacked train_val2018.tar.gz (120 GB, `proxemics data fetch inaturalist2018`) and the two lists of "
        "the Smooth-AP authors (Inat_dataset_splits/, shared on Google Drive, see "
        "github.com/Andrew-Brown1/Smooth_AP) there."
    ),
    licence="Non-commercial research and education, iNaturalist terms of service; the pictures may not be passed on.",
    expected=Expected({"train": Part(325846, 5690), "test": Part(136093, 2452)}),
    downloads=(
        Download(
            "train_val2018.tar.gz",
            f"{_ADDRESS}/train_val2018.tar.gz",
            md5="b1c6952ce38f31868cc50ea72d066cc3",
            source="authors",
        ),
    ),
)


def load_inaturalist(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read iNaturalist 2018 (training and validation pictures together) with the split for retrieval.

    Args:
        root: the folder that holds ``train_val2018`` and ``Inat_dataset_splits``.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table: ``label`` is the official category number (from 0), ``super_class`` is ``Plantae``, ...

    Raises:
        DataError: a file is missing, the lists overlap, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    rows = [row for split in ("train", "test") for row in _rows(folder, split)]
    frame = pd.DataFrame(rows, columns=["path", "label", "super_class", "split"])
    classes = 8142 if expected is None else sum(part.classes for part in expected.parts.values())
    numbers = layout.whole_numbers(frame["label"].tolist(), "the lists")
    layout.check_numbers(numbers, first=0, count=classes, what="the lists in Inat_dataset_splits")
    layout.check_disjoint(frame, RELEASE)
    layout.check_parts(frame, "split", expected, RELEASE)
    layout.check_files(frame["path"], RELEASE)
    return layout.finish(frame, RELEASE, folder)


def _rows(folder: Path, split: str) -> list[tuple[str, str, str, str]]:
    path = folder / _LISTS.format(split)
    rows = []
    for line in layout.read_lines(path):
        fields = line.split("/")
        if len(fields) != 4 or fields[0] != "train_val2018":
            raise DataError(f"{path}: {line!r} is not of the form train_val2018/super category/category/picture.")
        rows.append((str(folder / line), fields[2], fields[1], split))
    return rows
