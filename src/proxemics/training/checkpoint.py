"""Checkpoints that survive kill -9: tensors in safetensors, the rest in JSON, and one pointer that is replaced last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from proxemics.core.errors import TrainingError
from proxemics.core.files import atomic_path, read_json, write_json

POINTER = "latest.json"


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, step: int) -> None:
    """Write a checkpoint and make it the latest; the one before is removed only after that.

    Args:
        folder: the checkpoint folder of the run.
        tensors: flat names to tensors of any device; shared storage is copied.
        facts: JSON values.
        step: number of the step, for the file's name.

    Raises:
        ProxemicsError: the disk is full; the checkpoint before is untouched.
    """
    name = f"step-{step:08d}.safetensors"
    save_tensors(folder / name, tensors)
    write_json(folder / POINTER, {**facts, "step": step, "tensors": name})
    for old in folder.glob("step-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)
    for half in folder.glob(".step-*.safetensors"):  # left by a process that was killed while writing
        half.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the latest checkpoint, or None when there is none yet.

    Raises:
        TrainingError: the pointer names a file that is gone or damaged.
    """
    pointer = folder / POINTER
    if not pointer.exists():
        return None
    facts: dict[str, Any] = read_json(pointer)
    name = Path(str(facts["tensors"])).name
    return load_tensors(folder / name), facts


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, atomically."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(f"{error}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        TrainingError: it is absent or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"The checkpoint file {path} cannot be read ({error}); start again with --restart."
        ) from error


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Turn the state of an optimiser into flat tensors ``<number of the parameter>.<name>``.

    Example:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.Adam([weight])
        >>> weight.grad = torch.ones(2)
        >>> optimizer.step()
        >>> sorted(flatten_optimizer(optimizer))
        ['0.exp_avg', '0.exp_avg_sq', '0.step']
    """
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put flat tensors from :func:`flatten_optimizer` back; parameters without any start afresh."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under names that start with ``prefix/``.

    Example:
        >>> sorted(with_prefix("loss", {"proxies": torch.zeros(1)}))
        ['loss/proxies']
    """
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix/``, without it.

    Example:
        >>> sorted(under_prefix("loss", {"loss/proxies": torch.zeros(1), "model/w": torch.zeros(1)}))
        ['proxies']
    """
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


def load_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state dict strictly.

    Raises:
        TrainingError: names or shapes differ, for instance because the configuration changed since the checkpoint.
    """
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise TrainingError(
            f"The checkpoint does not fit {type(module).__name__}: {first}. "
            "Resume with the configuration it was written with, or start again with --restart."
        ) from None
