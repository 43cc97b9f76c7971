"""The collection of an index: its schema, its manifest, and rows in and out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from proxemics.core.errors import SearchError
from proxemics.search.items import Items
from proxemics.search.manifest import Manifest
from proxemics.search.milvus.address import MilvusAddress
from proxemics.search.milvus.client import RETRIES
from proxemics.search.milvus.filters import bytes_of, ids_expression, keys_of, literal
from proxemics.search.remote import AbsentError, keepable, read_manifest

FIELDS = ["id", "embedding", "metadata"]
LONGEST_JSON = 65_000
LARGEST_MESSAGE = 48 * 1024 * 1024
LARGEST_PAGE = 10_000
_MANIFEST = "proxemics.manifest"
_IDS_AT_ONCE = 1000


def create_collection(client: Any, address: MilvusAddress, manifest: Manifest, *, is_lite: bool) -> None:
    """Make the collection of a new index, empty and ready for searches.

    Milvus keeps the manifest in the description of the collection, and Milvus Lite, which drops descriptions, among
    its properties.

    Raises:
        SearchError: the name is taken.
    """
    from pymilvus import DataType, MilvusClient

    if client.has_collection(address.name, **RETRIES):
        raise SearchError(f"There is a collection {address.name} at {address.shown} already; choose another name.")
    text = manifest.model_dump_json()
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True, description="" if is_lite else text)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=2048)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=manifest.key.dim)
    schema.add_field("metadata", DataType.JSON)
    index = MilvusClient.prepare_index_params()
    if manifest.kind == "hnsw":
        index.add_index("embedding", index_type="HNSW", metric_type="IP", params={"M": 16, "efConstruction": 200})
    else:
        index.add_index("embedding", index_type="FLAT", metric_type="IP")
    options: dict[str, Any] = {"properties": {_MANIFEST: text}} if is_lite else {}
    client.create_collection(
        address.name, schema=schema, index_params=index, consistency_level="Strong", num_shards=1, **options, **RETRIES
    )
    client.load_collection(address.name, **RETRIES)


def open_collection(client: Any, address: MilvusAddress) -> Manifest:
    """Return the manifest of an index that exists, and have Milvus load it.

    Raises:
        SearchError: there is none, it is not one of Proxemics, or a newer Proxemics made it.
    """
    if not client.has_collection(address.name, **RETRIES):
        raise AbsentError(
            f"There is no index {address.name} at {address.shown}; make it with 'proxemics index', or look at the name."
        )
    about = client.describe_collection(address.name, **RETRIES)
    text = dict(about.get("properties") or {}).get(_MANIFEST) or about.get("description") or ""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SearchError(
            f"The collection {address.name} at {address.shown} was not made by Proxemics; choose another."
        )
    manifest = read_manifest(content, address.shown)
    client.load_collection(address.name, **RETRIES)
    return manifest


def as_rows(items: Items) -> list[dict[str, Any]]:
    """Return rows as Milvus takes them.

    Raises:
        SearchError: the metadata of a row are longer than Milvus keeps, or the call is larger than one message.
    """
    rows: list[dict[str, Any]] = []
    size = 0
    for name, vector, meta in zip(items.ids, items.vectors, items.meta, strict=True):
        keys = keys_of(name, meta)
        lengths = (bytes_of(meta), bytes_of(keys))
        if max(lengths) > LONGEST_JSON:
            raise SearchError(f"Row {name!r} has {max(lengths):,} bytes of metadata; Milvus keeps {LONGEST_JSON:,}.")
        size += sum(lengths) + vector.nbytes + 4 * len(name) + 100
        rows.append({"id": name, "embedding": vector, "metadata": meta, **keys})
    if size > LARGEST_MESSAGE:
        most = max(1, len(rows) * LARGEST_MESSAGE // size)
        raise SearchError(
            f"{len(rows):,} rows are more than fit the one message of {LARGEST_MESSAGE >> 20} MB in which Milvus takes "
            f"all or none; give about {most:,} a call."
        )
    return rows


def write_rows(client: Any, name: str, rows: Sequence[dict[str, Any]], *, is_lite: bool) -> None:
    """Write rows in one message, over those with the same ids.

    The upsert of Milvus Lite mixes the old row into the new one, and its insert replaces; elsewhere an insert would
    leave two rows with one id.
    """
    send = client.insert if is_lite else client.upsert
    send(name, list(rows), **RETRIES)


def taken(client: Any, name: str, ids: Sequence[str]) -> set[str]:
    """Return which ids are in the collection."""
    return {row["id"] for part in _parts(ids) for row in _query(client, name, ids_expression(part), ["id"])}


def delete_rows(client: Any, name: str, ids: Sequence[str]) -> int:
    """Remove rows and return how many there were."""
    there = taken(client, name, ids)
    for part in _parts([one for one in dict.fromkeys(ids) if one in there]):
        client.delete(name, filter=ids_expression(part), **RETRIES)
    return len(there)


def fetch_rows(client: Any, name: str, ids: Sequence[str], dim: int) -> Items:
    """Return rows by id, in the order asked for."""
    found = {row["id"]: row for part in _parts(ids) for row in _query(client, name, ids_expression(part), FIELDS)}
    return as_items([found[one] for one in dict.fromkeys(ids) if one in found], dim)


def count_rows(client: Any, name: str, filter_text: str, *, is_lite: bool) -> int:
    """Return how many rows meet an expression.

    Servers count a replaced row twice until they tidy up, so there the ids are counted, page by page.
    """
    if is_lite:
        return int(_query(client, name, filter_text, ["count(*)"])[0]["count(*)"])
    return sum(len(page) for page in pages(client, name, filter_text, LARGEST_PAGE, ["id"]))


def pages(client: Any, name: str, filter_text: str, batch: int, fields: Sequence[str]) -> Iterator[list[Any]]:
    """Iterate over all rows that meet an expression, in the order of their ids."""
    after = ""
    while page := page_after(client, name, after, filter_text, batch, fields):
        yield page
        after = page[-1]["id"]


def page_after(client: Any, name: str, after: str, filter_text: str, batch: int, fields: Sequence[str]) -> list[Any]:
    """Return at most ``batch`` rows whose ids come after one, in the order of their ids."""
    text = f"id > {literal(after)}" + (f" and ({filter_text})" if filter_text else "")
    rows = _query(client, name, text, fields, limit=min(batch, LARGEST_PAGE), iterator="True")
    return sorted(rows, key=lambda row: str(row["id"]))


def tidy(client: Any, name: str) -> None:
    """Write rows from the log into segments, where the graph is built, and drop removed rows."""
    client.flush(name, **RETRIES)
    client.compact(name, **RETRIES)


def as_items(rows: Sequence[Any], dim: int) -> Items:
    """Return rows of Milvus as :class:`Items`."""
    vectors = np.array([row["embedding"] for row in rows], np.float32).reshape(len(rows), dim)
    return Items([row["id"] for row in rows], vectors, [row["metadata"] for row in rows])


def _query(client: Any, name: str, filter_text: str, fields: Sequence[str], **options: object) -> list[Any]:
    found = client.query(
        name, filter=filter_text, output_fields=list(fields), consistency_level="Strong", **options, **RETRIES
    )
    return list(found)


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    names = [one for one in dict.fromkeys(ids) if one and len(one) <= 512 and keepable(one)]
    for start in range(0, len(names), _IDS_AT_ONCE):
        yield names[start : start + _IDS_AT_ONCE]
