"""PACS: seven classes as photographs, art paintings, cartoons and sketches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.domains import split_by_source
from proxemics.data.benchmarks.release import Expected, Part, Release

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_COUNTS = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
RELEASE = Release(
    name="pacs",
    title="PACS",
    needed=DOMAINS,
    inner=("kfold", "PACS", "pacs", "PACS/kfold", "pacs_data", "images/kfold"),
    where=(
        "Put the folders photo, art_painting, cartoon and sketch there, as kfold/ of the official release has them; "
        "the authors share it on Google Drive (project 'Deeper, Broader and Artier Domain Generalization', ICCV 2017)."
    ),
    licence="Collected from Caltech256, Sketchy, TU-Berlin and Google Images; a research benchmark.",
    expected=Expected({name: Part(count, 7) for name, count in _COUNTS.items()}, CLASSES),
)


def load_pacs(
    root: str | Path, *, source: str | None = "photo", expected: Expected | None = RELEASE.expected
) -> pd.DataFrame:
    """Read PACS with the split of :func:`proxemics.data.benchmarks.domains.split_by_source`.

    The official lists (``photo_train_kfold.txt``, ...) divide pictures, not classes, and are not needed. Those that lie
    beside the folders, in ``splits/`` or above are checked: their class numbers count from 1, their pictures exist, and
    none is in both ``train`` and ``crossval`` of a domain (``test`` is the whole domain, and holds both).

    Args:
        root: the folder of the four domains, or one above it.
        source: the training domain, or None for a split by class alone.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table.

    Raises:
        DataError: a folder is missing, a list does not fit or overlaps another, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    rows = [(path, label, domain) for domain in DOMAINS for label, path in layout.pictures_below(folder / domain)]
    frame = pd.DataFrame(rows, columns=["path", "label", "domain"])
    layout.check_names(frame["label"], expected, RELEASE)
    layout.check_parts(frame, "domain", expected, RELEASE)
    for place in (folder, folder.parent, folder / "splits", folder.parent / "splits", folder.parent.parent / "splits"):
        lists = {path.name: _check_list(path, folder) for path in sorted(place.glob("*_kfold.txt"))}
        for domain in DOMAINS:
            _check_apart(place, domain, lists)
    return layout.finish(split_by_source(frame, source, DOMAINS), RELEASE, folder)


def _check_apart(place: Path, domain: str, lists: dict[str, set[str]]) -> None:
    train, crossval = (f"{domain}_{part}_kfold.txt" for part in ("train", "crossval"))
    both = sorted(lists.get(train, set()) & lists.get(crossval, set()))
    if both:
        raise DataError(
            f"PACS: {len(both)} pictures are in both {train} and {crossval} in {place}, first {both[0]}. Copy the "
            "official lists again."
        )


def _check_list(path: Path, folder: Path) -> set[str]:
    """Check one list and return its pictures."""
    rows = layout.read_fields(path, 2)
    numbers = layout.whole_numbers([number for _, number in rows], path.name)
    layout.check_numbers(numbers, first=1, count=len(CLASSES), what=path.name)
    for (picture, _), number in zip(rows, numbers, strict=True):
        if f"/{CLASSES[number - 1]}/" not in f"/{picture}":
            raise DataError(f"{path}: {picture} has class number {number}, which is {CLASSES[number - 1]}.")
    layout.check_files((str(folder / picture) for picture, _ in rows), RELEASE)
    return {picture for picture, _ in rows}
