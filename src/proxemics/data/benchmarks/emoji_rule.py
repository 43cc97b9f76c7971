"""Which icons make up Emoji-5, how they are named, and who trains and tests: all from the names of the icons."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxemics.data.benchmarks.release import Part

STYLES = ("noto", "twemoji", "openmoji", "fluent-emoji-flat", "fluent-emoji-high-contrast")
SHARED_BY = STYLES[:4]
"""A class counts if these styles have it; the fifth has fewer skin tones and joins where it can."""
VARIANTS = {"": "default", "-light-skin-tone": "light", "-dark-skin-tone": "dark"}
_TONE = re.compile(r"-(?:light|medium-light|medium|medium-dark|dark)-skin-tone")
# Pictures and classes by (style, split), at the pinned versions of the icon sets.
COUNTS: dict[tuple[str, str], Part] = {
    ("noto", "train"): Part(1134, 806),
    ("noto", "test"): Part(1016, 754),
    ("twemoji", "train"): Part(1136, 806),
    ("twemoji", "test"): Part(1016, 754),
    ("openmoji", "train"): Part(1134, 806),
    ("openmoji", "test"): Part(1016, 754),
    ("fluent-emoji-flat", "train"): Part(806, 806),
    ("fluent-emoji-flat", "test"): Part(754, 754),
    ("fluent-emoji-high-contrast", "train"): Part(806, 806),
    ("fluent-emoji-high-contrast", "test"): Part(754, 754),
}
PATHS = "b26ee46bbd39eb986ca6404e31414487d7a2768c82b612fff2d6ae2b0d6177e9"
"""SHA-256 of all paths of the set, sorted, one a line: styles, classes and variants at the pinned versions."""


class Chosen(NamedTuple):
    """One picture of the set: style (its domain), class, variant (skin tone), split, and the icon it is drawn from."""

    style: str
    label: str
    variant: str
    split: str
    icon: str

    @property
    def path(self) -> str:
        """Where it lies in the set."""
        return f"{self.style}/{self.label}/{self.variant}.webp"


def digest_of(paths: Iterable[str]) -> str:
    """Return what :data:`PATHS` is to be."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()


def class_and_variant(icon: str) -> tuple[str, str | None]:
    """Return the class of an icon and its variant, or None for a skin tone that the set leaves out.

    Example:
        >>> class_and_variant("ear-dark-skin-tone"), class_and_variant("ear-medium-skin-tone"), class_and_variant("ear")
        (('ear', 'dark'), ('ear', None), ('ear', 'default'))
    """
    return _TONE.sub("", icon), VARIANTS.get("".join(_TONE.findall(icon)))


def split_of(label: str) -> str:
    """Return ``test`` if the SHA-1 of the name, as a whole number, is odd, else ``train``.

    Example:
        >>> split_of("abacus"), split_of("accordion")
        ('test', 'train')
    """
    return "test" if hashlib.sha1(label.encode(), usedforsecurity=False).digest()[-1] % 2 else "train"


def choose(icons: Mapping[str, Iterable[str]]) -> list[Chosen]:
    """Choose the pictures of the set.

    Args:
        icons: the icon names of each style, without aliases.

    Returns:
        All pictures, ordered by style, class and variant. Left out: classes that one of :data:`SHARED_BY` lacks or that
        noto has no default of, flags, and one-letter names.

    Example:
        >>> pictures = choose({style: ["ear", "ear-dark-skin-tone", "flag-x"] for style in SHARED_BY})
        >>> [picture.path for picture in pictures][:2], len(pictures)
        (['noto/ear/dark.webp', 'noto/ear/default.webp'], 8)
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for style in STYLES:
        found[style] = {}
        for icon in icons.get(style, ()):
            label, variant = class_and_variant(icon)
            if variant is not None:
                found[style].setdefault(label, {})[variant] = icon
    shared = set.intersection(*(set(found[style]) for style in SHARED_BY))
    labels = {
        label
        for label in shared
        if "default" in found["noto"][label] and not label.startswith("flag-") and len(label) > 1
    }
    return [
        Chosen(style, label, variant, split_of(label), found[style][label][variant])
        for style in STYLES
        for label in sorted(labels & set(found[style]))
        for variant in sorted(found[style][label])
    ]
