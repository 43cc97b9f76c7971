"""Similarity maps: the parts sum to the cosine, dead places get nothing, and gradients are those of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from proxemics.core.errors import ImageError, ModelError
from proxemics.data.preprocess import Preprocess
from proxemics.evaluation.similarity import similarity_map
from proxemics.models.embedder import Embedder
from proxemics.models.hooks import StageHook


def picture(seed: int, size: tuple[int, int] = (96, 96)) -> Image.Image:
    """Coloured blobs, so that places differ."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def model(trunk: str = "test_resnet", *, pooling: str = "avg", dim: int = 16, layer_norm: bool = False) -> Embedder:
    """A random model whose head has a bias, as trained heads do."""
    size = 160 if "vit" in trunk else 96
    embedder = Embedder(
        trunk, weights="none", size=size, dim=dim, pooling=pooling, layer_norm=layer_norm, freeze_bn=False
    )
    if embedder.head is not None:
        nn.init.normal_(embedder.head.bias, std=0.3, generator=torch.Generator().manual_seed(1))
    return embedder.eval()


def embed(embedder: Embedder, *pictures: Image.Image) -> Tensor:
    batch = torch.from_numpy(np.stack([embedder.preprocess(one) for one in pictures]))
    with torch.no_grad():
        return embedder(batch)


@pytest.mark.parametrize("trunk", ["test_resnet", "test_efficientnet", "test_convnext", "test_vit"])
@pytest.mark.parametrize(("dim", "layer_norm"), [(16, False), (16, True), (0, False), (0, True)])
def test_average_pooling_sums_to_the_cosine(trunk: str, dim: int, layer_norm: bool) -> None:
    embedder = model(trunk, dim=dim, layer_norm=layer_norm)
    first, second = picture(0), picture(1, (150, 110))
    maps = similarity_map(embedder, first, second)
    one, two = embed(embedder, first, second)
    assert maps.how == "exact"
    assert maps.cosine == pytest.approx(float(one @ two), abs=1e-5)
    for part in (maps.query, maps.neighbour):
        assert part.dtype == np.float32
        assert part.ndim == 2
        assert float(part.sum()) == pytest.approx(maps.cosine, abs=1e-5)
        assert part.std() > 0


