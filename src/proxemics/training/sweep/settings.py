"""Settings to try: the points of a grid and the draws of a random search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from proxemics.core.errors import ConfigError
from proxemics.core.seeds import numpy_generator
from proxemics.training.sweep.plan import Plan, Settings

STRATA = 4
"""Draws in a row that cover every quarter of each range once."""
_HOW = "write [low, high], [low, high, log], [low, high, int] or {choice: [...]}"


def grid_points(grid: Mapping[str, list[Any]]) -> list[Settings]:
    """Return every combination, the last key changing fastest; one empty point for an empty grid.

    Example:
        >>> grid_points({"optim.lr": [1, 2], "model.dim": [8]})
        [{'optim.lr': 1, 'model.dim': 8}, {'optim.lr': 2, 'model.dim': 8}]
        >>> grid_points({})
        [{}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def trial_points(plan: Plan, variant: str) -> list[Settings]:
    """Return the settings to try for a variant: grid points x draws, each once.

    Every variant gets the same number of draws, and for keys of the shared space the same values.

    Raises:
        ConfigError: a space is not written as it should be.
    """
    search = plan.search
    points = grid_points(plan.grid)
    if search is None:
        return points
    space = {**search.space, **search.spaces.get(variant, {})}
    draws = [
        {key: draw(key, space[key], search.seed, trial) for key in space}
        for trial in range(search.trials if search.space or search.spaces else 1)
    ]
    return [{**point, **drawn} for point in points for drawn in draws]


def draw(key: str, space: Any, seed: int, trial: int) -> Any:
    """Draw the value of one key for one trial; it depends on nothing else.

    Trials 0 to 3 cover the quarters of a range in random order, so do 4 to 7, and so on: a Latin hypercube in blocks,
    because few independent draws often miss half of a range. More trials leave those before as they are.

    Args:
        key: dotted key, also for messages.
        space: as in the plan.
        seed: of the search.
        trial: number of the trial.

    Returns:
        A number (three significant digits, or whole), or one of the choices.

    Raises:
        ConfigError: the space is not written as it should be.

    Example:
        >>> draw("optim.lr", [1e-4, 1e-3, "log"], 0, 0) == draw("optim.lr", [1e-4, 1e-3, "log"], 0, 0)
        True
        >>> draw("model.dim", {"choice": [64]}, 0, 3)
        64
    """
    block, place = divmod(trial, STRATA)
    order = numpy_generator(seed, "search order", key, block).permutation(STRATA)
    share = (int(order[place]) + float(numpy_generator(seed, "search", key, trial).random())) / STRATA
    share = min(share, 1 - 1e-9)  # the sum may be rounded up to 1, which is no share of a list
    if isinstance(space, Mapping) and list(space) == ["choice"] and isinstance(space["choice"], list):
        if not space["choice"]:
            raise ConfigError(f"search.space: {key} has no choices.")
        return space["choice"][int(share * len(space["choice"]))]
    low, high, kind = _bounds(key, space)
    if kind == "int":
        first, last = math.ceil(low), math.floor(high)
        return first + int(share * (last - first + 1))
    value = low * (high / low) ** share if kind == "log" else low + (high - low) * share
    return min(max(float(f"{value:.3g}"), low), high)


def _bounds(key: str, space: Any) -> tuple[float, float, str]:
    numbers = list(space[:2]) if isinstance(space, list) and len(space) in (2, 3) else []
    kind = space[2] if len(numbers) == 2 and len(space) == 3 else "linear"
    if (
        not numbers
        or any(isinstance(one, bool) or not isinstance(one, int | float) for one in numbers)
        or kind not in ("linear", "log", "int")
        or not numbers[0] < numbers[1]
        or (kind == "log" and numbers[0] <= 0)
        or (kind == "int" and math.ceil(numbers[0]) > math.floor(numbers[1]))
    ):
        raise ConfigError(
            f"search.space: {key}: {space!r} is no range; {_HOW} with low < high "
            "(0 < low for log; a whole number in between for int)."
        )
    return float(numbers[0]), float(numbers[1]), str(kind)
