"""The path of a batch, from pictures to the terms of the loss. Read it top to bottom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxemics.core.errors import TrainingError
from proxemics.core.ranks import gather_rows, rank
from proxemics.core.seeds import torch_generator
from proxemics.methods.base import Batch, Method, Seen, Step, View
from proxemics.methods.needs import check_needs, check_together
from proxemics.models.embedder import Embedder


class TrainingStep(nn.Module):
    """Embedder, base loss and methods as one module, so that one wrapper can make them data-parallel.

    Args:
        embedder: the model that stays.
        loss: the base loss on (B, D) embeddings and (B,) labels.
        methods: plug-ins, each on its own.
        entry: the stage at which batches enter the trunk; methods may only ask for stages from there on.
        steps_per_epoch: for methods whose schedule counts epochs in fractions.

    Raises:
        TrainingError: a method asks for something that the embedder or the loss does not have.
    """

    def __init__(
        self,
        embedder: Embedder,
        loss: nn.Module,
        methods: Sequence[Method] = (),
        *,
        entry: str = "pixel",
        steps_per_epoch: int = 1,
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss
        self.methods = nn.ModuleList(methods)
        self.steps_per_epoch = steps_per_epoch
        self.taken: list[tuple[Method, Step]] = []
        """Methods and what they saw since :meth:`look_back`, without graphs."""
        check_together(methods)
        for method in methods:
            check_needs(method, embedder, loss, entry=entry)

    def forward(self, batch: Batch, epoch: int, progress: float, seed: int) -> dict[str, Tensor]:
        """Return the scalar terms by name; their sum is what is minimised.

        Args:
            batch: the share of this process.
            epoch: counts from 0.
            progress: share of all steps done, in [0, 1).
            seed: of the random numbers of the methods at this step, the same on every process.

        Returns:
            ``{"base": ..., "<method term>": ...}``, each a float32 scalar over the joined batch of all processes.
        """
        methods = self._methods()
        stages = list(dict.fromkeys(stage for method in methods for stage in method.needs.stages))
        live = [stage for method in methods if method.needs.gradients for stage in method.needs.stages]
        encoded, features = self.embedder.encode_from(batch.features, stages, live=live)
        with torch.autocast(device_type=encoded.raw.device.type, enabled=False):
            labels, raw, unit = gather_rows(batch.labels), gather_rows(encoded.raw), gather_rows(encoded.unit)
            weight = math.prod(method.base_weight for method in methods)
            terms: dict[str, Tensor] = {}
            if weight != 0:
                base = self.loss(raw, labels)
                terms["base"] = base if weight == 1 else base * weight
            if not methods:
                return terms
            domains = gather_rows(batch.domains)
        for number, method in enumerate(methods):
            step = Step(
                z=unit,
                raw=raw,
                tokens=encoded.tokens,
                grid=encoded.grid,
                features={stage: features[stage] for stage in method.needs.stages},
                labels=labels,
                domains=domains,
                loss=self.loss,
                embedder=self.embedder,
                epoch=epoch,
                progress=progress,
                generator=torch_generator(seed, "method", number, device=raw.device),
                steps_per_epoch=self.steps_per_epoch,
            )
            step.seen = [self._look(view, batch) for view in method.views(step)]
            with torch.autocast(device_type=raw.device.type, enabled=False):
                own = method.terms(step)
            twice = sorted(set(own) & set(terms))
            if twice:
                raise TrainingError(f"{type(method).__name__} has a term {twice[0]!r}, and so has another; rename one.")
            terms.update(own)
            self.taken.append((method, without_graph(step)))
        return terms

    @torch.no_grad()
    def look_back(self) -> None:
        """Let the methods look back at the parts of the step just taken; call it after the optimiser."""
        for method, step in self.taken:
            method.after_step(step)
        self.taken = []

    def _methods(self) -> list[Method]:
        return [method for method in self.methods if isinstance(method, Method)]

    def _look(self, view: View, batch: Batch) -> Seen:
        """Run the rest of the trunk on a view; statistics of batch normalisation are left alone."""
        with resting_statistics(self.embedder):
            encoded, _ = self.embedder.encode_from(view.features, hooks=view.hooks)
        size = len(batch.labels)
        rows = torch.arange(size, device=batch.labels.device) if view.rows is None else view.rows
        return Seen(
            z=gather_rows(encoded.unit),
            raw=gather_rows(encoded.raw),
            tokens=encoded.tokens,
            labels=gather_rows(batch.labels[rows]),
            rows=gather_rows(rows + rank() * size),
        )


@contextmanager
def resting_statistics(model: nn.Module) -> Iterator[None]:
    """Keep batch normalisation in evaluation mode for a while, so that changed pictures do not move its statistics."""
    moving = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    try:
        for module in moving:
            module.training = False
        yield
    finally:
        for module in moving:
            module.training = True


def without_graph(step: Step) -> Step:
    """Return what was seen without gradients and without the features of the lower stages, which are large."""
    seen = [replace(one, z=one.z.detach(), raw=one.raw.detach(), tokens=one.tokens.detach()) for one in step.seen]
    return replace(step, z=step.z.detach(), raw=step.raw.detach(), tokens=step.tokens.detach(), features={}, seen=seen)
