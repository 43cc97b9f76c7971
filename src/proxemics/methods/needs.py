"""Does a method fit the model, the loss and the sampler? Said in a sentence before any work is done."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from proxemics.core.errors import LossError, TrainingError
from proxemics.methods.base import Method, Needs
from proxemics.models.embedder import Embedder


def check_needs(method: Method, embedder: Embedder, loss: nn.Module, *, entry: str = "pixel") -> None:
    """Refuse a method that the model or the loss cannot serve.

    Args:
        method: any plug-in.
        embedder: the model.
        loss: the base loss.
        entry: the lowest stage that is computed in training.

    Raises:
        TrainingError: with what is missing and how to mend it.
        LossError: from the method's own check.
        ModelError: the trunk has no such stage.
    """
    name, needs = type(method).__name__, method.needs
    if needs.proxies and not hasattr(loss, "proxies"):
        raise TrainingError(
            f"{name} works on proxies and {type(loss).__name__} has none; choose a proxy loss such as proxy_anchor."
        )
    method.check(loss)
    order = embedder.stages
    for stage in needs.stages:
        if order.index(embedder.stage_name(stage)) < order.index(embedder.stage_name(entry)):
            raise TrainingError(
                f"{name} changes features at {stage}, but the stages below {entry} are stored and not computed; "
                f"use data.cache=memory, or a stage from {entry} on."
            )
    if needs.frozen_bn and not embedder.arguments["freeze_bn"] and embedder.has_batch_norm:
        raise TrainingError(f"{name} needs frozen batch normalisation; set model.freeze_bn=true.")
    if needs.head and (embedder.head is None or not any(isinstance(one, nn.Linear) for one in embedder.head.modules())):
        raise TrainingError(f"{name} scales the linear head of the model, which has none; set model.dim=512.")
    if needs.stages or needs.grid:
        _check_maps(name, needs, embedder)


@torch.no_grad()
def _check_maps(name: str, needs: Needs, embedder: Embedder) -> None:
    """Look at what a blank picture becomes."""
    modes = [(part, part.training) for part in embedder.modules()]
    embedder.eval()
    try:
        side = embedder.preprocess.size
        blank = torch.zeros(1, 3, side, side, device=next(embedder.parameters()).device)
        encoded, features = embedder.encode_with(blank, needs.stages)
        for stage in needs.stages:
            features[stage].as_map()
    finally:
        for part, mode in modes:
            part.training = mode
    if needs.grid and encoded.grid[1] == 1 and encoded.grid[0] > 2:
        raise TrainingError(
            f"{name} looks at where things are, and the {encoded.grid[0]} tokens of the last stage form no map; choose "
            "another gate, or a trunk with a map."
        )


def check_together(methods: Sequence[Method]) -> None:
    """Refuse methods that would undo each other.

    Args:
        methods: of one run.

    Raises:
        LossError: one holds the other, or both decide what becomes of the base loss.

    Example:
        >>> check_together([Method()])
    """
    parts = [{type(part) for part in method.modules() if isinstance(part, Method)} for method in methods]
    for first, second in itertools.combinations(range(len(methods)), 2):
        names = [type(methods[place]).__name__ for place in (first, second)]
        if names[0] == names[1]:
            continue  # a clash of their terms is told in the step
        for kind in sorted(parts[first] & parts[second], key=lambda kind: kind.__name__):
            raise LossError(
                f"{names[0]} and {names[1]} both bring {kind.__name__}, whose terms would be there twice; give its "
                "options inside the one that holds more, or leave one out."
            )
    weighing = [type(method).__name__ for method in methods if method.base_weight != 1]
    if len(weighing) > 1:
        raise LossError(
            f"{' and '.join(weighing)} both decide what becomes of the base loss, and one would undo the other; use "
            "one of them, or for CouCE another orth than project."
        )


def check_batches(method: Method, *, per_class: int, num_domains: int) -> None:
    """Refuse a method that the batches cannot serve.

    Args:
        method: any plug-in.
        per_class: pictures of a class in a batch; 0 where batches ignore classes.
        num_domains: how many domains the training pictures come from.

    Raises:
        TrainingError: with what is missing and how to mend it.

    Example:
        >>> check_batches(Method(), per_class=0, num_domains=1)
    """
    name, needs = type(method).__name__, method.needs
    if per_class < needs.per_class:
        raise TrainingError(
            f"{name} needs {needs.per_class} pictures of a class in a batch and train.per_class={per_class}; "
            f"set train.per_class={needs.per_class} or more."
        )
    if needs.domains and num_domains < 2:
        raise TrainingError(
            f"{name} needs training pictures of several domains and found {num_domains}; "
            "give the table a domain column, or leave the method out."
        )
