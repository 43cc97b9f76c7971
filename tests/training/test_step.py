"""The path of a batch with and without methods."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import TrainingError
from proxemics.core.seeds import torch_generator
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Needs, Step
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep


class Doubled(Method):
    """Intervenes with a plain copy and notes what the terms get to see."""

    needs = Needs(stage="stage2")

    def intervene(self, features: Tensor, generator: torch.Generator) -> Tensor:
        self.noise = torch.rand(3, generator=generator)
        return features.clone()

    def terms(self, step: Step) -> dict[str, Tensor]:
        self.step = step
        first, second = step.z.chunk(step.views)
        return {"difference": (first - second).abs().max()}


@pytest.fixture(scope="module")
def parts() -> tuple[Embedder, Batch]:
    embedder = Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32)
    labels = torch.tensor([0, 0, 1, 1])
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return embedder, Batch(images, labels, torch.zeros(4, dtype=torch.int64), torch.arange(4))


def run(embedder: Embedder, batch: Batch, *methods: Method) -> tuple[dict[str, Tensor], list[Tensor]]:
    torch.manual_seed(0)
    step = TrainingStep(embedder, build_loss("proxy_anchor", 2, 8, {}), methods)
    embedder.zero_grad()
    terms = step(batch, 0, 0.0, torch_generator(0, "methods"))
    terms["base"].backward()
    return terms, [p.grad.clone() for p in embedder.parameters() if p.grad is not None]


def test_a_method_without_effect_leaves_the_base_run_bit_for_bit(parts: tuple[Embedder, Batch]) -> None:
    base, gradients = run(*parts)
    with_method, others = run(*parts, Method())
    assert torch.equal(base["base"], with_method["base"])
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


def test_intervention_appends_rows_that_the_base_loss_does_not_see(parts: tuple[Embedder, Batch]) -> None:
    method = Doubled()
    terms, _ = run(*parts, method)
    base, _ = run(*parts)
    assert method.step.views == 2
    assert method.step.z.shape == (8, 8)
    assert method.step.labels.tolist() == [0, 0, 1, 1]
    assert terms["difference"].item() < 1e-5
    assert terms["base"].item() == pytest.approx(base["base"].item(), rel=1e-5)


def test_wrong_combinations_fail_when_the_step_is_built(parts: tuple[Embedder, Batch]) -> None:
    embedder, _ = parts
    with pytest.raises(TrainingError, match="Doubled and Doubled both do"):
        TrainingStep(embedder, build_loss("proxy_anchor", 2, 8, {}), [Doubled(), Doubled()])
    with pytest.raises(TrainingError, match="Method works on proxies and MultiSimilarity has none"):
        TrainingStep(embedder, build_loss("multi_similarity", 2, 8, {}), [Method()])
