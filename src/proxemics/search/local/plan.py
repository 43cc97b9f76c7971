"""How a search is done: by the graph where that pays, exactly otherwise; always complete."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxemics.search.local.database import GraphFacts
from proxemics.search.local.exact import Found, Names, ranked, rescore, rescore_lists, screened
from proxemics.search.local.graph import Graph
from proxemics.search.local.screens import CodeScreen, FloatScreen, Screen, codes_pay
from proxemics.search.local.snapshot import Snapshot

FEW = 2000
"""Up to so many rows are scanned: a scan of them is as fast as a graph, and exact."""
SPARE = 16
"""Rows more than needed that are asked of a graph where some of its answers will be dropped."""

_ROUNDING = 1e-6

Answer = tuple[Sequence[int], NDArray[np.float32]]
"""Slots and scores of one query, the best first."""


def nearest(
    snapshot: Snapshot,
    queries: NDArray[np.float32],
    k: int,
    *,
    matching: NDArray[np.int64] | None,
    names: Names,
    exact: bool = False,
) -> list[Answer]:
    """Find the k nearest rows of each query.

    Args:
        snapshot: what to search.
        queries: (Q, D) unit rows, at least one.
        k: rows a query.
        matching: (n,) rising slots that may come back; None: all that are not removed.
        names: gives the ids of slots, asked for where scores are equal.
        exact: do not use the graph.

    Returns:
        For each query min(k, rows that may come back) slots and scores.
    """
    allowed = snapshot.live if matching is None else len(matching)
    if allowed == 0:
        return [([], np.empty(0, np.float32)) for _ in queries]
    graph = None if exact else snapshot.graph
    fetch = 0 if graph is None else _fetch(snapshot, graph, k, matching)
    if graph is None or not fetch:
        return _listed(ranked(_exactly(snapshot, queries, k, matching), len(queries), k, names))
    return _by_graph(snapshot, graph, queries, k, fetch, matching, names)


def _fetch(snapshot: Snapshot, graph: Graph, k: int, matching: NDArray[np.int64] | None) -> int:
    """How many rows to ask of the graph; 0 where a scan is better."""
    covered = graph.facts.covered
    if matching is None:
        usable = covered - int(np.searchsorted(snapshot.dead, covered))
    else:
        usable = int(np.searchsorted(matching, covered))
    if usable <= max(FEW, covered // 20 if matching is not None else 0):
        return 0
    wanted = k if usable == covered else math.ceil(1.3 * k * covered / usable) + SPARE
    if graph.is_int8:
        wanted = max(wanted, 2 * k)
    return wanted if wanted <= max(covered // 4, FEW // 4) else 0


def _by_graph(
    snapshot: Snapshot,
    graph: Graph,
    queries: NDArray[np.float32],
    k: int,
    fetch: int,
    matching: NDArray[np.int64] | None,
    names: Names,
) -> list[Answer]:
    slots, scores = graph.search(queries, fetch)
    is_whole = matching is None and not len(snapshot.dead) and graph.facts.covered == snapshot.state.length
    if not is_whole or (slots[:, -1] < 0).any():
        return _complete(snapshot, graph, queries, k, slots, matching, names)
    candidates = slots
    if graph.is_int8:
        slots, scores = _ordered(slots, rescore_lists(snapshot.vectors, queries, slots))
    again = ~_settled(scores[:, : k + 1])
    if graph.facts.unreached:
        beside = queries @ snapshot.unreached.T
        again |= beside.max(axis=1) >= scores[:, k - 1] - _ROUNDING
    answers: list[Answer] = list(zip(slots[:, :k].tolist(), scores[:, :k], strict=True))
    places = np.flatnonzero(again)
    if places.size:
        better = _complete(snapshot, graph, queries[places], k, candidates[places], matching, names)
        for place, answer in zip(places, better, strict=True):
            answers[place] = answer
    return answers


def _ordered(slots: NDArray[np.int64], scores: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Sort every list by falling score."""
    rows, order = np.arange(len(slots))[:, None], np.argsort(-scores, axis=1)
    return slots[rows, order], scores[rows, order]


