"""Gates against known masks: real photographs behind glyphs, through a pretrained trunk (spec §5.5 asks for this)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from proxemics.data.confounded import ConfoundedSpec, render
from proxemics.evaluation import certainty_auroc
from proxemics.methods.couce.gates import border_gate, spatial_gate
from proxemics.models.embedder import Embedder


@pytest.fixture(scope="module")
def seen() -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Places of stage 3 and the share of each that belongs to the object."""
    torch.set_num_threads(1)
    spec = ConfoundedSpec(train_classes=8, test_classes=8, per_class=6, rho=0.5, seed=0, size=112)
    pictures, masks, _ = render(spec)
    embedder = Embedder("tf_efficientnet_lite0", dim=0, size=112).eval()
    images = embedder.preprocess.normalize(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    with torch.no_grad():
        maps = embedder.features_at(images, "stage3").as_map()
    grid = (int(maps.shape[2]), int(maps.shape[3]))
    share = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(masks)[:, None].float(), grid)
    return maps.flatten(2).transpose(1, 2), share.flatten(1) / share.max(), grid


def separation(gate: Tensor, share: Tensor) -> float:
    """The probability that a place of background has a higher gate than one of the object, picture by picture."""
    inside, outside = share > 0.3, share < 0.02
    found = [
        certainty_auroc(g[i | o].numpy(), i[i | o].numpy())
        for g, i, o in zip(gate, inside, outside, strict=True)
        if bool(i.any()) and bool(o.any())
    ]
    assert len(found) > 50
    return sum(value for value in found if value is not None) / len(found)


def test_the_border_gate_finds_objects_in_front_of_photographs(seen: tuple[Tensor, Tensor, tuple[int, int]]) -> None:
    places, share, grid = seen
    border, spatial = separation(border_gate(places, grid), share), separation(spatial_gate(places), share)
    assert border > 0.75
    assert border > spatial
    assert border_gate(places, grid)[share > 0.3].mean() < 0.4
