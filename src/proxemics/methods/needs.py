"""Does a method fit the model, the loss and the sampler? Said in a sentence before any work is done."""

from __future__ import annotations

from torch import nn

from proxemics.core.errors import TrainingError
from proxemics.methods.base import Method
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
