"""From an address to the back-end that it names."""

from __future__ import annotations

from typing import Literal

from proxemics.core.errors import SearchError
from proxemics.search.index import Index
from proxemics.search.manifest import ModelKey

Backend = Literal["local", "pgvector", "milvus"]

_SCHEMES: dict[str, Backend] = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "milvus": "milvus",
    "milvus+http": "milvus",
    "milvus+https": "milvus",
}


def backend_of(address: str) -> Backend:
    """Return which back-end an address names; what has no scheme is a folder.

    Args:
        address: see :class:`proxemics.search.Index`.

    Raises:
        SearchError: the scheme is unknown, or the address is empty.

    Example:
        >>> backend_of("birds.index"), backend_of("postgresql://me@host/db?index=birds"), backend_of("milvus:a.db")
        ('local', 'pgvector', 'milvus')
    """
    if not address.strip():
        raise SearchError("The address of the index is empty; give a folder, postgresql://... or milvus:....")
    scheme, colon, rest = address.partition(":")
    if not colon or len(scheme) == 1 or not scheme.replace("+", "").isalnum() or "/" in scheme:
        return "local"  # no scheme, or the letter of a drive
    known = _SCHEMES.get(scheme.lower())
    if known is not None:
        return known
    if rest.startswith("//"):
        raise SearchError(
            f"The address {_without_password(address)!r} starts with {scheme}:, which names no back-end; give a "
            "folder, postgresql://user@host/database?index=NAME, milvus:FILE.db?index=NAME or "
            "milvus+http://host:19530?index=NAME."
        )
    return "local"


def open_index(address: str, *, read_only: bool = False) -> Index:
    """Open an index that exists; see :meth:`proxemics.search.Index.open`."""
    backend = backend_of(address)
    if backend == "pgvector":
        from proxemics.search.pgvector import PgVectorIndex

        return PgVectorIndex.open(address, read_only=read_only)
    if backend == "milvus":
        from proxemics.search.milvus import MilvusIndex

        return MilvusIndex.open(address, read_only=read_only)
    from proxemics.search.local.index import LocalIndex

    return LocalIndex.open(address, read_only=read_only)


def check_free(address: str) -> None:
    """Refuse a place where no index can be made, before work is put into its rows.

    Raises:
        SearchError: an index is there, or the server is not.
    """
    if backend_of(address) == "local":
        from proxemics.search.local.index import check_free_folder

        check_free_folder(address)
        return
    from proxemics.search.remote import AbsentError

    try:
        index = open_index(address, read_only=True)
    except AbsentError:
        return
    shown = index.address
    index.close()
    raise SearchError(f"There is an index at {shown} already; choose another name, or add to it: proxemics index add")


def begun_or_new(
    address: str,
    key: ModelKey,
    *,
    kind: Literal["exact", "hnsw"],
    dtype: Literal["float32", "int8"],
    title: str,
) -> Index:
    """Open the index that a stopped copy began; where none was begun, make it.

    Raises:
        SearchError: what is there is of another model, kind or dtype.
    """
    index = _begun(address)
    if index is None:
        return create_index(address, key, kind=kind, dtype=dtype, title=title)
    about = index.manifest
    try:
        about.check(key)
        if (about.kind, about.dtype) != (kind, dtype):
            raise SearchError(
                f"{index.address} is {about.kind} with {about.dtype}, and the copy was to be {kind} with {dtype}; give "
                "the options that it was begun with, or another place."
            )
    except SearchError:
        index.close()
        raise
    return index


def _begun(address: str) -> Index | None:
    if backend_of(address) == "local":
        from proxemics.search.local.index import LocalIndex, holds_index

        return LocalIndex.open(address) if holds_index(address) else None
    from proxemics.search.remote import AbsentError

    try:
        return open_index(address)
    except AbsentError:
        return None


def create_index(
    address: str,
    key: ModelKey,
    *,
    kind: Literal["exact", "hnsw"] = "exact",
    dtype: Literal["float32", "int8"] = "float32",
    title: str = "",
) -> Index:
    """Make a new, empty index; see :meth:`proxemics.search.Index.create`."""
    backend = backend_of(address)
    if backend == "pgvector":
        from proxemics.search.pgvector import PgVectorIndex

        return PgVectorIndex.create(address, key, kind=kind, dtype=dtype, title=title)
    if backend == "milvus":
        from proxemics.search.milvus import MilvusIndex

        return MilvusIndex.create(address, key, kind=kind, dtype=dtype, title=title)
    from proxemics.search.local.index import LocalIndex

    return LocalIndex.create(address, key, kind=kind, dtype=dtype, title=title)


def _without_password(address: str) -> str:
    scheme, _, rest = address.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"
