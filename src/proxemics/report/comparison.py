"""Several runs side by side: the same queries with what each finds, the bias cards, and what differs in settings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json
from proxemics.report.compare_runs import Run, label_of
from proxemics.report.numbers import pick_rows
from proxemics.report.probe_card import CardRow, bias_card_part
from proxemics.report.queries import Neighbour, labels_by_path, neighbours_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 4
"""Runs whose pictures stand side by side; more would leave no room for them."""
_PICTURES = 6


@dataclass(frozen=True)
class Answer:
    """What one run finds for a query: average precision at R, and its nearest pictures."""

    precision: float
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class ComparedQuery:
    """A query with one answer a run, in the order of the runs."""

    path: str
    label: str
    domain: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class ComparedQueries:
    """The queries that are shown.

    Attributes:
        worst: lowest mean over the runs first.
        gained: those that some run finds much better than the first, largest gain first.
        lost: those that some run finds much worse.
        total: queries of the test split.
        has_domains: they are of more than one domain.
    """

    worst: tuple[ComparedQuery, ...]
    gained: tuple[ComparedQuery, ...]
    lost: tuple[ComparedQuery, ...]
    total: int
    has_domains: bool


@dataclass(frozen=True)
class CardLine:
    """A number of the bias card: one row a run (None where a run has none), and the places of the best values."""

    title: str
    better: str
    rows: tuple[CardRow | None, ...]
    best: frozenset[int]


@dataclass(frozen=True)
class CardBlock:
    """The numbers of one probe."""

    title: str
    hint: str
    lines: tuple[CardLine, ...]


def named_places(places: Sequence[str]) -> list[str]:
    """Call run folders that could not be told apart by the names of their folders.

    Args:
        places: folders, or ``NAME=FOLDER``.

    Returns:
        The same places, folders of run folders spread out; those of equal loss, methods, data and seed as
        ``NAME=FOLDER``.
    """
    spread = [one for place in places for one in _expanded(place)]
    keys = {place: key for place in spread if (key := _key(place)) is not None}
    often = Counter(keys.values())
    return [f"{Path(place).resolve().name}={place}" if often[keys.get(place, "")] > 1 else place for place in spread]


def _expanded(place: str) -> list[str]:
    """The run folders in a folder that is neither a run nor a sweep."""
    folder = Path(place)
    if (folder / "result.json").exists() or (folder / "cells.json").exists():
        return [place]
    return [str(one.parent) for one in sorted(folder.glob("*/result.json"))] or [place]


def _key(place: str) -> str | None:
    """What a run is called when it has no name; None for what has one or is no run folder."""
    try:
        row, _ = pick_rows(read_json(Path(place) / "result.json"))
        return f"{label_of(row)} {row['dataset']} {row['protocol']} {row['seed']}"
    except (ProxemicsError, KeyError, TypeError, OSError):
        return None


def columns_of(runs: Sequence[Run], baseline: str) -> list[Run]:
    """Return one run a variant, the baseline first, all on the baseline's data and seed.

    Args:
        runs: from :func:`proxemics.report.compare_runs.read_runs`.
        baseline: name of a variant.
    """
    first = next(run for run in runs if run.variant == baseline)
    chosen = {baseline: first}
    for run in runs:
        same = (run.dataset, run.protocol, run.seed) == (first.dataset, first.protocol, first.seed)
        if same and not run.untrained:
            chosen.setdefault(run.variant, run)
    return list(chosen.values())[:COLUMNS]


def compared_queries(runs: Sequence[Run], *, worst: int = 12, changed: int = 8) -> ComparedQueries | None:
    """Choose queries and look up what each run finds; None where the runs hold no neighbours.

    Args:
        runs: the columns, the baseline first; tested on the same pictures.
        worst: how many of the worst.
        changed: how many of those that gained and of those that lost most.
    """
    tables = [run.queries.assign(_key=run.query_paths).drop_duplicates("_key").set_index("_key") for run in runs]
    if any("average_precision" not in table.columns for table in tables):
        return None
    paths = tables[0].index
    values = np.stack([table["average_precision"].reindex(paths).to_numpy(np.float64) for table in tables], axis=1)
    known = ~np.isnan(values).any(axis=1)
    rows = np.flatnonzero(known)
    if not len(rows):
        return None
    labels = [_labels(run) for run in runs]

    def pick(order: NDArray[np.int64], count: int) -> tuple[ComparedQuery, ...]:
        return tuple(_query(tables, labels, values[row], str(paths[row])) for row in order[:count])

    sure = (
        -tables[0]["similarity"].to_numpy(np.float64)[rows]
        if "similarity" in tables[0].columns
        else np.zeros(len(rows))
    )
    low = rows[np.lexsort((sure, values[rows].mean(axis=1)))]  # the most confident mistake first among equals
    gain, loss = (values[rows, 1:] - values[rows, :1], values[rows, :1] - values[rows, 1:])
    gained = loss_order = np.zeros(0, np.int64)
    if values.shape[1] > 1:
        gained = _positive(rows, gain.max(axis=1))
        loss_order = _positive(rows, loss.max(axis=1))
    domains = tables[0]["domain"].nunique() if "domain" in tables[0].columns else 0
    return ComparedQueries(
        pick(low, worst), pick(gained, changed), pick(loss_order, changed), len(paths), bool(domains > 1)
    )


def _positive(rows: NDArray[np.int64], amount: NDArray[np.float64]) -> NDArray[np.int64]:
    order = np.argsort(-amount, kind="stable")
    kept: NDArray[np.int64] = rows[order[amount[order] > 0]]
    return kept


def _labels(run: Run) -> dict[str, str]:
    """Classes by the paths that neighbours are written with."""
    split, root = run.split, str(run.split.attrs.get("root", ""))
    places = (os.path.join(root, path) for path in split["path"])  # noqa: PTH118 - text is faster here
    return {**dict(zip(places, split["label"].astype(str), strict=True)), **labels_by_path(run.queries, None)}


def _query(
    tables: Sequence[pd.DataFrame], labels: Sequence[Mapping[str, str]], values: NDArray[np.float64], path: str
) -> ComparedQuery:
    rows = [{str(name): value for name, value in table.loc[path].to_dict().items()} for table in tables]
    first = rows[0]
    label = str(first["label"])
    answers = tuple(
        Answer(float(value), tuple(neighbours_of(row, label, known)[:_PICTURES]))
        for value, row, known in zip(values, rows, labels, strict=True)
    )
    domain = first.get("domain")
    return ComparedQuery(str(first["path"]), label, "" if domain is None or domain != domain else str(domain), answers)


def compared_cards(runs: Sequence[Run]) -> list[CardBlock]:
    """Put the bias cards of runs beside each other; empty when fewer than two runs have one.

    Args:
        runs: the columns.
    """
    cards = [bias_card_part(run.folder) for run in runs]
    if sum(card is not None for card in cards) < 2:
        return []
    blocks: dict[str, tuple[str, dict[str, None]]] = {}
    found: list[dict[str, CardRow]] = []
    for card in cards:
        own: dict[str, CardRow] = {}
        for group in card.groups if card else ():
            _, names = blocks.setdefault(group.title, (group.hint, {}))
            for row in group.rows:
                names[row.name] = None
                own[row.name] = row
        found.append(own)
    return [
        CardBlock(title, hint, tuple(_card_line([own.get(name) for own in found]) for name in names))
        for title, (hint, names) in blocks.items()
        if names
    ]


def _card_line(rows: Sequence[CardRow | None]) -> CardLine:
    about = next(row for row in rows if row is not None)
    numbers = {place: row.number for place, row in enumerate(rows) if row is not None and row.number is not None}
    best: frozenset[int] = frozenset()
    if about.better and len(numbers) > 1:
        top = max(numbers.values()) if about.better == "up" else min(numbers.values())
        if len(set(numbers.values())) > 1:
            best = frozenset(place for place, value in numbers.items() if value == top)
    return CardLine(about.title, about.better, tuple(rows), best)


def differing_settings(runs: Sequence[Run]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the settings that are not the same in all runs, with the value of each.

    Args:
        runs: the columns.
    """
    flat = [dict(_flatten(run.result.get("config") or {})) for run in runs]
    names = dict.fromkeys(name for one in flat for name in one)
    rows = [(name, tuple(one.get(name, "–") for one in flat)) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, one in value.items():
        name = f"{prefix}{key}"
        rows += _flatten(one, f"{name}.") if isinstance(one, Mapping) and one else [(name, _shown(one))]
    return rows


def _shown(value: Any) -> str:
    return "none" if value in (None, {}, []) else "yes" if value is True else "no" if value is False else str(value)
