"""The features of one stage: taken from a pass, changed as a map, and run through the rest of the trunk.

Interventions and stored features need the part of a trunk above a stage. Any timm trunk can run it without knowing: it
gets a single blank picture, and at the stage a hook puts the features in the place of that picture's. What lies below
the stage is computed for one picture only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.core.errors import ModelError
from proxemics.models.hooks import StageHook
from proxemics.models.layout import is_channels_end, split_prefix
from proxemics.models.stages import PIXEL, Stage
from proxemics.models.trunks import TrunkInfo


@dataclass(frozen=True)
class StageFeatures:
    """What a trunk computes at one stage.

    Attributes:
        stage: where.
        value: (B, ...) as the trunk has it: (B, C, H, W), (B, H, W, C) or tokens (B, n + P, C).
        size: (height, width) of the pictures, in pixels.
        info: facts about the trunk.
    """

    stage: Stage
    value: Tensor
    size: tuple[int, int]
    info: TrunkInfo

    def as_map(self) -> Tensor:
        """Return the features as a map (B, C, H, W), without class and register tokens; a view where possible.

        Raises:
            ModelError: the tokens form no map.
        """
        if self.value.ndim == 4:
            return self.value.permute(0, 3, 1, 2) if self._channels_end else self.value
        front, grid = split_prefix(self.value.shape[1], self.info.prefix, *self.size)
        if grid is None or not self.info.raster:
            raise ModelError(
                f"The {self.value.shape[1]} tokens of stage {self.stage.name!r} of trunk {self.info.name!r} form no "
                "map, and the method needs one; choose another stage or trunk."
            )
        return self.value[:, front:].transpose(1, 2).reshape(len(self.value), -1, *grid)

    def with_map(self, maps: Tensor, rows: Tensor | None = None) -> StageFeatures:
        """Return features with these maps; class and register tokens stay those of the rows they come from.

        Args:
            maps: (n, C, H, W) floating.
            rows: (n,) int64, the row each comes from; None: n = B in order.

        Raises:
            ModelError: another shape than :meth:`as_map` gave.
        """
        wanted = self.as_map().shape[1:]
        count = len(self.value) if rows is None else len(rows)
        if maps.shape != (count, *wanted):
            raise ModelError(
                f"At stage {self.stage.name!r} the maps must be {(count, *wanted)}, and are {tuple(maps.shape)}."
            )
        maps = maps.to(self.value.dtype)
        if self.value.ndim == 4:
            return self.like(maps.permute(0, 2, 3, 1) if self._channels_end else maps)
        tokens = maps.flatten(2).transpose(1, 2)
        front = self.value.shape[1] - tokens.shape[1]
        if not front:
            return self.like(tokens)
        prefix = self.value[:, :front] if rows is None else self.value[rows, :front]
        return self.like(torch.cat([prefix, tokens], dim=1))

    def like(self, value: Tensor) -> StageFeatures:
        """Return another tensor of the same layout, a gradient for instance, as features of this stage."""
        return StageFeatures(self.stage, value, self.size, self.info)

    @property
    def _channels_end(self) -> bool:
        return self.stage.name != PIXEL and is_channels_end(self.value, self.stage.channels, self.info)


class StopAtStage(Exception):  # noqa: N818 - it stops a pass on purpose and is no error
    """Ends a pass at a stage; carries the features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__("stopped at a stage")
        self.features = features


def taking(stage: str, store: Callable[[Tensor], None], *, live: bool = False) -> StageHook:
    """Return a hook that hands the features of a stage to ``store`` and changes nothing.

    Args:
        stage: where.
        store: gets the features.
        live: the features take part in the graph even where everything below is frozen.
    """

    def fn(features: Tensor) -> Tensor:
        if live and torch.is_grad_enabled() and not features.requires_grad:
            features = features.detach().requires_grad_()
        store(features)
        return features

    return StageHook(stage, fn, raw=True)


def stopping(stage: str) -> StageHook:
    """Return a hook that ends the pass with :class:`StopAtStage`."""

    def fn(features: Tensor) -> Tensor:
        raise StopAtStage(features)

    return StageHook(stage, fn, raw=True)


def replacing(stage: str, value: Tensor) -> StageHook:
    """Return a hook that puts ``value`` (n, ...) in the place of whatever the stage computed."""
    return StageHook(stage, lambda _: value, raw=True)
