"""Cars-196: 196 models of cars; classes 1-98 train, 99-196 test, official train and test pictures pooled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Download, Expected, Part, Release, class_list

_ADDRESS = "https://ai.stanford.edu/~jkrause"
RELEASE = Release(
    name="cars196",
    title="Cars-196",
    needed=(
        "cars_train",
        "cars_test",
        "devkit/cars_meta.mat",
        "devkit/cars_train_annos.mat",
        "cars_test_annos_withlabels.mat",
    ),
    inner=("stanford_cars", "cars196", "CARS196"),
    where=(
        "Put there cars_train.tgz, cars_test.tgz and car_devkit.tgz (its folder is devkit), unpacked, and "
        "cars_test_annos_withlabels.mat; the older car_ims/ with cars_annos.mat works as well. The official address "
        f"({_ADDRESS}/cars) has been reported dead for years: ask the authors, or check a copy with `proxemics data "
        "fetch cars196`, which knows the checksums."
    ),
    licence="Research, non-commercial.",
    expected=Expected({"train": Part(8054, 98), "test": Part(8131, 98)}, class_list("cars196")),
    downloads=(
        Download("cars_train.tgz", md5="065e5b463ae28d29e77c1b4b166cfe61", source="users"),
        Download("cars_test.tgz", md5="4ce7ebf6a94d07f1952d94dd34c4d501", source="users"),
        Download("car_devkit.tgz", md5="c3b158d763b6e2245038c8ad08e45376", source="users"),
        Download("cars_test_annos_withlabels.mat", md5="b0a2b23655a3edd16d84508592a98d10", source="users", unpack=None),
    ),
)
_POOLED = ("car_ims", "cars_annos.mat")


def load_cars(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read Cars-196 from either official layout: train and test folders with the devkit, or ``car_ims``.

    Args:
        root: the folder that holds them.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table: ``label`` is the class number and name as in ``001.AM_General_Hummer_SUV_2000`` (signs
        other than letters, digits, ``.`` and ``-`` become ``_``), ``domain`` is ``photo``.

    Raises:
        DataError: a file is missing, or the release is not as it should be.
    """
    given = Path(root).expanduser().absolute()
    if all((given / name).exists() for name in _POOLED):
        folder = given
        content = _read(folder / _POOLED[1])
        names, pictures = content["class_names"], _annotations(content, "relative_im_path", "")
    else:
        folder = layout.locate(root, RELEASE)
        names = _read(folder / "devkit/cars_meta.mat")["class_names"]
        pictures = _annotations(_read(folder / "devkit/cars_train_annos.mat"), "fname", "cars_train/")
        pictures += _annotations(_read(folder / "cars_test_annos_withlabels.mat"), "fname", "cars_test/")
    labels = [_label(number, str(name)) for number, name in enumerate(_as_list(names), start=1)]
    layout.check_names(labels, expected, RELEASE)
    layout.check_numbers((number for _, number in pictures), first=1, count=len(labels), what="the annotations")
    boundary = 98 if expected is None else expected.parts["train"].classes
    rows = [
        (str(folder / path), labels[number - 1], "photo", "train" if number <= boundary else "test")
        for path, number in pictures
    ]
    frame = pd.DataFrame(rows, columns=["path", "label", "domain", "split"])
    layout.check_parts(frame, "split", expected, RELEASE)
    layout.check_disjoint(frame, RELEASE)
    layout.check_files(frame["path"], RELEASE)
    return layout.finish(frame, RELEASE, folder)


def _label(number: int, name: str) -> str:
    return f"{number:03d}.{re.sub(r'[^0-9A-Za-z.-]', '_', name)}"


def _as_list(value: Any) -> list[Any]:
    """Return a list also for the single element that the reader of MATLAB files unwraps."""
    return [value] if isinstance(value, (str, dict)) else list(value)


def _annotations(content: dict[str, Any], key: str, prefix: str) -> list[tuple[str, int]]:
    rows = _as_list(content["annotations"])
    if rows and "class" not in rows[0]:
        raise DataError(
            "Cars-196: the test annotations have no classes. The devkit's cars_test_annos.mat is without labels; put "
            "cars_test_annos_withlabels.mat there."
        )
    return [(prefix + str(row[key]), int(row["class"])) for row in rows]


def _read(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError('Cars-196 needs SciPy to read .mat files: pip install "proxemics[train]".') from error
    try:
        content: dict[str, Any] = loadmat(path, simplify_cells=True)
    except Exception as error:  # the reader raises many kinds on a damaged file
        raise DataError(f"{path} is not a MATLAB file that can be read: {error}. Copy it again.") from error
    for name in ("annotations", "class_names"):
        if name in content:
            return content
    raise DataError(f"{path} holds neither annotations nor class names. Copy it again from the official release.")
