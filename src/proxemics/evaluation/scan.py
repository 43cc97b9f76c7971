"""The state of a set of queries while tiles of scores go by: how many foreign items stand before each positive.

Little is kept, because no metric needs a sorted gallery. Let a query have R positives, best first, and let its
*horizon* h be the deepest place that any metric looks at (R + 1, or more on request). A *slot* s counts the foreign
items that stand behind s positives and before the next, so that the a-th positive stands at place a + (slots 0..a-1).

* While some positive can still stand within h, foreign items above the last such positive are extracted from each tile
  and put in their slots. There are few of them: the threshold rises as the slots fill.
* When no positive can, Recall@k with k > h still needs the place of the first positive, for which a count above its
  score is enough. It is counted twice, at the score plus and minus the error bound of the screen, which proves the
  outcome unless some k lies between the two counts.
* Extracted items whose screened score is too near a positive are scored again, more finely; the rest is proven.
* Queries with implausibly many items near their threshold (collapsed embeddings, masses of duplicates) are given up
  here and marked *hard*: :mod:`proxemics.evaluation.exact` ranks them in float64 from the start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.evaluation.neighbours import NearestList
from proxemics.evaluation.positives import Positives
from proxemics.evaluation.screen import Screen
from proxemics.evaluation.space import Space
from proxemics.evaluation.tiles import GROUPS, count_above, extract_above, group_peaks, nth_largest, padded

ALIVE, COUNTING, LONE, HARD = 0, 1, 2, 3
_UNKNOWN = 2**40
_CLOSE = 256  # undecided items a query and tile beyond which float64 throughout is cheaper


class Slots:
    """Foreign items before and between the positives of each query, in three readings of a tie.

    Args:
        positives: what the slots lie between.
    """

    def __init__(self, positives: Positives) -> None:
        self.positives = positives
        # Optimistic reading: a foreign item stands behind every positive that it ties with.
        self.counts = torch.zeros(len(positives.score), dtype=torch.int32, device=positives.score.device)
        # What the other two readings add to that: ties by gallery row, and before every positive. None without ties.
        self._by_row: Tensor | None = None
        self._before: Tensor | None = None
        # Foreign items that tie with the best positive.
        self.tied_first = torch.zeros_like(positives.start[1:])

    def place(self, rows: Tensor, items: Tensor, scores: Tensor, tie: float) -> None:
        """Put foreign items with exact scores in their slots.

        Args:
            rows: (n,) query rows.
            items: (n,) gallery rows.
            scores: (n,) float64 exact scores.
            tie: scores this close are equal.
        """
        start, end = self.positives.start[rows], self.positives.start[rows + 1]
        low = start + self._behind(rows, scores + tie)
        high = start + self._behind(rows, scores - tie, reach=True)
        middle = lower_bound(self.positives.index, items, low, high)
        self.add(high[high < end])
        moved = torch.nonzero(low < high).flatten()
        if len(moved):
            high_in = moved[high[moved] < end[moved]]
            by_row, before = self.shifts()
            for shift, target in ((by_row, middle), (before, low)):
                target_in = moved[target[moved] < end[moved]]
                shift.index_add_(0, high[high_in], torch.full_like(high_in, -1, dtype=torch.int32))
                shift.index_add_(0, target[target_in], torch.ones_like(target_in, dtype=torch.int32))
            top = rows[moved[low[moved] == start[moved]]]
            self.tied_first.index_add_(0, top, torch.ones_like(top))

    def add(self, places: Tensor) -> None:
        """Count items by flat optimistic slot (n,) int64."""
        self.counts.index_add_(0, places, torch.ones(len(places), dtype=torch.int32, device=places.device))

    def shifts(self) -> tuple[Tensor, Tensor]:
        """Return what ties by gallery row, and the pessimistic reading, add to the counts: (P,) int32, to change."""
        if self._by_row is None or self._before is None:
            self._by_row, self._before = torch.zeros_like(self.counts), torch.zeros_like(self.counts)
        return self._by_row, self._before

    def readings(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return slot counts (P,) int32: ties broken by gallery row, optimistic, pessimistic."""
        if self._by_row is None or self._before is None:
            return self.counts, self.counts, self.counts
        return self.counts + self._by_row, self.counts, self.counts + self._before

    def forget(self, rows: Tensor) -> None:
        """Empty the slots of some queries."""
        gone = torch.zeros_like(self.tied_first, dtype=torch.bool)
        gone[rows] = True
        self.tied_first[rows] = 0
        flat = gone.repeat_interleave(self.positives.counts)
        for counts in (self.counts, self._by_row, self._before):
            if counts is not None:
                counts[flat] = 0

    def _behind(self, rows: Tensor, scores: Tensor, reach: bool = False) -> Tensor:
        """Number of positives above ``scores`` (or, with ``reach``, at or above)."""
        low, high = self.positives.start[rows].clone(), self.positives.start[rows + 1].clone()
        begin = low.clone()
        while True:
            open_ = low < high
            if not bool(open_.any()):
                return low - begin
            middle = (low + high) // 2
            value = self.positives.score[middle.clamp_max(len(self.positives.score) - 1)]
            ahead = (value >= scores if reach else value > scores) & open_
            low, high = torch.where(ahead, middle + 1, low), torch.where(open_ & ~ahead, middle, high)


