"""What a table of pictures is: one row a picture, the same four columns everywhere, all of them text."""

# Paths are text here: for every picture, a Path takes 3 to 10 times as long to make, join or look up.
# ruff: noqa: PTH116, PTH117, PTH120

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.labels import ONE_LABEL, label_text

COLUMNS = ("path", "label", "domain", "split")
SPLITS = ("train", "val", "test", "")
_SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    **{"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"},
    **{"any": "", "all": "", "none": "", "unused": ""},
}


def check_table(frame: pd.DataFrame, *, labelled: bool = True, unique: bool = True) -> pd.DataFrame:
    """Check a table and bring its columns into one form.

    Args:
        frame: columns ``path`` (absolute) and ``label``; ``domain`` and ``split`` are filled with ``""`` when
            absent; other columns are kept. Split names are lower-cased and common synonyms (``validation``, ``any``)
            are understood.
        labelled: when False an empty label is allowed (pictures to embed or search, not to learn from).
        unique: refuse paths that are listed twice.

    Returns:
        A new frame with the columns ``path, label, domain, split`` first, as text, and rows numbered from 0.
        ``attrs`` is kept.

    Raises:
        DataError: no rows, a missing column, an empty or multiple label, an unknown split, a path that is relative
            or is listed twice.

    Example:
        >>> check_table(pd.DataFrame({"path": ["/p/a.jpg"], "label": [7], "split": ["Validation"]})).iloc[0].to_dict()
        {'path': '/p/a.jpg', 'label': '7', 'domain': '', 'split': 'val'}
    """
    require_columns(frame, ("path", "label"))
    if frame.empty:
        raise DataError("The table has no rows. Check the filter (where=...) or the source it was read from.")
    columns = {
        "path": _paths(frame["path"]),
        "label": _labels(frame["label"], labelled=labelled),
        "domain": _optional(frame, "domain"),
        "split": _splits(_optional(frame, "split")),
    }
    checked = frame.reset_index(drop=True).drop(columns=list(COLUMNS), errors="ignore")
    for position, name in enumerate(COLUMNS):
        checked.insert(position, name, as_text(columns[name]))
    if unique:
        _check_unique(checked)
    checked.attrs = dict(frame.attrs)
    return checked


def require_columns(frame: pd.DataFrame, names: Sequence[str], source: str = "The table") -> None:
    """Raise when a column is absent, naming those that exist and the nearest one."""
    for name in names:
        if name not in frame.columns:
            have = [str(column) for column in frame.columns]
            raise DataError(
                f"{source} has no column {name!r}; it has {', '.join(have) or 'none'}.{did_you_mean(name, have)} "
                "Rename the column or choose another one (label=..., domain=..., path=...)."
            )


def as_text(values: Sequence[str]) -> pd.Series[Any]:
    """Return a column of text in the dtype that this pandas uses for text."""
    return pd.Series(list(values), dtype="object").astype(str)


def cell_text(value: object) -> str:
    """Return any cell as text: nothing for an absent one, whole numbers without a fraction.

    Example:
        >>> [cell_text(value) for value in ("a", 3.0, None, float("nan"), 2.5)]
        ['a', '3', '', '', '2.5']
    """
    if _is_absent(value):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def common_root(frame: pd.DataFrame) -> str:
    """Return the deepest folder that holds every picture of the table.

    Example:
        >>> common_root(pd.DataFrame({"path": ["/d/a/1.jpg", "/d/b/2.jpg"]}))
        '/d'
    """
    folders = {os.path.dirname(path) for path in frame["path"].tolist()}
    return str(os.path.commonpath(folders))


