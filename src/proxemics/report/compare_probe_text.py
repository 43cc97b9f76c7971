"""Bias cards side by side as Markdown, LaTeX, HTML and records."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from proxemics.report.compare_probes import ProbeEntry, ProbeLine, ProbePart

ARROWS = {"up": "↑", "down": "↓"}
GROUPS = {
    "background": "Background",
    "nuisance": "Nuisances",
    "decodability": "What can be read from the embedding",
    "geometry": "Geometry",
    "certainty": "Certainty",
}
Escape = Callable[[str], str]


def number_text(value: float | None, unit: str, digits: int, *, sign: bool = False) -> str:
    """Write a number of a card: shares in percent, others with three significant digits.

    Example:
        >>> number_text(0.1234, "share", 1), number_text(-0.05, "share", 1, sign=True), number_text(12.345, "number", 1)
        ('12.3', '-5.0', '12.3')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:{'+' if sign else ''}.{digits}f}" if unit == "share" else f"{value:{'+' if sign else ''}.3g}"


def entry_text(entry: ProbeEntry, unit: str, digits: int) -> tuple[str, str]:
    """Write mean and deviation, and the difference with those of the seeds; empty where there is none."""
    value = number_text(entry.mean, unit, digits)
    if entry.deviation is not None:
        value += f" ± {number_text(entry.deviation, unit, digits)}"
    if entry.difference is None:
        return value, ""
    difference = number_text(entry.difference, unit, digits, sign=True)
    if len(entry.per_seed) > 1:
        difference += f" ({', '.join(number_text(one, unit, digits, sign=True) for one in entry.per_seed)})"
    return value, difference


def title(part: ProbePart) -> str:
    """Name a table of cards."""
    return f"Bias cards, {part.dataset}, {part.protocol.replace('_', '-', 1)}"


def caption(part: ProbePart, baseline: str) -> list[str]:
    """Return the sentences under a table of cards."""
    text = "Shares in percent; mean ± standard deviation over seeds. ↓: lower is better, ↑: higher is better."
    if part.baseline and len(part.variants) > 1:
        text += f" Difference to {baseline}: mean over the seeds that both have, in brackets that of each; no interval."
    return [text, *part.notes]


def heads(part: ProbePart) -> list[str]:
    """Return the names of the columns."""
    shown = ["number", "chance"]
    for number, variant in enumerate(part.variants):
        shown += [variant, "difference"] if part.baseline and number > 0 else [variant]
    return shown


def rows(part: ProbePart, digits: int) -> list[tuple[str, list[list[str]]]]:
    """Return the cells of a table, group by group: title of the group and its rows."""
    groups: dict[str, list[list[str]]] = {}
    for line in part.lines:
        groups.setdefault(line.group, []).append(_cells(part, line, digits))
    return [(GROUPS.get(name, name), cells) for name, cells in groups.items()]


def _cells(part: ProbePart, line: ProbeLine, digits: int) -> list[str]:
    name = f"{line.title} {ARROWS[line.better]}" if line.better in ARROWS else line.title
    cells = [name, "" if line.chance is None else number_text(line.chance, line.unit, digits)]
    for number, entry in enumerate(line.entries):
        value, difference = entry_text(entry, line.unit, digits)
        cells += [value, difference] if part.baseline and number > 0 else [value]
    return cells


def to_markdown(part: ProbePart, digits: int, escape: Escape) -> str:
    """Write one table, a group of numbers under each other."""
    names = [escape(name) for name in heads(part)]
    lines = [f"**{escape(title(part))}**", "", "| " + " | ".join(names) + " |"]
    lines.append("|" + "|".join(["---", *["---:"] * (len(names) - 1)]) + "|")
    for group, cells in rows(part, digits):
        lines.append("| " + " | ".join([f"*{escape(group)}*", *[""] * (len(names) - 1)]) + " |")
        lines += ["| " + " | ".join(map(escape, row)) + " |" for row in cells]
    return "\n".join(lines)


def to_latex(part: ProbePart, digits: int, escape: Escape) -> list[str]:
    """Write one tabular."""
    names = heads(part)
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", "\\toprule"]
    lines.append(" & ".join(map(escape, names)) + " \\\\")
    for group, cells in rows(part, digits):
        lines += ["\\midrule", f"\\multicolumn{{{len(names)}}}{{l}}{{\\emph{{{escape(group)}}}}} \\\\"]
        lines += [" & ".join(map(escape, row)) + " \\\\" for row in cells]
    return [*lines, "\\bottomrule", "\\end{tabular}"]


def to_html(part: ProbePart, digits: int) -> str:
    """Write one table in a box that scrolls."""
    names = heads(part)
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = []
    for group, cells in rows(part, digits):
        body.append(f'<tr><th scope="rowgroup" colspan="{len(names)}">{html.escape(group)}</th></tr>')
        body += [_html_row(row) for row in cells]
    head = f"<caption>{html.escape(title(part))}</caption>\n<thead><tr>{top}</tr></thead>"
    return f'<div class="scroll"><table>{head}\n<tbody>\n' + "\n".join(body) + "\n</tbody></table></div>"


def _html_row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>'


def to_records(part: ProbePart, baseline: str) -> list[dict[str, Any]]:
    """Return one record for each number and variant, in full precision; shares are in [0, 1]."""
    return [
        {
            "dataset": part.dataset,
            "protocol": part.protocol,
            "variant": variant,
            "baseline": baseline,
            "number": line.name,
            "better": line.better,
            "unit": line.unit,
            "chance": line.chance,
            "mean": entry.mean,
            "deviation": entry.deviation,
            "difference": entry.difference,
            "per_seed": list(entry.per_seed),
        }
        for line in part.lines
        for variant, entry in zip(part.variants, line.entries, strict=True)
    ]
