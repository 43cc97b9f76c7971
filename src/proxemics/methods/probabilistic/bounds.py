"""Concentrations with a smallest value, and what the gradient does there."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from proxemics.methods.options import check_choice

FloorGradient = Literal["straight-through", "clamp", "softplus"]
"""straight-through: clamp, but let a step that raises the value through (our reading). clamp: no gradient below
(release). softplus: a smooth bound; the parameter is not the concentration itself (our reading)."""


class _Clamp(torch.autograd.Function):
    """max(x, floor), whose gradient stops only where a descent step would lower a value at or under the floor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, floor: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.floor = floor
        return values.clamp_min(floor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        return grad.masked_fill((values < ctx.floor) & (grad > 0), 0), None


def bounded(parameter: Tensor, floor: float, how: FloorGradient) -> Tensor:
    """Return values of at least ``floor``.

    Args:
        parameter: any shape, floating.
        floor: > 0.
        how: what the gradient does; see :data:`FloorGradient`.

    Returns:
        The shape of ``parameter``.

    Raises:
        LossError: no such way.

    Example:
        >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
        >>> value = bounded(x, 0.1, "straight-through")
        >>> (-value).sum().backward()  # descent raises both
        >>> value.tolist(), x.grad.tolist()
        ([0.10000000149011612, 2.0], [-1.0, -1.0])
    """
    check_choice("floor_gradient", how, get_args(FloorGradient))
    if how == "softplus":
        return floor + torch.nn.functional.softplus(parameter)
    if how == "clamp":
        return parameter.clamp_min(floor)
    result: Tensor = _Clamp.apply(parameter, floor)
    return result


def unbounded(value: float, floor: float, how: FloorGradient) -> float:
    """Return the parameter for which :func:`bounded` gives ``value``.

    Args:
        value: above ``floor``.
        floor: > 0.
        how: see :data:`FloorGradient`.

    Example:
        >>> round(float(bounded(torch.tensor(unbounded(18.0, 0.1, "softplus")), 0.1, "softplus")), 4)
        18.0
    """
    if how != "softplus":
        return value
    above = value - floor
    return above + math.log(-math.expm1(-above))
