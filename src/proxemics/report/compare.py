"""Runs into a table: mean, deviation, paired difference to a baseline, its interval and a mark where it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from proxemics.core.errors import ConfigError, EvaluationError, did_you_mean
from proxemics.evaluation.paired import (
    RESAMPLES,
    ClassSums,
    PairedEstimate,
    class_sums,
    holm,
    match_queries,
    paired_bootstrap,
)
from proxemics.report.compare_runs import Run

METRICS = ("recall_at_1", "map_at_r")
LEVEL = 0.05
_FEW_CLASSES = 10


@dataclass(frozen=True)
class Difference:
    """A variant minus the baseline.

    Attributes:
        estimate: difference, interval and p-value.
        p_corrected: after Holm's correction over all comparisons of the table.
    """

    estimate: PairedEstimate
    p_corrected: float = float("nan")

    @property
    def significant(self) -> bool:
        """The corrected p-value is below 0.05."""
        return self.p_corrected < LEVEL


@dataclass(frozen=True)
class Entry:
    """One metric of one variant.

    Attributes:
        mean: over seeds; None when no run has the metric.
        deviation: sample standard deviation over seeds; None for one seed.
        difference: to the baseline; None for the baseline itself and where nothing can be paired.
    """

    mean: float | None
    deviation: float | None
    difference: Difference | None = None


@dataclass(frozen=True)
class Line:
    """One variant on one data set.

    Attributes:
        variant: its name.
        seeds: of its runs.
        entries: one for each metric of the table.
    """

    variant: str
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Part:
    """The variants on one data set under one protocol."""

    dataset: str
    protocol: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Comparison:
    """The whole table.

    Attributes:
        parts: one for each data set and protocol.
        baseline: name of the variant that the others are compared with.
        metrics: names, in the order of the entries.
        resamples: of the bootstrap.
        num_comparisons: that the p-values are corrected for.
        notes: sentences that a reader of the table must know.
    """

    parts: tuple[Part, ...]
    baseline: str
    metrics: tuple[str, ...]
    resamples: int
    num_comparisons: int
    notes: tuple[str, ...]


def compare(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    metrics: Sequence[str] = METRICS,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare variants with a baseline, pair by pair of runs with one data set, protocol and seed.

    Args:
        runs: from :func:`proxemics.report.compare_runs.read_runs`.
        baseline: a variant; default: the first.
        metrics: names as in ``result.json``.
        resamples: of the bootstrap; default: 2000, or more where so many comparisons could not reach significance.
        seed: of the bootstrap.

    Raises:
        ConfigError: the baseline or a metric is unknown.
        EvaluationError: two runs to be paired were tested on different pictures.
        DataError: a run lacks the files to be paired.
    """
    if not runs:
        raise ConfigError("No runs to compare.")
    variants = list(dict.fromkeys(run.variant for run in runs))
    chosen = variants[0] if baseline is None else baseline
    if chosen not in variants:
        raise ConfigError(
            f"--baseline {chosen!r}: no such variant.{did_you_mean(chosen, variants)} There are {', '.join(variants)}."
        )
    known = list(dict.fromkeys(name for run in runs for name in run.row["metrics"]))
    for name in metrics:
        if name not in known:
            raise ConfigError(
                f"--metric {name}: no run has it.{did_you_mean(name, known)} There are {', '.join(known)}."
            )
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.protocol), []).append(run)
    planned = len(metrics) * sum(len({run.variant for run in group} - {chosen}) for group in groups.values())
    # The smallest p-value is 2 / (n + 1); after the correction it must still be able to fall below 0.05.
    count = max(RESAMPLES, 100 * planned) if resamples is None else resamples
    table = _Table(variants, chosen, tuple(metrics), count, seed)
    parts = [table.part(dataset, protocol, group) for (dataset, protocol), group in groups.items()]
    parts, number = _corrected(parts)
    if number and 2 * number / (count + 1) >= LEVEL:
        table.note(f"With {count} resamples and {number} comparisons no difference can be marked; raise --resamples.")
    return Comparison(tuple(parts), chosen, tuple(metrics), count, number, (*table.notes, *_origin_notes(runs)))


