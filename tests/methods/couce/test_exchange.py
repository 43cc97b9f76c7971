"""Exchange of backgrounds: the gate finds the object, the object stays, the background is the partner's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch
from proxemics.methods.couce import ODBA
from proxemics.methods.couce.dictionary import soft_orthogonal_step
from proxemics.methods.couce.exchange import background_content, exchange_background, relevance_gate
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

FIRST = (slice(None), slice(None), slice(0, 2), slice(0, 2))


def scene(background: float, thing: float) -> Tensor:
    maps = torch.full((1, 3, 6, 6), background)
    maps[FIRST] = thing
    return maps


def test_the_gate_is_low_where_the_score_comes_from() -> None:
    maps = scene(1.0, 4.0).requires_grad_()
    score = maps[FIRST].mean()
    (gradients,) = torch.autograd.grad(score, maps)
    gate = relevance_gate(maps.detach(), gradients, smooth=1)
    assert gate[FIRST].max() < 0.05
    assert gate[0, 0, 3:, 3:].min() > 0.5
    evidence_against = relevance_gate(maps.detach(), -gradients)
    assert torch.equal(evidence_against, torch.full_like(gate, 0.5))


def test_object_stays_and_background_is_the_partners_without_its_object() -> None:
    maps = torch.cat([scene(1.0, 9.0), scene(-2.0, 7.0)])
    gate = torch.ones(2, 1, 6, 6)
    gate[FIRST] = 0.0
    content = background_content(maps, gate)
    assert torch.equal(content[1], torch.full_like(content[1], -2.0))
    changed = exchange_background(maps, gate, content.flip(0))
    assert torch.equal(changed[FIRST], maps[FIRST])
    assert torch.equal(changed[0, :, 3:, 3:], torch.full((3, 3, 3), -2.0))
    assert torch.equal(exchange_background(maps, torch.zeros_like(gate), content), maps)


def test_exchange_is_differentiable_in_the_own_map() -> None:
    maps = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    gate, content = torch.rand(2, 1, 3, 3, dtype=torch.float64), torch.randn(2, 2, 3, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m: exchange_background(m, gate, content), maps)


@pytest.mark.parametrize("trunk", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("freeze", [0, 4])
@pytest.mark.parametrize("gate", ["border", "relevance"])
def test_exchange_in_training_also_where_the_stage_is_frozen(trunk: str, freeze: int, gate: str) -> None:
    embedder = Embedder(trunk, dim=16, weights="none", size=32, freeze_stages=freeze)
    stage = embedder.stages[3]
    method = ODBA(
        16, atoms=8, estimator="exchange", exchange_stage=stage, exchange_gate=gate, start_epoch=0,
        exchange_gate_stage=embedder.stages[2],
    )  # type: ignore[arg-type]  # fmt: skip
    step = TrainingStep(embedder, build_loss("proxy_anchor", 5, 16, {}), [method]).train()
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = Batch(embedder.stage_features("pixel", images), labels, labels, labels)
    terms = step(batch, 6, 0.5, 0)
    assert {"base", "odba_backdoor"} <= set(terms)
    assert not [name for name, p in embedder.named_parameters() if p.grad is not None]
    terms["odba_backdoor"].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in embedder.parameters())
    assert embedder.head is not None
    assert embedder.head.weight.grad is not None
    early = step(batch, -1, 0.0, 0)
    assert "odba_backdoor" not in early


def test_exchange_asks_for_similarities() -> None:
    with pytest.raises(LossError, match="needs class similarities and MultiSimilarity has none"):
        ODBA(16, atoms=8, estimator="exchange", exchange_gate="relevance").check(
            build_loss("multi_similarity", 5, 16, {})
        )


@pytest.mark.parametrize("alike", [0.3, 0.5, 0.9, 0.99])
def test_soft_orthogonalisation_separates_atoms_however_alike(alike: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(64, 512, generator=generator), dim=1)
    common = torch.nn.functional.normalize(torch.randn(1, 512, generator=generator), dim=1)
    atoms = torch.nn.functional.normalize(alike**0.5 * common + (1 - alike) ** 0.5 * rows, dim=1)
    before = (atoms @ atoms.t() - torch.eye(64)).norm()
    for _ in range(300):
        atoms = soft_orthogonal_step(atoms)
    assert (atoms @ atoms.t() - torch.eye(64)).norm() < 0.05 * before
