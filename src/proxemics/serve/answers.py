"""Searches, from what was asked to what is answered; the API and the page both call these."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.index import Index
from proxemics.search.items import Hits, Items, Meta
from proxemics.search.where import Condition, parse_where
from proxemics.serve.errors import Refusal
from proxemics.serve.index_thread import IndexQuery
from proxemics.serve.pictures import short_meta
from proxemics.serve.schemas import Certainty, Hit, Item, Query, SearchAnswer, Seconds, Vote
from proxemics.serve.service import Service
from proxemics.serve.upload import Upload

LARGEST = 10**18
"""Numbers in filters are smaller than this, so that every back-end can hold them."""
MOST_FILTERS = 10
"""Filters in one search at most."""
LABELS_LISTED = 20
"""Labels whose pictures are shown for one text at most."""


async def by_picture(service: Service, upload: Upload, k: int, where: Sequence[str]) -> SearchAnswer:
    """Find the neighbours of an uploaded picture.

    Args:
        service: the parts.
        upload: the picture.
        k: rows wanted.
        where: filters as text.

    Raises:
        Refusal: the picture or a filter is not usable, or there is too much to do.
    """
    conditions = read_where(where)
    started = time.perf_counter()
    pixels = await service.pixels(upload.data)
    decoded = time.perf_counter()
    vector, kappa = await service.embedding.submit(pixels)
    embedded = time.perf_counter()
    if not np.isfinite(vector).all() or not vector.any():
        raise Refusal(422, "no_direction", "The model sees nothing in this picture, so there is nothing to compare.")
    hits = await service.searching.submit(IndexQuery(vector, k, conditions))
    seconds = Seconds(decode=decoded - started, model=embedded - decoded, index=time.perf_counter() - embedded)
    query = Query(kind="picture", key=upload.digest, name=upload.name)
    answer = _answer(service, query, hits, seconds)
    answer.decision = await service.index.call(lambda _: service.classes.decide(vector))
    answer.certainty = service.scale.read(kappa) if service.scale is not None else None
    return answer


async def by_id(service: Service, name: str, k: int, where: Sequence[str]) -> SearchAnswer:
    """Find the neighbours of a row of the index, itself left out.

    Raises:
        Refusal: 404, there is no such row.
    """
    conditions = read_where(where)
    started = time.perf_counter()
    row = await get_row(service, name)
    hits = await service.searching.submit(IndexQuery(row.vectors[0], k + 1, conditions))
    seconds = Seconds(index=time.perf_counter() - started)
    answer = _answer(service, Query(kind="id", key=name, name=""), without(hits, name, k), seconds)
    answer.decision = await service.index.call(lambda _: service.classes.decide(row.vectors[0]))
    answer.certainty = _certainty(service, row.meta[0])
    return answer


async def by_label(service: Service, text: str, k: int, where: Sequence[str]) -> SearchAnswer:
    """List rows whose label holds the words of a text; nothing is compared, so there are no scores."""
    conditions = read_where(where)
    started = time.perf_counter()
    labels = [label for label, _ in service.labels.find(text, LABELS_LISTED)]
    rows = await service.index.call(lambda index: _rows_of(index, labels, k, conditions))
    hits = [_hit(service, place, name, None, meta) for place, (name, meta) in enumerate(rows, 1)]
    return SearchAnswer(
        query=Query(kind="label", key=text, name=""),
        results=hits,
        missing=max(0, k - len(hits)),
        votes=votes_of(hits),
        decision=None,
        certainty=None,
        seconds=Seconds(index=time.perf_counter() - started),
    )


async def examples(service: Service) -> list[Hit]:
    """Return some rows to begin with; those that were removed meanwhile are left out."""
    items = await service.index.call(lambda index: index.get(service.examples))
    return [
        _hit(service, place, name, None, meta)
        for place, (name, meta) in enumerate(zip(items.ids, items.meta, strict=True), 1)
    ]


def _rows_of(index: Index, labels: Sequence[str], k: int, conditions: Sequence[Condition]) -> list[tuple[str, Meta]]:
    rows: list[tuple[str, Meta]] = []
    for label in labels:
        wanted = k - len(rows)
        if wanted <= 0:
            break
        for items in islice(index.scan(wanted, where=[Condition("label", "eq", label), *conditions]), 1):
            rows += zip(items.ids[:wanted], items.meta[:wanted], strict=True)
    return rows


async def get_row(service: Service, name: str) -> Items:
    """Return one row of the index.

    Raises:
        Refusal: 404, there is none.
    """
    items = await service.index.call(lambda index: index.get([name]))
    if not len(items):
        raise Refusal(404, "no_such_id", f"The index has no id {name[:80]!r}.")
    return items


def without(hits: Hits, name: str, k: int) -> Hits:
    """Leave out one id and return k of the others.

    Example:
        >>> hits = Hits(["a", "b", "c"], np.array([1, 0.5, 0], np.float32), [{}, {}, {}])
        >>> without(hits, "a", 2).ids, without(hits, "z", 2).ids, without(hits, "a", 5).missing
        (['b', 'c'], ['a', 'b'], 3)
    """
    kept = [row for row, one in enumerate(hits.ids) if one != name][:k]
    return Hits(
        [hits.ids[row] for row in kept], hits.scores[kept], [hits.meta[row] for row in kept], max(0, k - len(kept))
    )


def read_where(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Read filters as they are written on a command line.

    Raises:
        Refusal: 422, one is not understood.
    """
    if len(texts) > MOST_FILTERS:
        raise Refusal(422, "bad_filter", f"There are {len(texts)} filters; give at most {MOST_FILTERS}.")
    try:
        conditions = tuple(parse_where(texts))
    except SearchError as error:
        raise Refusal(422, "bad_filter", str(error)) from error
    for condition in conditions:
        value = condition.value
        if "\0" in f"{condition.field}{value}" or (isinstance(value, int | float) and not abs(value) < LARGEST):
            raise Refusal(422, "bad_filter", f"A filter on {condition.field[:40]!r} has a value that no index keeps.")
    return conditions


