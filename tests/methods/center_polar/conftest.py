"""A tiny model, a batch of pictures, and a step through the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Start, Step
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

CLASSES, DIM, SIDE = 5, 16, 64


@dataclass
class Run:
    """What a step gave."""

    terms: dict[str, Tensor]
    whole: TrainingStep
    step: Step | None


def make_pictures(count: int = 8, seed: int = 0) -> Tensor:
    """Smooth random pictures, normalised, within the valid range."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    grey = torch.nn.functional.interpolate(coarse, SIDE, mode="bicubic").clamp(0, 1)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (grey - mean) / std


@pytest.fixture
def pictures() -> Callable[..., Tensor]:
    return make_pictures


@pytest.fixture
def images() -> Tensor:
    return make_pictures()


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


@pytest.fixture
def model() -> Callable[..., Embedder]:
    def build(trunk: str = "test_resnet", **options: object) -> Embedder:
        return Embedder(trunk, dim=DIM, weights="none", size=SIDE, **options).train()  # type: ignore[arg-type]

    return build


@pytest.fixture
def take_step() -> Callable[..., Run]:
    """Run a step; methods are started from the pictures first unless told otherwise."""

    def run(
        embedder: Embedder,
        methods: list[Method],
        images: Tensor,
        labels: Tensor,
        *,
        loss: nn.Module | None = None,
        epoch: int = 1,
        progress: float = 0.5,
        seed: int = 0,
        begin: bool = True,
        autocast: bool = False,
        look_back: bool = True,
    ) -> Run:
        loss = loss or build_loss("proxy_anchor", CLASSES, DIM, {}, generator=torch.Generator().manual_seed(0))
        if begin:
            training = embedder.training
            with torch.no_grad():
                raw = embedder.eval().encode(images).raw
            embedder.train(training)
            for method in methods:
                method.start(Start(raw, labels, loss, embedder.head))
        whole = TrainingStep(embedder, loss, methods)
        nothing = torch.zeros_like(labels)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            features = embedder.stage_features("pixel", images, size=(SIDE, SIDE))
            terms = whole(Batch(features, labels, nothing, nothing), epoch, progress, seed)
        step = whole.taken[0][1] if whole.taken else None
        if look_back:
            whole.look_back()
        return Run(terms, whole, step)

    return run