def _complete(
    snapshot: Snapshot,
    graph: Graph,
    queries: NDArray[np.float32],
    k: int,
    slots: NDArray[np.int64],
    matching: NDArray[np.int64] | None,
    names: Names,
) -> list[Answer]:
    """Add what the graph cannot find, drop what may not come back, and score and sort the rest anew."""
    covered = graph.facts.covered
    mask = None if matching is None and len(snapshot.dead) == 0 else _mask(snapshot, matching)
    good = slots >= 0 if mask is None else (slots >= 0) & mask[slots]
    usable = int(np.searchsorted(matching, covered)) if matching is not None else covered
    usable -= int(np.searchsorted(snapshot.dead, covered)) if matching is None else 0
    short = np.flatnonzero(good.sum(axis=1) < min(k, usable))
    good[short] = False
    query, place = np.nonzero(good & ~np.isin(slots, graph.facts.unreached))
    parts = [_scored(snapshot, queries, query, slots[query, place])]
    beside = _beside(snapshot, graph.facts, matching, mask)
    if beside.size:
        parts.append(_exactly(snapshot, queries, k, beside))
    found = _without(parts, short)
    if short.size:
        inner, slot, score = _exactly(snapshot, queries[short], k, matching)
        found.append((short[inner], slot, score))
    joined = tuple(np.concatenate(part) for part in zip(*found, strict=True))
    return _listed(ranked((joined[0], joined[1], joined[2]), len(queries), k, names))


def _settled(scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell which lists fall throughout: no two neighbours are equal, so that ids need not decide."""
    falls: NDArray[np.bool_] = np.all(scores[:, 1:] < scores[:, :-1], axis=1)
    return falls


def _scored(
    snapshot: Snapshot, queries: NDArray[np.float32], query: NDArray[np.int64], slots: NDArray[np.int64]
) -> Found:
    return query, slots, rescore(snapshot.vectors, queries, query, slots)


def _mask(snapshot: Snapshot, matching: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    mask = np.full(snapshot.state.length, matching is None)
    if matching is None:
        mask[snapshot.dead] = False
    else:
        mask[matching] = True
    return mask


def _beside(
    snapshot: Snapshot, facts: GraphFacts, matching: NDArray[np.int64] | None, mask: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Rising slots that the graph does not hold, or holds and never comes to."""
    lost = np.array(facts.unreached, np.int64)
    lost = lost if mask is None else lost[mask[lost]]
    if matching is not None:
        return np.concatenate([lost, matching[np.searchsorted(matching, facts.covered) :]])
    gone = snapshot.dead[np.searchsorted(snapshot.dead, facts.covered) :]
    late = np.arange(facts.covered, snapshot.state.length)
    return np.concatenate([lost, np.setdiff1d(late, gone, assume_unique=True)])


def _without(parts: list[Found], dropped: NDArray[np.int64]) -> list[Found]:
    if not dropped.size:
        return parts
    kept = []
    for query, slot, score in parts:
        stays = ~np.isin(query, dropped)
        kept.append((query[stays], slot[stays], score[stays]))
    return kept


def _exactly(snapshot: Snapshot, queries: NDArray[np.float32], k: int, matching: NDArray[np.int64] | None) -> Found:
    """Score every pair that may be among the exact k nearest."""
    length = snapshot.state.length
    slots = matching
    if slots is None and 2 * len(snapshot.dead) > length:
        slots = np.setdiff1d(np.arange(length), snapshot.dead, assume_unique=True)
    if slots is not None and 2 * len(slots) < length:
        query, column = screened(FloatScreen(snapshot.vectors, queries, slots), k, np.empty(0, np.int64))
        return _scored(snapshot, queries, query, slots[column])
    hidden = snapshot.dead if slots is None else np.setdiff1d(np.arange(length), slots, assume_unique=True)
    query, column = screened(_screen(snapshot, queries), k, hidden)
    return _scored(snapshot, queries, query, column)


def _screen(snapshot: Snapshot, queries: NDArray[np.float32]) -> Screen:
    if snapshot.codes is not None and snapshot.scales is not None and codes_pay():
        return CodeScreen(snapshot.codes, snapshot.scales, queries)
    return FloatScreen(snapshot.vectors, queries)


def _listed(answers: list[tuple[NDArray[np.int64], NDArray[np.float32]]]) -> list[Answer]:
    return [(slots.tolist(), scores) for slots, scores in answers]
