"""Trunks: any timm image model, reduced to what the rest of the package needs to know about it.

A trunk turns normalised pictures into a map or a sequence of tokens. timm (PyTorch Image Models, Wightman 2019)
supplies the architectures; it is imported when the first trunk is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from proxemics.core.errors import ModelError, did_you_mean
from proxemics.models.stages import Stage, list_stages

DEFAULT_TRUNK = "tf_efficientnet_lite0"


@dataclass(frozen=True)
class TrunkInfo:
    """What is known about a trunk without running it.

    Attributes:
        name: timm name.
        width: channels C of the last tokens.
        prefix: class, distillation and register tokens in front of the patch tokens.
        channels_end: 4-d outputs are (B, H, W, C) where the shape alone does not tell.
        through_head: call the model; otherwise ``forward_features``, for models that cannot switch their pooling off.
        raster: patch tokens are in raster order, so that a sequence can be read as a map.
        fixed_size: only pictures of the size given at construction can be taken.
        stages: from the bottom up, starting with ``pixel``.
    """

    name: str
    width: int
    prefix: int
    channels_end: bool
    through_head: bool
    raster: bool
    fixed_size: bool
    stages: tuple[Stage, ...]


def import_timm() -> Any:
    """Import timm, or say how to install it."""
    try:
        import timm
    except ImportError as error:
        raise ModelError("Trunks need the timm package: pip install 'proxemics[train]'.") from error
    return timm


def resolve_trunk(name: str) -> str:
    """Check a trunk name; ``"auto"`` is the default trunk.

    Args:
        name: a timm model name, with or without a weights tag (``vit_tiny_patch16_224.augreg_in21k``).

    Returns:
        The name as timm knows it.

    Raises:
        ModelError: timm has no such model or no such tag.

    Example:
        >>> resolve_trunk("auto")
        'tf_efficientnet_lite0'
    """
    if name == "auto":
        return DEFAULT_TRUNK
    timm = import_timm()
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        names = timm.list_models()
        raise ModelError(
            f"Unknown trunk {name!r}.{did_you_mean(base, names)} Any of the {len(names)} names of timm.list_models() "
            "is allowed."
        )
    if tag:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{base}.*")]
        if tag not in tags:
            raise ModelError(
                f"Trunk {base!r} has no weights tagged {tag!r}.{did_you_mean(tag, tags)} "
                f"Its tags: {', '.join(tags) or 'none'}."
            )
    return name


def pretrained_config(name: str) -> dict[str, Any]:
    """Return the settings (mean, std, size, crop, ...) that timm keeps with the weights of ``name``."""
    config = import_timm().get_pretrained_cfg(name)
    return dict(config.to_dict()) if config is not None else {}


def create_trunk(name: str, *, size: int | None = None, pretrained: bool = False) -> tuple[nn.Module, TrunkInfo]:
    """Create a timm model without classifier and without pooling.

    The model is built with its own pooling first and stripped afterwards: asking timm for ``global_pool=""`` outright
    moves the last norm of some transformers and would lose its trained weights without a word. For the same reason
    pretrained weights are loaded into the complete model, where timm insists on every key.

    Args:
        name: a name that :func:`resolve_trunk` has passed.
        size: picture size for trunks of fixed size; None for the size of the weights.
        pretrained: let timm fetch the weights.

    Returns:
        The model, with random weights unless ``pretrained``, and the facts about it.

    Raises:
        ModelError: timm cannot build the trunk at this size. Download errors pass through unchanged.
    """
    timm = import_timm()
    options: dict[str, Any] = {} if pretrained else {"num_classes": 0}
    config = pretrained_config(name)
    if size is not None and config.get("fixed_input_size") and size != config["input_size"][-1]:
        options["img_size"] = size
    try:
        trunk = _build(timm, name, pretrained, options)
    except (AssertionError, TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
        if pretrained and isinstance(error, RuntimeError):
            raise  # about the weights
        at = "" if size is None else f" at {size} px"
        raise ModelError(f"timm cannot build trunk {name!r}{at}: {error}. Leave size unset or try 224.") from error
    return trunk, _describe(name, trunk, pools=not _strip_head(trunk))


def _build(timm: Any, name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    try:
        trunk: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except TypeError as error:
        if "img_size" not in options or "img_size" not in str(error):
            raise
        others = {key: value for key, value in options.items() if key != "img_size"}
        trunk = timm.create_model(name, pretrained=pretrained, **others)  # takes the size from the pictures
    return trunk


def _strip_head(trunk: Any) -> bool:
    """Remove classifier and pooling; return False for a model that cannot switch its pooling off."""
    try:
        trunk.reset_classifier(0, global_pool="")
    except (AssertionError, TypeError):
        trunk.reset_classifier(0)
        return False
    return True


def _describe(name: str, trunk: Any, *, pools: bool) -> TrunkInfo:
    head_width = None if pools else getattr(trunk, "head_hidden_size", None)
    return TrunkInfo(
        name=name,
        width=int(head_width or trunk.num_features),
        prefix=int(getattr(trunk, "num_prefix_tokens", 0) or 0),
        channels_end=getattr(trunk, "output_fmt", "") == "NHWC",
        through_head=not pools and not hasattr(trunk, "head_dist"),  # two heads average over tokens whatever is asked
        raster=not hasattr(trunk, "reroll"),
        fixed_size=bool(trunk.pretrained_cfg.get("fixed_input_size", False)),
        stages=list_stages(trunk),
    )
