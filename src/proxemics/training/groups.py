"""Parameter groups: trunk, head, proxies and methods, each with its own learning rate. Nothing may be left out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from proxemics.core.config import OptimConfig
from proxemics.core.errors import TrainingError
from proxemics.methods.base import Method
from proxemics.models.embedder import Embedder


def parameter_groups(
    embedder: Embedder, loss: nn.Module, optim: OptimConfig, *, methods: Iterable[Method] = ()
) -> list[dict[str, Any]]:
    """Sort every trainable parameter into a group.

    Biases and one-dimensional parameters (normalisation) of trunk and head get no weight decay; nor do the parameters
    of losses and methods, most of which are directions.

    Args:
        embedder: the model.
        loss: the base loss; its parameters learn at ``lr * proxy_lr_mult``.
        optim: rates and decay.
        methods: plug-ins; their parameters learn with the proxies, times the factors of :meth:`Method.rates`, and the
            head at ``lr * head_lr_mult`` times their :attr:`Method.head_rate`.

    Returns:
        Groups with ``name``, ``params``, ``lr``, ``weight_decay``; empty groups are left out.

    Raises:
        TrainingError: a trainable parameter is in no group, or in two.
    """
    head_ids = {id(parameter) for parameter in embedder.head_parameters()}
    trunk_ids = {id(parameter) for parameter in embedder.trunk_parameters()}
    groups: dict[str, dict[str, Any]] = {}
    methods = list(methods)
    head_lr = optim.lr * optim.head_lr_mult * math.prod(method.head_rate for method in methods)

    def put(name: str, parameter: nn.Parameter, lr: float, decay: float) -> None:
        group = groups.setdefault(name, {"name": name, "params": [], "lr": lr, "base_lr": lr, "weight_decay": decay})
        group["params"].append(parameter)

    for _, parameter in _trainable(embedder):
        plain = parameter.ndim <= 1
        decay = 0.0 if plain else optim.weight_decay
        suffix = "_no_decay" if plain else ""
        if id(parameter) in trunk_ids:
            put(f"trunk{suffix}", parameter, optim.lr, decay)
        if id(parameter) in head_ids:
            put(f"head{suffix}", parameter, head_lr, decay)
    for _, parameter in _trainable(loss):
        put("proxies", parameter, optim.lr * optim.proxy_lr_mult, 0.0)
    for method in methods:
        rates = method.rates()
        own = dict(_trainable(method))
        if unknown := set(rates) - set(own):
            raise TrainingError(
                f"{type(method).__name__}.rates() names {min(unknown)!r}, which is no trainable parameter of it; "
                f"its parameters: {', '.join(own) or 'none'}."
            )
        for name, parameter in own.items():
            suffix = f"_{name}" if name in rates else ""
            put(f"methods{suffix}", parameter, optim.lr * optim.proxy_lr_mult * rates.get(name, 1.0), 0.0)
    result = list(groups.values())
    check_groups(result, [embedder, loss, *methods])
    return result


def check_groups(groups: Iterable[dict[str, Any]], modules: Iterable[nn.Module]) -> None:
    """Raise :class:`TrainingError` if a trainable parameter of ``modules`` is in no group or in more than one.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> check_groups([{"name": "a", "params": [layer.weight]}], [layer])
        Traceback (most recent call last):
        ...
        proxemics.core.errors.TrainingError: The trainable parameter bias of Linear is in no optimiser group ...
    """
    count: dict[int, int] = {}
    for group in groups:
        for parameter in group["params"]:
            count[id(parameter)] = count.get(id(parameter), 0) + 1
    for module in modules:
        for name, parameter in _trainable(module):
            times = count.get(id(parameter), 0)
            if times != 1:
                where = "no optimiser group" if times == 0 else f"{times} optimiser groups"
                raise TrainingError(
                    f"The trainable parameter {name} of {type(module).__name__} is in {where} and would be trained "
                    f"{times} times a step; put it into exactly one, or set requires_grad=False."
                )


def make_optimizer(groups: list[dict[str, Any]], optim: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimiser named in the configuration over groups from :func:`parameter_groups`."""
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=optim.lr, eps=optim.eps)
    if optim.name == "adam":
        return torch.optim.Adam(groups, lr=optim.lr, eps=optim.eps)
    if optim.name == "sgd":
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum)
    return torch.optim.RMSprop(groups, lr=optim.lr, eps=optim.eps, momentum=optim.momentum)


def _trainable(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)
