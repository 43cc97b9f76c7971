"""Which places of two pictures made them similar.

The cosine of two embeddings is cut into one part for each place of the last map of the trunk, once over the places of
the query and once over those of the neighbour. With average pooling the embedding is a mean over the places t_p,

    z = W LN(mean_p t_p) + b,    cos(z, y) = sum_p <W LN_p(t_p) + b, y> / (P |z| |y|),

so the parts are exact: every place is projected by the head as if it stood alone, and compared with the other picture.

* **Bias.** b belongs to no place and is shared evenly: each place gets b / P. How much of the cosine that is stands
  beside the maps.
* **Layer norm.** It subtracts the mean over the channels, which is linear, and divides by the deviation of the *pooled*
  vector, one number for all places. LN_p does the first with each place and takes the second from the pooled vector, so
  the sum stays exact.
* **Length.** |z| is a number of the whole picture and is kept fixed.

With ``max``, ``avg+max`` and ``gem`` the part of a place is gradient x activation at the same tokens (a place gets what
the pooling took from it); these poolings are homogeneous, so the parts still sum to the cosine. A class token has no
places of its own: there the part of a place is gradient x activation at the input of the last block, and the sum is
not the cosine.

A place has seen what lies around it: all of the picture, where the trunk is a transformer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from os import PathLike
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from proxemics.core.errors import ModelError
from proxemics.models.embedder import Embedder, Encoded
from proxemics.models.partial import taking

Picture = Image.Image | str | PathLike[str]
_LN_EPS = 1e-5  # of torch.nn.functional.layer_norm, as the embedder calls it


@dataclass(frozen=True)
class SimilarityMaps:
    """Where two pictures are alike to a model.

    Attributes:
        query: (h, w) float32, the part of each place of the query; negative where it speaks against.
        neighbour: (h, w) float32, likewise of the neighbour.
        cosine: of the two embeddings. Each map sums to it, unless ``how`` is ``class token``.
        how: ``exact`` (average pooling), ``gradient`` (other poolings over places) or ``class token``.
        bias: what the bias of the head adds to the sum of each map, in (query, neighbour); it is spread evenly.
        query_picture: (S, S, 3) uint8, the query as the model saw it, cropped; the map lies on this.
        neighbour_picture: (S, S, 3) uint8, likewise of the neighbour.
    """

    query: NDArray[np.float32]
    neighbour: NDArray[np.float32]
    cosine: float
    how: Literal["exact", "gradient", "class token"]
    bias: tuple[float, float]
    query_picture: NDArray[np.uint8]
    neighbour_picture: NDArray[np.uint8]


def similarity_map(embedder: Embedder, query: Picture, neighbour: Picture) -> SimilarityMaps:
    """Cut the cosine of two pictures into parts of their places.

    Args:
        embedder: the model, on any device; it is left in the mode it was in. With class-token pooling a hook is set
            for the pass, so no other thread may use the model meanwhile.
        query: a path or a Pillow image; it goes through the preprocessing of the model.
        neighbour: likewise.

    Returns:
        Both maps with the cosine and the pictures they lie on.

    Raises:
        ImageError: a picture cannot be read.
        ModelError: the tokens of the trunk form no map.

    Example:
        >>> embedder = Embedder("test_resnet", dim=8, weights="none", size=96)
        >>> maps = similarity_map(embedder, Image.new("RGB", (96, 96), "red"), Image.new("RGB", (120, 96), "blue"))
        >>> maps.query.shape, maps.how, abs(float(maps.query.sum()) - maps.cosine) < 1e-5
        ((3, 3), 'exact', True)
    """
    pixels = [embedder.preprocess.crop_exact(picture) for picture in (query, neighbour)]
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    was_training = embedder.training
    embedder.eval()
    try:
        # A caller may be in inference mode, whose tensors take no gradients.
        with torch.inference_mode(False):
            maps, cosine, bias = _maps(embedder, embedder.preprocess.normalize(batch.to(_device(embedder))))
    finally:
        embedder.train(was_training)
    how = embedder.pool.how
    return SimilarityMaps(
        query=maps[0],
        neighbour=maps[1],
        cosine=cosine,
        how="exact" if how == "avg" else "class token" if how == "cls" else "gradient",
        bias=bias,
        query_picture=pixels[0],
        neighbour_picture=pixels[1],
    )


def _device(embedder: Embedder) -> torch.device:
    return next(embedder.parameters()).device


def _maps(embedder: Embedder, images: Tensor) -> tuple[NDArray[np.float32], float, tuple[float, float]]:
    """Return the maps (2, h, w), the cosine and the share of the bias; ``images`` are the query and the neighbour."""
    if embedder.pool.how == "cls":
        return _class_token_maps(embedder, images)
    with torch.no_grad():
        encoded = embedder.encode(images)
    grid = _map_shape(encoded.grid)
    tokens = encoded.tokens.cpu().double()
    cosine, towards = _cosine(encoded)
    weight, bias = _weights(embedder, tokens, towards)
    parts = _gradient_times_activation(embedder, tokens, weight) + bias[:, None] / tokens.shape[1]
    return _array(parts.reshape(2, *grid)), cosine, (float(bias[0]), float(bias[1]))


def _cosine(encoded: Encoded) -> tuple[float, Tensor]:
    """Return the cosine, and (2, D) float64 what the raw embeddings are multiplied with to give it.

    That is the unit embedding of the other picture over the length of the own raw embedding.
    """
    raw = encoded.raw.detach().cpu().double()
    length = raw.norm(dim=1, keepdim=True).clamp(min=1e-12)
    unit = raw / length
    return float(unit[0] @ unit[1]), unit.flip(0) / length


def _weights(embedder: Embedder, tokens: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """Return (2, C) weights v and (2,) offsets so that the cosine is v . pooled + offset.

    Args:
        embedder: gives pooling, layer norm and head.
        tokens: (2, P, C) float64.
        towards: (2, D) float64, from :func:`_cosine`.
    """
    weight, bias = towards, towards.new_zeros(2)
    if embedder.head is not None:
        weight = towards @ embedder.head.weight.detach().cpu().double()
        bias = towards @ embedder.head.bias.detach().cpu().double()
    if embedder.arguments["layer_norm"]:
        with torch.no_grad():
            pooled = _pool(embedder, tokens)
        deviation = (pooled.var(dim=1, unbiased=False, keepdim=True) + _LN_EPS).sqrt()
        weight = (weight - weight.mean(dim=1, keepdim=True)) / deviation
    return weight, bias


def _gradient_times_activation(embedder: Embedder, tokens: Tensor, weight: Tensor) -> Tensor:
    """(2, P) t_p . d(v . pool(t)) / dt_p; for average pooling this is v . t_p / P."""
    with torch.enable_grad():
        leaf = tokens.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((weight * _pool(embedder, leaf)).sum(), leaf)
    return (gradient * tokens).sum(dim=2)


def _pool(embedder: Embedder, tokens: Tensor) -> Tensor:
    pool = copy.deepcopy(embedder.pool).cpu()
    pooled: Tensor = pool(tokens, tokens[:, :0])
    return pooled


def _class_token_maps(embedder: Embedder, images: Tensor) -> tuple[NDArray[np.float32], float, tuple[float, float]]:
    """Gradient x activation of the patches that go into the last block."""
    stage = embedder.stages[-2]
    kept: list[Tensor] = []
    with torch.enable_grad():
        encoded = embedder.encode(images, hook=taking(stage, kept.append, live=True))
        cosine, towards = _cosine(encoded)
        score = (encoded.raw * towards.to(encoded.raw.device, encoded.raw.dtype)).sum()
        (gradient,) = torch.autograd.grad(score, kept[0])
    size = (int(images.shape[2]), int(images.shape[3]))
    product = embedder.stage_features(stage, (gradient * kept[0]).detach(), size=size)
    return _array(product.as_map().sum(dim=1)), cosine, (0.0, 0.0)


def _array(maps: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = maps.detach().float().cpu().numpy()
    return found


def _map_shape(grid: tuple[int, int]) -> tuple[int, int]:
    if 1 in grid and max(grid) > 1:
        raise ModelError(
            f"The {grid[0] * grid[1]} tokens of this trunk form no map, so places cannot be shown; use another trunk."
        )
    return grid
