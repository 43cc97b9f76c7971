"""From a folder, a table or an archive to the rows of a job: one picture a row, each with a stable id and its place."""

# Paths are text here: for every picture, a Path takes 3 to 10 times as long to make, join or look up;
# and abspath, unlike resolve(), does not follow links.
# ruff: noqa: PTH100, PTH116

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.folders import FolderScan, folder_table, is_picture_name
from proxemics.data.sources import load_table, read_frame
from proxemics.data.table import as_text, cell_text
from proxemics.export.jobs.archives import Member, is_archive, list_members
from proxemics.export.jobs.places import Place

PLACE = "place\0"
"""Name of the column that holds the number of the place while rows are filtered; no file can have such a column."""
OnError = Literal["stop", "skip"]


@dataclass(frozen=True, eq=False)
class Pictures:
    """The rows of a job.

    Attributes:
        frame: ``id`` (unique text), ``path``, ``label``, ``domain``, then the kept columns.
        places: where each lies.
        stamps: text that changes when the picture does: size and time of the file, or its checksum in the archive.
        title: what was read.
    """

    frame: pd.DataFrame
    places: list[Place]
    stamps: list[str]
    title: str

    def __len__(self) -> int:
        return len(self.places)


def open_pictures(
    source: str | Path,
    *,
    where: Mapping[str, str] | None = None,
    label: str = "label",
    domain: str = "domain",
    keep: Sequence[str] = (),
    on_error: OnError = "stop",
    root: str | Path | None = None,
) -> Pictures:
    """List the pictures of a source in a fixed order.

    Args:
        source: a folder (its first level is the class; without folders there are no classes); a ``.csv``, ``.tsv`` or
            ``.parquet`` table with a column ``path``, and ``label``, ``domain`` and ``id`` where known; a Parquet
            file that holds the pictures themselves in a column ``image`` (bytes, or Hugging Face's ``{bytes, path}``);
            or a zip or tar archive, read as a folder without being unpacked.
        where: keep the rows whose column has this value.
        label: the column of the class.
        domain: the column of the domain.
        keep: further columns to carry along.
        on_error: ``stop`` refuses a table that names absent files at once; ``skip`` leaves them to the job.
        root: the folder that the paths of a table start from; None for that of the table.

    Returns:
        The rows. The id of a row is the table's column ``id``, or else the path of the picture relative to the source.

    Raises:
        DataError: no such source, nothing in it, an archive that is a trap, or ids that are empty or not unique.
    """
    path = Path(source).expanduser()
    if path.is_file() and is_archive(path):
        frame, members = _from_archive(path)
    elif path.suffix.lower() == ".parquet" and path.is_file() and (column := picture_column(path)):
        frame, members = _from_parquet(path, column)
    else:
        return _from_files(path, where, label, domain, keep, on_error, root)
    frame = load_table(frame, where=where or None, label=label, domain=domain, layout="flat", strict=False)
    kept = [members[number] for number in frame[PLACE]]
    return _finish(frame, [one.place for one in kept], [one.stamp for one in kept], keep, str(path))


def _from_files(
    path: Path,
    where: Mapping[str, str] | None,
    label: str,
    domain: str,
    keep: Sequence[str],
    on_error: OnError,
    start: str | Path | None,
) -> Pictures:
    strict = on_error == "stop"
    if path.is_dir():
        layout = folder_layout(path)
        frame = load_table(path, where=where or None, layout=layout, strict=strict)
        root = os.path.abspath(path)
    else:
        table = read_frame(path) if path.is_file() else path
        if isinstance(table, pd.DataFrame) and label == "label" and label not in table.columns:
            table[label] = ""
        root = os.path.abspath(Path(start).expanduser() if start else path.parent)
        frame = load_table(
            table,
            root=root if path.is_file() else None,
            where=where or None,
            label=label,
            domain=domain,
            layout="flat",
            strict=strict,
        )
    if "id" not in frame.columns:
        cut = len(root.rstrip(os.sep)) + 1
        frame["id"] = as_text([one[cut:].replace(os.sep, "/") for one in frame["path"]])
    places = [Place("file", one) for one in frame["path"]]
    return _finish(frame, places, [_stamp(one) for one in frame["path"]], keep, str(path))


def folder_layout(folder: Path) -> Literal["class", "flat"]:
    """Take a folder without sub-folders for pictures without labels."""
    inside = [child for child in folder.iterdir() if not child.name.startswith(".")]
    return "class" if any(child.is_dir() for child in inside) else "flat"


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "absent"
    return f"{found.st_size}-{found.st_mtime_ns}"


