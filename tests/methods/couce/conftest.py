"""A step on given embeddings, without a trunk, and real steps through tiny trunks."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from proxemics.losses import NormSoftmax
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Step
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep


@pytest.fixture
def make_step() -> Callable[..., Step]:
    """A step on (B, M) rows; the head is the identity and the tokens are (B, P, M)."""

    def make(
        raw: Tensor,
        labels: Tensor,
        loss: nn.Module | None = None,
        *,
        tokens: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        epoch: int = 10,
        progress: float = 0.5,
        seed: int = 0,
        steps_per_epoch: int = 1,
    ) -> Step:
        tokens = raw.detach()[:, None] if tokens is None else tokens
        return Step(
            z=torch.nn.functional.normalize(raw, dim=-1),
            raw=raw,
            tokens=tokens,
            grid=grid or (tokens.shape[1], 1),
            features={},
            labels=labels,
            domains=torch.zeros_like(labels),
            loss=NormSoftmax(4, raw.shape[1]) if loss is None else loss,
            embedder=SimpleNamespace(project=lambda x: x),  # type: ignore[arg-type]  # the head alone is called
            epoch=epoch,
            progress=progress,
            generator=torch.Generator().manual_seed(seed),
            steps_per_epoch=steps_per_epoch,
        )

    return make


class World:
    """Embedder, loss, method and a batch, all made from seeds."""

    def __init__(
        self,
        method: Method | None,
        *,
        trunk: str = "test_resnet",
        loss: str = "proxy_anchor",
        size: int = 6,
        one_class: bool = False,
    ) -> None:
        self.embedder = Embedder(trunk, dim=16, weights="none", size=64)
        self.loss = build_loss(loss, 5, 16, {}, generator=torch.Generator().manual_seed(0))
        self.method = method
        self.step = TrainingStep(self.embedder, self.loss, [] if method is None else [method], steps_per_epoch=4)
        images = torch.randn(size, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        labels = torch.zeros(size).long() if one_class else torch.arange(size) % 5
        features = self.embedder.stage_features("pixel", images, size=(64, 64))
        self.batch = Batch(features, labels, torch.zeros(size).long(), torch.arange(size))

    def terms(self, epoch: int = 10, progress: float = 0.5, seed: int = 3) -> dict[str, Tensor]:
        return self.step(self.batch, epoch, progress, seed)

    def gradients(self, terms: dict[str, Tensor]) -> dict[str, Tensor | None]:
        """Of the sum of the terms, by parameter of embedder and loss."""
        for parameter in self.step.parameters():
            parameter.grad = None
        torch.stack(list(terms.values())).sum().backward()
        modules = {"embedder": self.embedder, "loss": self.loss}
        return {f"{n}.{k}": p.grad for n, module in modules.items() for k, p in module.named_parameters()}


@pytest.fixture
def world() -> type[World]:
    return World
