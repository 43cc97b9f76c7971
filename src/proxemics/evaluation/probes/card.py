"""The bias card: the probes of a model beside those of the untrained trunk, with words, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from proxemics.evaluation.probes.background import GREY
from proxemics.evaluation.probes.measure import Advance, Embed
from proxemics.evaluation.probes.measures import PROBES, Findings, Measured, Sample, measure
from proxemics.evaluation.probes.readings import entry, reading, verdict

SCHEMA = 1
_FIRST = "background/follows"


def bias_card(
    embed: Embed,
    sample: Sample,
    *,
    untrained: Embed | None = None,
    only: Sequence[str] = PROBES,
    proxies: Tensor | None = None,
    varying_length: bool = True,
    grey: tuple[float, float, float] = GREY,
    seed: int = 0,
    advance: Advance | None = None,
) -> dict[str, Any]:
    """Probe a model and write down what was found.

    Args:
        embed: the model.
        sample: the pictures.
        untrained: the trunk before training, to compare with; None: no such column.
        only: which probes.
        proxies: of the training loss, if they are known.
        varying_length: the lengths of raw embeddings can differ.
        grey: colour of the removed background.
        seed: of all draws.
        advance: called with the number of pictures embedded.

    Returns:
        ``verdict``; ``pictures`` and ``classes`` (counts); ``masks`` (source and sentence) or None; ``has_untrained``;
        ``numbers``, a list of ``probe, name, title, value, interval, chance, untrained, better, unit, reading``;
        ``curves``, a list of ``name, title, unit, levels, recall, drift`` and the same two of the untrained trunk;
        ``risk`` (coverage and risk) or None; ``skipped``, name to reason. What is not known is None.

    Raises:
        EvaluationError: a probe is unknown, or the embeddings are not finite.

    Example:
        >>> import torch
        >>> pictures = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.manual_seed(0))
        >>> card = bias_card(lambda x: x.float().flatten(1), Sample(pictures, np.arange(12) // 3), only=["geometry"])
        >>> card["numbers"][0]["title"], card["numbers"][0]["better"], card["classes"]
        ('Hubness', 'down', 4)
    """
    own = measure(
        embed, sample, only=only, proxies=proxies, varying_length=varying_length, grey=grey, seed=seed, advance=advance
    )
    before = None
    if untrained is not None:
        before = measure(untrained, sample, only=only, grey=grey, seed=seed, advance=advance)
    masks = sample.masks
    return {
        "schema": SCHEMA,
        "verdict": verdict(own.numbers, asked="background" in only),
        "pictures": len(sample.pictures),
        "classes": len(np.unique(sample.classes)),
        "probes": list(only),
        "seed": seed,
        "masks": None if masks is None else {"source": masks.source, "sentence": masks.sentence},
        "has_untrained": before is not None,
        "numbers": _numbers(own, before),
        "curves": _curves(own, before),
        "risk": own.risk,
        "skipped": dict(own.skipped),
    }


def _numbers(own: Findings, before: Findings | None) -> list[dict[str, Any]]:
    others: Mapping[str, Measured] = {} if before is None else before.numbers
    found = []
    for name in sorted(own.numbers, key=lambda name: (PROBES.index(name.partition("/")[0]), name != _FIRST)):
        one, about = own.numbers[name], entry(name)
        probe, _, short = name.partition("/")
        found.append(
            {
                "probe": probe,
                "name": short,
                "title": about.title,
                "value": plain(one.value),
                "interval": None if one.interval is None or math.isnan(sum(one.interval)) else list(one.interval),
                "chance": plain(one.chance),
                "untrained": plain(others[name].value) if name in others else None,
                "better": about.better,
                "unit": about.unit,
                "reading": reading(name, one),
            }
        )
    return found


def _curves(own: Findings, before: Findings | None) -> list[dict[str, Any]]:
    others = {} if before is None else {curve.nuisance.name: curve for curve in before.curves}
    found = []
    for curve in own.curves:
        other = others.get(curve.nuisance.name)
        found.append(
            {
                "name": curve.nuisance.name,
                "title": curve.nuisance.title,
                "unit": curve.nuisance.unit,
                "levels": list(curve.nuisance.levels),
                "recall": [plain(value) for value in curve.recall],
                "drift": [plain(value) for value in curve.drift],
                "kept": plain(curve.kept),
                "moved": plain(curve.moved),
                "untrained_recall": None if other is None else [plain(value) for value in other.recall],
                "untrained_drift": None if other is None else [plain(value) for value in other.drift],
            }
        )
    return found


def plain(value: float | None) -> float | None:
    """Return a number with six digits after the point, for JSON; None for NaN.

    Example:
        >>> plain(1 / 3), plain(float("nan"))
        (0.333333, None)
    """
    return None if value is None or not math.isfinite(value) else round(float(value), 6)
