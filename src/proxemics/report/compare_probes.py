"""The bias cards of runs side by side: every number of every variant, with its difference to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from proxemics.core.errors import ProxemicsError
from proxemics.report.compare_pairs import Compared


@dataclass(frozen=True)
class ProbeEntry:
    """One number of one variant.

    Attributes:
        mean: over seeds; None where no run of the variant has the number.
        deviation: sample standard deviation over seeds; None for one seed.
        difference: to the baseline, mean over the seeds that both have; None where there are none.
        per_seed: the difference of each pair of runs, by rising seed.
    """

    mean: float | None
    deviation: float | None = None
    difference: float | None = None
    per_seed: tuple[float, ...] = ()


@dataclass(frozen=True)
class ProbeLine:
    """One number of the card.

    Attributes:
        name: ``probe/number``, as in ``probe.json``.
        title: for people.
        better: ``up``, ``down`` or empty.
        unit: ``share`` for numbers in [0, 1], ``number`` for others.
        chance: of an embedding that knows nothing, mean over the cards; None where it is not known.
        entries: one a variant, in the order of the part.
    """

    name: str
    title: str
    better: str
    unit: str
    chance: float | None
    entries: tuple[ProbeEntry, ...]

    @property
    def group(self) -> str:
        """The probe that the number is of."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class ProbePart:
    """The cards on one data set under one protocol.

    Attributes:
        dataset: name of the data.
        protocol: with its domains.
        variants: that have a card, the baseline first where it has one.
        baseline: whether the baseline has a card.
        lines: the numbers, probe after probe.
        notes: sentences that a reader must know.
    """

    dataset: str
    protocol: str
    variants: tuple[str, ...]
    baseline: bool
    lines: tuple[ProbeLine, ...]
    notes: tuple[str, ...] = ()


Numbers = dict[str, dict[str, Any]]


def probe_parts(
    groups: Mapping[tuple[str, str], Sequence[Compared]], variants: Sequence[str], baseline: str
) -> list[ProbePart]:
    """Collect the cards of all runs that were probed.

    Args:
        groups: the runs by data set and protocol.
        variants: their order.
        baseline: the variant that differences are to.

    Returns:
        One part for each group with a card. A difference is over the seeds of which both runs have a card.
    """
    found = []
    for (dataset, protocol), runs in groups.items():
        cards: dict[str, dict[int, Numbers]] = {}
        notes: list[str] = []
        sizes = set()
        for run in runs:
            card = _read(run, notes)
            if card is not None:
                cards.setdefault(run.variant, {})[run.seed] = _numbers(card)
                masks = (card.get("masks") or {}).get("source")
                sizes.add((card.get("pictures"), card.get("split"), masks, card.get("seed")))
        if not cards:
            continue
        if len(sizes) > 1:
            notes.append(
                f"{dataset}: the cards were not made alike (numbers of pictures, splits, masks or draws differ); probe "
                "all runs with the same options."
            )
        names = sorted((name for name in variants if name in cards), key=lambda name: name != baseline)
        lines = tuple(_line(number, [cards[name] for name in names], cards.get(baseline)) for number in _order(cards))
        found.append(ProbePart(dataset, protocol, tuple(names), baseline in cards, lines, tuple(notes)))
    return found


def _read(run: Compared, notes: list[str]) -> dict[str, Any] | None:
    """Return the card of a run; one that cannot be read is said and left out."""
    try:
        card = run.card
        if card is not None:
            _numbers(card)
        return card
    except (ProxemicsError, ValueError, KeyError, TypeError, AttributeError):
        notes.append(f"The card of {run.folder} cannot be read and is left out; run `proxemics probe` again.")
        return None


def _numbers(card: Mapping[str, Any]) -> Numbers:
    return {f"{one['probe']}/{one['name']}": dict(one) for one in card["numbers"]}


def _order(cards: Mapping[str, Mapping[int, Numbers]]) -> list[dict[str, Any]]:
    """Return every number once, as the first card has it, those of one probe together."""
    first: Numbers = {}
    for of_seeds in cards.values():
        for numbers in of_seeds.values():
            for name, one in numbers.items():
                first.setdefault(name, one)
    probes = list(dict.fromkeys(one["probe"] for one in first.values()))
    return sorted(first.values(), key=lambda one: probes.index(one["probe"]))


def _line(
    one: Mapping[str, Any], of_variants: Sequence[Mapping[int, Numbers]], base: Mapping[int, Numbers] | None
) -> ProbeLine:
    name = f"{one['probe']}/{one['name']}"
    chances = [
        float(numbers[name]["chance"])
        for cards in of_variants
        for numbers in cards.values()
        if name in numbers and numbers[name]["chance"] is not None
    ]
    before = {} if base is None else _values(base, name)
    entries = tuple(_entry(_values(cards, name), {} if cards is base else before) for cards in of_variants)
    return ProbeLine(
        name, str(one["title"]), str(one["better"]), str(one["unit"]), fmean(chances) if chances else None, entries
    )


def _values(cards: Mapping[int, Numbers], name: str) -> dict[int, float]:
    """Return seed to value, for the seeds that have it."""
    return {
        seed: float(numbers[name]["value"])
        for seed, numbers in sorted(cards.items())
        if name in numbers and numbers[name]["value"] is not None
    }


def _entry(own: Mapping[int, float], base: Mapping[int, float]) -> ProbeEntry:
    if not own:
        return ProbeEntry(None)
    per_seed = tuple(own[seed] - base[seed] for seed in own if seed in base)
    return ProbeEntry(
        fmean(own.values()),
        stdev(own.values()) if len(own) > 1 else None,
        fmean(per_seed) if per_seed else None,
        per_seed,
    )
