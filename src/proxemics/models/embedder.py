"""The embedder: trunk, pooling, head, unit sphere.

Pictures (B, 3, H, W) go through a timm trunk, at most once per stage; the tokens of the last stage are pooled to one
vector, a linear head makes it the raw embedding, and its direction is the embedding. The trunk follows autocast; from
the pooling on everything is float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from proxemics.core.errors import ModelError, did_you_mean
from proxemics.core.geometry import normalize, upcast
from proxemics.data.preprocess import Preprocess
from proxemics.models.fingerprint import fingerprint_state
from proxemics.models.freezing import freeze_batch_norm, freeze_stages
from proxemics.models.head import HEAD_INITS, make_head, seeded
from proxemics.models.hooks import StageHook, hooked
from proxemics.models.layout import split_tokens
from proxemics.models.partial import StageFeatures, StopAtStage, replacing, stopping, taking
from proxemics.models.pooling import Pooling
from proxemics.models.stages import PIXEL, find_stage
from proxemics.models.training_pass import TrainingPass, redirects
from proxemics.models.trunks import TrunkInfo, resolve_trunk
from proxemics.models.weights import create_with_weights, resolve_preprocess

BLANK_SIDE = 32
"""Side of the picture that stands in below a stage whose features are given."""


class Encoded(NamedTuple):
    """What one pass gives.

    Attributes:
        raw: (B, D) float32, the head's output.
        unit: (B, D) float32, ``raw`` on the unit sphere.
        tokens: (B, P, C) float32, the patch tokens of the last stage, before pooling.
        grid: (h, w) with h * w = P; tokens are in raster order. (P, 1) when they form no map.
        prefix: (B, n, C) float32, class and register tokens; n is 0 for convolutional trunks.
    """

    raw: Tensor
    unit: Tensor
    tokens: Tensor
    grid: tuple[int, int]
    prefix: Tensor


class Embedder(nn.Module):
    """A timm trunk with pooling, an optional linear head, and unit-length output.

    Args:
        trunk: a timm model name, or ``"auto"`` for EfficientNet-Lite0.
        dim: embedding size D; 0 for no head, so that D is the trunk's width.
        pooling: ``avg``, ``max``, ``avg+max`` (sum), ``gem`` or ``cls``.
        weights: ``"auto"`` (ImageNet weights from an installed package, else timm's download), ``"none"`` (random), or
            a ``.safetensors``, ``.pth`` or ``.pt`` file.
        head_init: ``orthogonal`` or ``kaiming`` (normal, fan-out, as Proxy Anchor); the bias starts at zero.
        layer_norm: LayerNorm without affine in front of the head, as SEE uses it.
        freeze_bn: keep batch norms in evaluation mode and their affine parameters fixed, as Proxy Anchor does for
            small sets. Sensible with pretrained weights only.
        freeze_stages: how many of the lowest stages (after ``pixel``) neither learn nor leave evaluation mode.
        size: picture size in pixels; None for that of the weights. The short side before the crop moves with it.
        preprocess: overrides the preprocessing that belongs to the weights; for files that need another one.
        channels_last: keep weights and pictures in channels-last memory (1.4 to 1.8 times faster on CPUs).
        seed: for random weights; the global generator is left alone.

    Raises:
        ModelError: an argument is not allowed, or the weights do not fit.

    Example:
        >>> embedder = Embedder("test_resnet", dim=16, weights="none", size=64)
        >>> embedder(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 16])
        >>> embedder.stages
        ('pixel', 'stem', 'stage1', 'stage2', 'stage3', 'stage4')
    """

    def __init__(
        self,
        trunk: str = "tf_efficientnet_lite0",
        *,
        dim: int = 512,
        pooling: str = "avg",
        weights: str | Path = "auto",
        head_init: str = "orthogonal",
        layer_norm: bool = False,
        freeze_bn: bool = True,
        freeze_stages: int = 0,
        size: int | None = None,
        preprocess: Preprocess | None = None,
        channels_last: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        name = resolve_trunk(trunk)
        _check_arguments(dim, head_init, size, preprocess)
        if preprocess is None:
            preprocess = resolve_preprocess(name, size)
        with seeded(seed, "trunk"):
            module, info, origin = create_with_weights(name, weights, size=preprocess.size)
        self.trunk: nn.Module = module
        self.pool = Pooling(pooling)
        if pooling == "cls" and not info.prefix:
            raise ModelError(f"Trunk {name!r} has no class token; use pooling='avg', 'max', 'avg+max' or 'gem'.")
        with seeded(seed, "head"):
            self.head: nn.Linear | None = make_head(info.width, dim, head_init) if dim else None
        self.preprocess: Preprocess = preprocess
        self.weights: str = origin
        self.dim: int = dim or info.width
        self.arguments: dict[str, str | int | bool] = {
            "trunk": name,
            "dim": dim,
            "pooling": pooling,
            "head_init": head_init,
            "layer_norm": layer_norm,
            "freeze_bn": freeze_bn,
            "freeze_stages": freeze_stages,
            "channels_last": channels_last,
        }
        self._info: TrunkInfo = info
        self._resting = self._freeze(freeze_bn, freeze_stages)
        if channels_last:
            self.trunk.to(memory_format=torch.channels_last)
        self.train(self.training)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names that a :class:`StageHook` may give, from the bottom up."""
        return tuple(stage.name for stage in self._info.stages)

    def stage_name(self, name: str) -> str:
        """Return the public name of a stage given by name or alias.

        Raises:
            ModelError: the trunk has no such stage.
        """
        return find_stage(self._info.stages, name, trunk=self._info.name).name

    @property
    def has_batch_norm(self) -> bool:
        """Whether the trunk normalises over batches."""
        return any(isinstance(module, _BatchNorm) for module in self.trunk.modules())

    @property
    def width(self) -> int:
        """Channels C of the last tokens."""
        return self._info.width

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised pictures.

        Args:
            images: (B, 3, H, W) floating, normalised by ``preprocess``.

        Returns:
            (B, D) float32, unit length.
        """
        return self.encode(images).unit

    def encode(self, images: Tensor, *, hook: StageHook | Sequence[StageHook] | None = None) -> Encoded:
        """Embed normalised pictures and keep what methods need.

        Args:
            images: (B, 3, H, W) floating, normalised by ``preprocess``; without rows, neither trunk nor hooks run.
            hook: interventions inside the trunk; they may change the number of rows.

        Returns:
            Raw and unit embeddings and the tokens of the last stage.

        Raises:
            ModelError: the pictures have another shape or type, a stage is unknown, or a hook returned another shape.
        """
        self._check_images(images)
        if images.shape[0] == 0:
            return self._encode_nothing(images)
        hooks = [] if hook is None else [hook] if isinstance(hook, StageHook) else list(hook)
        with hooked(self.trunk, self._info, hooks, self._prepare(images)) as changed:
            features = self._run_trunk(changed)
        # Once outside autocast, so that half precision ends at the trunk.
        with torch.autocast(device_type=images.device.type, enabled=False):
            tokens, prefix, grid = split_tokens(upcast(features), self._info, *map(int, images.shape[2:]))
            raw = self.project(self.pool(tokens, prefix))
            return Encoded(raw, normalize(raw), tokens, grid, prefix)

    def encode_with(self, images: Tensor, stages: Sequence[str]) -> tuple[Encoded, dict[str, StageFeatures]]:
        """Embed pictures and keep the features of some stages.

        Args:
            images: (B, 3, H, W) floating, normalised by ``preprocess``; B > 0.
            stages: names of ``stages`` or aliases.

        Returns:
            The embeddings, and the features under the names given.

        Raises:
            ModelError: as :meth:`encode`.
        """
        found: dict[str, Tensor] = {}
        hooks = [taking(name, partial(found.__setitem__, name)) for name in dict.fromkeys(stages)]
        encoded = self.encode(images, hook=hooks)
        size = (int(images.shape[2]), int(images.shape[3]))
        return encoded, {name: self.stage_features(name, value, size=size) for name, value in found.items()}

    def encode_from(
        self,
        features: StageFeatures,
        stages: Sequence[str] = (),
        *,
        hooks: Sequence[StageHook] = (),
        live: Sequence[str] = (),
    ) -> tuple[Encoded, dict[str, StageFeatures]]:
        """Run the trunk from a stage on, with the features given in the place of its own.

        Args:
            features: of n rows, from :meth:`encode_with`, changed or not, or from :meth:`stage_features`.
            stages: stages whose features are kept, none below that of ``features``.
            hooks: interventions above that stage.
            live: those of ``stages`` whose features get gradients even where everything below is frozen.

        Returns:
            The embeddings of the n rows, and the features kept.

        Raises:
            ModelError: as :meth:`encode`.

        Example:
            >>> embedder = Embedder("test_resnet", dim=16, weights="none", size=64).eval()
            >>> images = torch.randn(2, 3, 64, 64)
            >>> whole, kept = embedder.encode_with(images, ["stage2"])
            >>> upper, _ = embedder.encode_from(kept["stage2"])
            >>> torch.allclose(whole.raw, upper.raw, atol=1e-6)
            True
        """
        found: dict[str, Tensor] = {}
        keep = [taking(name, partial(found.__setitem__, name), live=name in live) for name in dict.fromkeys(stages)]
        if features.stage.name == PIXEL:
            encoded = self.encode(features.value, hook=[*hooks, *keep])
        else:
            # Where nothing depends on the size of the picture a small one will do.
            small = features.value.ndim == 4 and not self._info.fixed_size
            size = (BLANK_SIDE, BLANK_SIDE) if small else features.size
            blank = features.value.new_zeros(1, 3, *size, dtype=torch.float32)
            replace = replacing(features.stage.name, features.value)
            encoded = self.encode(blank, hook=[replace, *hooks, *keep])
        return encoded, {name: self.stage_features(name, value, size=features.size) for name, value in found.items()}

    def features_at(self, images: Tensor, stage: str) -> StageFeatures:
        """Run the trunk up to a stage only.

        Args:
            images: (B, 3, H, W) floating, normalised by ``preprocess``; B > 0.
            stage: a name of ``stages`` or an alias.

        Raises:
            ModelError: as :meth:`encode`.

        Example:
            >>> embedder = Embedder("test_resnet", dim=16, weights="none", size=64)
            >>> embedder.features_at(torch.zeros(2, 3, 64, 64), "stage2").as_map().shape
            torch.Size([2, 48, 8, 8])
        """
        try:
            self.encode(images, hook=stopping(stage))
        except StopAtStage as stopped:
            size = (int(images.shape[2]), int(images.shape[3]))
            return self.stage_features(stage, stopped.features, size=size)
        raise ModelError(f"Stage {stage!r} of trunk {self._info.name!r} was not reached.")

    def stage_features(self, stage: str, value: Tensor, *, size: tuple[int, int] | None = None) -> StageFeatures:
        """Wrap features (B, ...) that the trunk computed at a stage, for instance stored ones.

        Args:
            stage: a name of ``stages`` or an alias.
            value: the features as the trunk has them.
            size: (height, width) of the pictures; None: those of ``preprocess``.

        Raises:
            ModelError: the trunk has no such stage.
        """
        where = find_stage(self._info.stages, stage, trunk=self._info.name)
        return StageFeatures(where, value, size or (self.preprocess.size, self.preprocess.size), self._info)

    def project(self, pooled: Tensor) -> Tensor:
        """Apply the layer norm (if any) and the head (if any), in float32.

        Args:
            pooled: (..., C) floating, pooled tokens or tokens.

        Returns:
            (..., D) float32; not normalised.
        """
        with torch.autocast(device_type=pooled.device.type, enabled=False):
            values = upcast(pooled)
            if self.arguments["layer_norm"]:
                values = functional.layer_norm(values, values.shape[-1:])
            if self.head is None:
                return values
            return functional.linear(values, upcast(self.head.weight), upcast(self.head.bias))

    def train(self, mode: bool = True) -> Embedder:
        """Switch to training mode, except for what is frozen."""
        super().train(mode)
        for module in self._resting:
            module.training = False
        return self

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters of the trunk, frozen ones included."""
        return self.trunk.parameters()

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters that are new: pooling and head."""
        yield from self.pool.parameters()
        if self.head is not None:
            yield from self.head.parameters()

    def fingerprint(self) -> str:
        """Hash everything that decides the embedding of a prepared picture.

        Returns:
            64 hex digits: SHA-256 over trunk name, pooling, layer norm, and the name, type, shape and bytes of every
            tensor. The preprocessing has its own.
        """
        how = [f"{key}={self.arguments[key]}" for key in ("trunk", "pooling", "layer_norm")]
        return fingerprint_state(self.state_dict(), *how)

    def describe(self) -> dict[str, Any]:
        """Return what a report says about the model: plain values only."""
        trunk, head = list(self.trunk_parameters()), list(self.head_parameters())
        return {
            **self.arguments,
            "dim": self.dim,
            "weights": self.weights,
            "size": self.preprocess.size,
            "preprocess": self.preprocess.model_dump(mode="json"),
            "parameters": {
                "trunk": sum(p.numel() for p in trunk),
                "head": sum(p.numel() for p in head),
                "learning": sum(p.numel() for p in (*trunk, *head) if p.requires_grad),
            },
            "stages": list(self.stages),
        }

    def _freeze(self, batch_norm: bool, count: int) -> tuple[nn.Module, ...]:
        resting = freeze_stages(self.trunk, self._info, count)
        if batch_norm:
            resting += freeze_batch_norm(self.trunk)
        return tuple(resting)

    def _check_images(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ModelError(
                f"Pictures are (B, 3, H, W) floating and normalised, not {tuple(images.shape)} {images.dtype}; "
                "use embedder.preprocess.batch(...) or .normalize(...)."
            )
        side = self.preprocess.size
        if self._info.fixed_size and images.shape[2:] != (side, side):
            raise ModelError(
                f"Trunk {self._info.name!r} was built for {side} x {side} px and got {images.shape[2]} x "
                f"{images.shape[3]}; build it with size={images.shape[2]}."
            )

    def _prepare(self, images: Tensor) -> Tensor:
        first = next(self.trunk.parameters(), None)
        if first is not None and not torch.is_autocast_enabled(images.device.type):
            images = images.to(first.dtype)
        return images.contiguous(memory_format=torch.channels_last) if self.arguments["channels_last"] else images

    def _encode_nothing(self, images: Tensor) -> Encoded:
        empty = upcast(images).new_zeros(0, self.width)
        raw = self.project(empty)
        return Encoded(raw, normalize(raw), empty[:, None][:, :0], (0, 0), empty[:, None][:, :0])

    def _run_trunk(self, images: Tensor) -> Tensor:
        untyped: Any = self.trunk
        run = untyped if self._info.through_head else untyped.forward_features
        with TrainingPass() if redirects(self.trunk) else nullcontext():
            features = run(images)
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ModelError(
                f"Trunk {self._info.name!r} gives {got}, neither a map nor tokens; it cannot be used. "
                "Choose another trunk."
            )
        return features


def _check_arguments(dim: int, head_init: str, size: int | None, preprocess: Preprocess | None) -> None:
    if dim < 0:
        raise ModelError(f"dim={dim} is not an embedding size; give a positive number, or 0 for no head.")
    if head_init not in HEAD_INITS:
        raise ModelError(
            f"Unknown head_init {head_init!r}.{did_you_mean(head_init, HEAD_INITS)} Allowed: {', '.join(HEAD_INITS)}."
        )
    if preprocess is not None and size not in (None, preprocess.size):
        raise ModelError(f"size={size} contradicts preprocess.size={preprocess.size}; give one of them.")