@dataclass
class _Table:
    """Builds the parts and collects what must be said about them."""

    variants: list[str]
    baseline: str
    metrics: tuple[str, ...]
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def part(self, dataset: str, protocol: str, runs: Sequence[Run]) -> Part:
        by_variant = {name: {run.seed: run for run in runs if run.variant == name} for name in self.variants}
        base = by_variant[self.baseline]
        if not base:
            self.note(f"{dataset} has no run of {self.baseline}, so it has no differences.")
        lines = []
        for name, own in by_variant.items():
            if own:
                pairs = self._pairs(dataset, name, own, base) if name != self.baseline else []
                entries = tuple(self._entry(metric, list(own.values()), pairs) for metric in self.metrics)
                lines.append(Line(name, tuple(sorted(own)), entries))
        return Part(dataset, protocol, tuple(lines))

    def _pairs(self, dataset: str, name: str, own: dict[int, Run], base: dict[int, Run]) -> list[tuple[Run, Run]]:
        alone = sorted(set(own) ^ set(base))
        if alone and base:
            self.note(
                f"{dataset}: seeds {', '.join(map(str, alone))} are in only one of {name} and {self.baseline}; "
                "the difference leaves them out."
            )
        pairs = [(own[seed], base[seed]) for seed in sorted(set(own) & set(base))]
        for first, second in pairs:
            self._check(first, second)
        if len(pairs) == 1:
            self.note(
                f"{dataset}: one seed only, so intervals and p-values resample test classes alone and say nothing of "
                "other training runs."
            )
        return pairs

    def _check(self, first: Run, second: Run) -> None:
        """Refuse pairs whose test pictures differ."""
        if first.fingerprint == second.fingerprint:
            return
        if first.test_fingerprint != second.test_fingerprint:
            raise EvaluationError(
                f"{first.folder} and {second.folder} were tested on different pictures (data fingerprints "
                f"{first.fingerprint[:8]} and {second.fingerprint[:8]}), so they cannot be compared. Give both runs "
                "the same source, split and seed."
            )
        self.note(
            f"{first.variant} and {second.variant} share their test pictures but not all others (seed {first.seed}); "
            "they were trained on different data."
        )

    def _entry(self, metric: str, runs: Sequence[Run], pairs: Sequence[tuple[Run, Run]]) -> Entry:
        values = [float(value) for run in runs if (value := run.row["metrics"].get(metric)) is not None]
        if not values:
            return Entry(None, None)
        deviation = stdev(values) if len(values) > 1 else None
        sums = [one for first, second in pairs if (one := _sums(first, second, metric)) is not None]
        if pairs and not sums:
            self.note(f"{metric} is no mean over queries, so it has no paired difference.")
        if not sums:
            return Entry(fmean(values), deviation)
        estimate = paired_bootstrap(sums, resamples=self.resamples, seed=self.seed)
        if estimate.num_classes < _FEW_CLASSES:
            self.note(f"Only {estimate.num_classes} test classes: intervals from so few are too narrow.")
        return Entry(fmean(values), deviation, Difference(estimate))


def _sums(first: Run, second: Run, metric: str) -> ClassSums | None:
    values, others = first.values(metric), second.values(metric)
    if values is None or others is None:
        return None
    try:
        rows = match_queries(first.query_paths, second.query_paths)
        return class_sums(values, others[rows], first.queries["label"].to_numpy(str))
    except EvaluationError as error:
        raise EvaluationError(f"{first.folder} and {second.folder} cannot be compared: {error}") from None


def _corrected(parts: Sequence[Part]) -> tuple[list[Part], int]:
    """Holm's correction over every difference of the table; returns the parts and how many there are."""
    found = [
        entry.difference.estimate.p
        for part in parts
        for line in part.lines
        for entry in line.entries
        if entry.difference is not None
    ]
    corrected = iter(holm(found))

    def fill(entry: Entry) -> Entry:
        if entry.difference is None:
            return entry
        return replace(entry, difference=replace(entry.difference, p_corrected=next(corrected)))

    filled = [
        replace(
            part,
            lines=tuple(replace(line, entries=tuple(fill(entry) for entry in line.entries)) for line in part.lines),
        )
        for part in parts
    ]
    return filled, sum(p == p for p in found)


def _origin_notes(runs: Sequence[Run]) -> list[str]:
    """Say when the runs were not made alike."""
    notes = []
    for name in ("proxemics", "torch", "timm"):
        versions = sorted({str(run.result.get("versions", {}).get(name)) for run in runs})
        if len(versions) > 1:
            notes.append(f"The runs were made with different versions of {name}: {', '.join(versions)}.")
    if any(run.result.get("unseen_classes") is False for run in runs):
        notes.append("Some test classes were trained on, so these are not numbers on unseen classes.")
    return notes