def fingerprint(frame: pd.DataFrame) -> str:
    """Identify a table and its files in 64 characters.

    Args:
        frame: a checked table whose files exist.

    Returns:
        SHA-256 in hex over one line a picture, in sorted order: path relative to :func:`common_root`, label, domain,
        split and file size in bytes. So it does not change when rows are shuffled or when the whole folder moves,
        and it does when a picture is added, removed, renamed, relabelled, moved to another split or saved with
        another size. It does not read the pictures: an edit that keeps the size goes unseen (``doctor`` hashes
        contents).

    Raises:
        DataError: a file is missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a", "b"):
        ...     _ = (folder / f"{name}.jpg").write_text(name)
        >>> frame = check_table(pd.DataFrame({"path": [str(folder / f"{n}.jpg") for n in "ab"], "label": ["x", "y"]}))
        >>> fingerprint(frame) == fingerprint(frame[::-1])
        True
        >>> fingerprint(frame) == fingerprint(frame.assign(label="x"))
        False
    """
    root = common_root(frame)
    lines = []
    for path, label, domain, split in zip(*(frame[name] for name in COLUMNS), strict=True):
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise DataError(
                f"Cannot read {path}: {error.strerror}. The table names a file that is not there."
            ) from error
        lines.append("\x1f".join((os.path.relpath(path, root).replace(os.sep, "/"), label, domain, split, str(size))))
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _paths(values: pd.Series[Any]) -> list[str]:
    paths = []
    for row, value in enumerate(values):
        if not isinstance(value, (str, os.PathLike)) or not str(value):
            raise DataError(f"The path in row {row} is {value!r}. Every row needs the path of one picture.")
        path = str(value)
        if not os.path.isabs(path):
            raise DataError(
                f"The path {path!r} in row {row} is relative. Read the table with load_table, which knows its root."
            )
        paths.append(path)
    check_unicode(paths, "path")
    return paths


def _labels(values: pd.Series[Any], *, labelled: bool) -> list[str]:
    labels = []
    for row, value in enumerate(values):
        text = "" if _is_absent(value) else value
        blank = isinstance(text, str) and not text
        labels.append("" if blank and not labelled else label_text(text, row))
    check_unicode(labels, "label")
    _refuse_joined(labels)
    return labels


def _is_absent(value: object) -> bool:
    """Tell None, NaN, NA and NaT; lists are never absent."""
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    return isinstance(value, float) and value != value


def _refuse_joined(labels: list[str]) -> None:
    """Refuse cells such as ``"cat;dog"`` or ``"['cat', 'dog']"``, which hold several labels as text."""
    known = set(labels)
    for row, label in enumerate(labels):
        listed = label.startswith("[") and label.endswith("]")
        parts = [part.strip() for sign in ";|" if sign in label for part in label.split(sign)]
        if listed or (len(parts) > 1 and all(part in known for part in parts)):
            raise DataError(
                f"The label {label!r} in row {row} holds several labels. {ONE_LABEL} Give each level a column of its "
                "own and choose one with label=..."
            )


def _optional(frame: pd.DataFrame, name: str) -> list[str]:
    if name not in frame.columns:
        return [""] * len(frame)
    texts = []
    for row, value in enumerate(frame[name]):
        absent = _is_absent(value) or (isinstance(value, str) and not value.strip())
        texts.append("" if absent else label_text(value, row, name))
    check_unicode(texts, name)
    return texts


def _splits(values: list[str]) -> list[str]:
    splits = []
    for row, value in enumerate(values):
        split = _SPLIT_NAMES.get(value.strip().lower())
        if split is None:
            raise DataError(
                f"The split {value!r} in row {row} is unknown.{did_you_mean(value, _SPLIT_NAMES)} "
                "Allowed are train, val, test and nothing (not used)."
            )
        splits.append(split)
    return splits


def check_unicode(values: Sequence[str], what: str) -> None:
    """Raise when a text came from a file name that is not Unicode; pandas and Parquet cannot hold it."""
    for row, value in enumerate(values):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise DataError(f"The {what} {value!r} in row {row} is not valid Unicode. Rename the file or folder.")


def _check_unique(frame: pd.DataFrame) -> None:
    repeated = frame[frame["path"].duplicated(keep=False)]
    if repeated.empty:
        return
    first = repeated["path"].iloc[0]
    rows = repeated[repeated["path"] == first]
    for name, reason in (("split", "is in two splits"), ("label", "has two labels")):
        if rows[name].nunique() > 1:
            both = " and ".join(repr(value) for value in rows[name].unique()[:2])
            raise DataError(
                f"{first} {reason} ({both}); {repeated['path'].nunique()} paths are listed more than once. "
                "Keep one row a picture."
            )
    raise DataError(
        f"{repeated['path'].nunique()} paths are listed more than once, first {first}. Keep one row a picture."
    )
