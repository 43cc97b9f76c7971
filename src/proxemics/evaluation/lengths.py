"""What the length of a raw embedding can tell: whether it varies at all, and whether training gave it a meaning.

In the probabilistic view of Kirchhof et al. (ECCV 2022) a picture is a von Mises-Fisher density whose concentration κ
is the length of its raw embedding, so the length is a certainty. A loss of cosines alone does not see the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxemics.models.embedder import Embedder

LENGTH_AWARE = ("l2", "el-vmf", "b-vmf", "kl-vmf", "el-nivmf")
"""Distances of ``ProbabilisticProxies`` that depend on the length of the raw embedding."""
_METHOD, _DISTANCE, _WEIGHT = "probabilistic", "el-nivmf", 1.0  # the name in configurations, and its defaults


def length_varies(embedder: Embedder) -> bool:
    """Whether different pictures can have raw embeddings of different length.

    A layer norm without a head behind it gives all of them the length √D, but for the small constant in the norm.

    Args:
        embedder: the model.

    Example:
        >>> length_varies(Embedder("test_resnet", dim=8, weights="none", size=64, layer_norm=True))
        True
        >>> length_varies(Embedder("test_resnet", dim=0, weights="none", size=64, layer_norm=True))
        False
    """
    return embedder.head is not None or not embedder.arguments["layer_norm"]


def length_is_trained(methods: Mapping[str, Mapping[str, Any] | None] | None) -> bool:
    """Whether a term of the training loss depended on the length of the raw embedding.

    Args:
        methods: ``methods`` of the configuration: names to options.

    Example:
        >>> length_is_trained({"probabilistic": None}), length_is_trained({"probabilistic": {"distance": "cos"}})
        (True, False)
        >>> length_is_trained({"see": {}}), length_is_trained(None)
        (False, False)
    """
    if not methods or _METHOD not in methods:
        return False
    options = methods[_METHOD] or {}
    return options.get("weight", _WEIGHT) > 0 and options.get("distance", _DISTANCE) in LENGTH_AWARE
