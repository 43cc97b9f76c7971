"""What each number of the bias card is called, which direction is better, and what its value says, in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from proxemics.evaluation.probes.measures import Measured
from proxemics.evaluation.probes.nuisance import NUISANCES

Better = Literal["up", "down", ""]
Unit = Literal["share", "number"]
_POINTS, _TELLS = 0.03, 0.25
Read = Callable[[float, Measured], str]


@dataclass(frozen=True)
class Entry:
    """How to show and read a number.

    Attributes:
        title: for people.
        better: ``up``, ``down``, or empty when neither is better as such.
        unit: ``share`` is shown in per cent.
        read: from the value to a sentence.
    """

    title: str
    better: Better
    unit: Unit
    read: Read


def entry(name: str) -> Entry:
    """Return how to read a number.

    Args:
        name: ``probe/name`` as in :class:`proxemics.evaluation.probes.measures.Findings`.

    Example:
        >>> entry("background/follows").better
        'down'
        >>> entry("decodability/domain").title
        'Domain'
    """
    if name in _ENTRIES:
        return _ENTRIES[name]
    probe, _, short = name.partition("/")
    if probe == "nuisance":
        return Entry(_NUISANCES.get(short, short), "up", "share", _kept)
    return Entry(_words(short), "down", "share", _decoded)


def reading(name: str, measured: Measured) -> str:
    """Say in one line what a number means.

    Example:
        >>> reading("background/follows", Measured(0.9, 0.5))
        'Where object and background contradict each other, the embedding goes with the background in 90 % of cases.'
    """
    if math.isnan(measured.value):
        return "Could not be measured on these pictures."
    return entry(name).read(measured.value, measured)


def verdict(numbers: Mapping[str, Measured], *, asked: bool = True) -> str:
    """Say in a sentence or two what the probes found about the background.

    Args:
        numbers: by ``probe/name``.
        asked: the background was among the probes.

    Example:
        >>> verdict({"background/follows": Measured(0.04), "background/recall_clean": Measured(0.8),
        ...          "background/recall_swapped": Measured(0.79)})
        'Goes with the object: of pictures on a swapped background 4 % follow the background; R@1 80 % becomes 79 %.'

    It also says when the search gets better without the background, and when the embedding tells which one it is.
    """
    if not asked:
        return "The reliance on the background was not asked for; the other probes are below."
    follows = numbers.get("background/follows")
    if follows is None or math.isnan(follows.value):
        return "The reliance on the background could not be measured; the other probes are below."
    value = follows.value
    if value >= 0.5:
        kind = "Goes with the background"
    elif value >= 0.2:
        kind = "Leans on the background"
    elif value >= 0.05:
        kind = "Goes mostly with the object"
    else:
        kind = "Goes with the object"
    text = f"{kind}: of pictures on a swapped background {_pc(value)} follow the background"
    clean, swapped = (numbers.get(f"background/recall_{how}") for how in ("clean", "swapped"))
    if clean is not None and swapped is not None and not math.isnan(clean.value + swapped.value):
        text += f"; R@1 {_pc(clean.value)} becomes {_pc(swapped.value)}"
    removed, pasted = numbers.get("background/recall_removed"), numbers.get("decodability/pasted")
    if clean is not None and removed is not None and removed.value - clean.value >= _POINTS:
        text += f". On plain grey it rises to {_pc(removed.value)}: the background misleads the search"
    if pasted is not None and pasted.more.get("above", 0) >= _TELLS:
        text += (
            f". The embedding still tells which background it is: a linear probe names {_pc(pasted.value)} of "
            f"{pasted.more['values']} pasted ones, chance is {_pc(pasted.chance or 0)}"
        )
    return text + "."


def _pc(value: Any) -> str:
    share = 100 * float(value)
    return f"{share:.1f} %" if 0.05 <= share < 0.95 else f"{share:.0f} %"


def _words(name: str) -> str:
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def _follows(value: float, one: Measured) -> str:
    return (
        "Where object and background contradict each other, the embedding goes with the background in "
        f"{_pc(value)} of cases."
    )


def _clean(value: float, one: Measured) -> str:
    return f"Unchanged pictures among themselves: the scale for the rows below; chance is {_pc(one.chance or 0)}."


def _changed(how: str) -> Read:
    def read(value: float, one: Measured) -> str:
        lost = one.more["clean"] - value
        if abs(lost) < 0.005:
            return f"{how} costs nothing."
        if lost < 0:
            return f"{how} helps by {100 * -lost:.0f} points."
        part = f", {_pc(lost / one.more['clean'])} of what was found" if one.more["clean"] else ""
        return f"{how} costs {100 * lost:.0f} points{part}."

    return read


def _alone(value: float, one: Measured) -> str:
    chance = one.chance or 0.0
    if value <= max(1.5 * chance, chance + 0.02):
        return "The background alone finds the class no better than chance."
    return (
        f"The background alone, with a blurred hole for the object, still finds the class in {_pc(value)} of cases; "
        f"chance is {_pc(chance)}."
    )


def _shares(value: float, one: Measured) -> str:
    if not one.chance:
        return f"The nearest picture has the same background in {_pc(value)} of cases."
    return f"The nearest picture has the same background {value / one.chance:.1f} times as often as chance has it."


def _drift(how: str) -> Read:
    def read(value: float, one: Measured) -> str:
        return (
            f"1 - cos to the unchanged picture when {how}; taking the object away moves it by {one.more['alone']:.2f}."
        )

    return read


def _kept(value: float, one: Measured) -> str:
    return (
        f"{_pc(value)} of R@1 is kept on average over the levels; at the strongest R@1 is {_pc(one.more['last'])} "
        f"(unchanged {_pc(one.more['clean'])})."
    )


def _decoded(value: float, one: Measured) -> str:
    chance = one.chance or 0.0
    if one.more.get("score") == "r2":
        if value < 0.02:
            return "A linear probe reads nothing of it on unseen classes."
        return f"A linear probe explains {_pc(value)} of its variance on unseen classes."
    above = float(one.more.get("above", 0.0))
    if above < 0.02:
        return (
            f"A linear probe names it no better than always the most frequent of {one.more['values']} ({_pc(chance)})."
        )
    return (
        f"A linear probe names it in {_pc(value)} of cases on unseen classes ({one.more['values']} values, chance "
        f"{_pc(chance)}): {_pc(above)} of the way to certain."
    )


def _hubness(value: float, one: Measured) -> str:
    how = "few hubs" if value < 1 else "some hubs" if value < 2 else "strong hubs"
    return (
        f"Skewness of how often pictures are among the {one.more['k']} nearest of others: {how}; the largest is near "
        f"to {one.more['most']}."
    )


def _never(value: float, one: Measured) -> str:
    return f"{_pc(value)} of the pictures are among the {one.more['k']} nearest of no other and are hardly ever found."


def _rank(value: float, one: Measured) -> str:
    return f"The pictures spread as over {value:.0f} equal directions, of {one.more['limit']} possible."


def _decay(value: float, one: Measured) -> str:
    return "How unevenly the directions are used; 0 means all alike."


def _compact(value: float, one: Measured) -> str:
    return f"Mean cosine within classes {one.more['within']:.2f}, between classes {one.more['between']:.2f}."


def _crowding(value: float, one: Measured) -> str:
    return (
        f"Cosine of a class's proxy to the nearest of another, mean over {one.more['classes']} training classes; "
        f"random directions have {one.chance or 0:.2f}."
    )


def _gap(value: float, one: Measured) -> str:
    return (
        f"R@1 {_pc(one.more['seen'])} on training classes, {_pc(one.more['unseen'])} on test classes, on samples of "
        f"{one.more['classes']} classes of {one.more['per_class']}."
    )


def _auroc(value: float, one: Measured) -> str:
    return (
        f"The length of the embedding is larger for the right of a right and a wrong answer in {_pc(value)} of pairs."
    )


def _e_aurc(value: float, one: Measured) -> str:
    return (
        f"Area under the risk-coverage curve above that of a perfect order ({_pc(one.more['aurc'])} in all); "
        f"a random order has {_pc(one.chance or 0)}."
    )


def _half(value: float, one: Measured) -> str:
    kept, every = _pc(one.more["coverage"]), _pc(one.more["all"])
    return f"Of the {kept} most certain answers {_pc(value)} are wrong; of all {every}."


_NUISANCES = {one.name: one.title for one in NUISANCES}
_ENTRIES: dict[str, Entry] = {
    "background/follows": Entry("Goes with the background", "down", "share", _follows),
    "background/recall_clean": Entry("R@1, unchanged", "up", "share", _clean),
    "background/recall_removed": Entry("R@1, background removed", "up", "share", _changed("Plain grey instead")),
    "background/recall_swapped": Entry("R@1, background swapped", "up", "share", _changed("Another background")),
    "background/recall_alone": Entry("R@1, background alone", "down", "share", _alone),
    "background/drift_removed": Entry("Drift, removed", "down", "number", _drift("the background is removed")),
    "background/drift_swapped": Entry("Drift, swapped", "down", "number", _drift("the background is swapped")),
    "background/nearest_shares": Entry("Nearest shares the background", "down", "share", _shares),
    "decodability/applied": Entry("Which change was made", "down", "share", _decoded),
    "decodability/pasted": Entry("Pasted background", "down", "share", _decoded),
    "geometry/hubness": Entry("Hubness", "down", "number", _hubness),
    "geometry/never": Entry("Never found", "down", "share", _never),
    "geometry/effective_rank": Entry("Effective rank", "", "number", _rank),
    "geometry/spectral_decay": Entry("Spectral decay", "", "number", _decay),
    "geometry/compactness": Entry("Class compactness", "up", "number", _compact),
    "geometry/crowding": Entry("Proxy crowding", "down", "number", _crowding),
    "geometry/gap": Entry("Seen–unseen gap in R@1", "down", "share", _gap),
    "certainty/auroc": Entry("AUROC of certainty", "up", "share", _auroc),
    "certainty/e_aurc": Entry("Excess risk (E-AURC)", "down", "share", _e_aurc),
    "certainty/half": Entry("Errors in the most certain half", "down", "share", _half),
}
