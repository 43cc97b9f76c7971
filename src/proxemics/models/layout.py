"""Where things are in the output of a trunk: channels first or last, class tokens in front, rows and columns."""

from __future__ import annotations

import math

from torch import Tensor

from proxemics.models.trunks import TrunkInfo


def token_grid(count: int, height: int, width: int) -> tuple[int, int] | None:
    """Return the (rows, columns) into which ``count`` tokens of a picture fall, or None when they form no such grid.

    Args:
        count: number of patch tokens.
        height: of the picture, in pixels.
        width: of the picture, in pixels.

    Example:
        >>> token_grid(196, 224, 224), token_grid(18, 96, 48), token_grid(197, 224, 224)
        ((14, 14), (6, 3), None)
    """
    if count < 1:
        return None
    stride = math.sqrt(height * width / count)
    for rows in (math.floor(height / stride), math.ceil(height / stride)):
        if rows and count % rows == 0 and abs(count // rows - width / stride) < 1:
            return rows, count // rows
    return None


def split_prefix(count: int, prefix: int, height: int, width: int) -> tuple[int, tuple[int, int] | None]:
    """Tell how many of ``count`` tokens stand in front of the grid.

    Args:
        count: all tokens.
        prefix: how many the trunk declares; some add them late or do not declare them.
        height: of the picture, in pixels.
        width: of the picture, in pixels.

    Returns:
        (number of prefix tokens, grid); the grid is None when none fits.

    Example:
        >>> split_prefix(197, 1, 224, 224), split_prefix(196, 1, 224, 224), split_prefix(50, 3, 224, 224)
        ((1, (14, 14)), (0, (14, 14)), (1, (7, 7)))
    """
    for front in dict.fromkeys((prefix, 0, 1, 2)):
        grid = token_grid(count - front, height, width)
        if grid is not None:
            return front, grid
    return prefix, None


def is_channels_end(features: Tensor, channels: int, info: TrunkInfo) -> bool:
    """True when a 4-d output is (B, H, W, C) rather than (B, C, H, W)."""
    first, last = features.shape[1] == channels, features.shape[-1] == channels
    return info.channels_end if first == last else last


def split_tokens(features: Tensor, info: TrunkInfo, height: int, width: int) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Bring the output of any trunk into one form.

    Args:
        features: (B, C, H, W), (B, H, W, C) or (B, n + P, C).
        info: facts about the trunk.
        height: of the picture, in pixels.
        width: of the picture, in pixels.

    Returns:
        Patch tokens (B, P, C), prefix tokens (B, n, C) and the grid (h, w), which is (P, 1) where they form no map.
    """
    if features.ndim == 4:
        if is_channels_end(features, info.width, info):
            features = features.permute(0, 3, 1, 2)
        tokens = features.flatten(2).transpose(1, 2)
        return tokens, tokens[:, :0], (int(features.shape[2]), int(features.shape[3]))
    front, grid = split_prefix(features.shape[1], info.prefix, height, width)
    tokens = features[:, front:]
    if grid is None or not info.raster:
        grid = (int(tokens.shape[1]), 1)
    return tokens, features[:, :front], grid
