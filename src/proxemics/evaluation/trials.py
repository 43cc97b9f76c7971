"""Looking pictures up among enrolled classes, many times over, and counting the errors at every threshold.

See :mod:`proxemics.evaluation.open_set` for what is counted. Scores are stepped as those of pairs are, so that the
counts hold for every threshold that is a multiple of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.inputs import row_chunks
from proxemics.evaluation.pair_scan import BINS, PairSet, steps_of

Template = Literal["centroid", "nearest"]
_TINY = 1e-12  # probability that is left of the order of the best class and no longer looked at
_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Trials:
    """How pictures are looked up.

    Attributes:
        gallery: G, enrolled classes, fewer than there are.
        pictures: enrolled of each class, fewer where a class has no more.
        template: what a class is represented by.
        weights: (N,) weights of pictures in a centroid, in the order of the sorted set; None: equal.
        draws: how often the enrolled pictures are drawn.
        seed: of the draws.
    """

    gallery: int
    pictures: int
    template: Template
    weights: NDArray[np.float64] | None
    draws: int
    seed: int


@dataclass(frozen=True, eq=False)
class TrialCounts:
    """Probabilities added up over pictures and draws, by step.

    Attributes:
        alarm: (BINS,) float64: the best of G other classes has its score in the step.
        looked_up: pictures times draws.
    """

    alarm: NDArray[np.float64]
    looked_up: int

    def false_alarms(self) -> NDArray[np.float64]:
        """(BINS + 1,) FPIR at every threshold; falling to 0."""
        rates: NDArray[np.float64] = np.append(self.alarm[::-1].cumsum()[::-1], 0.0) / self.looked_up
        return rates


@dataclass(frozen=True, eq=False)
class RatesAt:
    """Rates at one threshold, and with each class left out.

    Attributes:
        fpir: share of pictures without an enrolled class that are given one.
        fpir_without: (C,) that with each class left out of pictures and gallery.
        fnir: share of pictures with an enrolled class that are not given it; NaN where there are none.
        fnir_without: (C,) likewise.
        rank_one: share of pictures with an enrolled class whose class scores best, whatever the threshold.
        known: pictures with an enrolled class, in the mean over draws.
    """

    fpir: float
    fpir_without: NDArray[np.float64]
    fnir: float
    fnir_without: NDArray[np.float64]
    rank_one: float
    known: int


def best_of(gallery: int, others: int) -> NDArray[np.float64]:
    """Return the probability that at least one of the m highest of the other classes is in the gallery.

    Args:
        gallery: G classes drawn from the others, at most their number.
        others: M, how many other classes there are.

    Returns:
        (M + 1,) for m = 0..M, rising from 0 to 1 (all 0 for G = 0).

    Example:
        >>> best_of(2, 4).round(3).tolist(), best_of(4, 4).tolist()
        ([0.0, 0.5, 0.833, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0, 1.0])
    """
    taken = np.arange(others)
    # none of the m highest is drawn: the product of (M - G - i) / (M - i) over i below m
    factors = np.clip((others - gallery - taken) / (others - taken), 0, 1)
    return 1 - np.concatenate([[1.0], factors.cumprod()])


def count_trials(pairs: PairSet, trials: Trials) -> TrialCounts:
    """Count false alarms of all pictures at every threshold."""
    others = len(pairs.names) - 1
    reach = best_of(trials.gallery, others)
    deep = max(1, min(int(np.searchsorted(reach, 1 - _TINY)), others))
    chance = torch.from_numpy(np.diff(reach)[:deep]).to(pairs.scale.device)
    alarm = torch.zeros(BINS, dtype=torch.float64, device=pairs.scale.device)
    for block in trial_blocks(pairs, trials):
        best = torch.topk(block.foreign(), deep, dim=1).values
        alarm += torch.bincount(best.flatten(), chance.expand_as(best).flatten(), minlength=BINS)
    return TrialCounts(alarm.cpu().numpy(), len(pairs) * trials.draws)


def rates_at(pairs: PairSet, trials: Trials, index: int) -> RatesAt:
    """Measure both rates at a threshold, and leave out each class in turn.

    With class c left out, its pictures are no longer looked up, and the gallery is drawn from the other classes: a
    picture that m of M classes reach the threshold for is then reached by m or m - 1 of M - 1.
    """
    alarm, loss = _alarm(pairs, trials), _loss(pairs, trials)
    rank = 0.0
    for block in trial_blocks(pairs, trials):
        foreign, own = block.foreign(), block.own()
        everyone = torch.ones_like(block.probe)
        alarm.add(block.codes, _Causes.of(foreign >= index), everyone, ~everyone)
        ahead = foreign >= own[:, None]
        loss.add(block.codes, _Causes.of(ahead), block.probe, own < index)
        rank += float((1 - loss.full[ahead.sum(dim=1)])[block.probe].sum())
    fpir, fpir_without = alarm.result()
    fnir, fnir_without = loss.result()
    known = float(loss.pictures.sum())
    return RatesAt(
        fpir, fpir_without, fnir, fnir_without, rank / known if known else float("nan"), round(known / trials.draws)
    )


def alarms_at(
    pairs: PairSet, trials: Trials, index: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure the FPIR at several thresholds.

    Args:
        pairs: the set.
        trials: how pictures are looked up.
        index: (K,) thresholds, rising.

    Returns:
        (K,) rates, and (C, K) with each class left out.
    """
    sums = [_alarm(pairs, trials) for _ in index]
    for block in trial_blocks(pairs, trials):
        foreign = block.foreign()
        causes = _Causes.of(foreign >= int(index[0]))
        steps = foreign[causes.row, causes.col]
        everyone = torch.ones_like(block.probe)
        for limit, one in zip(index.tolist(), sums, strict=True):
            kept = steps >= limit
            causes, steps = _Causes(causes.row[kept], causes.col[kept]), steps[kept]
            one.add(block.codes, causes, everyone, ~everyone)
    found = [one.result() for one in sums]
    return np.array([rate for rate, _ in found]), np.stack([without for _, without in found], axis=1)


