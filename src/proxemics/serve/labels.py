"""The labels of an index, found by what people type."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from proxemics.search.index import Index
from proxemics.search.items import Meta


class LabelCatalogue:
    """Counts labels, and finds them by text.

    Args:
        counts: label to number of rows.

    Example:
        >>> catalogue = LabelCatalogue({"snow_bunting": 3, "indigo_bunting": 5, "bobolink": 2})
        >>> catalogue.find("Bunting")
        [('indigo_bunting', 5), ('snow_bunting', 3)]
        >>> catalogue.find("bunting snow"), catalogue.find("owl")
        ([('snow_bunting', 3)], [])
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts = Counter(counts or {})
        self._folded = {label: fold(label) for label in self._counts}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, label: str, count: int) -> None:
        """Count more rows of a label; a negative number takes rows away."""
        if count == 0:
            return
        self._counts[label] += count
        self._folded[label] = fold(label)
        if self._counts[label] <= 0:
            del self._counts[label], self._folded[label]

    def find(self, text: str, limit: int = 50) -> list[tuple[str, int]]:
        """Return labels that hold every word of the text.

        Args:
            text: upper and lower case, accents and the marks between words make no difference; empty finds all.
            limit: labels at most.

        Returns:
            Labels and their counts: equal ones first, then those that begin with the text, then those in which a word
            does, then the rest; larger counts first among them.
        """
        words = fold(text).split()
        found = [label for label, folded in self._folded.items() if all(word in folded for word in words)]
        joined = " ".join(words)
        found.sort(key=lambda label: (_rank(self._folded[label], joined), -self._counts[label], label))
        return [(label, self._counts[label]) for label in found[:limit]]


def fold(text: str) -> str:
    """Bring a text into the form in which it is compared.

    Example:
        >>> fold("001.Black-footed_Albatross"), fold("Étoile")
        ('001 black footed albatross', 'etoile')
    """
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign)).casefold()
    return " ".join(re.split(r"[\W_]+", plain)).strip()


def _rank(folded: str, text: str) -> int:
    if folded == text:
        return 0
    if folded.startswith(text):
        return 1
    return 2 if f" {text}" in f" {folded}" else 3


def read_rows(index: Index, *, examples: int = 12) -> tuple[LabelCatalogue, list[str]]:
    """Read all rows of an index once; count their labels, and draw some ids to begin with.

    Args:
        index: open.
        examples: ids to draw, the same ones each time, all rows being equally likely.

    Returns:
        The labels, and the ids.
    """
    counts: Counter[str] = Counter()
    drawn: list[str] = []
    draw, seen = random.Random(0), 0
    for items in index.scan(5000):
        counts.update(_labels(items.meta))
        for name in items.ids:
            seen += 1
            if len(drawn) < examples:
                drawn.append(name)
            elif (place := draw.randrange(seen)) < examples:
                drawn[place] = name
    draw.shuffle(drawn)
    return LabelCatalogue(counts), drawn


def _labels(rows: Iterable[Meta]) -> Iterable[str]:
    return (str(row["label"]) for row in rows if row.get("label") not in (None, ""))
