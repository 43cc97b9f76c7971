"""All losses by name, for configuration files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from proxemics.core.errors import LossError, did_you_mean
from proxemics.losses.arcface import ArcFace
from proxemics.losses.base import MetricLoss
from proxemics.losses.cosface import CosFace
from proxemics.losses.margin import MarginLoss
from proxemics.losses.multi_similarity import MultiSimilarity
from proxemics.losses.norm_softmax import NormSoftmax
from proxemics.losses.pd_loss import PDLoss
from proxemics.losses.pml import PREFIX, build_wrapped
from proxemics.losses.potential_field import PotentialField
from proxemics.losses.proxy_anchor import ProxyAnchor
from proxemics.losses.proxy_nca import ProxyNCA, ProxyNCAPlusPlus
from proxemics.losses.soft_triple import SoftTriple

LOSSES: dict[str, type[MetricLoss]] = {
    "norm_softmax": NormSoftmax,
    "proxy_nca": ProxyNCA,
    "proxy_nca_pp": ProxyNCAPlusPlus,
    "proxy_anchor": ProxyAnchor,
    "soft_triple": SoftTriple,
    "cosface": CosFace,
    "arcface": ArcFace,
    "pd_loss": PDLoss,
    "potential_field": PotentialField,
    "multi_similarity": MultiSimilarity,
    "margin": MarginLoss,
}

Option = float | int | str | bool | None

_KINDS: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_ARTICLES = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false", "None": "null"}


def loss_options(name: str) -> dict[str, Option]:
    """Return the options of a loss with their defaults.

    Args:
        name: a key of :data:`LOSSES`.

    Returns:
        Option name to default value.

    Raises:
        LossError: unknown name.

    Example:
        >>> loss_options("proxy_anchor")
        {'alpha': 32.0, 'delta': 0.1}
    """
    return {key: parameter.default for key, parameter in _parameters(name).items()}


def build_loss(
    name: str,
    num_classes: int,
    dim: int,
    options: Mapping[str, Any] | None = None,
    *,
    generator: torch.Generator | None = None,
) -> MetricLoss:
    """Build a loss from its name and checked options.

    Args:
        name: a key of :data:`LOSSES`, or ``pml.`` and the name of a loss of pytorch-metric-learning, see
            :mod:`proxemics.losses.pml`.
        num_classes: C.
        dim: M.
        options: keyword options of the class; those not given keep their defaults.
        generator: draws the proxies; the global generator when None. Losses of pytorch-metric-learning draw from the
            global one.

    Returns:
        The loss module.

    Raises:
        LossError: unknown name or option (with the nearest one), or a value of the wrong kind or out of range.

    Example:
        >>> build_loss("arcface", 10, 4, {"scale": 16}).scale
        16
        >>> build_loss("arcface", 10, 4, {"scle": 16})
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: Loss 'arcface' has no option 'scle'. Did you mean 'scale'? Options: ...
    """
    if name.startswith(PREFIX):
        return build_wrapped(name, num_classes, dim, options)
    parameters = _parameters(name)
    given = dict(options or {})
    for key, value in given.items():
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            raise LossError(f"Loss {name!r} has no option {key!r}.{did_you_mean(key, parameters)} Options: {known}.")
        _check_kind(name, key, value, str(parameters[key].annotation))
    # The options were checked against the signature above, which the type of the table does not carry.
    return LOSSES[name](num_classes, dim, generator=generator, **given)  # type: ignore[call-arg]


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    if name not in LOSSES:
        raise LossError(
            f"Unknown loss {name!r}.{did_you_mean(name, LOSSES)} Known losses: {', '.join(LOSSES)}; and those of "
            "pytorch-metric-learning, as in pml.ProxyAnchorLoss."
        )
    parameters = inspect.signature(LOSSES[name]).parameters
    return {
        key: parameter
        for key, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key != "generator"
    }


def _check_kind(name: str, key: str, value: object, annotation: str) -> None:
    kinds = annotation.split(" | ")
    fits = any(isinstance(value, _KINDS[kind]) for kind in kinds)
    if not fits or (isinstance(value, bool) and "bool" not in kinds):
        wanted = " or ".join(_ARTICLES[kind] for kind in kinds)
        raise LossError(f"Option {key!r} of loss {name!r} must be {wanted}, got {value!r} ({type(value).__name__}).")
