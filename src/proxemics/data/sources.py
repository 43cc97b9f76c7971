"""From what people have (a folder, a CSV, a Parquet file, a frame, a Hugging Face data set) to one table."""

# Paths are text here: for every picture, a Path takes 3 to 10 times as long to make, join or look up;
# and abspath, unlike resolve(), does not follow links.
# ruff: noqa: PTH100, PTH110, PTH113, PTH117, PTH118

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.folders import FolderScan, Layout, folder_table, scan_folder
from proxemics.data.hub_dataset import hub_table, is_hub_dataset
from proxemics.data.table import COLUMNS, as_text, cell_text, check_table, require_columns

Source = Any
"""A path, a pandas frame, or a Hugging Face data set (its type is not imported here)."""
Where = Mapping[str, str | Sequence[str]]
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def load_table(
    source: Source,
    *,
    root: str | Path | None = None,
    where: Where | None = None,
    label: str = "label",
    domain: str = "domain",
    path: str = "path",
    split: str = "split",
    layout: Layout = "class",
    cache: str | Path | None = None,
    strict: bool = True,
) -> pd.DataFrame:
    """Read a table of pictures.

    Args:
        source: one of

            * a folder; the first level is the class, see :func:`proxemics.data.folders.folder_table`;
            * a ``.csv``, ``.tsv`` (UTF-8, with a header) or ``.parquet`` file with a path and a label column;
            * a pandas frame with these columns;
            * a Hugging Face ``Dataset`` or ``DatasetDict`` with an image column, see
              :func:`proxemics.data.hub_dataset.hub_table`.
        root: the folder that relative paths start from and that no path may leave. Default: the folder of the file;
            for a frame the current folder, and absolute paths are then taken as they are.
        where: keep the rows whose column has this value, or one of these values: ``{"dataset": "cub200_2010"}``.
        label: the column to learn, such as ``"genus"``. A column ``label`` that is not chosen stays as
            ``label_original``.
        domain: the column that names the domain; when absent under its default name, domains are empty.
        path: the column that names the file.
        split: the column that says train, val or test; when absent under its default name, splits are empty.
        layout: for folders: ``class``, ``domain/class`` or ``flat``.
        cache: for Hugging Face data sets: where pictures without a file of their own are written once.
        strict: when False, missing files and repeated paths are not an error here (``doctor`` lists them).

    Returns:
        A table that :func:`proxemics.data.table.check_table` accepts: text columns ``path`` (absolute), ``label``,
        ``domain``, ``split`` and all others.

    Raises:
        DataError: the source or a column is absent, a filter matches nothing, a path leaves the root or names no
            file, or a label is unusable.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     _ = (folder / name / "1.jpg").write_bytes(b"any content")
        >>> load_table(folder)["label"].tolist()
        ['cat', 'dog']
        >>> rows = {"path": ["cat/1.jpg"], "species": ["catus"], "genus": ["Felis"]}
        >>> pd.DataFrame(rows).to_csv(folder / "all.csv", index=False)
        >>> load_table(folder / "all.csv", label="genus")[["label", "species"]].values.tolist()
        [['Felis', 'catus']]
    """
    columns = {"path": path, "label": label, "domain": domain, "split": split}
    if isinstance(source, pd.DataFrame):
        frame = _select(_filter(source, where), columns, "The table")
        frame = _absolute(frame, None if root is None else Path(root), "The table")
    elif is_hub_dataset(source):
        frame = hub_table(source, cache=cache, select=lambda raw: _filter(raw, where))
        frame = _select(frame, columns, "The data set")
    else:
        frame = _from_disk(Path(source).expanduser(), root, where, columns, layout)
    frame = check_table(frame, labelled=layout != "flat", unique=strict)
    if strict:
        _check_files(frame)
    return frame


def _from_disk(
    source: Path, root: str | Path | None, where: Where | None, columns: dict[str, str], layout: Layout
) -> pd.DataFrame:
    if source.is_dir():
        if root is not None:
            raise DataError(
                f"root={str(root)!r} was given with the folder {source}. A root is for tables only; leave it out."
            )
        return _filter(_from_folder(scan_folder(source), layout), where)
    if not source.exists():
        near = did_you_mean(source.name, [p.name for p in source.parent.iterdir()] if source.parent.is_dir() else [])
        raise DataError(
            f"No file or folder {source}.{near} Give a folder of class folders or a {', '.join(_TABLE_SUFFIXES)} file."
        )
    name = f"The table {source}"
    frame = _select(_filter(read_frame(source), where), columns, name)
    return _absolute(frame, Path(root) if root is not None else source.parent, name)


