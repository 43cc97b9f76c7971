"""The files that a job leaves, and how to read them back with the model that they belong to.

``.parquet``: one row a picture, ``id, path, label, domain, [kappa], [kept columns], embedding``; what made the vectors
stands in the key-values of the file under names that start with ``proxemics.``. ``.npy``: the vectors alone, with a
``.csv`` of the other columns and a ``.json`` of the key-values beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from proxemics.core.errors import ConfigError, DataError, ProxemicsError
from proxemics.core.files import atomic_path, read_json, write_json

PREFIX = "proxemics."
ROW_GROUP = 8192
SUFFIXES = (".parquet", ".npy")


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """What :func:`read_embeddings` found.

    Attributes:
        ids: N names, in the order of the file.
        meta: N dictionaries of plain values: the other columns but the vector.
        vectors: (N, D) float32 of unit length.
        key: ``model``, ``preprocess`` (fingerprints) and ``dim``; what an index compares.
        made_by: ``engine``, ``precision`` and ``version``.
    """

    ids: list[str]
    meta: list[dict[str, Any]]
    vectors: NDArray[np.float32]
    key: dict[str, Any]
    made_by: dict[str, str]


def check_room(out: Path, source: str | Path) -> None:
    """Refuse to write over what is embedded, and over files beside a ``.npy`` that no job wrote.

    Args:
        out: the file that was asked for.
        source: the folder, table or archive that is embedded.

    Raises:
        ConfigError: a file would be lost; the message names it.
    """
    beside = [out.with_suffix(suffix) for suffix in (".csv", ".json")] if out.suffix == ".npy" else []
    for file in (out, *beside, unreadable_list(out)):
        if file.exists() and Path(source).exists() and file.samefile(source):
            raise ConfigError(f"--out {out} would write over {file}, which is to be embedded; choose another name.")
    theirs = next((file for file in reversed(beside) if file.exists()), None)
    if theirs is not None and not _is_ours(out.with_suffix(".json")):
        raise ConfigError(
            f"--out {out} would write over {theirs}, which `proxemics embed` did not write; move it, or choose another "
            "name."
        )


def unreadable_list(out: Path) -> Path:
    """Return where the pictures that were left out are listed.

    Example:
        >>> unreadable_list(Path("a.npy"))
        PosixPath('a.unreadable.csv')
    """
    return out.with_name(f"{out.stem}.unreadable.csv")


def _is_ours(about: Path) -> bool:
    """Whether a ``.json`` beside a ``.npy`` is one of :func:`write_embeddings`."""
    try:
        found = read_json(about)
    except (OSError, ProxemicsError):
        return False
    return isinstance(found, dict) and f"{PREFIX}model" in found


def write_embeddings(out: Path, parts: Iterable[pa.Table], *, count: int, facts: Mapping[str, str]) -> None:
    """Join tables into the file that was asked for; each file is replaced at once when it is whole.

    Args:
        out: ends in ``.parquet`` or ``.npy``.
        parts: tables of equal columns, ``embedding`` the last, in the order of the rows.
        count: rows of all of them.
        facts: text about the model and the engine; ``dim`` is needed.

    Raises:
        ProxemicsError: the disk is full or the folder cannot be written; the old files are untouched.
    """
    if out.suffix == ".npy":
        _write_npy(out, parts, count, facts)
    else:
        _write_parquet(out, parts, facts)


def _write_parquet(out: Path, parts: Iterable[pa.Table], facts: Mapping[str, str]) -> None:
    with atomic_path(out) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for table in _grouped(parts, ROW_GROUP):
                if writer is None:
                    noted = {f"{PREFIX}{key}": value for key, value in sorted(facts.items())}
                    writer = open_writer(temporary, table.schema.with_metadata(noted))
                writer.write_table(table.cast(writer.schema))
        finally:
            if writer is not None:
                writer.close()


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file for tables with a vector column, which compresses badly and is left alone.

    Args:
        path: the file.
        schema: its columns; those of text are compressed.
    """
    words = [field.name for field in schema if field.name != "embedding"]
    squeezed = dict.fromkeys(words, "ZSTD")
    return pq.ParquetWriter(
        path,
        schema,
        compression={**squeezed, "embedding.list.element": "NONE"},
        use_dictionary=[name for name in words if name in ("label", "domain")],
        write_statistics=words,
    )


def _grouped(parts: Iterable[pa.Table], rows: int) -> Iterable[pa.Table]:
    """Join small tables to groups of about so many rows."""
    waiting: list[pa.Table] = []
    for table in parts:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_npy(out: Path, parts: Iterable[pa.Table], count: int, facts: Mapping[str, str]) -> None:
    columns: list[pd.DataFrame] = []
    shape = (count, int(facts["dim"]))
    with atomic_path(out) as temporary:
        vectors = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        row = 0
        for table in parts:
            if table.num_rows:  # a part may have lost all its pictures, and an empty column has no width
                vectors[row : row + table.num_rows] = table_vectors(table)
            columns.append(table.drop_columns("embedding").to_pandas())
            row += table.num_rows
        vectors.flush()
        # The .json first: it tells a job that goes on after a kill that the .csv is its own.
        write_json(out.with_suffix(".json"), {f"{PREFIX}{key}": value for key, value in sorted(facts.items())})
        with atomic_path(out.with_suffix(".csv")) as listing:
            pd.concat(columns, ignore_index=True).to_csv(listing, index=False)


