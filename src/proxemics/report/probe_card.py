"""The bias card in the report: every number with its arrow and its reading, from ``probe.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json
from proxemics.report.charts import Chart, SmallCurve, line_chart, small_curve
from proxemics.report.curves import Series

_HEAD = "background/follows"
_GROUPS = {
    "background": (
        "Background",
        "The background is removed, exchanged or kept alone, and the changed picture is searched among the unchanged "
        "ones, its own left out.",
    ),
    "nuisance": (
        "Nuisances",
        "R@1 kept, as a share of that of unchanged pictures, on average over growing changes. The curve shows R@1 from "
        "unchanged at the left to the strongest level.",
    ),
    "decodability": (
        "What can be read from the embedding",
        "A linear probe, always asked about classes it has not been fitted on. An embedding of the class alone would "
        "be at chance.",
    ),
    "geometry": ("Geometry", "How the embeddings lie. The comparison is with random directions."),
    "certainty": ("Certainty", "Whether the length of an embedding tells right answers from mistakes."),
}


@dataclass(frozen=True)
class CardRow:
    """A number of the card.

    Attributes:
        name: ``probe/name``.
        title: for people.
        better: ``up``, ``down`` or empty.
        value: as text; ``interval``, ``untrained`` and ``chance`` likewise, empty where not known.
        interval: both ends of the 95 % interval.
        untrained: of the trunk before training.
        chance: of an embedding that knows nothing.
        reading: one line.
        places: value, untrained and chance in [0, 1], where each is drawn, or None; None when nothing is drawn.
        curve: of a nuisance, or None.
        number: the value itself, or None.
    """

    name: str
    title: str
    better: str
    value: str
    interval: str
    untrained: str
    chance: str
    reading: str
    places: tuple[float | None, float | None, float | None] | None
    curve: SmallCurve | None
    number: float | None


@dataclass(frozen=True)
class CardGroup:
    """The numbers of one probe: its title, a hint, its rows, and the reasons why something was left out."""

    title: str
    hint: str
    rows: tuple[CardRow, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class BiasCard:
    """What the section shows.

    Attributes:
        verdict: a sentence on the background.
        masks: where the objects were known from; empty when they were not needed.
        head: the number that stands at the top, or None.
        groups: one a probe.
        chart: the risk-coverage curve, or None.
        has_untrained: the trunk before training was probed too.
        pictures: how many.
        classes: of how many classes.
        where: which pictures they are, unless they are the test pictures of the run.
    """

    verdict: str
    masks: str
    head: CardRow | None
    groups: tuple[CardGroup, ...]
    chart: Chart | None
    has_untrained: bool
    pictures: int
    classes: int
    where: str = ""


def bias_card_part(folder: Path) -> BiasCard | None:
    """Read the card of a run; None when the run was not probed, or the file is of no use.

    Args:
        folder: the run folder.
    """
    file = folder / "probe.json"
    if not file.exists():
        return None
    try:
        card = read_json(file)
        return _card(card)
    except (ProxemicsError, KeyError, TypeError, ValueError, AttributeError):
        return None  # a damaged card must not cost the report


def _card(card: Mapping[str, Any]) -> BiasCard:
    curves = {f"nuisance/{one['name']}": one for one in card["curves"]}
    rows = [_row(one, curves) for one in card["numbers"]]
    skipped: Mapping[str, str] = card["skipped"]
    groups = []
    for probe, (title, hint) in _GROUPS.items():
        own = tuple(row for row in rows if row.name.partition("/")[0] == probe)
        why = tuple(_why(name, text) for name, text in skipped.items() if name.partition("/")[0] == probe)
        if own or why:
            groups.append(CardGroup(title, hint, own, why))
    return BiasCard(
        verdict=str(card["verdict"]),
        masks=str((card["masks"] or {}).get("sentence", "")),
        head=next((row for row in rows if row.name == _HEAD), None),
        groups=tuple(groups),
        chart=_risk(card["risk"]),
        has_untrained=bool(card["has_untrained"]),
        pictures=int(card["pictures"]),
        classes=int(card["classes"]),
        where=_where(card),
    )


def _where(card: Mapping[str, Any]) -> str:
    split = str(card.get("split", "test"))
    if split == "all":
        return f"of {Path(str(card.get('source'))).name}, not of the test pictures of this run"
    return "" if split == "test" else f"of the {split} split, not of the test pictures"


def _row(one: Mapping[str, Any], curves: Mapping[str, Mapping[str, Any]]) -> CardRow:
    name, unit = f"{one['probe']}/{one['name']}", one["unit"]
    curve = curves.get(name)
    known = [one["value"], one["untrained"], one["chance"]]
    drawn = unit == "share" and curve is None and one["value"] is not None
    places = [None if value is None else min(max(float(value), 0.0), 1.0) for value in known]
    ends = one["interval"]
    return CardRow(
        name=name,
        title=str(one["title"]),
        better=str(one["better"]),
        value=shown(one["value"], unit),
        interval="" if ends is None else f"{shown(ends[0], unit)} to {shown(ends[1], unit)}",
        untrained=shown(one["untrained"], unit),
        chance=shown(one["chance"], unit),
        reading=str(one["reading"]),
        places=(places[0], places[1], places[2]) if drawn else None,
        curve=None if curve is None else _curve(curve),
        number=None if one["value"] is None else float(one["value"]),
    )


def _curve(one: Mapping[str, Any]) -> SmallCurve | None:
    lines = [one["recall"], *([one["untrained_recall"]] if one["untrained_recall"] else [])]
    if any(value is None for line in lines for value in line):
        return None
    levels = ", ".join(f"{level:g}" for level in one["levels"])
    steps = ", ".join(f"{100 * value:.0f} %" for value in one["recall"])
    return small_curve(lines, text=f"{one['title']}: R@1 {steps} at unchanged and {levels} ({one['unit']})")


def _risk(risk: Mapping[str, Any] | None) -> Chart | None:
    if not risk or len(risk["coverage"]) < 2:
        return None
    points = [(c, r) for c, r in zip(risk["coverage"], risk["risk"], strict=True) if c >= 0.05]
    series = Series("most certain first", tuple(100 * float(c) for c, _ in points), tuple(float(r) for _, r in points))
    return line_chart("Wrong answers among those kept", [series], x_title="% of queries kept", percent=True)


def _why(name: str, text: str) -> str:
    short = name.partition("/")[2].replace("_", " ")
    return f"Left out{f' ({short})' if short else ''}: {text}"


def shown(value: float | None, unit: str) -> str:
    r"""Write a value in its unit; nothing where it is not known.

    Example:
        >>> shown(0.123, "share"), shown(12.34, "number"), shown(None, "share")
        ('12.3\xa0%', '12.3', '')
        >>> shown(-0.05, "number")
        '−0.05'
    """
    if value is None:
        return ""
    text = f"{100 * value:.1f}\u00a0%" if unit == "share" else f"{value:.3g}"
    return text.replace("-", "\u2212")
