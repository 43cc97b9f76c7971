"""What a plug-in may do, and what it gets to see.

A method takes part in a training step at up to four places: it may add views of the batch, intervene on the features at
one stage of the trunk, add terms to the loss, and look back after the optimiser has stepped. A method that overrides
nothing changes nothing. Random numbers come from the generator of the step, never from the global one, so that a run
with all weights at zero equals the base run bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Batch:
    """One batch as it comes from the loader, on the device.

    Attributes:
        images: (B, 3, H, W) float32, normalised.
        labels: (B,) int64 in 0..C-1.
        domains: (B,) int64, 0 where no domain is known.
        ids: (B,) int64, row numbers in the training table.
    """

    images: Tensor
    labels: Tensor
    domains: Tensor
    ids: Tensor


@dataclass
class Step:
    """What a loss term may ask for. Rows of a further view follow the rows of the clean batch.

    Attributes:
        z: (V*B, D) float32 unit embeddings; rows 0..B-1 are the clean batch.
        raw: (V*B, D) float32 embeddings before normalisation.
        tokens: (V*B, P, C) features of the last stage.
        labels: (B,) int64.
        domains: (B,) int64.
        views: V, how many views the batch holds.
        loss: the base loss; its ``proxies`` are (C, [K,] D).
        epoch: counts from 0.
        progress: share of all steps done, in [0, 1).
        generator: random numbers of this step for the methods, apart from those of the base run.
    """

    z: Tensor
    raw: Tensor
    tokens: Tensor
    labels: Tensor
    domains: Tensor
    views: int
    loss: nn.Module
    epoch: int
    progress: float
    generator: torch.Generator


@dataclass(frozen=True)
class Needs:
    """What a method asks of the run; checked when the run is built.

    Attributes:
        stage: the stage of the trunk at which it intervenes, or None.
        per_class: smallest number of pictures of a class in a batch.
        domains: whether domain labels are needed.
        frozen_bn: whether batch normalisation must be frozen.
        proxies: whether the base loss must have proxies.
        start: whether :meth:`Method.start` wants the embeddings of the whole training set before the first step.
    """

    stage: str | None = None
    per_class: int = 0
    domains: bool = False
    frozen_bn: bool = False
    proxies: bool = field(default=True)
    start: bool = False


@dataclass
class Start:
    """What a method may look at once, before the first step of a fresh run.

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
        >>> Method().needs
        Needs(stage=None, per_class=0, domains=False, frozen_bn=False, proxies=True, start=False)
        >>> Method().base_weight, Method().rates()
        (1.0, {})
    """

    needs: Needs = Needs()

    @property
    def base_weight(self) -> float:
        """Factor on the base loss; the factors of all methods multiply, and a base loss of weight 0 is not computed."""
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

    def views(self, batch: Batch, generator: torch.Generator) -> Tensor | None:
        """Return further pictures (n*B, 3, H, W), or None."""
        return None

    def intervene(self, features: Tensor, generator: torch.Generator) -> Tensor | None:
        """Return changed copies (B, ...) of the features (B, ...) at ``needs.stage``, or None."""
        return None

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return weighted scalar terms by name; they are added to the base loss and logged."""
        return {}

    def after_step(self, step: Step) -> None:
        """Update buffers after the optimiser has stepped; called under ``no_grad``."""
        return
