"""Rank statistics of every query in one pass over the score matrix, without storing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.exact import hide, rank_exactly
from proxemics.evaluation.inputs import row_chunks
from proxemics.evaluation.neighbours import NearestList
from proxemics.evaluation.positives import Forbidden, Positives, count_positives, find_positives
from proxemics.evaluation.scan import ALIVE, COUNTING, HARD, Scan
from proxemics.evaluation.screen import BFloat16Screen, Float32Screen, Screen, brain_is_fast
from proxemics.evaluation.space import Space
from proxemics.evaluation.tiles import padded

POSITIVES = 2**21  # positives kept at a time: 24 bytes each, and as much again while they are sorted
NEVER = 2**62  # a place beyond every gallery
PRECISIONS = ("auto", "bfloat16", "float32", "float64")
_SCREENS: dict[str, type[BFloat16Screen] | type[Float32Screen]] = {"bfloat16": BFloat16Screen, "float32": Float32Screen}


@dataclass(frozen=True)
class Request:
    """What the ranks are needed for.

    Attributes:
        ks: every k of Recall@k.
        depth: deepest place that another metric than Recall looks at; R + 1 is always covered.
        nearest: length of the neighbour lists.
        precision: first screen: ``auto``, ``bfloat16`` (not for Euclidean distance), ``float32``, or ``float64`` for
            none. Never changes a value.
        block: side of a tile; chosen when None. Never changes a value.
    """

    ks: tuple[int, ...]
    depth: int = 0
    nearest: int = 1
    precision: str = "auto"
    block: int | None = None


@dataclass(frozen=True)
class Ranks:
    """Places of the positives of each query; P positives in all, those of query q at ``[start[q], start[q + 1])``.

    Attributes:
        start: (Q + 1,) int64.
        index: (P,) int32 gallery rows of the positives, best first.
        score: (P,) float64 their scores.
        places: three (P,) int64 tensors of places counted from 1 - ties broken by gallery row, optimistic, pessimistic;
            right up to the horizon of the query, and larger than it where the true place is.
        first: three (Q,) int64 tensors, place of the first positive, on the same side of every k as the truth.
        near_items: (Q, k) int64 nearest gallery items of another class, -1 where there are fewer.
        near_scores: (Q, k) float64.
        rescored: queries that were finished in float64 throughout.
    """

    start: Tensor
    index: Tensor
    score: Tensor
    places: tuple[Tensor, Tensor, Tensor]
    first: tuple[Tensor, Tensor, Tensor]
    near_items: Tensor
    near_scores: Tensor
    rescored: int

    def same_reading(self, reading: int) -> bool:
        """Whether a reading of ties gives the places of the first reading."""
        return self.places[reading] is self.places[0] and torch.equal(self.first[reading], self.first[0])


def rank_chunks(
    space: Space, query: Tensor, gallery: Tensor, forbidden: Forbidden, request: Request
) -> Iterator[tuple[slice, Ranks]]:
    """Yield the ranks of all queries, in chunks whose positives fit in memory (all at once as a rule).

    Args:
        space: exact scores.
        query: (Q,) int64 class codes.
        gallery: (G,) int64 class codes.
        forbidden: pairs left out.
        request: what for.

    Raises:
        EvaluationError: unknown precision.
    """
    if request.precision not in PRECISIONS:
        raise EvaluationError(f"precision={request.precision!r}; use one of {', '.join(PRECISIONS)}.")
    counts = count_positives(query, gallery, forbidden)
    horizon = torch.clamp_min(counts + 1, max(request.depth, request.nearest, 1))
    whole = int(counts.sum()) <= POSITIVES
    mirrored = whole and space.same and forbidden.own and _symmetric(forbidden)
    precision = request.precision
    if precision == "auto":
        precision = "bfloat16" if whole and _brain_pays(space, horizon) else "float32"
    if precision == "bfloat16" and space.bias is not None:
        precision = "float32"  # that screen has no bias
    shared = Float32Screen(space) if precision == "float32" else None
    for rows in row_groups(counts, POSITIVES):
        positives = find_positives(space, query, gallery, forbidden, rows)
        task = _Task(space, positives, forbidden, rows.start, horizon[rows], request, mirrored)
        yield rows, task.run(precision, shared)


def row_groups(counts: Tensor, most: int) -> Iterator[slice]:
    """Split queries into runs with at most ``most`` positives together (or of one query).

    Example:
        >>> list(row_groups(torch.tensor([3, 3, 9, 1]), 6))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    total = counts.cumsum(0)
    start, done = 0, 0
    while start < len(counts):
        stop = max(start + 1, int(torch.searchsorted(total, done + most, right=True)))
        yield slice(start, stop)
        start, done = stop, int(total[stop - 1])


