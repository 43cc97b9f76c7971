"""The part of a trunk above a stage gives what the whole trunk gives."""

from __future__ import annotations

import pytest
import torch

from proxemics.core.errors import ModelError
from proxemics.models.embedder import Embedder
from proxemics.models.partial import StageFeatures

TRUNKS = ["test_resnet", "test_vit", "test_efficientnet", "test_convnext", "tf_efficientnet_lite0"]


def built(trunk: str) -> Embedder:
    return Embedder(trunk, dim=16, weights="none", size=96).eval()


@pytest.mark.parametrize("trunk", TRUNKS)
def test_every_stage_can_be_gone_on_from(trunk: str) -> None:
    torch.set_num_threads(1)
    embedder = built(trunk)
    images = torch.randn(3, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, kept = embedder.encode_with(images, embedder.stages)
        for stage in embedder.stages:
            upper, later = embedder.encode_from(kept[stage], [embedder.stages[-1]])
            torch.testing.assert_close(upper.raw, whole.raw, rtol=1e-4, atol=1e-5, msg=f"{trunk} {stage}")
            assert upper.grid == whole.grid
            assert set(later) == {embedder.stages[-1]}
            alone = embedder.features_at(images, stage)
            torch.testing.assert_close(alone.value, kept[stage].value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_maps_go_out_and_in_again(trunk: str) -> None:
    embedder = built(trunk)
    images = torch.randn(3, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    stage = embedder.stages[3]
    features = embedder.features_at(images, stage)
    maps = features.as_map()
    assert maps.ndim == 4
    assert torch.equal(features.with_map(maps).value, features.value)
    rows = torch.tensor([2, 0, 2, 1])
    some = features.with_map(maps[rows], rows)
    assert torch.equal(some.value, features.value[rows])
    with torch.no_grad():
        torch.testing.assert_close(
            embedder.encode_from(some)[0].raw, embedder.encode(images).raw[rows], rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ModelError, match="the maps must be"):
        features.with_map(maps[:, :1])


def test_live_features_get_a_gradient_although_all_below_is_frozen() -> None:
    embedder = Embedder("test_resnet", dim=16, weights="none", size=64, freeze_stages=4)
    images = torch.randn(2, 3, 64, 64)
    pixels = embedder.stage_features("pixel", images)
    for live, wanted in (((), False), (("stage2",), True)):
        encoded, kept = embedder.encode_from(pixels, ["stage2"], live=live)
        assert kept["stage2"].value.requires_grad == wanted
        if wanted:
            (slope,) = torch.autograd.grad(encoded.raw.sum(), kept["stage2"].value)
            assert slope.abs().max() > 0
            assert kept["stage2"].like(slope).as_map().shape == kept["stage2"].as_map().shape


def test_tokens_that_form_no_map_are_refused() -> None:
    embedder = built("test_vit")
    features = embedder.features_at(torch.randn(1, 3, 96, 96), "block0")
    odd = StageFeatures(features.stage, features.value[:, :24], features.size, features.info)
    with pytest.raises(ModelError, match="form no map"):
        odd.as_map()
