"""From run files to what the template shows; nothing here knows HTML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from proxemics.report.certainty import CertaintyPart, certainty_part
from proxemics.report.charts import line_chart
from proxemics.report.confusion import ConfusionPart, confusion_part
from proxemics.report.curves import Series, chosen_epoch, loss_series, validation_series
from proxemics.report.expansion import expansion_part
from proxemics.report.explain import explain
from proxemics.report.groups import Group, group_queries
from proxemics.report.numbers import Number, collect_numbers, pick_rows, verdict
from proxemics.report.probe_card import bias_card_part
from proxemics.report.queries import Query, extreme_queries
from proxemics.report.run_files import RunFiles
from proxemics.report.tasks import task_table
from proxemics.report.thumbnails import Key, Thumbnails
from proxemics.report.words import (
    dataset_title,
    lone_sentence,
    protocol_sentence,
    reproduce_commands,
    run_facts,
    seen_sentence,
    selection_sentence,
    source_name,
    split_sizes,
)

if TYPE_CHECKING:
    import pandas as pd

QUERY_SIDE, NEIGHBOUR_SIDE, CLASS_SIDE = 176, 120, 72
_CLASS_ROWS, _CLASS_PICTURES = 3000, 200  # rows of the class table, and those with a picture


def build_page(run: RunFiles, thumbnails: Thumbnails) -> dict[str, Any]:
    """Gather everything the template shows.

    Args:
        run: the files of the run.
        thumbnails: filled with the pictures that the page needs.

    Returns:
        Names to values for the template.
    """
    result = run.result
    trained, frozen = pick_rows(result)
    numbers = collect_numbers(result)
    page = {
        "dataset": dataset_title(result),
        "trained": trained,
        "has_untrained": bool(frozen),
        "source": source_name(result),
        "numbers": numbers,
        "main": [number for number in numbers if number.name in ("recall_at_1", "map_at_r")],
        "verdict": verdict(next((number for number in numbers if number.name == "recall_at_1"), None)),
        "has_intervals": any(number.trained.known_interval for number in numbers),
        "notes": [str(note) for note in trained.get("notes") or ()] or [*filter(None, [lone_sentence(trained)])],
        "splits": split_sizes(result),
        "seen": seen_sentence(run.split),
        "protocol": protocol_sentence(result),
        "selection": selection_sentence(result),
        "charts": _charts(run),
        "certainty": certainty_part(run.queries, result),
        "card": bias_card_part(run.folder),
        "tasks": task_table(result),
        "shown_names": [name for name in ("recall_at_1", "map_at_r") if any(one.name == name for one in numbers)],
        "expansion": expansion_part(run.folder, (result.get("config") or {}).get("methods")),
        "facts": run_facts(run),
        "versions": sorted((str(k), str(v)) for k, v in (result.get("versions") or {}).items()),
        "config": run.config,
        "commands": reproduce_commands(run),
        **_query_parts(run.queries, run.split),
    }
    thumbnails.prepare(_wanted(page))
    return page


def _charts(run: RunFiles) -> list[Any]:
    metric = (run.result.get("config") or {}).get("train", {}).get("select")
    chosen = chosen_epoch(run.records, metric)
    validation = [Series(explain(one.name).title, one.x, one.y) for one in validation_series(run.records)]
    charts = [
        line_chart("Training loss", loss_series(run.records), x_title="step"),
        line_chart(
            "Validation",
            validation,
            x_title="epoch",
            percent=all(value <= 1 for one in validation for value in one.y),
            mark=chosen,
            mark_text=f"Kept: epoch {chosen}" if chosen else "",
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _query_parts(queries: pd.DataFrame | None, split: pd.DataFrame | None) -> dict[str, Any]:
    if queries is None:
        empty: list[Any] = []
        return {"worst": empty, "best": empty, "confusion": None, "classes": empty, "domains": empty} | {
            "num_queries": 0, "classes_left_out": 0, "has_domains": False, "root": "",
        }  # fmt: skip
    worst, best = extreme_queries(queries, split)
    classes = group_queries(queries, "label")
    domains = group_queries(queries, "domain")
    return {
        "worst": worst,
        "best": best,
        "confusion": confusion_part(queries),
        "classes": classes[:_CLASS_ROWS],
        "classes_left_out": max(0, len(classes) - _CLASS_ROWS),
        "domains": domains if len(domains) > 1 else [],
        "has_domains": len(domains) > 1,
        "num_queries": len(queries),
        "root": common_root(queries["path"].astype(str).tolist()),
    }


def common_root(paths: Sequence[str]) -> str:
    """Return the folder that all paths share, with a separator at the end, or an empty string.

    Example:
        >>> common_root(["/data/birds/a/1.jpg", "/data/birds/b/2.jpg"])
        '/data/birds/'
    """
    try:
        shared = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120 - text is faster here
    except ValueError:
        return ""
    return shared.rstrip("/\\") + os.sep if shared else ""


def _wanted(page: dict[str, Any]) -> Iterator[Key]:
    """Name the thumbnails in the order of importance, so that a small budget keeps the most telling ones."""
    queries: list[Query] = [*page["worst"], *page["best"]]
    for query in queries:
        yield query.path, QUERY_SIDE
    for query in queries:
        for neighbour in query.neighbours:
            yield neighbour.path, NEIGHBOUR_SIDE
    certainty: CertaintyPart | None = page["certainty"]
    for picture in (*certainty.most, *certainty.least) if certainty else ():
        yield picture.path, QUERY_SIDE
    confusion: ConfusionPart | None = page["confusion"]
    for first in (True, False):  # one example of each pair before the others
        for pair in confusion.pairs if confusion else ():
            for one in pair.examples[:1] if first else pair.examples[1:]:
                yield one.path, CLASS_SIDE
                yield one.nearest, CLASS_SIDE
    groups: list[Group] = page["classes"][:_CLASS_PICTURES]
    for group in groups:
        yield group.path, CLASS_SIDE


def percent(value: float | None) -> str:
    r"""Write a share in per cent, with a space that does not break.

    Example:
        >>> percent(0.7531), percent(None)
        ('75.3\xa0%', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}\u00a0%"


def amount(number: Number, value: float | None) -> str:
    """Write a value of a metric in its unit."""
    if number.about.share:
        return percent(value)
    return "–" if value is None else f"{value:.3g}"


def change(number: Number) -> str:
    """Write the difference that training made, with its sign.

    Example:
        >>> from proxemics.report.numbers import Estimate
        >>> change(Number("recall_at_1", explain("recall_at_1"), Estimate(0.5), Estimate(0.25)))
        '+25.0'
    """
    if number.difference is None:
        return "–"
    value = number.difference * 100 if number.about.share else number.difference
    text = f"{value:+.1f}" if number.about.share else f"{value:+.3g}"
    return text.replace("-", "\u2212")
