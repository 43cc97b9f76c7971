"""Runs into a table: mean, deviation, paired difference to a baseline, its interval and a mark where it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from proxemics.core.errors import ConfigError, did_you_mean
from proxemics.evaluation.paired import RESAMPLES, ClassSums, PairedEstimate, holm, paired_bootstrap
from proxemics.report.compare_pairs import Compared, check_pair, paired_sums
from proxemics.report.compare_probes import ProbePart, probe_parts
from proxemics.report.compare_rows import FileRow

Pair = tuple[Compared, Compared]
METRICS = ("recall_at_1", "map_at_r")
LEVEL = 0.05
_FEW_CLASSES = 10


@dataclass(frozen=True)
class Difference:
    """A variant minus the baseline.

    Attributes:
        estimate: difference, interval and p-value; without the last two where only numbers of whole runs are known.
        per_seed: the difference of each pair of runs, by rising seed.
        p_corrected: after Holm's correction over all comparisons of the table.
    """

    estimate: PairedEstimate
    per_seed: tuple[float, ...] = ()
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
        probes: the bias cards side by side, one part a data set; empty where no run was probed.
    """

    parts: tuple[Part, ...]
    baseline: str
    metrics: tuple[str, ...]
    resamples: int
    num_comparisons: int
    notes: tuple[str, ...]
    probes: tuple[ProbePart, ...] = ()


def compare(
    runs: Sequence[Compared],
    *,
    baseline: str | None = None,
    metrics: Sequence[str] = METRICS,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare variants with a baseline, pair by pair of runs with one data set, protocol and seed.

    Args:
        runs: from :func:`proxemics.report.compare_runs.read_runs`, or with result files from
            :func:`proxemics.report.compare_rows.read_compared`.
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
    groups: dict[tuple[str, str], list[Compared]] = {}
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
    probes = probe_parts(groups, variants, chosen)
    notes = (*table.notes, *_origin_notes(runs))
    return Comparison(tuple(parts), chosen, tuple(metrics), count, number, notes, tuple(probes))


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

    def part(self, dataset: str, protocol: str, runs: Sequence[Compared]) -> Part:
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

    def _pairs(self, dataset: str, name: str, own: dict[int, Compared], base: dict[int, Compared]) -> list[Pair]:
        alone = sorted(set(own) ^ set(base))
        if alone and base:
            self.note(
                f"{dataset}: seeds {', '.join(map(str, alone))} are in only one of {name} and {self.baseline}; "
                "the difference leaves them out."
            )
        pairs = [(own[seed], base[seed]) for seed in sorted(set(own) & set(base))]
        for first, second in pairs:
            if (said := check_pair(first, second)) is not None:
                self.note(said)
        return pairs

    def _entry(self, metric: str, runs: Sequence[Compared], pairs: Sequence[Pair]) -> Entry:
        values = [float(value) for run in runs if (value := run.row["metrics"].get(metric)) is not None]
        if not values:
            return Entry(None, None)
        deviation = stdev(values) if len(values) > 1 else None
        known = [pair for pair in pairs if all(one.row["metrics"].get(metric) is not None for one in pair)]
        sums = [one for first, second in known if (one := paired_sums(first, second, metric)) is not None]
        per_seed = tuple(float(a.row["metrics"][metric]) - float(b.row["metrics"][metric]) for a, b in known)
        return Entry(fmean(values), deviation, self._difference(metric, known, sums, per_seed))

    def _difference(
        self, metric: str, pairs: Sequence[Pair], sums: Sequence[ClassSums], per_seed: tuple[float, ...]
    ) -> Difference | None:
        """Estimate a difference; without sums over classes it is the mean of those of the seeds, and no more."""
        files = [run.folder.name for pair in pairs for run in pair if isinstance(run, FileRow)]
        if not sums and files:
            self.note(
                f"{files[0]} has differences without sums over test classes, and so without an interval; the numbers "
                "in brackets are those of the seeds."
            )
            nothing = float("nan")
            return Difference(PairedEstimate(fmean(per_seed), nothing, nothing, nothing, len(per_seed), 0), per_seed)
        if not sums:
            if pairs:
                self.note(f"{metric} is no mean over queries, so it has no paired difference.")
            return None
        if len(sums) == 1:
            self.note(
                f"{pairs[0][0].dataset}: one seed only, so intervals and p-values resample test classes alone and say "
                "nothing of other training runs."
            )
        estimate = paired_bootstrap(sums, resamples=self.resamples, seed=self.seed)
        if estimate.num_classes < _FEW_CLASSES:
            self.note(f"Only {estimate.num_classes} test classes: intervals from so few are too narrow.")
        return Difference(estimate, per_seed)


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


def _origin_notes(runs: Sequence[Compared]) -> list[str]:
    """Say when the runs were not made alike."""
    notes = []
    for name in ("proxemics", "torch", "timm"):
        versions = sorted({str(run.result.get("versions", {}).get(name)) for run in runs})
        if len(versions) > 1:
            notes.append(f"The runs were made with different versions of {name}: {', '.join(versions)}.")
    if any(run.result.get("unseen_classes") is False for run in runs):
        notes.append("Some test classes were trained on, so these are not numbers on unseen classes.")
    return notes