@pytest.mark.parametrize("pooling", ["max", "avg+max", "gem"])
@pytest.mark.parametrize("trunk", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_other_poolings_sum_to_the_cosine_by_gradients(trunk: str, pooling: str, layer_norm: bool) -> None:
    embedder = model(trunk, pooling=pooling, layer_norm=layer_norm)
    first, second = picture(0), picture(1)
    maps = similarity_map(embedder, first, second)
    one, two = embed(embedder, first, second)
    assert maps.how == "gradient"
    assert maps.cosine == pytest.approx(float(one @ two), abs=1e-5)
    # gem replaces values below 1e-6 before it pools, which belongs to no place.
    for part in (maps.query, maps.neighbour):
        assert float(part.sum()) == pytest.approx(maps.cosine, abs=1e-4)


def test_max_pooling_credits_the_places_it_took() -> None:
    embedder = model(pooling="max", dim=0)
    first, second = picture(0), picture(1)
    maps = similarity_map(embedder, first, second)
    batch = torch.from_numpy(np.stack([embedder.preprocess(one) for one in (first, second)]))
    with torch.no_grad():
        tokens = embedder.encode(batch).tokens[0]
    top, place = tokens.max(dim=0)
    other = embed(embedder, second)[0]
    expected = torch.zeros(len(tokens)).index_add(0, place, top * other / top.norm())
    assert torch.allclose(torch.from_numpy(maps.query.reshape(-1)), expected, atol=1e-5)


def test_the_bias_is_spread_evenly_and_told() -> None:
    embedder = model()
    with_bias = similarity_map(embedder, picture(0), picture(1))
    batch = torch.from_numpy(np.stack([embedder.preprocess(picture(seed)) for seed in (0, 1)]))
    with torch.no_grad():
        encoded = embedder.encode(batch)
    assert embedder.head is not None
    share = float(embedder.head.bias.detach() @ encoded.unit[1] / encoded.raw[0].norm())
    assert with_bias.bias[0] == pytest.approx(share, abs=1e-5)
    assert abs(with_bias.bias[0]) > 1e-3
    places = (encoded.tokens[0] @ embedder.head.weight.detach().T) @ encoded.unit[1] / encoded.raw[0].norm()
    alone = (places / len(places)).reshape(with_bias.query.shape).numpy()
    assert np.allclose(with_bias.query - alone, share / with_bias.query.size, atol=1e-5)


def without_offsets(embedder: Embedder) -> Embedder:
    """Make the trunk answer nothing with nothing: every bias and running mean is 0."""
    with torch.no_grad():
        for name, parameter in embedder.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        for name, buffer in embedder.named_buffers():
            if name.endswith("running_mean"):
                buffer.zero_()
    return embedder


@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max", "gem"])
def test_a_masked_region_gets_no_similarity(pooling: str) -> None:
    """The constructed case: black is zero to this model, and nothing reaches the places far from the last column."""
    size = 224
    black = Preprocess(size=size, resize=size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    embedder = without_offsets(
        Embedder("test_resnet", weights="none", preprocess=black, dim=16, pooling=pooling, freeze_bn=False).eval()
    )
    whole = picture(0, (size, size))
    masked = np.array(whole)
    masked[:, : size - 32] = 0
    with torch.no_grad():
        encoded = embedder.encode(torch.from_numpy(embedder.preprocess(Image.fromarray(masked)))[None])
    dead = (encoded.tokens[0].abs().amax(dim=1) == 0).reshape(encoded.grid).numpy()
    assert dead[:, :2].all()
    assert not dead[:, -1].any()
    maps = similarity_map(embedder, Image.fromarray(masked), whole)
    assert (maps.query[dead] == 0).all()
    assert np.abs(maps.query[~dead]).max() > 0
    assert float(maps.query[~dead].sum()) == pytest.approx(maps.cosine, abs=1e-4)


def test_class_token_parts_are_the_gradient_at_the_last_block() -> None:
    """The sum of gradient x activation is how the cosine changes when all patches grow; measured by growing them."""
    embedder = model("test_vit", pooling="cls").double()
    first, second = picture(0, (160, 160)), picture(1, (160, 160))
    images = torch.from_numpy(np.stack([embedder.preprocess(one) for one in (first, second)])).double()
    maps = similarity_map(embedder.float(), first, second)
    embedder.double()
    assert maps.how == "class token"
    assert maps.query.shape == (10, 10)

    def score(growth: float) -> tuple[float, float]:
        def grow(tokens: Tensor) -> Tensor:
            return torch.cat([tokens[:, :1], tokens[:, 1:] * (1 + growth)], dim=1)

        with torch.no_grad():
            raw = embedder.encode(images, hook=StageHook(embedder.stages[-2], grow)).raw
            still = embedder.encode(images)
        return tuple((raw * still.unit.flip(0)).sum(dim=1) / still.raw.norm(dim=1))  # type: ignore[return-value]

    for part, up, down in zip((maps.query, maps.neighbour), score(1e-4), score(-1e-4), strict=True):
        assert float(part.sum()) == pytest.approx(float((up - down) / 2e-4), rel=1e-2, abs=1e-5)


def test_a_frozen_trunk_has_maps_too() -> None:
    embedder = model("test_vit", pooling="cls")
    embedder.requires_grad_(False)
    with torch.inference_mode():
        maps = similarity_map(embedder, picture(0), picture(1))
    assert np.abs(maps.query).max() > 0
    assert all(parameter.grad is None for parameter in embedder.parameters())


def test_a_picture_is_like_itself(tmp_path: Path) -> None:
    embedder = model().train()
    picture(3, (130, 100)).save(tmp_path / "a.png")
    maps = similarity_map(embedder, tmp_path / "a.png", picture(3, (130, 100)))
    assert maps.cosine == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(maps.query, maps.neighbour, atol=1e-6)
    assert maps.query_picture.shape == (96, 96, 3)
    assert np.array_equal(maps.query_picture, maps.neighbour_picture)
    assert embedder.training


def test_an_embedding_of_length_zero_has_an_empty_map() -> None:
    embedder = model()
    with torch.no_grad():
        assert embedder.head is not None
        embedder.head.weight.zero_()
        embedder.head.bias.zero_()
    maps = similarity_map(embedder, picture(0), picture(1))
    assert maps.cosine == 0
    assert not maps.query.any()


def test_what_cannot_be_shown_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nothing\.jpg"):
        similarity_map(model(), tmp_path / "nothing.jpg", picture(0))
    from proxemics.evaluation.similarity import _map_shape

    with pytest.raises(ModelError, match="49 tokens of this trunk form no map"):
        _map_shape((49, 1))
