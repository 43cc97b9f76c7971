"""Is this picture of an enrolled class, and of which? The threshold for a false-positive identification rate.

A picture is compared with all G enrolled classes, and the best score decides, so each further class is another chance
of a false alarm: a threshold for pairs lets through far too much here. FPIR is the share of pictures whose class is not
enrolled that are given a class all the same; FNIR the share of pictures whose class is enrolled that are not given it,
because the right class does not score best or does not reach the threshold (ISO/IEC 19795-1).

Both are measured on classes with known labels. Some pictures of each class are drawn as if they had been enrolled, and
every picture is looked up twice: with its own class absent, among G of the other classes, and, unless it was drawn
itself, with its own class present. The mean over all choices of G classes is exact: with the scores of the M other
classes sorted, the best of G drawn classes is the j-th of M with probability C(M-j, G-1) / C(M, G). Drawing the
enrolled pictures is repeated. With only M other classes, fewer than G, the FPIR is bounded instead of measured: among
G classes it is at most G / M times that among M, if further classes look like these, because it grows ever more slowly
with the gallery. The threshold is then the one that keeps target · M / G among M classes, and the result says so.

Intervals leave out one class at a time, as a class of queries and as an enrolled one
(:mod:`proxemics.evaluation.class_spread`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.class_spread import LEVEL, effective_trials, rate_interval
from proxemics.evaluation.inputs import Embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.operating_point import CountThreshold, Rate, Threshold
from proxemics.evaluation.pair_scan import BINS, PairSet, pair_set, smallest_index, threshold_of
from proxemics.evaluation.thresholds import MIN_ERRORS, check_classes, check_level, ladder, threshold_ends
from proxemics.evaluation.trials import Template, Trials, alarms_at, count_trials, rates_at
from proxemics.evaluation.verification import check_target

DRAWS = 5
PICTURES = (1, 3, 5)


def calibrate_identification(
    embeddings: Embeddings,
    labels: Labels,
    *,
    target_fpir: float = 1e-2,
    gallery: int | None = None,
    pictures: Sequence[int] = PICTURES,
    template: Template = "centroid",
    weights: NDArray[np.floating] | Sequence[float] | None = None,
    cautious: bool = False,
    level: float = LEVEL,
    min_errors: int = MIN_ERRORS,
    draws: int = DRAWS,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Threshold:
    """Find the threshold on the best score among enrolled classes for a false-positive identification rate.

    Args:
        embeddings: (N, D) numbers of any length, of classes that training never saw.
        labels: (N,) integers or strings.
        target_fpir: share of pictures of classes that are not enrolled which may be given a class, in (0, 1).
        gallery: G, how many classes are enrolled; default: all but the one that a picture belongs to.
        pictures: how many pictures of a class are enrolled; one threshold for each. A class never gives more than all
            its pictures but one.
        template: score against the ``centroid`` of the enrolled pictures, or the ``nearest`` of them.
        weights: (N,) weights of pictures in centroids; None: equal.
        cautious: take the upper ends of the intervals.
        level: confidence of the intervals.
        min_errors: false alarms that must be expected at the target, 3 or more.
        draws: how often the enrolled pictures are drawn.
        seed: of the draws.
        device: where to compute.

    Returns:
        The operating point, of the kind ``identify``. Its own threshold is that of the largest number of pictures.

    Raises:
        EvaluationError: too few pictures or classes for the target (the message says how many are needed), or
            arguments out of range.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(100, 8)) + np.repeat(np.eye(20, 8) * 5, 5, axis=0)
        >>> found = calibrate_identification(points, np.arange(100) // 5, target_fpir=0.3, gallery=5, pictures=[2])
        >>> found.kind, found.gallery, found.false_match.value <= 0.3, found.by_count[0].pictures
        ('identify', 5, True, 2)
    """
    check_target(target_fpir, "target_fpir")
    check_level(level, min_errors)
    counts = _checked_counts(pictures, draws)
    pairs = pair_set(embeddings, labels, device=device)
    size = _gallery(pairs, gallery)
    measured = min(size, len(pairs.names) - 1)
    _check_numbers(pairs, target_fpir, size / measured, min_errors)
    _check_template(template)
    scale = _checked_weights(weights, pairs)
    found = [
        _calibrate_count(
            pairs, Trials(measured, count, template, scale, draws, seed), target_fpir, size / measured, cautious, level
        )
        for count in counts
    ]
    last, effective, positives = found[-1]
    return Threshold(
        kind="identify",
        target=target_fpir,
        threshold=last.threshold,
        interval=last.interval,
        level=level,
        cautious=cautious,
        false_match=last.false_match,
        miss=last.miss,
        negatives=len(pairs),
        effective=effective,
        positives=positives,
        pictures=len(pairs),
        classes=len(pairs.names),
        gallery=size,
        extrapolated=size > len(pairs.names) - 1,
        template=template,
        by_count=tuple(one for one, _, _ in found),
        notes=tuple(_notes(pairs, size, counts)),
    )


def _calibrate_count(
    pairs: PairSet, trials: Trials, target: float, times: float, cautious: bool, level: float
) -> tuple[CountThreshold, float | None, int]:
    """Calibrate for one number of enrolled pictures; the gallery is ``times`` as large as that of the trials."""
    falling = count_trials(pairs, trials).false_alarms()
    index = smallest_index(falling, target / times)
    if index == BINS:
        raise EvaluationError(
            f"More than {target:g} of the pictures are identical (similarity 1) to one of another class, so no "
            "threshold keeps the target; look for one picture in two classes with `proxemics doctor`."
        )
    steps = ladder(falling, target / times, index)
    rates, without = alarms_at(pairs, trials, steps)
    place = int(np.searchsorted(steps, index))
    ends = threshold_ends(rates, without, place, target / times, level)
    chosen = int(steps[ends[1]]) if cautious else index
    there, units = rates_at(pairs, trials, chosen), len(pairs.names)
    return (
        CountThreshold(
            pictures=trials.pictures,
            threshold=threshold_of(chosen),
            interval=(threshold_of(int(steps[ends[0]])), threshold_of(int(steps[ends[1]]))),
            false_match=_rate(there.fpir, there.fpir_without, units, level, times),
            miss=_rate(there.fnir, there.fnir_without, units, level),
            rank_one=None if math.isnan(there.rank_one) else there.rank_one,
        ),
        effective_trials(float(rates[place]), without[:, place]),
        there.known,
    )


def _rate(value: float, without: NDArray[np.float64], units: int, level: float, times: float = 1.0) -> Rate:
    if math.isnan(value):
        return Rate(value=None)
    interval = rate_interval(value, without, units=units, level=level)
    low, high = (None, None) if interval is None else (min(1.0, times * end) for end in interval)
    return Rate(value=min(1.0, times * value), low=low, high=high)


def _checked_counts(pictures: Sequence[int], draws: int) -> list[int]:
    if not pictures or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in pictures):
        raise EvaluationError(f"pictures={list(pictures)}: give how many pictures of a class are enrolled, 1 or more.")
    if draws < 1:
        raise EvaluationError(f"draws={draws}: give 1 or more.")
    return sorted(set(pictures))


def _gallery(pairs: PairSet, gallery: int | None) -> int:
    if gallery is None:
        return len(pairs.names) - 1
    if gallery < 1:
        raise EvaluationError(f"gallery={gallery}: give the number of enrolled classes, 1 or more.")
    return gallery


def _check_template(template: str) -> None:
    if template not in ("centroid", "nearest"):
        raise EvaluationError(f"template={template!r}: give 'centroid' or 'nearest'.")


def _checked_weights(
    weights: NDArray[np.floating] | Sequence[float] | None, pairs: PairSet
) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (len(pairs),) or not np.isfinite(values).all() or bool((values <= 0).any()):
        raise EvaluationError(f"weights have shape {values.shape}; give {len(pairs)} positive numbers, one a picture.")
    return values[pairs.order]


def _check_numbers(pairs: PairSet, target: float, times: float, min_errors: int) -> None:
    check_classes(len(pairs.names))
    needed = math.ceil(min_errors * times / target)
    if len(pairs) < needed:
        raise EvaluationError(
            f"A false-positive identification rate of {target:g} needs {needed:,} pictures, so that {min_errors} false "
            f"alarms are expected (rule of {min_errors}), and there are {len(pairs):,} of {len(pairs.names)} classes. "
            f"Give more pictures, a smaller gallery, or a target of {min_errors * times / len(pairs):.2g} or more."
        )


def _notes(pairs: PairSet, size: int, counts: Sequence[int]) -> list[str]:
    notes = []
    others = len(pairs.names) - 1
    if size > others:
        notes.append(
            f"A gallery of {size} classes is more than the {others} that could be measured: its FPIR is an upper bound "
            f"that supposes further classes like these, and its FNIR is that with {others} classes."
        )
    short = int((pairs.sizes <= max(counts)).sum())
    if short:
        notes.append(
            f"{short} of {len(pairs.names)} classes have no more than {max(counts)} pictures and were enrolled with "
            "fewer."
        )
    if pairs.zero_rows:
        notes.append(f"{pairs.zero_rows} embedding(s) have length 0; their similarity to everything is taken as 0.")
    return notes
