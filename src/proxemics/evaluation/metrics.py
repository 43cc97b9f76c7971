"""Retrieval metrics of each query from the places of its positives.

With R positives at places p_1 < p_2 < ... (the query itself is never in the ranking):

* Recall@k = 1 if p_1 <= k else 0 (any hit);
* R-Precision = #{a : p_a <= R} / R;
* MAP@R = (1/R) sum over p_a <= R of a / p_a (Musgrave, Belongie, Lim, "A Metric Learning Reality Check", 2020);
* MAP@H with a fixed horizon H = the same sum over p_a <= H, divided by min(R, H);
* ``map_c_roth`` = the same sum over p_a <= R + 1, divided by R + 1: the class size with the query counted, as in the
  code of Roth et al. 2020. A perfect ranking scores R / (R + 1), so it is never comparable with MAP@R;
* MAP_H of Roth et al. (``map_H_roth``) = the same sum over p_a <= H, divided by R + 1 whatever H is;
* Precision@k = #{a : p_a <= k} / k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.ranking import Ranks

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Wanted:
    """Which metrics to compute beside MAP@R, R-Precision and ``map_c_roth``.

    Attributes:
        recall_at: values of k, rising.
        precision_at: values of k, rising.
        map_horizon: H, or None.
        roth_horizon: H of Roth's MAP_H, or None.
    """

    recall_at: tuple[int, ...]
    precision_at: tuple[int, ...]
    map_horizon: int | None
    roth_horizon: int | None = None

    @property
    def depth(self) -> int:
        """Deepest place that a metric other than Recall and the R-based ones looks at."""
        return max((*self.precision_at, self.map_horizon or 0, self.roth_horizon or 0), default=0)

    @property
    def names(self) -> list[str]:
        """Metric names in the order of tables."""
        names = [f"recall_at_{k}" for k in self.recall_at] + ["map_at_r", "r_precision", "map_c_roth"]
        names += [f"precision_at_{k}" for k in self.precision_at]
        names += [f"map_at_{self.map_horizon}"] if self.map_horizon is not None else []
        return names + ([f"map_{self.roth_horizon}_roth"] if self.roth_horizon is not None else [])


def check_wanted(
    recall_at: object, precision_at: object, map_horizon: int | None, roth_horizon: int | None = None
) -> Wanted:
    """Check and sort the requested places.

    Raises:
        EvaluationError: a place is not a positive integer.

    Example:
        >>> check_wanted((10, 1), (), None).names
        ['recall_at_1', 'recall_at_10', 'map_at_r', 'r_precision', 'map_c_roth']
    """
    horizon = None if map_horizon is None else _places((map_horizon,), "map_horizon")[0]
    theirs = None if roth_horizon is None else _places((roth_horizon,), "roth_horizon")[0]
    return Wanted(_places(recall_at, "recall_at"), _places(precision_at, "precision_at"), horizon, theirs)


def _places(values: object, name: str) -> tuple[int, ...]:
    given = (values,) if isinstance(values, int) else values
    if not isinstance(given, (tuple, list, range, np.ndarray)):
        raise EvaluationError(f"{name}={values!r}; give positive integers such as (1, 10).")
    places = []
    for value in given:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise EvaluationError(f"{name} holds {value!r}; give positive integers such as (1, 10).")
        places.append(int(value))
    return tuple(sorted(set(places)))


def query_metrics(ranks: Ranks, wanted: Wanted, reading: int = 0) -> dict[str, FloatArray]:
    """Compute all metrics of each query.

    Args:
        ranks: Q queries.
        wanted: which metrics.
        reading: how ties are read: 0 by gallery row, 1 optimistically, 2 pessimistically.

    Returns:
        Arrays (Q,) in [0, 1], NaN for queries without positives, by metric name.
    """
    counts = ranks.start.diff()
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    own = torch.arange(len(owner), device=counts.device) - ranks.start[owner] + 1
    place, first = ranks.places[reading], ranks.first[reading]
    gain = own / place.double()
    relevant = counts.double()

    def total(reach: Tensor, values: Tensor | None = None) -> Tensor:
        inside = torch.nonzero(place <= reach[owner]).flatten()
        added = torch.ones(len(inside), dtype=torch.float64, device=place.device) if values is None else values[inside]
        return torch.zeros_like(relevant).index_add_(0, owner[inside], added)

    def fixed(k: int) -> Tensor:
        return torch.full_like(counts, k)

    columns = {f"recall_at_{k}": (first <= k).double() for k in wanted.recall_at}
    columns["map_at_r"] = total(counts, gain) / relevant
    columns["r_precision"] = total(counts) / relevant
    columns["map_c_roth"] = total(counts + 1, gain) / (relevant + 1)
    for k in wanted.precision_at:
        columns[f"precision_at_{k}"] = total(fixed(k)) / k
    if wanted.map_horizon is not None:
        h = wanted.map_horizon
        columns[f"map_at_{h}"] = total(fixed(h), gain) / relevant.clamp_max(h)
    if wanted.roth_horizon is not None:
        h = wanted.roth_horizon
        columns[f"map_{h}_roth"] = total(fixed(h), gain) / (relevant + 1)
    lone = counts == 0
    return {name: torch.where(lone, torch.nan, values).cpu().numpy() for name, values in columns.items()}


def nearest_items(ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Merge positives and foreign items into the nearest neighbours of each query.

    Args:
        ranks: with lists of k foreign items.

    Returns:
        items (Q, k) int64, -1 where the gallery is shorter; scores (Q, k) float64, -inf there.
    """
    queries, k = ranks.near_items.shape
    items = torch.full((queries, k), -1, dtype=torch.int64, device=ranks.start.device)
    scores = torch.full((queries, k), -torch.inf, dtype=torch.float64, device=ranks.start.device)
    owner = torch.arange(queries, device=ranks.start.device).repeat_interleave(ranks.start.diff())
    inside = torch.nonzero(ranks.places[0] <= k).flatten()
    row, col = owner[inside], ranks.places[0][inside] - 1
    items[row, col], scores[row, col] = ranks.index[inside].long(), ranks.score[inside]
    free = items < 0
    take = (free.cumsum(dim=1) - 1).clamp_min(0)
    items = torch.where(free, ranks.near_items.gather(1, take), items)
    return items, torch.where(free, ranks.near_scores.gather(1, take), scores)
