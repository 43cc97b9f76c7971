"""The five probes of one model on one sample: plain numbers by name, and curves; no words yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.core.geometry import normalize
from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.certainty import score_certainty
from proxemics.evaluation.clustering import rho_spectrum
from proxemics.evaluation.knn import nearest_neighbours
from proxemics.evaluation.probes.background import GREY, background_reliance, paint_over, paste
from proxemics.evaluation.probes.decodability import Decoding, decode_category, decode_number
from proxemics.evaluation.probes.geometry import (
    compactness,
    effective_rank,
    hubness,
    proxy_crowding,
    random_like,
    seen_unseen,
)
from proxemics.evaluation.probes.measure import (
    BATCH,
    Advance,
    Embed,
    Rows,
    balanced_rows,
    embed_all,
    in_batches,
    recall_hits,
)
from proxemics.evaluation.probes.nuisance import NUISANCES, Curve, Nuisance, nuisance_curves

if TYPE_CHECKING:
    from proxemics.evaluation.probes.masks import Masks

PROBES = ("background", "nuisance", "decodability", "geometry", "certainty")
QUERIES = 300
"""Pictures at most that are put through every level of every nuisance."""
DONORS = 16
"""Backgrounds at most that objects are pasted on, to see whether they can be read from the embedding."""


@dataclass(frozen=True)
class Sample:
    """Pictures to probe a model with.

    Attributes:
        pictures: (N, 3, S, S) uint8, as the model sees them before normalisation.
        classes: (N,) class codes; a class with one picture is no query.
        masks: where the objects are, or None.
        scenes: (N,) codes of known backgrounds, or None.
        categories: column name to (N,) values, to decode.
        quantities: column name to (N,) numbers, to decode.
        seen: (M, 3, S, S) uint8 of training classes, or None.
        seen_classes: (M,) class codes, or None.
    """

    pictures: Tensor
    classes: Rows
    masks: Masks | None = None
    scenes: Rows | None = None
    categories: Mapping[str, Sequence[object]] = field(default_factory=dict)
    quantities: Mapping[str, Sequence[object]] = field(default_factory=dict)
    seen: Tensor | None = None
    seen_classes: Rows | None = None


@dataclass(frozen=True)
class Measured:
    """A number.

    Attributes:
        value: NaN where it could not be measured.
        chance: of an embedding that knows nothing: random directions, or a random ranking; None where there is none.
        interval: 95 % interval of the value, or None.
        more: further numbers that the reading needs.
    """

    value: float
    chance: float | None = None
    interval: tuple[float, float] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Findings:
    """What the probes of a model found.

    Attributes:
        numbers: by ``probe/name``.
        curves: of the nuisances.
        risk: risk and coverage of the certainty, or None.
        skipped: why a probe, or a part of one, could not be made.
    """

    numbers: dict[str, Measured] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    risk: dict[str, Any] | None = None
    skipped: dict[str, str] = field(default_factory=dict)


def count_passes(sample: Sample, only: Sequence[str]) -> int:
    """Return how many pictures :func:`measure` embeds, for a progress display."""
    count, queries = len(sample.pictures), min(QUERIES, len(sample.pictures))
    masked = 0 if sample.masks is None else len(sample.masks.rows)
    levels = sum(len(nuisance.levels) for nuisance in _wanted(only))
    total = count + (3 * masked if "background" in only else 0)
    total += queries * levels
    total += min(masked, count) if "decodability" in only and masked >= DONORS else 0
    return total + (len(sample.seen) if "geometry" in only and sample.seen is not None else 0)


def _wanted(only: Sequence[str]) -> list[Nuisance]:
    """All levels for the curves; to decode which change was made the middle one is enough."""
    if "nuisance" in only:
        return list(NUISANCES)
    if "decodability" not in only:
        return []
    return [replace(one, levels=(one.levels[len(one.levels) // 2],)) for one in NUISANCES]


def measure(
    embed: Embed,
    sample: Sample,
    *,
    only: Sequence[str] = PROBES,
    proxies: Tensor | None = None,
    varying_length: bool = True,
    grey: tuple[float, float, float] = GREY,
    seed: int = 0,
    advance: Advance | None = None,
) -> Findings:
    """Run the probes.

    Args:
        embed: the model.
        sample: the pictures.
        only: which of :data:`PROBES`.
        proxies: (C, D) or (C, K, D) of the training loss, if they are known.
        varying_length: the lengths of the raw embeddings can differ, so that they may be read as certainty.
        grey: colour of the removed background.
        seed: of all draws.
        advance: called with the number of pictures embedded.

    Returns:
        The numbers; what could not be measured is in ``skipped`` with the reason.

    Raises:
        EvaluationError: a probe is unknown, or the embeddings are not finite.
    """
    unknown = [name for name in only if name not in PROBES]
    if unknown:
        raise EvaluationError(f"{unknown[0]!r} is no probe; there are {', '.join(PROBES)}.")
    raw = embed_all(embed, in_batches(sample.pictures), advance)
    clean = normalize(raw)
    found = Findings()
    queries = balanced_rows(sample.classes, min(QUERIES, len(sample.classes)), seed, least=2)
    if "background" in only:
        _background(found, embed, sample, clean, grey, seed, advance)
        _shared_scene(found, sample.scenes, clean)
    wanted = _wanted(only)
    if wanted:
        found.curves = nuisance_curves(
            embed, sample.pictures, sample.classes, queries, clean, nuisances=wanted, seed=seed, advance=advance
        )
    if "nuisance" in only:
        for curve in found.curves:
            name = curve.nuisance.name
            worst = {"clean": curve.recall[0], "last": curve.recall[-1], "moved": curve.moved}
            found.numbers[f"nuisance/{name}"] = Measured(curve.kept, more=worst)
    if "decodability" in only:
        _decodability(found, embed, sample, clean, queries, seed, advance)
        if "nuisance" not in only:
            found.curves = []
    if "geometry" in only:
        _geometry(found, embed, sample, clean, proxies, seed, advance)
    if "certainty" in only:
        _certainty(found, sample, raw, clean, varying=varying_length)
    return found


def _background(
    found: Findings,
    embed: Embed,
    sample: Sample,
    clean: Tensor,
    grey: tuple[float, float, float],
    seed: int,
    advance: Advance | None,
) -> None:
    if sample.masks is None:
        found.skipped["background"] = "There is no mask, alpha channel or box, and none could be estimated."
        return
    try:
        one = background_reliance(
            embed, sample.pictures, sample.masks.values, sample.classes, rows=sample.masks.rows,
            scenes=sample.scenes, clean=clean, grey=grey, seed=seed, advance=advance,
        )  # fmt: skip
    except EvaluationError as error:
        found.skipped["background"] = str(error)
        return
    found.numbers["background/follows"] = Measured(one.follows, 0.5, one.follows_interval, {"queries": one.queries})
    for how in ("clean", "removed", "swapped", "alone"):
        more = {"clean": one.recall["clean"]}
        found.numbers[f"background/recall_{how}"] = Measured(
            one.recall[how], one.chance, one.recall_interval[how], more
        )
    for how in ("removed", "swapped"):
        found.numbers[f"background/drift_{how}"] = Measured(one.drift[how], more={"alone": one.drift["alone"]})


def _shared_scene(found: Findings, scenes: Rows | None, clean: Tensor) -> None:
    """Share of pictures whose nearest other picture has the same background; by chance as often as any other has."""
    if scenes is None:
        return
    nearest = nearest_neighbours(clean, k=1).indices[:, 0]
    sizes = np.bincount(scenes)[scenes]
    chance = float(((sizes - 1) / max(len(scenes) - 1, 1)).mean())
    found.numbers["background/nearest_shares"] = Measured(float((scenes[nearest] == scenes).mean()), chance)


def _decodability(
    found: Findings, embed: Embed, sample: Sample, clean: Tensor, queries: Rows, seed: int, advance: Advance | None
) -> None:
    for name, values in sample.categories.items():
        _decode(found, name, clean, values, sample.classes, seed=seed)
    for name, values in sample.quantities.items():
        _decode(found, name, clean, values, sample.classes, seed=seed, number=True)
    kinds = ["none", *(curve.nuisance.name for curve in found.curves)]
    vectors = torch.cat([clean[queries], *(curve.middle for curve in found.curves)])
    applied = np.repeat(kinds, len(queries))
    _decode(found, "applied", vectors, applied.tolist(), np.tile(sample.classes[queries], len(kinds)), seed=seed)
    _pasted(found, embed, sample, seed, advance)


def _pasted(found: Findings, embed: Embed, sample: Sample, seed: int, advance: Advance | None) -> None:
    """Paste every object on one of a few backgrounds and ask which."""
    masks = sample.masks
    if masks is None or len(masks.rows) < DONORS:
        found.skipped["decodability/pasted"] = f"Pasted backgrounds need {DONORS} pictures with a mask."
        return
    draw = numpy_generator(seed, "pasted")
    donors = draw.permutation(masks.rows)
    if sample.scenes is not None:  # one of each known background
        donors = donors[np.sort(np.unique(sample.scenes[donors], return_index=True)[1])]
    donors = donors[:DONORS]
    which = draw.permutation(np.arange(len(masks.rows)) % len(donors))
    scenes = paint_over(sample.pictures[donors], masks.values[donors])
    rows = masks.rows
    batches = (
        paste(
            sample.pictures[rows[at : at + BATCH]],
            masks.values[rows[at : at + BATCH]],
            scenes[torch.from_numpy(which[at : at + BATCH])],
        )
        for at in range(0, len(rows), BATCH)
    )
    vectors = embed_all(embed, batches, advance)
    _decode(found, "pasted", vectors, which.tolist(), sample.classes[rows], seed=seed)


def _decode(
    found: Findings,
    name: str,
    vectors: Tensor,
    values: Sequence[object],
    classes: Rows,
    *,
    seed: int,
    number: bool = False,
) -> None:
    try:
        one: Decoding = (
            decode_number(vectors, values, classes, seed=seed)
            if number
            else decode_category(vectors, values, classes, seed=seed)
        )
    except EvaluationError as error:
        found.skipped[f"decodability/{name}"] = str(error)
        return
    more = {"above": one.above_chance, "values": one.values, "rows": one.rows, "score": one.score}
    found.numbers[f"decodability/{name}"] = Measured(one.value, one.chance, one.interval, more)


def _geometry(
    found: Findings,
    embed: Embed,
    sample: Sample,
    clean: Tensor,
    proxies: Tensor | None,
    seed: int,
    advance: Advance | None,
) -> None:
    noise = random_like(tuple(clean.shape), seed)
    hubs, chance = hubness(clean), hubness(noise)
    found.numbers["geometry/hubness"] = Measured(hubs.skewness, chance.skewness, more={"most": hubs.most, "k": hubs.k})
    found.numbers["geometry/never"] = Measured(hubs.never, chance.never, more={"k": hubs.k})
    limits = {"limit": min(clean.shape)}
    found.numbers["geometry/effective_rank"] = Measured(effective_rank(clean), effective_rank(noise), more=limits)
    found.numbers["geometry/spectral_decay"] = Measured(rho_spectrum(clean.numpy()), rho_spectrum(noise.numpy()))
    try:
        cosines = compactness(clean, sample.classes)
        more = {"within": cosines.within, "between": cosines.between}
        found.numbers["geometry/compactness"] = Measured(cosines.gap, 0.0, more=more)
    except EvaluationError as error:
        found.skipped["geometry/compactness"] = str(error)
    if proxies is not None and len(proxies) > 1:
        crowd = proxy_crowding(random_like(tuple(proxies.shape), seed))
        found.numbers["geometry/crowding"] = Measured(proxy_crowding(proxies), crowd, more={"classes": len(proxies)})
    if sample.seen is not None and sample.seen_classes is not None:
        seen = embed_all(embed, in_batches(sample.seen), advance)
        try:
            one = seen_unseen(seen, sample.seen_classes, clean, sample.classes, seed=seed)
        except EvaluationError as error:
            found.skipped["geometry/gap"] = str(error)
            return
        more = {"seen": one.seen, "unseen": one.unseen, "classes": one.classes, "per_class": one.per_class}
        found.numbers["geometry/gap"] = Measured(one.gap, more=more)


def _certainty(found: Findings, sample: Sample, raw: Tensor, clean: Tensor, *, varying: bool) -> None:
    lengths = torch.linalg.vector_norm(raw, dim=1).numpy()
    if not varying or float(np.ptp(lengths)) <= 1e-4 * float(np.abs(lengths).max()):
        found.skipped["certainty"] = "All raw embeddings have the same length, so it cannot be read as certainty."
        return
    hits = recall_hits(clean, clean, sample.classes)
    known = ~np.isnan(hits)
    score = score_certainty(lengths[known], hits[known] == 0)
    found.risk = {"coverage": score["coverage"], "risk": score["risk"]}
    auroc = score["auroc"]
    found.numbers["certainty/auroc"] = Measured(math.nan if auroc is None else auroc, 0.5)
    found.numbers["certainty/e_aurc"] = Measured(
        score["e_aurc"], score["aurc_random"] - score["aurc_oracle"], more={"aurc": score["aurc"]}
    )
    place = int(np.searchsorted(score["coverage"], 0.5))
    risk = {"all": score["risk"][-1], "coverage": score["coverage"][place]}
    found.numbers["certainty/half"] = Measured(score["risk"][place], score["risk"][-1], more=risk)
