"""The model card: what the model is, what it was measured to do, what it leans on, its limits and its licences.

The head in YAML is what model hubs read. The last section, on the exported files, is rewritten by every export; the
rest of the card of a bundle without its run stays as it is, so that corrections by hand are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from proxemics.export.licence import NOT_STATED, Licences, hub_licence
from proxemics.export.source import Source, place_name
from proxemics.training.tables import dataset_name

FILES_HEADING = "## Exported files"
_TAGS = ("proxemics", "deep-metric-learning", "image-retrieval", "image-embeddings", "onnx")
_METRICS = {"recall_at_1": "Recall@1", "recall_at_2": "Recall@2", "recall_at_4": "Recall@4", "recall_at_8": "Recall@8",
            "map_at_r": "MAP@R", "r_precision": "R-precision"}  # fmt: skip


def write_card(source: Source, licences: Licences, certainty: Mapping[str, Any], parity: Mapping[str, Any]) -> str:
    """Return the text of ``card.md``.

    Args:
        source: what is exported.
        licences: as far as they are known.
        certainty: content of ``certainty.json``.
        parity: content of ``parity.json``.
    """
    files = "\n".join(_files(parity))
    if source.run is None and source.card:
        body = source.card.partition(f"\n{FILES_HEADING}\n")[0].rstrip()
        if licences.model != NOT_STATED:
            body = _restate(body, licences)
        return f"{body}\n\n{files}\n"
    sections = [_title(source), _use(), _training(source), _numbers(source), _bias(source), _certainty(certainty),
                _limits(source), _licences(licences)]  # fmt: skip
    body = "\n\n".join("\n".join(lines) for lines in sections if lines)
    return f"{_head(licences)}\n\n{body}\n\n{files}\n"


def _head(licences: Licences) -> str:
    rows = [f"{key}: {json.dumps(value)}" for key, value in hub_licence(licences.model).items()]
    rows += ["library_name: proxemics", "pipeline_tag: image-feature-extraction", "tags:"]
    return "\n".join(["---", *rows, *(f"- {tag}" for tag in _TAGS), "---"])


def _restate(body: str, licences: Licences) -> str:
    """Change the licence of the model in the card of a bundle: in the head, and in the table of licences."""
    fresh = "\n".join(f"{key}: {json.dumps(value)}" for key, value in hub_licence(licences.model).items())
    body = re.sub(r"^license_name:.*\n", "", body, count=1, flags=re.MULTILINE)
    body = re.sub(r"^license:.*$", lambda _: fresh, body, count=1, flags=re.MULTILINE)
    before, heading, after = body.partition("\n## Licences\n")
    row = f"| this model | {cell(licences.model)} |"
    return before + heading + re.sub(r"^\| this model \|.*$", lambda _: row, after, count=1, flags=re.MULTILINE)


def _title(source: Source) -> list[str]:
    embedder = source.embedder
    trained = "" if source.config is None else f" trained on {cell(dataset_name(source.config))}"
    start = "random weights" if embedder.weights == "none" else cell(embedder.weights)
    return [
        f"# {cell(embedder.arguments['trunk'])}{trained}",
        "",
        "An image embedding by Proxemics: pictures of one class get vectors "
        "that are near each other, also for classes that were never trained on.",
        "",
        "| | |",
        "|---|---|",
        f"| trunk | {cell(embedder.arguments['trunk'])}, started from {start} |",
        f"| embedding | {embedder.dim} numbers, unit length, compared by cosine |",
        f"| pictures | {embedder.preprocess.size} × {embedder.preprocess.size} px, prepared as preprocess.json says |",
        f"| fingerprint | `{embedder.fingerprint()}` |",
    ]


def _use() -> list[str]:
    return [
        "## Use",
        "",
        "Without torch, with onnxruntime, numpy and pillow:",
        "",
        "```python",
        "import proxemics.runtime",
        "",
        'model = proxemics.runtime.load("bundle")',
        'vectors = model.embed(["a.jpg", "b.png"])',
        "```",
        "",
        'With torch: `proxemics.models.load_bundle("bundle")`.',
    ]


def _training(source: Source) -> list[str]:
    if source.config is None or source.result is None:
        return ["## Training", "", "Not known: the model was exported without its run."]
    config, data = source.config, source.result["data"]
    methods = ", ".join(config.methods) or "none"
    splits = "; ".join(
        f"{name}: {part['images']:,} pictures of {part['classes']:,} classes"
        for name in ("train", "val", "test")
        if (part := data["splits"].get(name))
    )
    return [
        "## Training",
        "",
        f"- Data: {cell(dataset_name(config))} (from {cell(place_name(data['source']) or 'a table')}), "
        f"{data['num_images']:,} pictures of {data['num_classes']:,} classes. {splits}. "
        f"Fingerprint of the table `{data['fingerprint'][:16]}`.",
        f"- Loss: {config.loss.name}; methods: {methods}; seed {config.seed}; epoch: {source.result['selection']}.",
        f"- Proxemics {source.result['versions'].get('proxemics', '')}, torch "
        f"{source.result['versions'].get('torch', '')}.",
    ]


def _numbers(source: Source) -> list[str]:
    if source.result is None:
        return ["## Numbers", "", "None: the model was exported without its run."]
    rows = source.result["rows"]
    first = rows[0]
    unseen: object = source.result.get("unseen_classes")
    said = {True: "The test classes were not in training. ", False: "Some test classes were in training. "}
    shown = [name for name in _METRICS if name in first["metrics"]]
    lines = [
        "## Numbers",
        "",
        f"Protocol: {first['protocol']}; {first['num_queries']:,} queries. "
        f"{said[unseen] if isinstance(unseen, bool) else ''}Percent, with 95 % intervals over classes; higher is "
        "better.",
        "",
        f"| | {' | '.join(_METRICS[name] for name in shown)} |",
        f"|---|{'---|' * len(shown)}",
    ]
    for row in rows:
        name = "trunk before training" if row["method"] == "frozen" else "this model"
        lines.append(f"| {name} | {' | '.join(_value(row, metric) for metric in shown)} |")
    return lines


def _value(row: Mapping[str, Any], metric: str) -> str:
    if metric not in row["metrics"]:
        return ""
    ends = (row.get("intervals") or {}).get(metric)
    interval = f" ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})" if ends and None not in ends else ""
    return f"{100 * row['metrics'][metric]:.1f}{interval}"


def _bias(source: Source) -> list[str]:
    if source.probe is None:
        return ["## What it leans on", "", "Not probed. `proxemics probe` on the run, before the export, adds a card."]
    arrows = {"up": "↑", "down": "↓"}
    lines = [
        "## What it leans on",
        "",
        f"{source.probe['verdict']} Measured on {source.probe['pictures']:,} pictures of {source.probe['classes']:,} "
        "classes; arrows point to the better side.",
        "",
        "| | value | trunk before training | chance |",
        "|---|---|---|---|",
    ]
    for one in source.probe["numbers"]:
        values = [_amount(one[name], one["unit"]) for name in ("value", "untrained", "chance")]
        lines.append(f"| {cell(one['title'])} {arrows.get(one['better'], '')} | {' | '.join(values)} |")
    return lines


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.3g}"


def _certainty(certainty: Mapping[str, Any]) -> list[str]:
    lines = ["## Certainty", "", str(certainty["meaning"])]
    levels = certainty["levels"]
    if levels:
        chosen = [row for row in levels if round(100 * row["kept"]) in (10, 25, 50, 75)] + [levels[-1]]
        lines += ["", "| kappa at least | queries kept | wrong among them |", "|---|---|---|"]
        lines += [
            f"| {row['kappa']:.4g} | {100 * row['kept']:.0f} % | {100 * row['error_rate']:.1f} % |" for row in chosen
        ]
    return lines


def _limits(source: Source) -> list[str]:
    seen = "the pictures above" if source.result is not None else "its test pictures, which are not known here"
    return [
        "## Limits",
        "",
        f"- The numbers hold for {seen}. Pictures of another kind, camera or place need to be measured anew: "
        "`proxemics evaluate BUNDLE --data PICTURES`.",
        "- A similarity is no probability. Where to draw the line between the same class and another is measured by "
        "`proxemics calibrate`.",
        "- The nearest picture is always some picture, also when nothing in the collection fits.",
        "- What training pictures show together, such as an animal and its habitat, may have been learnt together.",
    ]


def _licences(licences: Licences) -> list[str]:
    rows: Iterable[tuple[str, str]] = (
        ("this model", licences.model),
        ("starting weights", licences.weights),
        ("training pictures", licences.data),
    )
    return ["## Licences", "", "| | |", "|---|---|", *(f"| {name} | {cell(text)} |" for name, text in rows)]


def _files(parity: Mapping[str, Any]) -> list[str]:
    lines = [FILES_HEADING, ""]
    if not parity["variants"]:
        return [*lines, f"No ONNX: {parity['without']}."]
    drift = parity["drift"]
    lines += [
        f"{parity['runtime']} against {parity['reference']}, on {parity['compared_on']} at batches of "
        f"{', '.join(map(str, parity['batches']))}.",
        "",
        "| precision | file | MB | largest difference | smallest cosine | Recall@1 | drift, points |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in parity["variants"]:
        lines.append(f"| {one['precision']} | {one['file']} | {one['bytes'] / 1e6:.1f} | {_drift_cells(one)} |")
    lines.append("")
    if drift is None:
        lines.append(f"Recall@1 was not measured: {parity['without']}.")
    else:
        lines.append(
            f"Recall@1 of torch on the same pixels: {100 * drift['recall_at_1']:.1f} % ({drift['queries']:,} queries, "
            f"{drift['classes']:,} classes, {drift['pictures']}; {drift['protocol']})."
        )
    lines += [f"{name}: not written, {why}." for name, why in parity["left_out"].items()]
    return lines


def _drift_cells(one: Mapping[str, Any]) -> str:
    apart = max(row["max_difference"] for row in one["parity"])
    cosine = min(row["min_cosine"] for row in one["parity"])
    recall, drift = "", ""
    if one["drift"] is not None:
        recall, ends = f"{100 * one['drift']['recall_at_1']:.1f} %", one["drift"]["interval"]
        drift = f"{100 * one['drift']['drift']:+.2f}"
        cosine = min(cosine, one["drift"]["min_cosine"])
        if ends is not None:
            drift += f" ({100 * ends[0]:+.2f} to {100 * ends[1]:+.2f})"
    return f"{apart:.1e} | {cosine:.5f} | {recall} | {drift}"


def cell(value: object) -> str:
    r"""Write text so that it stays inside a cell of a Markdown table.

    Example:
        >>> cell("a|b\nc")
        'a\\|b c'
    """
    return " ".join(str(value).split()).replace("|", r"\|")