def table_vectors(table: pa.Table) -> NDArray[np.float32]:
    """Return the column ``embedding`` as (N, D) float32."""
    if not table.num_rows:
        return np.zeros((0, 0), np.float32)
    chunks = [chunk for chunk in table.column("embedding").chunks if len(chunk)]  # one could hold 2^31 numbers at most
    parts = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(len(chunk), -1) for chunk in chunks]
    return np.concatenate(parts).astype(np.float32, copy=False)


def read_embeddings(path: str | Path) -> StoredEmbeddings:
    """Read what ``proxemics embed`` wrote.

    Args:
        path: the ``.parquet`` or ``.npy`` file.

    Returns:
        Names, vectors, the other columns and the model that they belong to.

    Raises:
        DataError: absent, of another kind, damaged, or without the fingerprint of its model.
    """
    file = Path(path)
    if file.suffix not in SUFFIXES or not file.is_file():
        raise DataError(f"{file} is no file of embeddings; give a .parquet or .npy file written by `proxemics embed`.")
    try:
        table, vectors, noted = _read_npy(file) if file.suffix == ".npy" else _read_parquet(file)
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, ProxemicsError) as error:  # Arrow's too
        reason = " ".join(str(error).split())
        raise DataError(f"{file} cannot be read as embeddings: {reason}. Write it with `proxemics embed`.") from error
    if len(vectors) != len(table):
        raise DataError(
            f"{file}: {len(vectors)} vectors and {len(table)} rows do not belong together; embed the pictures again."
        )
    model = noted.get("model", "")
    if not model or "id" not in table.columns:
        raise DataError(f"{file} does not say which model made its vectors; write it again with `proxemics embed`.")
    key = {"model": model, "preprocess": noted.get("preprocess", ""), "dim": int(vectors.shape[1])}
    made_by = {name: noted.get(name, "") for name in ("engine", "precision", "version")}
    meta = table.drop(columns="id").to_dict("records")
    return StoredEmbeddings(table["id"].astype(str).to_list(), [_plain(row) for row in meta], vectors, key, made_by)


def _read_parquet(file: Path) -> tuple[pd.DataFrame, NDArray[np.float32], dict[str, str]]:
    table = pq.read_table(file)
    raw = table.schema.metadata or {}
    noted = {key.decode(): value.decode() for key, value in raw.items() if key.startswith(PREFIX.encode())}
    lengths = pc.unique(pc.list_value_length(table.column("embedding"))).to_pylist()
    if len(lengths) > 1 or None in lengths:
        raise DataError("the vectors have different lengths")
    vectors = table_vectors(table) if table.num_rows else np.zeros((0, int(noted[f"{PREFIX}dim"])), np.float32)
    return table.drop_columns("embedding").to_pandas(), vectors, _unprefixed(noted)


def _read_npy(file: Path) -> tuple[pd.DataFrame, NDArray[np.float32], dict[str, str]]:
    vectors = np.load(file, allow_pickle=False)
    if vectors.ndim != 2:
        raise DataError(f"the array has shape {vectors.shape}, not (N, D)")
    texts = {"id": str, "path": str, "label": str, "domain": str}
    table = pd.read_csv(file.with_suffix(".csv"), dtype=texts, keep_default_na=False, encoding="utf-8")
    noted = read_json(file.with_suffix(".json"))
    if not isinstance(noted, dict):
        raise DataError(f"{file.with_suffix('.json')} holds no key-values")
    return table, vectors.astype(np.float32, copy=False), _unprefixed({str(k): str(v) for k, v in noted.items()})


def _unprefixed(noted: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(PREFIX): value for key, value in noted.items()}


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Turn NumPy's numbers into Python's, and absent cells into None."""
    return {str(key): _scalar(value) for key, value in row.items()}


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def vector_table(columns: Mapping[str, Any], vectors: NDArray[np.float32]) -> pa.Table:
    """Build a table from columns and (N, D) vectors, the vectors last as lists of float32.

    Args:
        columns: name to N texts, or to an array of N numbers.
        vectors: (N, D) float32.

    Example:
        >>> table = vector_table({"id": ["a", "b"]}, np.eye(2, dtype=np.float32))
        >>> table.column_names, table_vectors(table).tolist()
        (['id', 'embedding'], [[1.0, 0.0], [0.0, 1.0]])
    """
    rows, dim = vectors.shape
    ends = (
        pa.array(np.arange(0, rows * dim + 1, dim, dtype=np.int32)) if dim else pa.array([0] * (rows + 1), pa.int32())
    )
    lists = pa.ListArray.from_arrays(ends, pa.array(np.ascontiguousarray(vectors).reshape(-1), pa.float32()))
    arrays = [*(_column(values) for values in columns.values()), lists]
    return pa.Table.from_arrays(arrays, names=[*columns, "embedding"])


def _column(values: Any) -> pa.Array:
    if isinstance(values, np.ndarray):
        return pa.array(values)
    return pa.array(list(values), pa.string())


def facts_text(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return key-values as the text that a Parquet file can hold."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