def _from_archive(path: Path) -> tuple[pd.DataFrame, list[Member]]:
    """Read an archive as the folder that it would unpack to; one folder around everything is looked through."""
    members = list_members(path)
    known = {member.name: number for number, member in enumerate(members)}
    scan = FolderScan("", sorted(name for name in known if _is_picture(name)))
    if not scan.pictures:
        raise DataError(
            f"The archive {path} holds no picture that counts. Pictures end in .jpg, .png, .webp and the like."
        )
    inner, around = _look_through(scan)
    frame = folder_table(inner, "class" if any("/" in name for name in inner.pictures) else "flat")
    names = [around + name for name in frame["path"].str.replace(os.sep, "/")]
    frame["id"] = as_text(names)
    frame[PLACE] = [known[name] for name in names]
    if any(members[number].place.kind == "stream" for number in frame[PLACE]):
        frame = frame.sort_values(PLACE, kind="stable")  # a compressed tar is read from the front to the back
    container = os.path.abspath(path)
    frame["path"] = as_text([f"{container}!/{name}" for name in frame["id"]])
    return frame.reset_index(drop=True), members


def _is_picture(name: str) -> bool:
    """Count the pictures that a walk through the unpacked folder would count."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or part.lower() in ("__macosx", "@eadir") for part in parts)
    return not hidden and is_picture_name(parts[-1])


def _look_through(scan: FolderScan) -> tuple[FolderScan, str]:
    """Leave out a folder that everything lies in, if there are folders inside it."""
    tops = {name.partition("/")[0] for name in scan.pictures}
    if len(tops) != 1 or not all(name.count("/") >= 2 for name in scan.pictures):
        return scan, ""
    around = f"{tops.pop()}/"
    return FolderScan("", [name.removeprefix(around) for name in scan.pictures]), around


def picture_column(path: Path) -> str | None:
    """Return the column of a Parquet file that holds encoded pictures, as Parquet names it; None when it has paths.

    Args:
        path: a Parquet file; one that cannot be read has no such column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return None
    if "path" in schema.names:
        return None
    for field in schema:
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            return str(field.name)
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return f"{field.name}.bytes"
    return None


def _from_parquet(path: Path, column: str) -> tuple[pd.DataFrame, list[Member]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    owner = column.removesuffix(".bytes")
    others = [name for name in file.schema_arrow.names if name != owner]
    frame = file.read(columns=others).to_pandas() if others else pd.DataFrame(index=range(file.metadata.num_rows))
    container = os.path.abspath(path)
    frame["path"] = [f"{container}!/{row}" for row in range(len(frame))]
    if "id" not in frame.columns:
        frame["id"] = [str(row) for row in range(len(frame))]
    if "label" not in frame.columns:
        frame["label"] = ""
    stamp = _stamp(container)
    members = [
        Member(Place("parquet", container, column, group, row), stamp)
        for group in range(file.num_row_groups)
        for row in range(file.metadata.row_group(group).num_rows)
    ]
    frame[PLACE] = range(len(frame))
    return frame, members


def _finish(frame: pd.DataFrame, places: list[Place], stamps: list[str], keep: Sequence[str], title: str) -> Pictures:
    columns = {"id": as_text([cell_text(value) for value in frame["id"]])}
    columns.update({name: frame[name] for name in ("path", "label", "domain")})
    for name in keep:
        have = [str(one) for one in frame.columns if one != PLACE]
        if name not in have:
            raise DataError(
                f"--keep {name}: there is no such column.{did_you_mean(name, have)} Columns: {', '.join(have)}."
            )
        if name not in columns:
            columns[name] = _kept(frame[name])
    table = pd.DataFrame(columns).reset_index(drop=True)
    _check_ids(table["id"], title)
    return Pictures(table, places, stamps, title)


def _kept(values: pd.Series[Any]) -> pd.Series[Any]:
    """Leave numbers as they are; everything else becomes text."""
    if values.dtype.kind in "iufb":
        return values
    return as_text([cell_text(value) for value in values])


def _check_ids(ids: pd.Series[Any], title: str) -> None:
    if (ids == "").any():
        raise DataError(f"{title}: row {int((ids == '').argmax())} has an empty id. Fill the column, or leave it out.")
    twice = ids[ids.duplicated()]
    if len(twice):
        raise DataError(
            f"{title}: the id {twice.iloc[0]!r} stands in several rows; {len(twice)} are too many. Ids name rows."
        )
