"""A folder of pictures: which files count, and which class, domain and split their place gives them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.table import check_unicode

Layout = Literal["class", "domain/class", "flat"]
LAYOUTS: tuple[Layout, ...] = ("class", "domain/class", "flat")
PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif"}
)
_SYSTEM_NAMES = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir"})
_SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass
class FolderScan:
    """What a walk through a folder met; every path is relative to ``root``, with ``/``, in sorted order.

    Attributes:
        root: the absolute folder.
        pictures: files with a picture suffix (upper or lower case).
        hidden: names that start with a dot and what operating systems leave behind (``Thumbs.db``); not entered.
        other: files with another suffix.
        empty: the topmost folders that hold no picture at any depth.
        loops: links to a folder that was already visited; not entered.
    """

    root: str
    pictures: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    @property
    def loose(self) -> list[str]:
        """Pictures that lie in the folder itself and not in a class folder."""
        return [name for name in self.pictures if "/" not in name]


def scan_folder(root: str | Path) -> FolderScan:
    """Walk a folder, following links, each real folder at most once below each first-level folder.

    Args:
        root: the folder.

    Returns:
        What was met.

    Raises:
        DataError: the folder is absent, is a file, or may not be read.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "cat").mkdir()
        >>> for name in ("1.JPG", ".DS_Store", "notes.txt"):
        ...     (folder / "cat" / name).touch()
        >>> scan = scan_folder(folder)
        >>> scan.pictures, scan.hidden, scan.other
        (['cat/1.JPG'], ['cat/.DS_Store'], ['cat/notes.txt'])
    """
    scan = FolderScan(os.path.abspath(root))  # noqa: PTH100  resolve() would follow links, and absolute() keep ".."
    try:
        _walk(scan, "", {_identity(scan.root)})
    except OSError as error:
        raise DataError(f"Cannot read the folder {error.filename or root}: {error.strerror}.") from error
    return scan


def _walk(scan: FolderScan, folder: str, visited: set[tuple[int, int]]) -> bool:
    """Fill ``scan`` from one folder; return whether a picture lies in it at any depth."""
    found = False
    empty = []
    with os.scandir(Path(scan.root, folder)) as entries:
        listing = sorted(entries, key=lambda entry: entry.name)
    for entry in listing:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name.startswith(".") or entry.name.lower() in _SYSTEM_NAMES:
            scan.hidden.append(name)
        elif entry.is_dir():
            below = set(visited) if not folder else visited  # the same album may be linked from two classes
            identity = _identity(entry.path)
            if identity in below:
                scan.loops.append(name)
                continue
            below.add(identity)
            filled = _walk(scan, name, below)
            found |= filled
            if not filled:
                empty.append(name)
        elif is_picture_name(entry.name):
            scan.pictures.append(name)
            found = True
        else:
            scan.other.append(name)
    if found or not folder:
        scan.empty.extend(empty)
    return found


def is_picture_name(name: str) -> bool:
    """Tell whether a file name ends as pictures do.

    Example:
        >>> is_picture_name("1.JPG"), is_picture_name("notes.txt")
        (True, False)
    """
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES  # noqa: PTH122  a Path takes four to five times as long


def _identity(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def folder_table(scan: FolderScan, layout: Layout = "class") -> pd.DataFrame:
    """Turn a walked folder into table columns.

    Args:
        scan: from :func:`scan_folder`.
        layout: ``class``: the first folder level is the class and deeper levels are ignored. ``domain/class``: the
            first level is the domain, the second the class. ``flat``: no class; labels are empty. If the folders at
            the top are exactly (some of) train, val and test, with train among them and folders inside, they become
            the split and the layout starts one level deeper.

    Returns:
        Columns ``path, label, domain, split``. Pictures that lie above the class level are left out, unless ``flat``.

    Raises:
        DataError: there is no picture, no class folder, or a split folder without pictures.

    Example:
        >>> scan = FolderScan("/data", pictures=["train/cat/1.jpg", "test/dog/deep/2.jpg"])
        >>> folder_table(scan)[["label", "split"]].values.tolist()
        [['cat', 'train'], ['dog', 'test']]
        >>> folder_table(FolderScan("/data", pictures=["sketch/cat/1.jpg"]), "domain/class")["domain"].tolist()
        ['sketch']
    """
    if layout not in LAYOUTS:
        raise DataError(f"Unknown layout {layout!r}. Allowed are {', '.join(LAYOUTS)}.")
    if not scan.pictures:
        raise DataError(
            f"The folder {scan.root} holds no picture. Pictures end in {', '.join(sorted(PICTURE_SUFFIXES))}; "
            "put those of each class in a sub-folder of its own."
        )
    with_split = layout != "flat" and has_split_folders(scan)
    depth = {"class": 1, "domain/class": 2, "flat": 0}[layout] + with_split
    rows = []
    for name in scan.pictures:
        folders = name.split("/")[:-1]
        if len(folders) < depth:
            continue
        split = _SPLIT_FOLDERS[folders[0].lower()] if with_split else ""
        label = "" if layout == "flat" else folders[depth - 1]
        domain = folders[depth - 2] if layout == "domain/class" else ""
        # A folder may hold a million pictures, and a Path takes about four times as long as text to join.
        rows.append((os.path.join(scan.root, *name.split("/")), label, domain, split))  # noqa: PTH118
    check_unicode([row[0] for row in rows], "path")
    if not rows:
        raise DataError(
            f"The folder {scan.root} has pictures but not in the layout {layout!r}, for example {scan.pictures[0]}. "
            f"Put them in folders {_drawing(layout)}, or choose another layout ({', '.join(LAYOUTS)})."
        )
    return pd.DataFrame(rows, columns=["path", "label", "domain", "split"])


def has_split_folders(scan: FolderScan) -> bool:
    """Tell whether the top level is train, val and test; a split folder without pictures is an error.

    Raises:
        DataError: as said.
    """
    tops = {name.split("/")[0] for name in scan.pictures if "/" in name} | {
        name for name in scan.empty if "/" not in name
    }
    lower = {name.lower() for name in tops}
    if "train" not in lower or len(lower) < 2 or not lower <= set(_SPLIT_FOLDERS):
        return False
    if not any(name.count("/") >= 2 for name in scan.pictures):
        return False
    hollow = sorted(name for name in tops if name in scan.empty)
    if hollow:
        raise DataError(
            f"The split folder {Path(scan.root, hollow[0])} holds no picture. Fill it, or delete it and "
            "let the split be made from the training classes."
        )
    return True


def _drawing(layout: Layout) -> str:
    return {"class": "class/picture.jpg", "domain/class": "domain/class/picture.jpg", "flat": "picture.jpg"}[layout]