def lower_bound(values: Tensor, wanted: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """First place in each sorted run values[low:high] whose value is not below ``wanted``."""
    low, high = low.clone(), high.clone()
    while True:
        open_ = low < high
        if not bool(open_.any()):
            return low
        middle = (low + high) // 2
        ahead = (values[middle.clamp_max(len(values) - 1)] < wanted) & open_
        low, high = torch.where(ahead, middle + 1, low), torch.where(open_ & ~ahead, middle, high)


class Scan:
    """See the module text.

    Args:
        space: exact scores.
        screen: fast scores with bounds.
        positives: of the queries ``first .. first + Q``.
        first: row in the space of the scan's query 0.
        horizon: (Q,) int64, at least ``nearest.k``.
        limit: largest k of Recall@k.
        nearest: lists to keep.
    """

    def __init__(
        self,
        space: Space,
        screen: Screen,
        positives: Positives,
        *,
        first: int,
        horizon: Tensor,
        limit: int,
        nearest: NearestList,
    ) -> None:
        self.space, self.screen, self.positives, self.first = space, screen, positives, first
        self.horizon, self.limit, self.nearest = horizon, limit, nearest
        self.slots = Slots(positives)
        counts, start = positives.counts, positives.start[:-1]
        lone = counts == 0
        self.rescored = 0
        self.state = torch.where(lone, LONE, ALIVE)
        self._eps = screen.eps[first : first + len(counts)]
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        self._owner = owner.int()
        place = torch.arange(len(owner), device=counts.device) - start[owner] + 1
        self._room = (horizon[owner] - place).int()
        # One rising sequence for all queries: 8 apart, scores within 1.5 of zero.
        edge = torch.full((1,), torch.inf, dtype=torch.float64, device=counts.device)
        self._key = torch.cat([-edge, owner * 8.0 - positives.score, edge])
        inf = torch.full((len(counts),), torch.inf, dtype=torch.float64, device=counts.device)
        self._best, self._last = inf.clone(), inf.clone()
        self._best[~lone] = positives.score[start[~lone]]
        self._last[~lone] = positives.score[positives.start[1:][~lone] - 1]
        self._surely = screen.beyond(self._best + self._eps)
        self._maybe, known = screen.reach(self._best - self._eps)
        self.surely_before = torch.zeros_like(counts)
        self.maybe_before = torch.where(known, 0, _UNKNOWN)
        self.row_before = torch.zeros_like(counts)  # ties broken by gallery row; filled by recount
        self._refresh(slice(0, len(counts)))

    def absorb(self, tile: Tensor, *, rows: slice, column: int, axis: int, fresh: bool) -> None:
        """Take in the scores of some queries against some foreign gallery items.

        Args:
            tile: codes, with the positives, the query itself and forbidden pairs at the lowest code.
            rows: queries of the scan that the tile holds.
            column: gallery row of the tile's first item.
            axis: 1 when queries are the rows of the tile, 0 when they are its columns.
            fresh: whether these queries see their first tile, so that their thresholds are still low.
        """
        count = rows.stop - rows.start
        open_ = (self.state[rows] == COUNTING) & (self.surely_before[rows] < self.limit)
        counted = fresh or bool(open_.any())
        if counted:
            self._count(tile, rows, axis)
        sparse = float(self.horizon[rows].double().mean()) < GROUPS / 4
        peaks = group_peaks(tile, axis) if sparse else None
        bound = self._threshold(rows)
        if fresh:
            bound = torch.maximum(bound, self._floor(tile, peaks, rows, axis))
        most = 4 * self.horizon[rows] + GROUPS
        for last in (False, True):
            limits, known = self._limits(rows, bound)
            query, item, code = extract_above(tile, peaks, limits, axis)
            over = (torch.bincount(query, minlength=count) > most) | ~known
            if last or not bool(over.any()):
                break
            if not counted:  # a floor may hide items above the best positive, so they are counted first
                self._count(tile, rows, axis)
            bound = torch.maximum(bound, self._floor(tile, peaks, rows, axis))
        if bool(over.any()):
            self.state[rows.start + torch.nonzero(over).flatten()] = HARD
            kept = ~over[query]
            query, item, code = query[kept], item[kept], code[kept]
        if len(query):
            self._take(rows.start + query, column + item, code, rows)
            self._refresh(rows)

    def recount(self, tile: Tensor, queries: Tensor, column: int) -> None:
        """Count one tile again for some of the :meth:`undecided` queries, now exactly.

        Args:
            tile: (n, c) codes with everything but foreign items at the lowest code.
            queries: (n,) int64 queries of the rows.
            column: gallery row of the tile's first item.
        """
        row, col, code = extract_above(tile, None, self._maybe[queries], 1)
        sure = code > self._surely[queries][row]
        close = ~sure
        swamped = torch.bincount(row[close], minlength=len(queries)) > _CLOSE
        self.state[queries[swamped]] = HARD
        counts = torch.bincount(row[sure], minlength=len(queries))
        close &= ~swamped[row]
        query, item = queries[row[close]], col[close] + column
        for precision, error in self._scorers():
            score = self.space.pairs(query + self.first, item, precision) - self._best[query]
            ahead = score > error
            open_ = score.abs() <= error
            for total in (self.surely_before, self.maybe_before, self.row_before):
                total.index_add_(0, query, ahead.long())
            query, item = query[open_], item[open_]
        # What is left ties with the best positive.
        first = self.positives.index[self.positives.start[query]]
        self.maybe_before.index_add_(0, query, torch.ones_like(query))
        self.row_before.index_add_(0, query, (item < first).long())
        for total in (self.surely_before, self.maybe_before, self.row_before):
            total[queries] += counts

    def _scorers(self) -> list[tuple[torch.dtype, float]]:
        """Ever finer ways to score pairs again, with their errors; single precision where that is finer at all."""
        single = (torch.float32, self.space.rough + self.space.tie)
        double = (torch.float64, self.space.tie)
        return [single, double] if self.space.rough < self.screen.coarse else [double]

    def undecided(self, ks: tuple[int, ...]) -> Tensor:
        """End the scan: queries (n,) whose Recall at some k the counts leave open; their counts start again at 0."""
        unclear = torch.zeros_like(self.state, dtype=torch.bool)
        for k in ks:
            unclear |= (self.surely_before < k) & (self.maybe_before >= k)
        unclear &= self.state == COUNTING
        self.state[unclear & (self.maybe_before >= _UNKNOWN)] = HARD
        unclear &= self.state == COUNTING
        for total in (self.surely_before, self.maybe_before, self.row_before):
            # Where every k is decided, the lower count stands for all readings.
            total.copy_(torch.where(unclear, 0, self.surely_before))
        return torch.nonzero(unclear).flatten()

    def _count(self, tile: Tensor, rows: slice, axis: int) -> None:
        """Count above the best positive, and stop placing when the horizon is full before it."""
        state, sure = self.state[rows], self.surely_before[rows]
        running = (state <= COUNTING) & (sure < self.limit)
        if not bool(running.any()):
            return
        limits = self._pad(self._surely[rows], tile, axis), self._pad(self._maybe[rows], tile, axis)
        low, high = (counts[: len(state)] for counts in count_above(tile, limits, axis))
        counting = running & (state == COUNTING)
        self.surely_before[rows] += torch.where(counting, low, 0)
        self.maybe_before[rows] += torch.where(counting, high, 0)
        alive = torch.nonzero(state == ALIVE).flatten()
        placed = self.slots.counts[self.positives.start[rows][alive]]
        leaving = alive[placed + low[alive] >= self.horizon[rows][alive]]
        self._leave(rows.start + leaving)
        self.surely_before[rows.start + leaving] += low[leaving]
        self.maybe_before[rows.start + leaving] += high[leaving]

    def _leave(self, rows: Tensor) -> None:
        self.state[rows] = COUNTING
        placed = self.slots.counts[self.positives.start[rows]]
        self.surely_before[rows] += placed
        self.maybe_before[rows] += placed + self.slots.tied_first[rows]

    def _threshold(self, rows: slice) -> Tensor:
        """Exact score below which an item matters neither for a slot nor for the lists."""
        last = torch.where(self.state[rows] == ALIVE, self._last[rows], torch.inf)
        bound = torch.minimum(last, self.nearest.bound(rows))
        return torch.where(self.state[rows] == HARD, torch.inf, bound)

    def _limits(self, rows: slice, bound: Tensor) -> tuple[Tensor, Tensor]:
        """Codes for extraction, padded to the tile, and which queries have one."""
        codes, known = self.screen.reach(bound - self._eps[rows])
        never = torch.iinfo(torch.int16).max if codes.dtype == torch.int16 else torch.inf
        out = torch.full((padded(len(codes)),), never, dtype=codes.dtype, device=codes.device)
        out[: len(codes)] = torch.where(known, codes, torch.full_like(codes, never))
        return out, known

    def _floor(self, tile: Tensor, peaks: Tensor | None, rows: slice, axis: int) -> Tensor:
        """Scores that as many items of this tile reach as the horizon (or the list) has places."""
        rank = torch.where(self.state[rows] == ALIVE, self.horizon[rows], max(self.nearest.k, 1))
        view = tile if axis == 1 else tile.T
        if peaks is not None and int(rank.max()) <= GROUPS // 2:
            view = peaks  # the largest of the groups are items too, and fewer
        code = nth_largest(view[: len(rank)], rank)
        value = self.screen.values(code)
        known = code >= 0 if code.dtype == torch.int16 else code > -torch.inf
        floor = value - self._eps[rows] - self.screen.slack(value)
        return torch.where(known & (self.state[rows] != HARD), floor, -torch.inf)

    def _take(self, query: Tensor, item: Tensor, code: Tensor, rows: slice) -> None:
        """Put extracted items in slots and lists; score again what the screen cannot decide."""
        value = self.screen.values(code)
        error = float(self._eps[rows].max()) + self.screen.slack(value)
        bound = self.nearest.bound(rows)[query - rows.start]
        alive = self.state[query] == ALIVE
        for scorer in (None, *self._scorers()[:-1]):
            if scorer is not None:
                value, error = self.space.pairs(query + self.first, item, scorer[0]), scorer[1]
            alive = self._settle(query, value, error, alive, rows)
            near = value + error >= bound
            again = torch.nonzero(alive | near).flatten()
            if len(again) == 0:
                return
            query, item, near, alive, bound = query[again], item[again], near[again], alive[again], bound[again]
            error = error[again] if isinstance(error, Tensor) else error
            self.rescored += len(again)
        score = self.space.pairs(query + self.first, item)
        self.nearest.offer(query[near], item[near], score[near])
        close = torch.nonzero(self._settle(query, score, 2.0**-30, alive, rows)).flatten()
        if len(close):
            self.slots.place(query[close], item[close], score[close], self.space.tie)

    def _settle(self, query: Tensor, value: Tensor, error: Tensor | float, alive: Tensor, rows: slice) -> Tensor:
        """Place items whose score leaves no doubt about their slot; returns those (n,) that it leaves in doubt."""
        begin, end = int(self.positives.start[rows.start]), int(self.positives.start[rows.stop])
        if begin == end:
            return torch.zeros_like(query, dtype=torch.bool)
        key = query * 8.0 - value
        margin = error + rows.stop * 2.0**-48  # the keys are rounded too
        place = torch.searchsorted(self._key[begin + 1 : end + 1], key).add_(begin)
        behind = self._key[place + 1] - key
        decided: Tensor = (key - self._key[place] > margin) & (behind > margin) & alive
        self.slots.add(place[decided & (behind < 4)])
        doubtful: Tensor = alive & ~decided
        return doubtful

    def _refresh(self, rows: slice) -> None:
        """Find the last positive of each query that can still stand within the horizon."""
        start = self.positives.start
        begin, end = int(start[rows.start]), int(start[rows.stop])
        if begin == end:
            return
        filled = torch.zeros(end - begin + 1, dtype=torch.int32, device=start.device)
        torch.cumsum(self.slots.counts[begin:end], 0, out=filled[1:])
        before = filled[start[rows] - begin]
        fits = filled[1:] - before[self._owner[begin:end].long() - rows.start] <= self._room[begin:end]
        total = torch.zeros_like(filled)
        torch.cumsum(fits, 0, out=total[1:])
        left = total[start[rows.start + 1 : rows.stop + 1] - begin] - total[start[rows] - begin]
        some = left > 0
        last = self.positives.score[(start[rows] + left - 1).clamp_min(0)]
        self._last[rows] = torch.where(some, last, torch.inf)
        self._leave(rows.start + torch.nonzero(~some & (self.state[rows] == ALIVE)).flatten())

    def _pad(self, codes: Tensor, tile: Tensor, axis: int) -> Tensor:
        out = torch.full((tile.shape[1 - axis],), self.screen.lowest, dtype=tile.dtype, device=tile.device)
        out[: len(codes)] = codes
        return out