def _symmetric(forbidden: Forbidden) -> bool:
    width = int(max(forbidden.rows.max(), forbidden.cols.max())) + 1 if len(forbidden.rows) else 1
    there, back = forbidden.rows * width + forbidden.cols, forbidden.cols * width + forbidden.rows
    return torch.equal(there, back.sort().values)


def _brain_pays(space: Space, horizon: Tensor) -> bool:
    """Whether a coarse screen leaves little to do again: a large gallery, few places to fill, spread-out scores."""
    gallery = space.gallery.raw.shape[0]
    if space.bias is not None or space.query.raw.device.type != "cpu" or gallery < 2**14 or space.dim < 64:
        return False
    if float(horizon.double().mean()) > gallery / 1500 or not brain_is_fast():
        return False
    rows = torch.linspace(0, space.query.raw.shape[0] - 1, 64).long()
    spread = space.tile(rows, slice(0, 2048)).std(dim=1).median()
    return float(spread) > 0.02


@dataclass
class _Task:
    """One chunk of queries, and the steps to its ranks."""

    space: Space
    positives: Positives
    forbidden: Forbidden
    first: int
    horizon: Tensor
    request: Request
    mirrored: bool

    def run(self, precision: str, screen: Screen | None) -> Ranks:
        scan = self._scan(precision, screen)
        if scan is None:  # too much was too close for bfloat16
            scan = self._scan("float32", None)
        assert scan is not None
        unclear = scan.undecided(self.request.ks)
        if len(unclear):
            self._recount(scan, unclear)
        again = torch.nonzero(scan.state == HARD).flatten()
        if len(again):
            scan.nearest.forget(again)
            rank_exactly(
                self.space,
                self.positives,
                self.forbidden,
                again,
                first=self.first,
                slots=scan.slots,
                nearest=scan.nearest,
            )
            scan.state[again] = ALIVE
        return _summarise(scan, len(again))

    def _scan(self, precision: str, screen: Screen | None) -> Scan | None:
        queries, gallery = len(self.horizon), self.space.gallery.raw.shape[0]
        screen = (
            screen if screen is not None else _SCREENS["float32" if precision == "float64" else precision](self.space)
        )
        k = self.request.nearest
        counts, start = self.positives.counts, self.positives.start[:-1]
        floor = torch.full((queries,), -torch.inf, dtype=torch.float64, device=counts.device)
        enough = torch.nonzero(counts >= max(k, 1)).flatten()
        floor[enough] = self.positives.score[start[enough] + max(k, 1) - 1]
        scan = Scan(
            self.space,
            screen,
            self.positives,
            first=self.first,
            horizon=self.horizon,
            limit=max(self.request.ks, default=1),
            nearest=NearestList(queries, k, floor),
        )
        # Half the gallery matters to such a query: nothing is gained by screening.
        scan.state[self.horizon > (0 if precision == "float64" else gallery // 8)] = HARD
        tiles = _Tiles(self, scan, screen)
        for fresh in tiles.mirrored() if self.mirrored else tiles.plain():
            hard = int((scan.state == HARD).sum())
            if precision == "bfloat16" and (hard > queries // 50 or scan.rescored > (64 + 16 * k) * queries):
                return None
            if hard == queries or (not fresh and hard > queries // 2):
                scan.state[:] = HARD
                break
        return scan

    def _recount(self, scan: Scan, queries: Tensor) -> None:
        """Count again for the queries that the screen leaves open, now exactly."""
        screen = scan.screen
        for part in row_chunks(len(queries), 1024):
            some = queries[part]
            for columns in row_chunks(self.space.gallery.raw.shape[0], 2048):
                tile = torch.empty(len(some), columns.stop - columns.start, dtype=screen.dtype, device=queries.device)
                screen.tile(some + self.first, columns, tile)
                self.hide(tile, screen.lowest, some, columns)
                scan.recount(tile, some, columns.start)

    def hide(self, tile: Tensor, lowest: float, queries: Tensor, columns: slice) -> None:
        hide(
            tile,
            lowest,
            queries=queries,
            columns=columns,
            positives=self.positives,
            forbidden=self.forbidden,
            first=self.first,
        )


class _Tiles:
    """The order in which tiles are computed; yields whether queries still see their first tile."""

    def __init__(self, task: _Task, scan: Scan, screen: Screen) -> None:
        self._task, self._scan, self._screen = task, scan, screen
        self._queries, self._gallery = len(task.horizon), task.space.gallery.raw.shape[0]
        block = task.request.block or max(self._gallery // 6, 256)
        self._block = min(padded(block), 2048 if task.request.block is None else 2**14)
        size = padded(self._block) ** 2
        device = task.horizon.device
        self._buffer = torch.empty(size, dtype=screen.dtype, device=device)

    def mirrored(self) -> Iterator[bool]:
        blocks = list(row_chunks(self._queries, self._block))
        for block in blocks:
            self._feed(block, block, fresh=True)
        yield True
        for i, left in enumerate(blocks):
            for right in blocks[i + 1 :]:
                self._feed(left, right, both=True)
            yield False

    def plain(self) -> Iterator[bool]:
        for rows in row_chunks(self._queries, self._block):
            for columns in row_chunks(self._gallery, self._block):
                self._feed(rows, columns, fresh=columns.start == 0)
            yield True

    def _feed(self, rows: slice, columns: slice, *, fresh: bool = False, both: bool = False) -> None:
        r, c = rows.stop - rows.start, columns.stop - columns.start
        shape = padded(r), padded(c)
        tile = self._buffer[: shape[0] * shape[1]].view(shape)
        tile[r:], tile[:, c:] = self._screen.lowest, self._screen.lowest
        base = self._task.first
        self._screen.tile(slice(rows.start + base, rows.stop + base), columns, tile[:r, :c])
        queries = torch.arange(rows.start, rows.stop, device=tile.device)
        self._task.hide(tile[:r, :c], self._screen.lowest, queries, columns)
        self._scan.absorb(tile, rows=rows, column=columns.start, axis=1, fresh=fresh)
        if both:
            self._scan.absorb(tile, rows=columns, column=rows.start, axis=0, fresh=False)


def _summarise(scan: Scan, rescored: int) -> Ranks:
    start = scan.positives.start
    owner = torch.arange(len(start) - 1, device=start.device).repeat_interleave(scan.positives.counts)
    own = torch.arange(len(owner), device=start.device) - start[owner] + 1
    counting = scan.state == COUNTING
    found = torch.nonzero(scan.positives.counts > 0).flatten()
    places: list[Tensor] = []
    first: list[Tensor] = []
    readings = scan.slots.readings()
    for counts, before in zip(readings, (scan.row_before, scan.surely_before, scan.maybe_before), strict=True):
        if places and counts is readings[0]:
            place = places[0]
        else:
            total = torch.zeros(len(counts) + 1, dtype=torch.int64, device=start.device)
            torch.cumsum(counts, 0, out=total[1:])
            place = total[1:] - total[start[owner]] + own
            place[counting[owner]] = NEVER  # their slots were left half filled
        top = torch.full_like(start[1:], NEVER)
        top[found] = place[start[found]]
        places.append(place)
        first.append(torch.where(counting, before + 1, top))
    return Ranks(
        start,
        scan.positives.index,
        scan.positives.score,
        (places[0], places[1], places[2]),
        (first[0], first[1], first[2]),
        scan.nearest.items,
        scan.nearest.scores,
        rescored,
    )
