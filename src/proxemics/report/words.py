"""Sentences and lists of facts about a run, from ``result.json`` and the split."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxemics.report.numbers import pick_rows

if TYPE_CHECKING:
    import pandas as pd

    from proxemics.report.run_files import RunFiles

_ROLES = {
    "train": "the model learns from these",
    "val": "classes set aside to choose the epoch",
    "test": "all numbers below come from these",
}
_SAYS_NOTHING = {"table", "index", "data", "images", "pictures", "list", "labels", "metadata"}
_PROTOCOLS = {
    "zero_shot": "Each test picture is a query against all other test pictures.",
    "cross_domain": "Queries come from one domain and are searched in pictures of another.",
    "leave_one_domain_out": "Each domain in turn is searched in all the others; the number is their mean.",
    "single_domain": "Trained on one domain; each other one is searched in itself, and the number is their mean.",
    "musgrave": "Each test picture is a query against all other test pictures; training classes in four folds.",
    "roth": "Each test picture is a query against all others; one without another of its class counts as a miss.",
    "query_gallery": "Test pictures marked as queries are searched among those marked as gallery.",
}


@dataclass(frozen=True)
class SplitSize:
    """Size of one split: its name, what it is for, pictures, classes and share of all pictures."""

    name: str
    role: str
    images: int
    classes: int
    share: float


def split_sizes(result: Mapping[str, Any]) -> list[SplitSize]:
    """Return the sizes of train, val and test, in this order.

    Example:
        >>> split_sizes({"data": {"splits": {"test": {"images": 3, "classes": 1}}}})[0].share
        1.0
    """
    splits: Mapping[str, Mapping[str, int]] = result.get("data", {}).get("splits", {})
    names = [*(name for name in _ROLES if name in splits), *(name for name in splits if name not in _ROLES)]
    total = sum(int(splits[name].get("images", 0)) for name in names) or 1
    return [
        SplitSize(
            name or "no split",
            _ROLES.get(name, "not used"),
            int(splits[name].get("images", 0)),
            int(splits[name].get("classes", 0)),
            int(splits[name].get("images", 0)) / total,
        )
        for name in names
    ]


def source_name(result: Mapping[str, Any]) -> str:
    """Return the last part of the data source, which is what people call it."""
    source = str(result.get("data", {}).get("source") or "")
    return Path(source).name if source else "the data"


def dataset_title(result: Mapping[str, Any]) -> str:
    """Return the name of the data for the headline; a table with a name that says nothing is called by its folder.

    Example:
        >>> dataset_title({"rows": [{"dataset": "table"}], "data": {"source": "runs/demo-pictures/table.csv"}})
        'demo-pictures'
    """
    trained, _ = pick_rows(result)
    name = str(trained.get("dataset") or source_name(result))
    folder = Path(str(result.get("data", {}).get("source") or "")).parent.name
    return folder if folder and name.lower() in _SAYS_NOTHING else name


def seen_sentence(split: pd.DataFrame | None) -> str:
    """Say whether test classes were seen in training.

    Args:
        split: ``split.parquet`` or None.
    """
    if split is None or not {"label", "split"} <= set(split.columns):
        return ""
    classes = {name: set(rows) for name, rows in split.groupby("split")["label"].unique().items()}
    test = classes.get("test", set())
    shared = len(test & (classes.get("train", set()) | classes.get("val", set())))
    if not test:
        return ""
    if shared == 0:
        return "None of the test classes was seen in training or when the epoch was chosen."
    return f"{shared} of the {len(test)} test classes also occur in the training or validation split."


def protocol_sentence(result: Mapping[str, Any]) -> str:
    """Say what a query is searched in."""
    trained, _ = pick_rows(result)
    named = str(trained.get("protocol") or result.get("protocol") or "")
    key, _, domains = named.partition(" ")
    text = _PROTOCOLS.get(key, f"Protocol {named}." if named else "")
    return f"{text} Domains: {domains}." if domains else text


def selection_sentence(result: Mapping[str, Any]) -> str:
    """Say how the kept epoch was chosen; the test split never takes part."""
    rule = str(result.get("selection") or "").strip().rstrip(".")
    if not rule:
        return "How the epoch was chosen is not recorded."
    return f"{rule[0].upper()}{rule[1:]}. The test split takes no part in this choice."


def lone_sentence(row: Mapping[str, Any]) -> str:
    """Say how many queries could not be counted, or nothing when there are none."""
    lone = int(row.get("num_lone") or 0)
    if not lone:
        return ""
    what = "query has" if lone == 1 else "queries have"
    return f"{lone:,} {what} no other picture of the same class to find and cannot be counted."


def run_facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return facts of the run as (name, value); those that are not recorded are left out."""
    result = run.result
    data, timing = result.get("data", {}), result.get("timing") or {}
    model, memory = result.get("model") or {}, result.get("peak_memory_mb")
    trained, _ = pick_rows(result)
    facts = [
        ("Data", data.get("source")),
        (
            "Pictures",
            f"{data['num_images']:,} in {data.get('num_classes', 0):,} classes" if "num_images" in data else None,
        ),
        ("Data fingerprint", data.get("fingerprint")),
        ("Trunk", trained.get("trunk")),
        ("Picture side", f"{trained['size']} px" if trained.get("size") else None),
        ("Parameters", _parameters(model.get("parameters"))),
        ("Embedding", f"{model['dim']} numbers" if model.get("dim") else None),
        ("Weights", model.get("weights") if isinstance(model.get("weights"), str) else None),
        ("Loss", trained.get("base")),
        ("Seed", result.get("seed")),
        *((_sentence_case(name), _timing(name, value)) for name, value in timing.items()),
        ("Peak memory", f"{memory:,.0f} MB" if isinstance(memory, (int, float)) else None),
        ("Machine", result.get("machine")),
        ("Commit", result.get("commit")),
        ("Run folder", run.folder.resolve()),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _parameters(counts: Any) -> str | None:
    if isinstance(counts, Mapping):
        return ", ".join(f"{value:,} {name}" for name, value in counts.items() if isinstance(value, int)) or None
    return f"{counts:,}" if isinstance(counts, int) else None


def _sentence_case(name: str) -> str:
    words = name.removesuffix("_seconds").replace("_", " ")
    return words[:1].upper() + words[1:]


def _timing(name: str, value: Any) -> str | None:
    if not isinstance(value, (int, float)):
        return None if value is None else str(value)
    return duration(value) if name.endswith("seconds") else f"{value:,}"


def duration(seconds: float) -> str:
    """Write seconds as people say them.

    Example:
        >>> duration(7.31), duration(200), duration(7500)
        ('7.3 s', '3 min 20 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def reproduce_commands(run: RunFiles) -> list[tuple[str, str]]:
    """Return (what it does, command) pairs."""
    folder = shlex.quote(str(run.folder))
    config = shlex.quote(str(run.folder / "config.yaml"))
    again = shlex.quote(str(run.folder.with_name(run.folder.name + "-again")))
    commands = []
    if run.result.get("command"):
        commands.append(("As it was called", str(run.result["command"])))
    if run.config:
        commands.append(
            ("Train again from the saved configuration", f"proxemics train --config {config} --out {again}")
        )
    commands += [
        ("Measure the finished model again", f"proxemics evaluate {folder}"),
        ("Write this report again", f"proxemics report {folder}"),
    ]
    return commands
