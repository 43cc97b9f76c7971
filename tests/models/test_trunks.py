"""Trunk names, stages and the trap of the lost norm."""

from __future__ import annotations

import pytest
import timm
import torch

from proxemics.core.errors import ModelError
from proxemics.models.stages import find_stage
from proxemics.models.trunks import create_trunk, resolve_trunk


def test_unknown_trunk_gets_a_suggestion_from_timm() -> None:
    with pytest.raises(ModelError, match=r"Unknown trunk 'resnet5O'\. Did you mean 'resnet50'\? Any of the \d+ names"):
        resolve_trunk("resnet5O")


def test_unknown_tag_lists_the_tags() -> None:
    with pytest.raises(
        ModelError, match=r"'resnet18' has no weights tagged 'a1_in1'\. Did you mean 'a1_in1k'\? Its tags"
    ):
        resolve_trunk("resnet18.a1_in1")
    assert resolve_trunk("resnet18.a1_in1k") == "resnet18.a1_in1k"


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("test_resnet", ["pixel", "stem", "stage1", "stage2", "stage3", "stage4"]),
        ("test_efficientnet", ["pixel", "stem", "stage1", "stage2", "stage3", "stage4"]),
        ("test_convnext", ["pixel", "stem", "stage1", "stage2", "stage3", "stage4"]),
        ("test_vit", ["pixel", "patch_embed", *[f"block{i}" for i in range(6)]]),
    ],
)
def test_stage_names_are_the_same_for_every_family(name: str, stages: list[str]) -> None:
    _, info = create_trunk(name)
    assert [stage.name for stage in info.stages] == stages


def test_aliases() -> None:
    _, resnet = create_trunk("test_resnet")
    _, efficientnet = create_trunk("test_efficientnet")
    assert find_stage(resnet.stages, "layer2", trunk="x").name == "stage2"
    assert find_stage(resnet.stages, "act1", trunk="x").name == "stem"
    assert find_stage(efficientnet.stages, "layer2", trunk="x").module == "blocks.2"
    assert find_stage(efficientnet.stages, "blocks.2", trunk="x").name == "stage2"


def test_unknown_stage_lists_the_stages() -> None:
    _, info = create_trunk("test_resnet")
    with pytest.raises(
        ModelError, match=r"Trunk 'r' has no stage 'stag2'\. Did you mean 'stage2'\? Its stages: pixel, stem, stage1"
    ):
        find_stage(info.stages, "stag2", trunk="r")


def test_the_last_norm_of_average_pooled_transformers_is_kept() -> None:
    """Asking timm for no pooling at construction renames fc_norm to norm; its trained weights would be lost."""
    published = set(timm.create_model("test_vit2").state_dict())
    trunk, _ = create_trunk("test_vit2")
    assert {key for key in published if not key.startswith("head.")} == set(trunk.state_dict())
    naive = set(timm.create_model("test_vit2", num_classes=0, global_pool="").state_dict())
    assert not naive <= published  # the day timm changes this, the detour through its own pooling can go


def test_impossible_size_is_named() -> None:
    with pytest.raises(ModelError, match=r"timm cannot build trunk 'nest_tiny' at 30 px: .*Leave size unset"):
        create_trunk("nest_tiny", size=30)


def test_trunks_that_take_any_size_although_theirs_is_declared_fixed() -> None:
    trunk, _ = create_trunk("davit_tiny", size=64)
    assert trunk(torch.zeros(1, 3, 64, 64)).shape == (1, 768, 2, 2)
