"""Weights from a local file: read without running code, loaded strictly or not at all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from proxemics.core.errors import ModelError
from proxemics.models.trunks import TrunkInfo

SUFFIXES = (".safetensors", ".pth", ".pt")
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_OPTIONAL = ".num_batches_tracked"


def load_file_into(trunk: nn.Module, info: TrunkInfo, path: Path) -> None:
    """Load a local file strictly: every tensor of the trunk must come from it, in its shape.

    Understood are timm's and torchvision's state dictionaries, those of original releases that timm can translate
    (position embeddings are resampled to the trunk's size on the way), one wrapping level such as
    ``{"state_dict": ...}``, the prefix ``module.``, and a Proxemics bundle, of which the trunk alone is taken.
    Classifiers are left out.

    Args:
        trunk: changed in place; unchanged when an error is raised.
        info: its facts.
        path: the file.

    Raises:
        ModelError: in one line, what is missing, unexpected or of another shape.
    """
    state = _translate(_unwrap(read_state(path)), trunk)
    state = _without_heads(state, trunk)
    wanted = trunk.state_dict()
    missing = [key for key in wanted if key not in state and not key.endswith(_OPTIONAL)]
    unexpected = [key for key in state if key not in wanted and not key.endswith(_OPTIONAL)]
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    parts = [
        f"{len(keys)} {what} ({_few(keys)})"
        for keys, what in ((missing, "missing"), (unexpected, "unexpected"), (shapes, "of another shape"))
        if keys
    ]
    if parts:
        raise ModelError(
            f"{path} does not fit trunk {info.name!r}: of {len(wanted)} tensors {', '.join(parts)}. "
            "Name the trunk that these weights were trained with; nothing was loaded."
        )
    trunk.load_state_dict({key: value for key, value in state.items() if key in wanted}, strict=False)


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")


def read_state(path: Path) -> dict[str, Any]:
    """Read a weights file without running code from it.

    Raises:
        ModelError: it is damaged, or holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ModelError(
            f"{path} is no plain state dictionary of tensors and is not opened, because pickles can run code. Where it "
            "was made, save model.state_dict() with safetensors."
        ) from error
    except Exception as error:  # readers raise whatever their format library raises
        raise ModelError(f"{path} cannot be read as weights: {error}. It may be cut short; copy it again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, not a state dictionary of tensors.")
    return content


def _unwrap(state: dict[str, Any]) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(state.get(key), Mapping):
            state = dict(state[key])
            break
    for prefix in ("module.", "trunk."):
        if any(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _translate(state: dict[str, Tensor], trunk: nn.Module) -> dict[str, Tensor]:
    """Let timm rename the keys of original releases and resample position embeddings, where it knows how."""
    translate = getattr(sys.modules.get(type(trunk).__module__), "checkpoint_filter_fn", None)
    if translate is None:
        return state
    try:
        translated = dict(translate(dict(state), trunk))
    except Exception:  # not a known release: the strict check that follows says what does not fit
        return state
    # timm also resamples patch embeddings, so that the weights of another trunk would pass for this one.
    reshaped = [key for key, value in translated.items() if key in state and state[key].numel() != value.numel()]
    translated.update({key: state[key] for key in reshaped if "pos" not in key})
    return translated


def _without_heads(state: dict[str, Tensor], trunk: Any) -> dict[str, Tensor]:
    names = trunk.pretrained_cfg.get("classifier") or ()
    heads = tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
    heads += ("attn_pool.",) if getattr(trunk, "attn_pool", None) is None else ()
    kept = set(trunk.state_dict())
    return {key: value for key, value in state.items() if key in kept or not key.startswith(heads)}
