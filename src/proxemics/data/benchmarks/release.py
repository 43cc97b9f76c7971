"""What an official release is: the files it has, the numbers it must have, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple


class Part(NamedTuple):
    """How many pictures and classes one part (a split, a domain, a role) has."""

    images: int
    classes: int


@dataclass(frozen=True)
class Expected:
    """The numbers that a release must have; tests and owners of a subset give their own.

    Attributes:
        parts: by name of the part, such as ``train`` or ``sketch``.
        names: all class names in official order, or None when the release has no list to compare with.
    """

    parts: Mapping[str, Part]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Download:
    """One file of a release.

    Attributes:
        file: its name.
        url: the official address, or an empty text when there is none that a program may use.
        md5: in hex, when a checksum is known.
        source: who gave the checksum: ``authors`` publish it; ``users`` agree on it (public loaders of the set).
        unpack: where an archive is unpacked, relative to the target folder; None for a file that stays as it is.
    """

    file: str
    url: str = ""
    md5: str | None = None
    source: str = ""
    unpack: str | None = "."


@dataclass(frozen=True)
class Release:
    """One benchmark as its authors give it out.

    Attributes:
        name: on the command line.
        title: in messages.
        needed: files and folders that must exist, relative to the root.
        inner: names of the folder that holds them, tried below the given root.
        where: one sentence: what to put there and where it comes from.
        licence: one sentence.
        expected: the official numbers.
        downloads: the files; empty when the set is only handed out by its authors.
    """

    name: str
    title: str
    needed: tuple[str, ...]
    inner: tuple[str, ...]
    where: str
    licence: str
    expected: Expected
    downloads: tuple[Download, ...] = ()


def class_list(name: str) -> tuple[str, ...]:
    """Return the official class names of a set in official order.

    Args:
        name: ``cub200``, ``cars196``, ``office_home`` or ``domainnet``.

    Example:
        >>> class_list("cub200")[0], len(class_list("domainnet"))
        ('001.Black_footed_Albatross', 345)
    """
    text = files("proxemics.data.benchmarks").joinpath("class_lists", f"{name}.txt").read_text(encoding="utf-8")
    return tuple(text.split())
