"""Stage hooks: a method replaces or extends the batch in the middle of a trunk.

A hook at stage l hands the features F of that stage to a function and lets the trunk go on with the result. The
function may return more rows than it got, for instance ``torch.cat([F, intervene(F)])``: everything below the stage is
computed once on B rows and everything above once on all rows. This works with any trunk through ordinary forward hooks
of PyTorch, which are removed again whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxemics.core.errors import ModelError
from proxemics.models.layout import is_channels_end, split_prefix
from proxemics.models.stages import PIXEL, Stage, find_stage
from proxemics.models.trunks import TrunkInfo


@dataclass(frozen=True)
class StageHook:
    """What to do at which stage.

    Attributes:
        stage: a name of ``Embedder.stages`` or an alias such as ``layer2``.
        fn: F -> F'. F is a map (B, C, H, W), whatever memory order the trunk uses, or a sequence of tokens (B, P, C),
            class and register tokens first. F' has the same shape except for the number of rows.
        as_map: hand tokens over as a map (B, C, H, W) as well. Class and register tokens are left out and go on
            unchanged, repeated in order when ``fn`` returns a multiple of B rows.
        raw: hand the features over exactly as the trunk has them, (B, H, W, C) included, and take any shape back.

    Example:
        >>> hook = StageHook("stage2", lambda features: torch.cat([features, features.flip(0)]))
        >>> hook.fn(torch.zeros(2, 8, 4, 4)).shape
        torch.Size([4, 8, 4, 4])
    """

    stage: str
    fn: Callable[[Tensor], Tensor]
    as_map: bool = False
    raw: bool = False


@contextmanager
def hooked(trunk: nn.Module, info: TrunkInfo, hooks: Sequence[StageHook], images: Tensor) -> Iterator[Tensor]:
    """Attach ``hooks`` for one forward pass and yield the pictures to run it on.

    Args:
        trunk: the model.
        info: its facts.
        hooks: at one or several stages; several at one stage run in the order given.
        images: (B, 3, H, W); hooks at ``pixel`` are applied to them here.

    Yields:
        (B', 3, H, W).

    Raises:
        ModelError: a stage is unknown, ran another number of times than once, or a function returned another shape.
    """
    size = (int(images.shape[2]), int(images.shape[3]))
    runs = [1] * len(hooks)
    handles = []
    try:
        for index, hook in enumerate(hooks):
            stage = find_stage(info.stages, hook.stage, trunk=info.name)
            if stage.name == PIXEL:
                images = _call(hook, images)
                continue
            runs[index] = 0
            module = trunk.get_submodule(stage.module)
            handles.append(module.register_forward_hook(_forward_hook(index, hook, stage, info, size, runs)))
        yield images
    finally:
        for handle in handles:
            handle.remove()
    for hook, count in zip(hooks, runs, strict=True):
        if count != 1:
            raise ModelError(
                f"Stage {hook.stage!r} of trunk {info.name!r} ran {count} times in one pass; a hook needs exactly one. "
                f"Choose another stage: {', '.join(stage.name for stage in info.stages)}."
            )


def _forward_hook(
    index: int, hook: StageHook, stage: Stage, info: TrunkInfo, size: tuple[int, int], runs: list[int]
) -> Callable[[nn.Module, Any, Any], Any]:
    def after(module: nn.Module, inputs: Any, output: Any) -> Any:
        runs[index] += 1
        first, *rest = output if isinstance(output, tuple) and output else (output,)
        if not isinstance(first, Tensor) or any(isinstance(other, Tensor) for other in rest):
            kind = "several tensors" if isinstance(first, Tensor) else f"a {type(output).__name__}"
            raise ModelError(
                f"Stage {hook.stage!r} of trunk {info.name!r} gives {kind}, not one tensor; hooks cannot work there."
            )
        changed = _intervene(hook, first, stage, info, size)
        return (changed, *rest) if isinstance(output, tuple) else changed

    return after


def _intervene(hook: StageHook, features: Tensor, stage: Stage, info: TrunkInfo, size: tuple[int, int]) -> Tensor:
    if features.ndim == 4 and not hook.raw and is_channels_end(features, stage.channels, info):
        return _call(hook, features.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    if features.ndim == 3 and hook.as_map:
        return _call_on_map(hook, features, info, size)
    return _call(hook, features)


def _call_on_map(hook: StageHook, tokens: Tensor, info: TrunkInfo, size: tuple[int, int]) -> Tensor:
    front, grid = split_prefix(tokens.shape[1], info.prefix, *size)
    if grid is None or not info.raster:
        raise ModelError(
            f"The {tokens.shape[1]} tokens of stage {hook.stage!r} of trunk {info.name!r} form no map; "
            "use as_map=False."
        )
    as_map = tokens[:, front:].transpose(1, 2).reshape(tokens.shape[0], -1, *grid)
    changed = _call(hook, as_map).flatten(2).transpose(1, 2)
    if not front:
        return changed
    times, rest = divmod(changed.shape[0], max(1, tokens.shape[0]))
    if rest:
        raise ModelError(
            f"The function at stage {hook.stage!r} made {changed.shape[0]} rows of {tokens.shape[0]}; where a trunk "
            "has class tokens, a whole multiple is needed. Use as_map=False and treat the class tokens yourself."
        )
    return torch.cat([tokens[:, :front].repeat(times, 1, 1), changed], dim=1)


def _call(hook: StageHook, features: Tensor) -> Tensor:
    changed = hook.fn(features)
    if not isinstance(changed, Tensor) or (changed.shape[1:] != features.shape[1:] and not hook.raw):
        got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        wanted = ", ".join(["any number of rows", *map(str, features.shape[1:])])
        raise ModelError(f"The function at stage {hook.stage!r} returned {got}; allowed is a tensor ({wanted}).")
    return changed.to(features.dtype)
