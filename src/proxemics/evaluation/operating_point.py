"""What a calibration found: a threshold, how sure it is, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["verify", "identify"]


class Rate(BaseModel):
    """A measured error rate.

    Attributes:
        value: in [0, 1]; None where there was nothing to measure it on.
        low: lower end of its interval; None where it is unknown.
        high: upper end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None
    low: float | None = None
    high: float | None = None


class ClassThreshold(BaseModel):
    """The threshold of one class.

    Attributes:
        threshold: for pairs in which the class is claimed.
        own_share: how much of it rests on the pairs of this class, in [0, 1]; the rest on all pairs.
        negatives: pairs of this class with others.
        false_match: share of them that match at this threshold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float
    own_share: float
    negatives: int
    false_match: float


class CountThreshold(BaseModel):
    """The threshold for classes that are enrolled with a certain number of pictures.

    Attributes:
        pictures: enrolled pictures of a class.
        threshold: see :class:`Threshold`.
        interval: of the threshold.
        false_match: FPIR at the threshold.
        miss: FNIR at the threshold.
        rank_one: share of known pictures whose best class is the right one, threshold or not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pictures: int
    threshold: float
    interval: tuple[float, float]
    false_match: Rate
    miss: Rate
    rank_one: float | None = None


class Threshold(BaseModel):
    """An operating point. A score, the cosine, of at least ``threshold`` is a match.

    Attributes:
        kind: ``verify``, two pictures are compared; or ``identify``, a picture is compared with all enrolled classes.
        target: the false-match rate (verify) or false-positive identification rate (identify) that was aimed at.
        threshold: what to compare scores with.
        interval: thresholds at which the true rate may be the target, with the confidence ``level``. Its upper end is
            the cautious choice.
        level: confidence of all intervals.
        cautious: whether ``threshold`` is the upper end of the interval instead of the estimate.
        false_match: FMR or FPIR at ``threshold``.
        miss: FNMR or FNIR at ``threshold``.
        negatives: pairs of different classes, or pictures without an enrolled class, that it rests on.
        effective: how many independent ones would tell as much; None where it is unknown.
        positives: pairs of one class, or pictures with an enrolled class, that ``miss`` rests on.
        pictures: that were compared.
        classes: they belong to.
        gallery: identify: how many classes are enrolled.
        extrapolated: identify: the gallery is larger than what there was to measure on.
        template: identify: ``centroid`` of the enrolled pictures, or the ``nearest`` of them.
        by_count: identify: thresholds by the number of enrolled pictures, the fewest first.
        per_class: verify: thresholds of classes, by name; empty unless asked for.
        notes: sentences that a reader of the numbers must know.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    target: float = Field(gt=0, lt=1)
    threshold: float
    interval: tuple[float, float]
    level: float
    cautious: bool = False
    false_match: Rate
    miss: Rate
    negatives: int
    effective: float | None = None
    positives: int
    pictures: int
    classes: int
    gallery: int | None = None
    extrapolated: bool = False
    template: Literal["centroid", "nearest"] | None = None
    by_count: tuple[CountThreshold, ...] = ()
    per_class: Mapping[str, ClassThreshold] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def limit(self, label: str | None = None, *, count: int | None = None) -> float:
        """Return the threshold that holds for a class.

        Args:
            label: the class that is claimed; one with a threshold of its own gets it.
            count: how many pictures the class was enrolled with; thresholds of the largest measured number up to it
                are taken, or of the smallest there is.

        Example:
            >>> counts = [CountThreshold(pictures=n, threshold=t, interval=(t, t), false_match=Rate(value=0.01),
            ...     miss=Rate(value=0.2)) for n, t in ((1, 0.6), (5, 0.8))]
            >>> point = Threshold(kind="identify", target=0.01, threshold=0.8, interval=(0.8, 0.8), level=0.95,
            ...     false_match=Rate(value=0.01), miss=Rate(value=0.2), negatives=1000, positives=1000, pictures=1000,
            ...     classes=50, by_count=tuple(counts))
            >>> point.limit(), point.limit(count=1), point.limit(count=4), point.limit(count=9)
            (0.8, 0.6, 0.6, 0.8)
        """
        if label is not None and label in self.per_class:
            return self.per_class[label].threshold
        if count is None or not self.by_count:
            return self.threshold
        fitting = [one for one in self.by_count if one.pictures <= count]
        return (fitting[-1] if fitting else self.by_count[0]).threshold
