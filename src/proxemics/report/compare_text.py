"""A comparison as Markdown, CSV, LaTeX, HTML or JSON."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable
from typing import Any

from proxemics.report import compare_probe_text as probe_text
from proxemics.report.compare import Comparison, Entry, Part
from proxemics.report.explain import explain

MARK = "*"


def caption(found: Comparison) -> list[str]:
    """Return the sentences under the table: how its numbers were made, and its notes."""
    if found.num_comparisons == 0:
        known = any(entry.difference for part in found.parts for line in part.lines for entry in line.entries)
        against = f" Difference to {found.baseline}: mean over the seeds that both have." if known else ""
        return [f"Mean ± standard deviation over seeds.{against}", *found.notes]
    how = (
        f"Mean ± standard deviation over seeds; difference to {found.baseline}, paired by query and seed, with its "
        f"95 % interval (bootstrap over seeds and test classes, {found.resamples} resamples). {MARK} p < 0.05; p is "
        f"after Holm's correction for {found.num_comparisons} comparison{'s' if found.num_comparisons > 1 else ''}."
    )
    return [how, *found.notes]


def number(value: float | None, metric: str, digits: int, *, sign: bool = False) -> str:
    """Write a metric in percent where it is a share, else as it is.

    Example:
        >>> number(0.6125, "recall_at_1", 1), number(0.011, "map_at_r", 1, sign=True), number(None, "map_at_r", 1)
        ('61.3', '+1.1', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    scale = 100 if explain(metric).share else 1
    shown = round(value * scale + (1e-9 if value > 0 else -1e-9 if value < 0 else 0), digits)
    return f"{shown + 0.0:{'+' if sign else ''}.{digits}f}"


def value_text(entry: Entry, metric: str, digits: int) -> str:
    """Write mean and deviation."""
    text = number(entry.mean, metric, digits)
    return text if entry.deviation is None else f"{text} ± {number(entry.deviation, metric, digits)}"


def difference_text(entry: Entry, metric: str, digits: int) -> str:
    """Write the difference with its interval and mark, or with those of the seeds; empty when there is none."""
    if entry.difference is None:
        return ""
    estimate, per_seed = entry.difference.estimate, entry.difference.per_seed
    text = number(estimate.difference, metric, digits, sign=True)
    if math.isfinite(estimate.low):
        ends = [number(one, metric, digits, sign=True) for one in (estimate.low, estimate.high)]
        text += f" [{ends[0]}, {ends[1]}]"
    elif len(per_seed) > 1:
        text += f" ({', '.join(number(one, metric, digits, sign=True) for one in per_seed)})"
    return f"{text} {MARK}" if entry.difference.significant else text


def p_text(entry: Entry) -> str:
    """Write the corrected p-value; empty when there is none."""
    p = float("nan") if entry.difference is None else entry.difference.p_corrected
    return "" if math.isnan(p) else f"{p:.3f}"


def best_lines(part: Part, column: int, metric: str) -> set[int]:
    """Return the numbers of the lines with the best mean; none where there is one line, or no common seed.

    A seed may draw the test classes, and means over other classes do not compare.
    """
    better = explain(metric).better
    means = {row: mean for row, line in enumerate(part.lines) if (mean := line.entries[column].mean) is not None}
    common = set.intersection(*(set(line.seeds) for line in part.lines)) if part.lines else set()
    if len(part.lines) < 2 or not means or not better or not common:
        return set()
    best = max(means.values()) if better == "up" else min(means.values())
    return {row for row, mean in means.items() if mean == best}


def title(part: Part) -> str:
    """Name a part of the table.

    Example:
        >>> title(Part("birds", "zero_shot", ()))
        'birds, zero-shot'
    """
    return f"{part.dataset}, {part.protocol.replace('_', '-', 1)}"


Bold = Callable[[str], str]


def _cells(found: Comparison, part: Part, digits: int, escape: Bold, bold: Bold) -> list[list[str]]:
    """The text of every cell of a wide table: variant, seeds, and value, difference and p for each metric."""
    best = [best_lines(part, column, metric) for column, metric in enumerate(found.metrics)]
    rows = []
    for number_, line in enumerate(part.lines):
        name = escape(line.variant) + (" (baseline)" if line.variant == found.baseline else "")
        row = [name, str(len(line.seeds))]
        for column, (metric, entry) in enumerate(zip(found.metrics, line.entries, strict=True)):
            value = escape(value_text(entry, metric, digits))
            row += [bold(value) if number_ in best[column] else value]
            row += [escape(difference_text(entry, metric, digits)), p_text(entry)]
        rows.append(row)
    return rows


def _heads(found: Comparison) -> list[str]:
    names = [name for metric in found.metrics for name in (explain(metric).title, "difference [95 %]", "p")]
    return ["variant", "seeds", *names]


def to_markdown(found: Comparison, digits: int = 1) -> str:
    """Write GitHub Markdown, one table for each data set, and one for its bias cards."""

    def escape(text: str) -> str:
        return text.replace("|", "\\|").replace(f" {MARK}", f" \\{MARK}")

    blocks = []
    for part in found.parts:
        heads = _heads(found)
        lines = [f"**{escape(title(part))}**", "", "| " + " | ".join(heads) + " |"]
        lines.append("|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|")
        rows = _cells(found, part, digits, escape, lambda text: f"**{text}**")
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        blocks.append("\n".join(lines))
    blocks += [escape(sentence) for sentence in caption(found)]
    for cards in found.probes:
        blocks.append(probe_text.to_markdown(cards, digits, escape))
        blocks += [escape(sentence) for sentence in probe_text.caption(cards, found.baseline)]
    return "\n\n".join(blocks) + "\n"


def to_latex(found: Comparison, digits: int = 1) -> str:
    """Write one table in the style of booktabs, and one for each set of bias cards; p-values are in the others."""
    columns = "l" + "r" + "rl" * len(found.metrics)
    heads = ["", "seeds", *(f"\\multicolumn{{2}}{{c}}{{{_tex(explain(one).title)}}}" for one in found.metrics)]
    lines = ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
    lines.append(" & ".join(heads) + " \\\\")
    for part in found.parts:
        lines += ["\\midrule", f"\\multicolumn{{{len(columns)}}}{{l}}{{\\emph{{{_tex(title(part))}}}}} \\\\"]
        for row in _cells(found, part, digits, _tex, lambda text: f"\\textbf{{{text}}}"):
            kept = [cell for place, cell in enumerate(row) if place < 2 or (place - 2) % 3 < 2]
            lines.append(" & ".join(kept) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {sentence}" for sentence in caption(found))]
    for cards in found.probes:
        lines += ["", f"% {probe_text.title(cards)}", *probe_text.to_latex(cards, digits, _tex)]
        lines += [f"% {sentence}" for sentence in probe_text.caption(cards, found.baseline)]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    signs = {
        "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}",
        "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "-": "$-$",
        MARK: "$^{*}$", "↑": "$\\uparrow$", "↓": "$\\downarrow$",
    }  # fmt: skip
    # A hyphen inside a word stays one; before a digit it is a minus.
    return "".join(
        "-" if sign == "-" and not text[place + 1 : place + 2].isdigit() else signs.get(sign, sign)
        for place, sign in enumerate(text)
    )


_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1.5rem; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
p { max-width: 46rem; color: #666; color: color-mix(in srgb, currentColor 75%, transparent); }
"""


def to_html(found: Comparison, digits: int = 1) -> str:
    """Write one page that asks nothing of any network."""
    tables = []
    for part in found.parts:
        heads = "".join(f'<th scope="col">{html.escape(one)}</th>' for one in _heads(found))
        rows = "".join(
            f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>\n'
            for row in _cells(found, part, digits, html.escape, lambda text: f"<b>{text}</b>")
        )
        head = f"<caption>{html.escape(title(part))}</caption>\n<thead><tr>{heads}</tr></thead>"
        tables.append(f'<div class="scroll"><table>{head}\n<tbody>\n{rows}</tbody></table></div>')
    tables += [f"<p>{html.escape(sentence)}</p>" for sentence in caption(found)]
    for cards in found.probes:
        tables.append(probe_text.to_html(cards, digits))
        tables += [f"<p>{html.escape(sentence)}</p>" for sentence in probe_text.caption(cards, found.baseline)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Comparison with {html.escape(found.baseline)}</title><style>{_STYLE}</style></head>\n"
        "<body>\n<h1>Comparison</h1>\n" + "\n".join(tables) + "\n</body></html>\n"
    )


def to_records(found: Comparison) -> list[dict[str, Any]]:
    """Return one record for each variant, data set and metric, in full precision; shares are in [0, 1]."""
    records = []
    for part in found.parts:
        for line in part.lines:
            for metric, entry in zip(found.metrics, line.entries, strict=True):
                estimate = None if entry.difference is None else entry.difference.estimate
                records.append(
                    {
                        "dataset": part.dataset,
                        "protocol": part.protocol,
                        "variant": line.variant,
                        "baseline": found.baseline,
                        "metric": metric,
                        "seeds": len(line.seeds),
                        "mean": entry.mean,
                        "deviation": entry.deviation,
                        "difference": None if estimate is None else estimate.difference,
                        "per_seed": [] if entry.difference is None else list(entry.difference.per_seed),
                        "low": None if estimate is None else _finite(estimate.low),
                        "high": None if estimate is None else _finite(estimate.high),
                        "p": None if estimate is None else _finite(estimate.p),
                        "p_holm": None if entry.difference is None else _finite(entry.difference.p_corrected),
                        "significant": None if entry.difference is None else entry.difference.significant,
                        "pairs": 0 if estimate is None else estimate.num_seeds,
                        "test_classes": None if estimate is None else estimate.num_classes,
                    }
                )
    return records


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def to_csv(found: Comparison, digits: int = 1) -> str:
    """Write one line for each variant, data set and metric, in full precision whatever ``digits`` says.

    Numbers of bias cards follow, with ``probe/number`` as their metric. Differences of seeds are divided by spaces.
    """
    del digits
    records = to_records(found)
    for cards in found.probes:
        for one in probe_text.to_records(cards, found.baseline):
            known = {**dict.fromkeys(records[0]), **one, "metric": one["number"], "pairs": len(one["per_seed"])}
            records.append({name: known[name] for name in records[0]})
    records = [{**one, "per_seed": " ".join(map(str, one["per_seed"]))} for one in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def to_json(found: Comparison, digits: int = 1) -> str:
    """Write the records of :func:`to_records` with the sentences that belong to them."""
    del digits
    whole = {
        "baseline": found.baseline,
        "resamples": found.resamples,
        "comparisons": found.num_comparisons,
        "notes": list(found.notes),
        "rows": to_records(found),
        "probes": [one for cards in found.probes for one in probe_text.to_records(cards, found.baseline)],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Comparison, int], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
    "html": to_html,
    "json": to_json,
}
SUFFIXES = {".md": "md", ".csv": "csv", ".tex": "latex", ".html": "html", ".htm": "html", ".json": "json"}