def item_of(service: Service, items: Items) -> Item:
    """Describe the first of some rows."""
    hit = _hit(service, 1, items.ids[0], None, items.meta[0])
    return Item(id=hit.id, label=hit.label, meta=hit.meta, picture=hit.picture)


def votes_of(hits: Sequence[Hit]) -> list[Vote]:
    """Count the labels among hits, the most frequent first and equal ones by their nearest."""
    counts = Counter(hit.label for hit in hits if hit.label is not None)
    return [Vote(label=label, count=count) for label, count in counts.most_common()]


def _answer(service: Service, query: Query, hits: Hits, seconds: Seconds) -> SearchAnswer:
    results = [
        _hit(service, place, name, _score(value), meta)
        for place, (name, value, meta) in enumerate(zip(hits.ids, hits.scores, hits.meta, strict=True), 1)
    ]
    return SearchAnswer(
        query=query,
        results=results,
        missing=hits.missing,
        votes=votes_of(results),
        decision=None,
        certainty=None,
        seconds=seconds,
    )


def _score(value: NDArray[np.float32]) -> float:
    return round(min(1.0, max(-1.0, float(value))), 6)


def _hit(service: Service, rank: int, name: str, score: float | None, meta: Meta) -> Hit:
    label = meta.get("label")
    return Hit(
        rank=rank,
        id=name,
        score=score,
        match=score >= service.classes.verify if score is not None and service.classes.verify is not None else None,
        label=None if label in (None, "") else str(label),
        meta=short_meta(meta, service.pictures.root),
        picture=f"/v1/picture?{urlencode({'id': name})}" if service.pictures.available else None,
        certainty=_certainty(service, meta),
    )


def _certainty(service: Service, meta: Meta) -> Certainty | None:
    """Read the length that `proxemics embed --kappa` wrote, where lengths mean certainty."""
    kappa = meta.get("kappa")
    if service.scale is None or not isinstance(kappa, float | int) or isinstance(kappa, bool):
        return None
    return service.scale.read(float(kappa))
