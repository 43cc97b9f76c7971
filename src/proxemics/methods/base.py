"""What a plug-in may do, and what it gets to see.

A method takes part in a training step at up to three places: it may add views (changed copies of the features at a
stage of the trunk, pictures included, which then run through the rest of the trunk), add terms to the loss, and look
back after the optimiser has stepped. A method that overrides nothing changes nothing. Random numbers come from the
generator of the step, never from the global one: a run with all weights at zero equals the base run bit for bit.

Over several processes the embeddings, labels and domains are those of the joined batch, the same everywhere; features
are those of the own share. Draw random numbers for the joined batch and take the own part with
:func:`proxemics.core.ranks.share_of`, and every process acts as one process on the joined batch would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from proxemics.models.embedder import Embedder
from proxemics.models.hooks import StageHook
from proxemics.models.partial import StageFeatures


@dataclass
class Batch:
    """One batch as it comes from the loader, on the device.

    Attributes:
        features: what enters the trunk: the pictures (B, 3, H, W) float32, normalised, at the stage ``pixel``; or,
            where the lower stages are frozen and their results are stored, the features of a higher stage.
        labels: (B,) int64 in 0..C-1.
        domains: (B,) int64, 0 where no domain is known.
        ids: (B,) int64, row numbers in the training table.
    """

    features: StageFeatures
    labels: Tensor
    domains: Tensor
    ids: Tensor


@dataclass(frozen=True)
class View:
    """Changed copies of rows of the batch, to be run through the trunk from a stage on.

    Attributes:
        features: of the n changed rows at one of the stages in ``needs.stages``; made with
            :meth:`StageFeatures.with_map` from the features of the batch there.
        rows: (n,) int64, rows of the own share that they are copies of; None: all B, in order. Over several processes
            every process must choose the same rows of its share.
        hooks: further interventions at higher stages.
    """

    features: StageFeatures
    rows: Tensor | None = None
    hooks: tuple[StageHook, ...] = ()


@dataclass
class Seen:
    """What came of a view.

    Attributes:
        z: (n, D) float32 unit embeddings of the joined batch.
        raw: (n, D) float32 embeddings before normalisation of the joined batch.
        tokens: (n', P, C) features of the last stage, own share.
        labels: (n,) int64.
        rows: (n,) int64, the rows of the joined batch that they are copies of.
    """

    z: Tensor
    raw: Tensor
    tokens: Tensor
    labels: Tensor
    rows: Tensor


@dataclass
class Step:
    """What a method may look at. B is the size of the joined batch, b that of the own share.

    Attributes:
        z: (B, D) float32 unit embeddings of the clean batch.
        raw: (B, D) float32 embeddings before normalisation.
        tokens: (b, P, C) float32 features of the last stage, own share.
        grid: (h, w) with h * w = P, or (P, 1) where the tokens form no map.
        features: by name, the features of the stages in the method's ``needs.stages``, own share, with their graph.
        labels: (B,) int64.
        domains: (B,) int64.
        loss: the base loss; its ``proxies`` are (C, [K,] D).
        embedder: the model: ``project`` maps pooled features to raw embeddings, ``encode_from`` runs features on.
        epoch: counts from 0.
        progress: share of all steps done, in [0, 1).
        generator: random numbers for this method alone, the same on every process.
        steps_per_epoch: optimiser steps an epoch.
        seen: what came of the views that this method added; empty in :meth:`Method.views`.
    """

    z: Tensor
    raw: Tensor
    labels: Tensor
    loss: nn.Module
    generator: torch.Generator
    domains: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    grid: tuple[int, int] = (0, 0)
    features: dict[str, StageFeatures] = field(default_factory=dict)
    embedder: Embedder = None  # type: ignore[assignment]  # left out in loops of others, by methods that only look at z
    epoch: int = 0
    progress: float = 0.0
    steps_per_epoch: int = 1
    seen: list[Seen] = field(default_factory=list)


@dataclass(frozen=True)
class Needs:
    """What a method asks of the run; checked when the run is built.

    Attributes:
        stages: the stages of the trunk whose features it changes; ``pixel`` means the pictures.
        gradients: whether it takes gradients with respect to these features, frozen or not.
        per_class: smallest number of pictures of a class in a batch.
        domains: whether domain labels are needed.
        frozen_bn: whether batch normalisation must be frozen.
        proxies: whether the base loss must have proxies.
        start: whether :meth:`Method.start` wants the embeddings of the whole training set before the first step.
        refresh_epochs: call :meth:`Method.refresh` with such embeddings before every so many epochs; 0: never.
        grid: whether the tokens of the last stage must form a map; those of ``stages`` always must.
        head: whether the model must have a linear head.
    """

    stages: tuple[str, ...] = ()
    gradients: bool = False
    per_class: int = 0
    domains: bool = False
    frozen_bn: bool = False
    proxies: bool = True
    start: bool = False
    refresh_epochs: int = 0
    grid: bool = False
    head: bool = False


@dataclass
class Start:
    """The whole training set as the model sees it, between two steps.

    Attributes:
        raw: (n, D) float32 embeddings before normalisation of all training pictures, in evaluation mode.
        labels: (n,) int64.
        loss: the base loss; its ``proxies`` are (C, [K,] D).
        head: the module that makes ``raw`` from pooled features, or None where there is none.
    """

    raw: Tensor
    labels: Tensor
    loss: nn.Module
    head: nn.Module | None


class Method(nn.Module):
    """Base of all plug-ins; override what is needed.

    Example:
        >>> Method().needs.stages, Method().needs.proxies
        ((), True)
        >>> Method().base_weight, Method().rates()
        (1.0, {})
    """

    needs: Needs = Needs()

    @property
    def base_weight(self) -> float:
        """Factor on the base loss; the factors of all methods multiply, and a base loss of weight 0 is not computed."""
        return 1.0

    @property
    def head_rate(self) -> float:
        """Factor on the learning rate of the model's head; the factors of all methods multiply."""
        return 1.0

    def rates(self) -> dict[str, float]:
        """Learning rates of own parameters by name, relative to that of the proxies; those left out have 1."""
        return {}

    def check(self, loss: nn.Module) -> None:
        """Refuse, with a sentence, a base loss that the method cannot work with; called when the run is built."""
        return

    def start(self, start: Start) -> None:
        """Prepare head, proxies or buffers once, before the first step of a fresh run; called under ``no_grad``."""
        return

    def refresh(self, start: Start) -> None:
        """Renew buffers from the whole training set before an epoch (``needs.refresh_epochs``); under ``no_grad``."""
        return

    def views(self, step: Step) -> Sequence[View]:
        """Return changed copies of features of the clean batch; called after its pass, with gradients enabled."""
        return ()

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return weighted scalar terms by name; they are added to the base loss and logged."""
        return {}

    def report(self) -> dict[str, float]:
        """Return numbers worth logging that are not minimised, for the step just taken."""
        return {}

    def after_step(self, step: Step) -> None:
        """Update buffers after the optimiser has stepped; ``step`` is the one just taken, without its graph."""
        return
