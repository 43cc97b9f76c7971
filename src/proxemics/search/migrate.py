"""Moving an index: to another back-end with the same vectors, or to another model with new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.build import Progress, rows_of_commit
from proxemics.search.index import Index
from proxemics.search.items import Hits, Items
from proxemics.search.manifest import ModelKey

Encode = Callable[[Sequence[Path]], NDArray[np.float32]]
"""``encode(paths) -> vectors (N, D)``."""

SAME_SCORE = 1e-4
"""Scores of two back-ends that differ by less count as equal."""
LEAST = 0.9
"""Share of the neighbours that must agree where one side is approximate."""


@dataclass(frozen=True)
class Parity:
    """How two indexes compare.

    Attributes:
        count: rows of the first.
        copied: rows of the second.
        sampled: rows that were searched for in both.
        agreement: share of their ten nearest rows that both return; rows of equal score may take each other's place.
        problems: sentences, empty when they are the same.
    """

    count: int
    copied: int
    sampled: int
    agreement: float
    problems: tuple[str, ...]


def refuse_strangers(source: Index, target: Index) -> None:
    """Make sure that a target is a copy that was begun, before anything is written into it.

    Raises:
        SearchError: the target holds a row that the source does not.
    """
    for items in _parts(target):
        strange = sorted(set(items.ids) - set(source.get(items.ids).ids))
        if strange:
            raise SearchError(
                f"{target.address} holds {strange[0]!r}, which {source.address} does not, so it is no copy that was "
                "begun, or the row was removed since; nothing was changed. Give another place, or remove the row."
            )


def copy_rows(source: Index, target: Index, *, progress: Progress | None = None) -> int:
    """Copy every row that the target does not have as it is, so that a stopped copy goes on where it was stopped.

    Args:
        source: where from.
        target: where to, of the same model; a row that differs there is replaced.
        progress: called with the rows of each part.

    Returns:
        How many rows are in the target of those of the source: all.

    Raises:
        SearchError: the target belongs to another model; the message names both.
    """
    target.manifest.check(source.manifest.key)
    count = 0
    for items in _parts(source):
        missing = _missing(items, target.get(items.ids))
        if missing:
            vectors, meta = items.vectors[missing], [items.meta[row] for row in missing]
            target.upsert(Items.make([items.ids[row] for row in missing], vectors, meta))
        count += len(items)
        if progress is not None:
            progress(len(items))
    target.compact()
    return count


def _missing(wanted: Items, there: Items) -> list[int]:
    """Rows of the first that the second does not have, or has otherwise."""
    places = {name: place for place, name in enumerate(there.ids)}
    found = []
    for row, name in enumerate(wanted.ids):
        place = places.get(name)
        if (
            place is None
            or there.meta[place] != wanted.meta[row]
            or float(np.abs(there.vectors[place] - wanted.vectors[row]).max()) > SAME_SCORE
        ):
            found.append(row)
    return found


def compare_indexes(source: Index, target: Index, *, sample: int = 100, seed: int = 0) -> Parity:
    """Compare counts, every row's id, metadata and vector, and the ten nearest rows of a sample.

    Args:
        source: one index.
        target: the other.
        sample: rows searched for.
        seed: of the sample.
    """
    problems: list[str] = []
    count, copied = source.count(), target.count()
    if count != copied:
        problems.append(f"{source.address} has {count} rows and {target.address} has {copied}.")
    vectors = _compare_rows(source, target, problems)
    chosen = np.random.default_rng(seed).choice(len(vectors), min(sample, len(vectors)), replace=False)
    agreement = 1.0
    if len(chosen):
        queries = vectors[np.sort(chosen)]
        agreement = _agreement(source.search(queries, 10), target.search(queries, 10))
    is_exact = source.manifest.kind == target.manifest.kind == "exact"
    if agreement < (1.0 if is_exact else LEAST):
        problems.append(f"Only {agreement:.1%} of the ten nearest rows of {len(chosen)} queries agree.")
    return Parity(count, copied, len(chosen), round(agreement, 4), tuple(problems))


def _compare_rows(source: Index, target: Index, problems: list[str]) -> NDArray[np.float32]:
    """Look at all rows side by side; returns the vectors that both have."""
    kept: list[NDArray[np.float32]] = []
    for one, other in zip(_singles(source), _singles(target), strict=False):
        (name, vector, meta), (its_name, its_vector, its_meta) = one, other
        if name != its_name:
            problems.append(f"Row {name!r} of {source.address} stands against {its_name!r} of {target.address}.")
            break
        if meta != its_meta:
            problems.append(f"The metadata of {name!r} differ: {meta} and {its_meta}.")
            break
        if float(np.abs(vector - its_vector).max()) > SAME_SCORE:
            problems.append(f"The vectors of {name!r} differ.")
            break
        kept.append(vector)
    return np.stack(kept) if kept else np.empty((0, source.manifest.key.dim), np.float32)


def _singles(index: Index) -> Iterator[tuple[str, NDArray[np.float32], object]]:
    return chain.from_iterable(zip(part.ids, part.vectors, part.meta, strict=True) for part in _parts(index))


def _parts(index: Index) -> Iterator[Items]:
    return index.scan(rows_of_commit(index.manifest.key.dim))


def _agreement(left: Sequence[Hits], right: Sequence[Hits]) -> float:
    shared = total = 0
    for one, other in zip(left, right, strict=True):
        last = float(one.scores[-1]) if len(one) else 0.0
        shared += sum(
            name in set(one.ids) or abs(float(score) - last) <= SAME_SCORE
            for name, score in zip(other.ids, other.scores, strict=True)
        )
        total += max(len(one), len(other))
    return shared / total if total else 1.0


@dataclass(frozen=True)
class ReindexPlan:
    """What a change of the model needs.

    Attributes:
        old: the model of the index.
        new: the model that will replace it.
        count: rows.
        found: rows whose picture is there.
        missing: at most ten ids of rows without.
    """

    old: ModelKey
    new: ModelKey
    count: int
    found: int
    missing: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Return the plan in words.

        Example:
            >>> key = ModelKey(model="a" * 64, dim=4)
            >>> ReindexPlan(key, key.model_copy(update={"model": "b" * 64}), 3, 2, ("x",)).sentences()[1]
            '2 of 3 rows have a picture that is there and would be embedded again.'
        """
        said = [
            f"From model {self.old.model[:12]} ({self.old.dim} numbers) to {self.new.model[:12]} ({self.new.dim}).",
            f"{self.found} of {self.count} rows have a picture that is there and would be embedded again.",
        ]
        if self.found < self.count:
            some = ", ".join(self.missing[:3])
            said.append(f"{self.count - self.found} rows have none and would be left out: {some} ...")
        if self.old == self.new:
            said.append("Both are the same model with the same preprocessing; there is nothing to do.")
        return said