def _alarm(pairs: PairSet, trials: Trials) -> _Rate:
    others = len(pairs.names) - 1
    return _Rate(pairs, best_of(trials.gallery, others), best_of(min(trials.gallery, others - 1), others - 1))


def _loss(pairs: PairSet, trials: Trials) -> _Rate:
    others = len(pairs.names) - 1
    fewer = min(trials.gallery, others - 1) - 1  # with as many other classes as the gallery has, there is one less
    return _Rate(pairs, best_of(trials.gallery - 1, others), best_of(fewer, others - 1))


@dataclass(frozen=True, eq=False)
class _Causes:
    """Rows and columns (n,) of the classes that would cause an error of a picture."""

    row: Tensor
    col: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> _Causes:
        row, col = torch.nonzero(mask, as_tuple=True)
        return cls(row, col)


class _Rate:
    """Adds up an error rate by class, with each class in turn left out of pictures and gallery.

    Args:
        pairs: the set.
        full: (M + 1,) probability of an error, by how many other classes would cause one.
        less: (M,) that with one class fewer to draw the gallery from.
    """

    def __init__(self, pairs: PairSet, full: NDArray[np.float64], less: NDArray[np.float64]) -> None:
        device = pairs.scale.device
        self.full = torch.from_numpy(full).to(device)
        self._less = torch.from_numpy(np.append(less, less[-1])).to(device)
        zeros = torch.zeros(len(pairs.names), dtype=torch.float64, device=device)
        self.pictures, self._errors, self._fewer, self._spared = zeros.clone(), zeros.clone(), zeros.clone(), zeros

    def add(self, codes: Tensor, causes: _Causes, counted: Tensor, certain: Tensor) -> None:
        """Add pictures.

        Args:
            codes: (r,) their classes.
            causes: classes that would cause an error if they are enrolled; never the own class.
            counted: (r,) bool, pictures that are looked up.
            certain: (r,) bool, pictures that are an error whatever is enrolled.
        """
        many = torch.bincount(causes.row, minlength=len(codes))
        error = torch.where(certain, 1.0, self.full[many]) * counted
        with_all = torch.where(certain, 1.0, self._less[many]) * counted
        with_one_less = torch.where(certain, 1.0, self._less[(many - 1).clamp_min(0)]) * counted
        self.pictures.index_add_(0, codes, counted.double())
        self._errors.index_add_(0, codes, error)
        self._fewer.index_add_(0, codes, with_all)
        self._spared.index_add_(0, causes.col, (with_all - with_one_less)[causes.row])

    def result(self) -> tuple[float, NDArray[np.float64]]:
        """Return the rate, and (C,) rates with each class left out; NaN where no picture is left."""
        total = float(self.pictures.sum())
        if total == 0:
            return float("nan"), np.full(len(self.pictures), np.nan)
        left = self.pictures.sum() - self.pictures
        errors = self._fewer.sum() - self._fewer - self._spared
        without: NDArray[np.float64] = torch.where(left > 0, errors / left, torch.nan).cpu().numpy()
        return float(self._errors.sum()) / total, without


