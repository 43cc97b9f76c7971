"""What is frozen stays frozen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from proxemics.core.errors import ModelError
from proxemics.models import Embedder


def batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def step(embedder: Embedder) -> None:
    optimizer = torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], lr=0.1)
    embedder(torch.randn(4, 3, 64, 64))[:, 0].sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_frozen_batch_norm_survives_train(name: str) -> None:
    embedder = copy.deepcopy(Embedder(name, dim=8, weights="none", size=64)).train()
    norms = batch_norms(embedder.trunk)
    before = {key: value.clone() for key, value in embedder.state_dict().items()}
    step(embedder)
    assert norms
    assert embedder.trunk.training
    assert not any(norm.training for norm in norms)
    assert not any(p.requires_grad for norm in norms for p in norm.parameters())
    changed = {key for key, value in embedder.state_dict().items() if not torch.equal(value, before[key])}
    frozen = {
        f"trunk.{path}.{key}"
        for path, part in embedder.trunk.named_modules()
        if part in norms
        for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert frozen <= set(before)
    assert not changed & frozen
    assert "head.weight" in changed


def test_batch_norm_learns_when_asked() -> None:
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64, freeze_bn=False).train()
    norms = batch_norms(embedder.trunk)
    before = norms[0].running_mean.clone()
    step(embedder)
    assert not torch.equal(norms[0].running_mean, before)
    assert all(p.requires_grad for norm in norms for p in norm.parameters())


def test_one_stage_of_a_transformer_is_the_patch_embedding() -> None:
    """SEE freezes exactly that."""
    embedder = Embedder("test_vit", dim=8, weights="none", size=64, freeze_stages=1)
    frozen = {name for name, p in embedder.trunk.named_parameters() if not p.requires_grad}
    assert frozen == {"patch_embed.proj.weight", "patch_embed.proj.bias"}
    two = Embedder("test_vit", dim=8, weights="none", size=64, freeze_stages=2).train()
    frozen = {name for name, p in two.trunk.named_parameters() if not p.requires_grad}
    assert {"cls_token", "pos_embed"} < frozen
    assert {name.split(".")[1] for name in frozen if name.startswith("blocks.")} == {"0"}
    assert not two.trunk.blocks[0].training
    assert not two.trunk.blocks[0].attn.training
    assert two.trunk.blocks[1].training


@pytest.mark.parametrize(("count", "frozen"), [(1, {"conv1", "bn1"}), (2, {"conv1", "bn1", "layer1"})])
def test_stages_of_a_resnet(count: int, frozen: set[str]) -> None:
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64, freeze_bn=False, freeze_stages=count).train()
    names = {name.split(".")[0] for name, p in embedder.trunk.named_parameters() if not p.requires_grad}
    assert names == frozen
    learning = {name.split(".")[0] for name, p in embedder.trunk.named_parameters() if p.requires_grad}
    assert not learning & frozen
    before = embedder.trunk.bn1.running_mean.clone()
    step(embedder)
    assert torch.equal(embedder.trunk.bn1.running_mean, before)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext", "test_resnet"])
def test_all_stages_frozen_leave_what_comes_after_them(name: str) -> None:
    embedder = Embedder(name, dim=8, weights="none", size=64, freeze_bn=False, freeze_stages=5)
    learning = {key.split(".")[0] for key, p in embedder.trunk.named_parameters() if p.requires_grad}
    assert learning <= {"conv_head", "bn2", "norm_pre", "head"}
    assert all(p.requires_grad for p in embedder.head_parameters())


@pytest.mark.parametrize("count", [-1, 6])
def test_impossible_count_lists_the_stages(count: int) -> None:
    with pytest.raises(
        ModelError,
        match=rf"freeze_stages={count} does not fit trunk 'test_resnet'; allowed is 0 to 5, .*: stem, stage1",
    ):
        Embedder("test_resnet", dim=8, weights="none", size=64, freeze_stages=count)
