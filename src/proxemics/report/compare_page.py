"""The page of several runs: numbers with paired differences, the same queries in columns, bias cards and settings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxemics.core.errors import ConfigError
from proxemics.core.files import write_text
from proxemics.report.compare import METRICS, Comparison, Entry, Part, compare
from proxemics.report.compare_runs import Run, read_runs
from proxemics.report.compare_text import best_lines, caption, difference_text, p_text, title, value_text
from proxemics.report.comparison import (
    COLUMNS,
    ComparedQueries,
    ComparedQuery,
    columns_of,
    compared_cards,
    compared_queries,
    differing_settings,
    named_places,
)
from proxemics.report.environment import make_environment, plain_text
from proxemics.report.explain import explain
from proxemics.report.page import common_root
from proxemics.report.thumbnails import Key, Thumbnails
from proxemics.report.write import page_values

QUERY_SIDE, NEIGHBOUR_SIDE = 144, 96
_MIDDLE, _REACH = 60, 52  # of the drawing of a difference


@dataclass(frozen=True)
class Cell:
    """One metric of one variant, as text.

    Attributes:
        value: mean and deviation.
        best: the best of the part.
        difference: with its interval and mark; empty for the baseline.
        kind: ``gain`` or ``loss`` where the difference is sure, else empty.
        p: after correction.
        plot: x of the lower end, the difference and the upper end, or None.
    """

    value: str
    best: bool
    difference: str
    kind: str
    p: str
    plot: tuple[float, float, float] | None


@dataclass(frozen=True)
class CellLine:
    """A variant: its name, whether the others are compared with it, its number of seeds, and a cell a metric."""

    variant: str
    baseline: bool
    seeds: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class CellTable:
    """A data set under a protocol: its lines, and for each metric what the ends of the drawn scale are."""

    title: str
    lines: tuple[CellLine, ...]
    scales: tuple[str, ...]


def write_comparison(
    runs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
    resamples: int | None = None,
    seed: int = 0,
    picture_bytes: int = 8_000_000,
) -> Path:
    """Write one page that shows several finished runs side by side.

    Args:
        runs: run folders, sweep folders, or ``NAME=FOLDER``. Runs that would have the same name are called by their
            folders.
        out: where to write; default: ``comparison.html`` beside the first folder.
        baseline: the variant that the others are compared with; default: the first.
        metrics: names as in ``result.json``; default: recall_at_1 and map_at_r, as far as the runs have them.
        resamples: of the bootstrap; default: 2000 or more.
        seed: of the bootstrap.
        picture_bytes: largest sum of encoded thumbnails.

    Returns:
        The path of the page.

    Raises:
        ConfigError: fewer than two runs, or an unknown baseline or metric.
        DataError: a folder holds no finished run.
        EvaluationError: the runs were tested on different pictures.
        ProxemicsError: jinja2 is not installed, or the file cannot be written.
    """
    environment = make_environment()
    places = [str(place) for place in runs]
    if not places:
        raise ConfigError("No runs to show; give run folders.")
    found_runs = read_runs(named_places(places))
    if len(found_runs) < 2:
        raise ConfigError(f"{places[0]} holds one run; give two or more to compare, or use `proxemics report` with it.")
    known = {name for run in found_runs for name in run.row["metrics"]}
    chosen = list(metrics or [name for name in METRICS if name in known] or sorted(known)[:2])
    found = compare(found_runs, baseline=baseline, metrics=chosen, resamples=resamples, seed=seed)
    columns = columns_of(found_runs, found.baseline)
    thumbnails = Thumbnails(budget=picture_bytes)
    queries = compared_queries(columns)
    thumbnails.prepare(_wanted(queries))
    names = list(dict.fromkeys(run.variant for run in found_runs))
    target = Path(out) if out is not None else Path(places[0].partition("=")[2] or places[0]).parent / "comparison.html"
    html = environment.get_template("comparison.html").render(
        title=", ".join(dict.fromkeys(part.dataset for part in found.parts)),
        names=names,
        num_runs=len(found_runs),
        found=found,
        parts=[cell_table(found, part) for part in found.parts],
        notes=caption(found),
        verdicts=verdicts(found),
        columns=columns,
        left_out=left_out(names, columns),
        queries_part=queries,
        cards=compared_cards(columns),
        settings=differing_settings(columns),
        root=common_root([one.path for one in _all(queries)]),
        command=shlex.join(["proxemics", "report", *places, "--out", str(target)]),
        folders=[(run.variant, run.folder) for run in found_runs],
        thumbnails=thumbnails,
        query_side=QUERY_SIDE,
        neighbour_side=NEIGHBOUR_SIDE,
        **page_values(),
    )
    write_text(target, plain_text(html))
    return target


def left_out(names: Sequence[str], columns: Sequence[Run]) -> str:
    """Say which variants have no column among the queries, and why.

    Args:
        names: of all variants.
        columns: from :func:`proxemics.report.comparison.columns_of`.
    """
    absent = [name for name in names if name not in {run.variant for run in columns}]
    if not absent:
        return ""
    if len(columns) == COLUMNS:
        return f"Only {COLUMNS} variants are shown."
    first = columns[0]
    return (
        f"Not shown: {', '.join(absent)}, without a run on {first.dataset} with the seed {first.seed} of "
        f"{first.variant}."
    )


def _all(queries: ComparedQueries | None) -> list[ComparedQuery]:
    return [*queries.worst, *queries.gained, *queries.lost] if queries else []


def _wanted(queries: ComparedQueries | None) -> Iterator[Key]:
    for query in _all(queries):
        yield query.path, QUERY_SIDE
    for query in _all(queries):
        for answer in query.answers:
            for one in answer.neighbours:
                yield one.path, NEIGHBOUR_SIDE


def cell_table(found: Comparison, part: Part) -> CellTable:
    """Return the text and the drawing of every cell of a part.

    Args:
        found: the comparison.
        part: one of its parts.
    """
    best = [best_lines(part, column, metric) for column, metric in enumerate(found.metrics)]
    reaches = [_reach([line.entries[column] for line in part.lines]) for column in range(len(found.metrics))]
    lines = tuple(
        CellLine(
            line.variant,
            line.variant == found.baseline,
            len(line.seeds),
            tuple(
                _cell(entry, metric, row in best[column], reaches[column])
                for column, (metric, entry) in enumerate(zip(found.metrics, line.entries, strict=True))
            ),
        )
        for row, line in enumerate(part.lines)
    )
    return CellTable(
        title(part), lines, tuple(_scale(reach, metric) for reach, metric in zip(reaches, found.metrics, strict=True))
    )


def _reach(entries: Sequence[Entry]) -> float:
    ends = [
        abs(value)
        for entry in entries
        if entry.difference is not None
        for value in (
            entry.difference.estimate.low,
            entry.difference.estimate.high,
            entry.difference.estimate.difference,
        )
        if math.isfinite(value)
    ]
    return max(ends, default=0.0)


def _scale(reach: float, metric: str) -> str:
    if reach == 0:
        return ""
    shown = f"{100 * reach:.1f}" if explain(metric).share else f"{reach:.3g}"
    return f"\u2212{shown} to +{shown}"


def _cell(entry: Entry, metric: str, best: bool, reach: float) -> Cell:
    kind, plot = "", None
    if entry.difference is not None:
        estimate = entry.difference.estimate
        if entry.difference.significant:
            kind = "gain" if (estimate.difference > 0) == (explain(metric).better == "up") else "loss"
        if reach > 0 and math.isfinite(estimate.low):
            low, middle, high = (
                round(_MIDDLE + _REACH * value / reach, 1)
                for value in (estimate.low, estimate.difference, estimate.high)
            )
            plot = (low, middle, high)
    return Cell(
        value_text(entry, metric, 1),
        best,
        difference_text(entry, metric, 1).replace("-", "\u2212"),
        kind,
        p_text(entry),
        plot,
    )


def verdicts(found: Comparison) -> list[str]:
    """Say of each variant in one sentence whether it differs from the baseline, for the first metric.

    Args:
        found: the comparison.
    """
    metric = found.metrics[0]
    about, sentences = explain(metric), []
    for part in found.parts:
        where = f" on {part.dataset}" if len(found.parts) > 1 else ""
        for line in part.lines:
            difference = line.entries[0].difference
            if difference is None:
                continue
            amount = difference.estimate.difference * (100 if about.share else 1)
            points = " points" if about.share else ""
            sure = "" if difference.significant else ", which may be chance"
            if amount == 0:
                sentences.append(f"{line.variant} has the same {about.title}{where}.")
            else:
                word = "higher" if amount > 0 else "lower"
                sentences.append(f"{line.variant}: {about.title} {abs(amount):.1f}{points} {word}{where}{sure}.")
    return sentences