@dataclass(frozen=True, eq=False)
class TrialBlock:
    """Scores of some pictures with all classes, in one draw.

    Attributes:
        codes: (r,) int64 class of each picture.
        steps: (r, C) int64.
        probe: (r,) bool, pictures that may be looked up with their class enrolled: not enrolled themselves, and their
            class has a template.
    """

    codes: Tensor
    steps: Tensor
    probe: Tensor

    def own(self) -> Tensor:
        """(r,) steps of the own class."""
        return self.steps.gather(1, self.codes[:, None]).squeeze(1)

    def foreign(self) -> Tensor:
        """(r, C) steps, -1 for the own class."""
        return self.steps.scatter(1, self.codes[:, None], -1)


def trial_blocks(pairs: PairSet, trials: Trials) -> Iterator[TrialBlock]:
    """Yield the scores of all pictures in each draw."""
    sizes = pairs.sizes
    starts = np.cumsum(sizes) - sizes
    for draw in range(trials.draws):
        chosen, slots = _drawn(sizes, starts, trials, draw)
        templates, owner = _templates(pairs, trials, chosen, slots)
        probe = torch.ones(len(pairs), dtype=torch.bool, device=pairs.scale.device)
        probe[torch.from_numpy(chosen).to(probe.device)] = False
        for rows in row_chunks(len(pairs), _ROWS):
            scores = pairs.unit(rows) @ templates.T
            if trials.template == "nearest":
                best = torch.full((len(scores), len(sizes)), -1.0, dtype=scores.dtype, device=scores.device)
                scores = best.scatter_reduce(1, owner.expand_as(scores), scores, "amax")
            yield TrialBlock(pairs.codes[rows], steps_of(scores), probe[rows])


def _drawn(
    sizes: NDArray[np.int64], starts: NDArray[np.int64], trials: Trials, draw: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the pictures that are enrolled, and the class of each; the fewer ones of a larger number come first."""
    order = numpy_generator(trials.seed, "open_set", draw).random(int(sizes.sum()))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.lexsort((order, owner))
    place = np.arange(len(rows)) - starts[owner]
    kept = place < np.minimum(trials.pictures, np.maximum(sizes - 1, 1))[owner]
    return rows[kept], owner[kept]


def _templates(
    pairs: PairSet, trials: Trials, chosen: NDArray[np.int64], owner: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Unit templates (T, D) float64 and their classes (T,); a centroid a class, or every enrolled picture."""
    device = pairs.scale.device
    rows, codes = torch.from_numpy(chosen).to(device), torch.from_numpy(owner).to(device)
    units = pairs.matrix[rows].double() * pairs.scale[rows, None]
    if trials.template == "nearest":
        return units, codes
    if trials.weights is not None:
        units = units * torch.from_numpy(trials.weights[chosen]).to(device)[:, None]
    sums = torch.zeros(len(pairs.names), units.shape[1], dtype=torch.float64, device=device)
    sums.index_add_(0, codes, units)
    return torch.nn.functional.normalize(sums, dim=1), torch.arange(len(pairs.names), device=device)
