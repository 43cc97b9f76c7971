"""One number that says whether two sets of tensors are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint_state(state: Mapping[str, Tensor], *parts: str) -> str:
    """Hash ``parts`` and the name, type, shape and bytes of every tensor, in the order of names.

    Args:
        state: a state dictionary on any device, in any memory format.
        parts: further text that belongs to the identity.

    Returns:
        64 hex digits.

    Example:
        >>> fingerprint_state({"w": torch.zeros(2)}) == fingerprint_state({"w": torch.zeros(2, 1)})
        False
    """
    digest = hashlib.sha256("\n".join(parts).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