def plan_reindex(index: Index, new: ModelKey, *, root: Path | None = None) -> ReindexPlan:
    """Look which rows of an index can be embedded again.

    Args:
        index: the old index.
        new: the new model.
        root: folder that holds the pictures now, by their ids or paths; None: the paths as they were stored.
    """
    found = 0
    missing: list[str] = []
    for items in index.scan():
        for place, name in zip(_places(items, root), items.ids, strict=True):
            if place is not None:
                found += 1
            elif len(missing) < 10:
                missing.append(name)
    return ReindexPlan(index.manifest.key, new, index.count(), found, tuple(missing))


def reindex(
    index: Index,
    target: Index,
    encode: Encode,
    *,
    root: Path | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> int:
    """Embed the pictures of an index again, into another one; ids and metadata stay.

    Rows that the new index has are not embedded again, so that what was stopped goes on.

    Args:
        index: the old index.
        target: an index of the new model.
        encode: the new model.
        root: see :func:`plan_reindex`.
        batch: pictures a call.
        progress: called with the rows of each batch.

    Returns:
        How many rows the new index has.

    Raises:
        SearchError: no row has a picture.
    """
    done = 0
    for items in index.scan(batch):
        there = set(target.get(items.ids).ids)
        done += len(there)
        places = [None if name in there else place for name, place in zip(items.ids, _places(items, root), strict=True)]
        rows = [row for row, place in enumerate(places) if place is not None]
        if rows:
            vectors = encode([place for place in places if place is not None])
            target.upsert(Items.make([items.ids[row] for row in rows], vectors, [items.meta[row] for row in rows]))
        done += len(rows)
        if progress is not None:
            progress(len(items))
    if not done:
        raise SearchError(f"No row of {index.address} has a picture that is there; name their folder with --root.")
    target.compact()
    return done


def _places(items: Items, root: Path | None) -> list[Path | None]:
    return [_place(name, meta.get("path"), root) for name, meta in zip(items.ids, items.meta, strict=True)]


def _place(name: str, path: object, root: Path | None) -> Path | None:
    options = [Path(path)] if isinstance(path, str) and path else []
    if root is not None:
        options = [root / name, *(root / one for one in options if not one.is_absolute())]
    return next((one for one in options if one.is_file()), None)
