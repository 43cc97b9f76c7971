"""Two layers done in a cheaper way while a trunk is trained on a CPU; what they compute stays the same.

A pass with gradients spends a third of its time in weight gradients of depthwise convolutions with kernels beyond 3 x 3
(:mod:`proxemics.models.depthwise`), and a tenth in batch norms that rest in evaluation mode: those are one factor and
one summand a channel, which need no input kept for the way back. The trunk is left as it is: its calls of the two
functions are redirected for the time of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from proxemics.models.depthwise import depthwise_conv2d

MIN_KERNEL = 5
"""Side of the kernel from which on the library's weight gradient is the slower one."""
MAX_PAIRS = 144**2
"""Positions of the map before times those after, 12 x 12 each: beyond it a product costs more than it saves."""
DTYPES = (torch.float32, torch.float64)


class TrainingPass(TorchFunctionMode):
    """Redirects what is cheaper done otherwise; everything else goes its way.

    Example:
        >>> layer = torch.nn.BatchNorm2d(2).eval().requires_grad_(False)
        >>> images = torch.rand(1, 2, 3, 3, requires_grad=True)
        >>> with TrainingPass():
        ...     out = layer(images)
        >>> torch.allclose(out, layer(images)), out.grad_fn.name()
        (True, 'AddcmulBackward0')
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, or what stands in for it."""
        named = dict(kwargs or {})
        if func is torch.conv2d:
            return _conv2d(*args, **named)
        if func is functional.batch_norm:
            return _batch_norm(*args, **named)
        return func(*args, **named)


def redirects(images: Tensor) -> bool:
    """Whether :class:`TrainingPass` helps a pass over ``images``: on a CPU, with gradients, in full precision."""
    return (
        images.device.type == "cpu"
        and images.dtype in DTYPES
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    depthwise = input.ndim == 4 and groups == input.shape[1] == len(weight) and weight.requires_grad
    if depthwise and not isinstance(padding, str) and _pair(dilation) == (1, 1):
        kernel, steps, zeros = (weight.shape[2], weight.shape[3]), _pair(stride), _pair(padding)
        before = input.shape[2] * input.shape[3]
        after = [
            (side + 2 * zero - tap) // step + 1
            for side, zero, tap, step in zip(input.shape[2:], zeros, kernel, steps, strict=True)
        ]
        if max(kernel) >= MIN_KERNEL and before * after[0] * after[1] <= MAX_PAIRS:
            return depthwise_conv2d(input, weight, bias, steps, zeros)
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None or not input.requires_grad or input.ndim != 4:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    learns = [part for part in (weight, bias) if part is not None and part.requires_grad]
    if learns:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    factor = torch.rsqrt(running_var + eps) if weight is None else weight / torch.sqrt(running_var + eps)
    summand = -running_mean * factor if bias is None else bias - running_mean * factor
    return torch.addcmul(summand[:, None, None], input, factor[:, None, None])


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
