"""The linear head and its initialisation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from proxemics.core.seeds import derive_seed

HEAD_INITS = ("orthogonal", "kaiming")


def make_head(width: int, dim: int, how: str) -> nn.Linear:
    """Make a linear layer with zero bias.

    Args:
        width: channels that come in.
        dim: channels that go out.
        how: ``orthogonal``, or ``kaiming`` (normal, fan-out; Kim et al. 2020, Proxy Anchor).

    Example:
        >>> head = make_head(8, 4, "orthogonal")
        >>> torch.allclose(head.weight @ head.weight.T, torch.eye(4), atol=1e-5)
        True
    """
    head = nn.Linear(width, dim)
    if how == "orthogonal":
        nn.init.orthogonal_(head.weight)
    else:
        nn.init.kaiming_normal_(head.weight, mode="fan_out")
    nn.init.zeros_(head.bias)
    return head


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed the CPU generator for a moment; initialisers draw from it and take no other."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(derive_seed(*parts))
    try:
        yield
    finally:
        torch.set_rng_state(state)