def _from_folder(scan: FolderScan, layout: Layout) -> pd.DataFrame:
    frame = folder_table(scan, layout)
    left_out = len(scan.pictures) - len(frame)
    if left_out:
        kept = set(frame["path"])
        first = next(name for name in scan.pictures if os.path.join(scan.root, *name.split("/")) not in kept)
        warnings.warn(
            f"{left_out} pictures in {scan.root} lie above the class folders and were left out, first {first}.",
            stacklevel=4,
        )
    return frame


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file; in text files every cell stays text (``NA`` and ``007`` are class names).

    Raises:
        DataError: the suffix is unknown or the file cannot be parsed.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "t.csv"
        >>> pd.DataFrame({"path": ["a.jpg"], "label": ["007"]}).to_csv(file, index=False)
        >>> read_frame(file).values.tolist()
        [['a.jpg', '007']]
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _TABLE_SUFFIXES:
        raise DataError(
            f"Cannot read {path}: the suffix {suffix or '(none)'!r} is not one of {', '.join(_TABLE_SUFFIXES)}."
        )
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path)
        sign = "\t" if suffix == ".tsv" else ","
        return pd.read_csv(path, sep=sign, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except Exception as error:  # pandas and pyarrow raise some ten kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"Cannot read the table {path}: {reason}. Save it as UTF-8 {suffix} with a header line."
        ) from error


def _filter(frame: pd.DataFrame, where: Where | None) -> pd.DataFrame:
    for column, wanted in (where or {}).items():
        if column not in frame.columns:
            names = [str(name) for name in frame.columns]
            raise DataError(
                f"The filter names the column {column!r}, but there are {', '.join(names)}."
                f"{did_you_mean(column, names)}"
            )
        text = pd.Series([cell_text(value) for value in frame[column]], index=frame.index, dtype="object")
        values = [wanted] if isinstance(wanted, str) else [str(value) for value in wanted]
        have = sorted(set(text))
        for value in values:
            if value not in have:
                some = ", ".join(name or "(none)" for name in have[:8]) + (", ..." if len(have) > 8 else "")
                raise DataError(f"No row has {column} = {value!r}; values are {some}.{did_you_mean(value, have)}")
        frame = frame[text.isin(values)]
    return frame


def _select(frame: pd.DataFrame, columns: dict[str, str], source: str) -> pd.DataFrame:
    """Copy the chosen columns to the fixed names, keeping what stood there as ``<name>_original``."""
    required = [name for target, name in columns.items() if target in ("path", "label") or name != target]
    require_columns(frame, required, source)
    chosen = {target: frame[name] for target, name in columns.items() if name in frame.columns}
    others = {
        (f"{name}_original" if name in COLUMNS and columns[str(name)] != name else name): frame[name]
        for name in frame.columns
        if not (name in COLUMNS and columns[str(name)] == name)
    }
    selected = pd.DataFrame({**chosen, **others}).reset_index(drop=True)
    selected.attrs = dict(frame.attrs)
    return selected


def _absolute(frame: pd.DataFrame, root: Path | None, source: str) -> pd.DataFrame:
    """Make paths absolute; refuse those whose name leaves the root (links inside it are the owner's choice)."""
    base = os.path.abspath(root if root is not None else Path.cwd())
    paths = []
    for row, value in enumerate(frame["path"]):
        if not isinstance(value, (str, os.PathLike)) or not str(value):
            raise DataError(f"{source} has no path in row {row}. Every row needs the path of one picture.")
        given = str(value)
        if given.startswith(("http://", "https://")):
            raise DataError(
                f"{source} names the address {given} in row {row}. Download the pictures first; paths are files."
            )
        full = os.path.normpath(os.path.join(base, given))
        if os.sep == "/" and "\\" in given and not os.path.exists(full):
            given = given.replace("\\", "/")  # written on Windows
            full = os.path.normpath(os.path.join(base, given))
        if not (root is None and os.path.isabs(given)) and not _inside(full, base):
            raise DataError(
                f"{source} names {given!r} in row {row}, which leaves the root {base}. Write paths relative to it, or "
                f"set data.root={Path(full).parent} (root=... in Python) to the folder that holds all pictures."
            )
        paths.append(full)
    frame = frame.drop(columns="path")
    frame.insert(0, "path", as_text(paths))
    return frame


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def _check_files(frame: pd.DataFrame) -> None:
    missing = [path for path in frame["path"] if not os.path.isfile(path)]
    if missing:
        first = ", ".join(missing[:3])
        raise DataError(
            f"{len(missing)} of {len(frame)} pictures are missing, first {first}. Check root=... "
            "(data.root), or remove their rows."
        )
