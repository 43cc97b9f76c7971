"""A split on disk: one Parquet file that holds the table, what made it, and the folder its paths start from."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.core.files import atomic_path
from proxemics.data.table import as_text, check_table, common_root


def save_split(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table with its splits to Parquet, atomically.

    Args:
        frame: a table; ``attrs`` is stored with it, and with it the common folder of the pictures as
            ``attrs["root"]``.
        path: ends in ``.parquet``.

    Raises:
        DataError: the table is not valid, or a column holds values that Parquet cannot.
    """
    frame = check_table(frame)
    frame.attrs["root"] = common_root(frame)
    with atomic_path(path) as temporary:
        try:
            frame.to_parquet(temporary, index=False)
        except (ValueError, TypeError) as error:  # pyarrow's errors derive from these
            reason = " ".join(str(error).split())
            raise DataError(f"Cannot write {path}: {reason}. Make every column text or numbers.") from error


def load_split(path: str | Path, *, root: str | Path | None = None) -> pd.DataFrame:
    """Read what :func:`save_split` wrote.

    Args:
        path: the file.
        root: where the pictures lie now, if their folder has moved since.

    Returns:
        A checked table with ``attrs``.

    Raises:
        DataError: the file is absent or is not such a file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "split.parquet"
        >>> save_split(pd.DataFrame({"path": ["/old/a/1.jpg", "/old/b/2.jpg"], "label": ["a", "b"]}), file)
        >>> load_split(file)["path"].tolist()
        ['/old/a/1.jpg', '/old/b/2.jpg']
        >>> load_split(file, root="/new")["path"].tolist()
        ['/new/a/1.jpg', '/new/b/2.jpg']
    """
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError as error:
        raise DataError(
            f"No split file {path}. Make one with make_split and save_split, or `proxemics split`."
        ) from error
    except Exception as error:  # pyarrow raises several kinds
        raise DataError(f"{path} is not a split file: {' '.join(str(error).split())}.") from error
    frame = check_table(frame)
    if root is not None:
        old = str(frame.attrs.get("root") or common_root(frame))
        new = os.path.abspath(root)  # noqa: PTH100  resolve() would follow links
        # A Path cannot climb with ".." before Python 3.12, as relpath does.
        frame["path"] = as_text([os.path.join(new, os.path.relpath(name, old)) for name in frame["path"]])  # noqa: PTH118
        frame.attrs["root"] = new
    return frame
