"""The path of a batch, from pictures to the terms of the loss. Read it top to bottom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from proxemics.core.errors import TrainingError
from proxemics.methods.base import Batch, Method, Step
from proxemics.models.embedder import Embedder
from proxemics.models.hooks import StageHook
from proxemics.training.gather import gather_rows


class TrainingStep(nn.Module):
    """Embedder, base loss and methods as one module, so that one wrapper can make them data-parallel.

    Args:
        embedder: the model that stays.
        loss: the base loss on (B, D) embeddings and (B,) labels.
        methods: plug-ins; at most one may intervene on features.

    Raises:
        TrainingError: two methods want to intervene, or a method needs proxies that the loss does not have.
    """

    def __init__(self, embedder: Embedder, loss: nn.Module, methods: Sequence[Method] = ()) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss
        self.methods = nn.ModuleList(methods)
        staged = [type(method).__name__ for method in methods if method.needs.stage is not None]
        if len(staged) > 1:
            raise TrainingError(
                f"Only one method can intervene on features, and {' and '.join(staged)} both do; drop one."
            )
        for method in methods:
            method.check(loss)
            if method.needs.proxies and not hasattr(loss, "proxies"):
                raise TrainingError(
                    f"{type(method).__name__} works on proxies and {type(loss).__name__} has none; "
                    "choose a proxy loss such as proxy_anchor."
                )

    def forward(self, batch: Batch, epoch: int, progress: float, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the scalar terms by name; their sum is what is minimised.

        Args:
            batch: the share of this process.
            epoch: counts from 0.
            progress: share of all steps done, in [0, 1).
            generator: random numbers for the methods only.

        Returns:
            ``{"base": ..., "<method term>": ...}``, each a float32 scalar over the joined batch of all processes.
        """
        size = len(batch.labels)
        images, views = self._add_views(batch, generator)
        encoded = self.embedder.encode(images, hook=self._stage_hook(generator))
        views = max(views, len(encoded.unit) // size)

        with torch.autocast(device_type=images.device.type, enabled=False):
            labels = gather_rows(batch.labels)
            raw = self._gather_views(encoded.raw, views)
            unit = self._gather_views(encoded.unit, views)
            weight = math.prod(method.base_weight for method in self._methods())
            terms: dict[str, Tensor] = {}
            if weight != 0:
                base = self.loss(raw[: len(labels)], labels)
                terms["base"] = base if weight == 1 else base * weight
            if len(self.methods):
                step = Step(
                    z=unit,
                    raw=raw,
                    tokens=encoded.tokens,
                    labels=labels,
                    domains=gather_rows(batch.domains),
                    views=views,
                    loss=self.loss,
                    epoch=epoch,
                    progress=progress,
                    generator=generator,
                )
                for method in self._methods():
                    terms.update(method.terms(step))
        return terms

    def _methods(self) -> list[Method]:
        return [method for method in self.methods if isinstance(method, Method)]

    def _add_views(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, int]:
        """Append the pictures that methods add: (V*B, 3, H, W), and V."""
        parts = [batch.images]
        for method in self._methods():
            added = method.views(batch, generator)
            if added is not None:
                parts.append(added)
        images = torch.cat(parts) if len(parts) > 1 else batch.images
        return images, len(images) // max(len(batch.labels), 1)

    def _stage_hook(self, generator: torch.Generator) -> StageHook | None:
        """Let the one intervening method append changed copies of the features at its stage."""
        for method in self._methods():
            if method.needs.stage is None:
                continue
            return StageHook(method.needs.stage, partial(_extend, method, generator))
        return None

    def _gather_views(self, rows: Tensor, views: int) -> Tensor:
        """Gather view by view, so that the rows of one view stay together over processes."""
        if views == 1:
            return gather_rows(rows)
        return torch.cat([gather_rows(part) for part in rows.chunk(views)])


def _extend(method: Method, generator: torch.Generator, features: Tensor) -> Tensor:
    """Append the method's changed copies to the features at its stage."""
    changed = method.intervene(features, generator)
    return features if changed is None else torch.cat([features, changed])
