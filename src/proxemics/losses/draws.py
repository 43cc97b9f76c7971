"""Random numbers of a loss that come from the loss alone and go on exactly after a resume."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proxemics.core.seeds import derive_seed
from proxemics.losses.checks import check_count


class Draws(nn.Module):
    """Hands out one generator a step, seeded by ``(seed, name, step)``; the step is in the state dict.

    All processes that start from one seed draw the same numbers, as losses over gathered batches need. The numbers are
    drawn on the CPU, so they do not depend on the device either.

    Args:
        seed: any whole number >= 0.
        name: keeps losses with one seed apart.

    Example:
        >>> draws = Draws(0, "example")
        >>> first = torch.rand(1, generator=draws.next())
        >>> state = draws.state_dict()
        >>> second = torch.rand(1, generator=draws.next())
        >>> other = Draws(0, "example")
        >>> _ = other.load_state_dict(state)
        >>> bool(torch.rand(1, generator=other.next()) == second), bool(first == second)
        (True, False)
    """

    def __init__(self, seed: int, name: str) -> None:
        super().__init__()
        check_count("seed", seed, low=0)
        self.seed = seed
        self.name = name
        self.step = 0

    def next(self) -> torch.Generator:
        """Return the generator of the next step, on the CPU."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.name, self.step))
        self.step += 1
        return generator

    def get_extra_state(self) -> Tensor:
        """Return seed and step as (2,) int64, which safetensors can hold."""
        return torch.tensor([self.seed, self.step], dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on where :meth:`get_extra_state` was taken."""
        self.seed, self.step = (int(value) for value in state)
