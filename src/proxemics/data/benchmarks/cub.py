"""CUB-200-2011: 200 bird species; classes 1-100 train, 101-200 test."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Download, Expected, Part, Release, class_list

RELEASE = Release(
    name="cub200",
    title="CUB-200-2011",
    needed=("images", "images.txt", "image_class_labels.txt", "classes.txt"),
    inner=("CUB_200_2011",),
    where="Put the unpacked CUB_200_2011.tgz (Caltech, data.caltech.edu/records/65de6-vp158) there.",
    licence="Photographs from Flickr, copyright with the photographers; for research.",
    expected=Expected({"train": Part(5864, 100), "test": Part(5924, 100)}, class_list("cub200")),
    downloads=(
        Download(
            "CUB_200_2011.tgz",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
            source="users",
        ),
    ),
)


def load_cub(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read CUB-200-2011 with the split that retrieval papers use (not the one for classification).

    Args:
        root: the folder ``CUB_200_2011``, or the one that holds it.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table: ``label`` is the folder name (``001.Black_footed_Albatross``), ``domain`` is ``photo``.

    Raises:
        DataError: a file is missing, or the release is not as it should be.
    """
    folder = layout.locate(root, RELEASE)
    names = {int(number): name for number, name in layout.read_fields(folder / "classes.txt", 2)}
    layout.check_names(names.values(), expected, RELEASE)
    labels = dict(layout.read_fields(folder / "image_class_labels.txt", 2))
    numbers = dict(zip(labels, layout.whole_numbers(list(labels.values()), "image_class_labels.txt"), strict=True))
    layout.check_numbers(numbers.values(), first=1, count=len(names), what="image_class_labels.txt")
    boundary = 100 if expected is None else expected.parts["train"].classes
    rows = []
    for picture, path in layout.read_fields(folder / "images.txt", 2):
        if picture not in numbers:
            raise DataError(f"CUB-200-2011: picture {picture} of images.txt has no line in image_class_labels.txt.")
        number = numbers[picture]
        if path.partition("/")[0] != names.get(number):
            raise DataError(
                f"CUB-200-2011: {path} is labelled {number} ({names.get(number)}) and lies in another class's folder. "
                "images.txt, image_class_labels.txt and classes.txt are not from one release."
            )
        split = "train" if number <= boundary else "test"
        rows.append((str(folder / "images" / path), names[number], "photo", split))
    frame = pd.DataFrame(rows, columns=["path", "label", "domain", "split"])
    layout.check_parts(frame, "split", expected, RELEASE)
    layout.check_disjoint(frame, RELEASE)
    layout.check_files(frame["path"], RELEASE)
    return layout.finish(frame, RELEASE, folder)
