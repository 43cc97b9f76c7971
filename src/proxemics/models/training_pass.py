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
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from proxemics.models.depthwise import depthwise_conv2d

KERNELS = range(5, 12)
"""Sides of kernels whose weight gradients are slower in the library; beyond, the sums along diagonals grow large."""
MIN_BATCH = 8
"""Pictures below which the fixed share of the work is more than what is saved."""
MAX_PAIRS = 144**2
"""Positions of the map before times those after, 12 x 12 each: beyond it a product costs more than it saves."""
DTYPES = (torch.float32, torch.float64)


class TrainingPass(TorchFunctionMode):
    """Redirects what is cheaper done otherwise; everything else goes its way.

    Example:
        >>> layer = torch.nn.BatchNorm2d(2).eval().requires_grad_(False)
        >>> images = torch.rand(8, 2, 3, 3, requires_grad=True)
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


def redirects(trunk: nn.Module) -> bool:
    """Whether a pass through ``trunk`` begun here can gain from a :class:`TrainingPass`.

    It cannot without gradients, on other devices, or without layers of the two kinds. With activation checkpointing the
    second run of a layer, which comes after the pass, would not be like its first; and compilers and function
    transforms see for themselves.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_transformed():
        return False
    if any(part.device.type != "cpu" for part in trunk.parameters()):  # each call costs microseconds that GPUs feel
        return False
    modules = list(trunk.modules())
    if any(getattr(module, "grad_checkpointing", False) for module in modules):
        return False
    return any(
        (isinstance(module, nn.Conv2d) and module.groups == module.out_channels > 1)
        or (isinstance(module, _BatchNorm) and not module.training)
        for module in modules
    )


def _is_transformed() -> bool:
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # torch names it public, without types
        return True
    transforms = getattr(torch._C, "_are_functorch_transforms_active", None)  # neither is public: they may go one day
    return (transforms is not None and bool(transforms())) or getattr(forward_ad, "_current_level", -1) >= 0


def _is_plain(images: Tensor, *others: Tensor) -> bool:
    """Whether a layer's input is a batch on a CPU in full precision, and so is all that goes with it."""
    return (
        images.ndim == 4
        and len(images) >= MIN_BATCH
        and images.device.type == "cpu"
        and images.dtype in DTYPES
        and all(other.dtype == images.dtype for other in others)
        and not torch.is_autocast_enabled("cpu")
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
    learns = weight.requires_grad and groups == len(weight) and _is_plain(input, weight)
    if learns and groups == input.shape[1] and not isinstance(padding, str) and _pair(dilation) == (1, 1):
        kernel, steps, zeros = (weight.shape[2], weight.shape[3]), _pair(stride), _pair(padding)
        before = input.shape[2] * input.shape[3]
        after = [
            (side + 2 * zero - tap) // step + 1
            for side, zero, tap, step in zip(input.shape[2:], zeros, kernel, steps, strict=True)
        ]
        if max(kernel) in KERNELS and before * after[0] * after[1] <= MAX_PAIRS:
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
    parts = [part for part in (weight, bias) if part is not None]
    rests = not training and input.requires_grad and not any(part.requires_grad for part in parts)
    if not rests or running_mean is None or running_var is None or not _is_plain(input, running_var, *parts):
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if input.shape[1] != len(running_mean):  # the library has a message for it
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    factor = torch.rsqrt(running_var + eps) if weight is None else weight / torch.sqrt(running_var + eps)
    summand = -running_mean * factor if bias is None else bias - running_mean * factor
    return torch.addcmul(summand[:, None, None], input, factor[:, None, None])


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, Sequence):
        return int(value[0]), int(value[-1])
    return int(value), int(value)
