"""A model at rest: in evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode, and back as it was.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     [module.training for module in model]
        [False, False]
        >>> [module.training for module in model]
        [True, False]
    """
    moving = [module for module in model.modules() if module.training]
    try:
        for module in moving:
            module.training = False
        yield
    finally:
        for module in moving:
            module.training = True
