"""Random numbers that depend on named parts only, so that nothing depends on the order in which things run."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """Hash parts such as ``(seed, "crop", epoch, index)`` to a seed in [0, 2**63).

    Example:
        >>> derive_seed(0, "crop", 3, 17) == derive_seed(0, "crop", 3, 17)
        True
        >>> derive_seed(0, "crop", 3, 17) == derive_seed(0, "crop", 31, 7)
        False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a NumPy generator seeded by :func:`derive_seed`.

    Example:
        >>> bool(numpy_generator(0, "a").random() == numpy_generator(0, "a").random())
        True
    """
    return np.random.Generator(np.random.PCG64(derive_seed(*parts)))


def torch_generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator seeded by :func:`derive_seed`, on ``device``.

    Example:
        >>> torch.rand(1, generator=torch_generator(0, "a")).shape
        torch.Size([1])
    """
    return torch.Generator(device=device).manual_seed(derive_seed(*parts))
