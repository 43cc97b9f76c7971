"""Stages: the named places of a trunk at which a method may step in (see :mod:`proxemics.models.hooks`).

They are named the same for every family:

* convolutional and hierarchical trunks: ``stem`` (stride 2, or the patch embedding), then ``stage1`` (stride 4),
  ``stage2`` (stride 8), ...; ``layer1`` and timm's own module paths (``blocks.1``, ``layers.0``) are aliases;
* plain transformers: ``patch_embed``, then ``block0``, ``block1``, ...;
* every trunk: ``pixel``, the normalised pictures themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from proxemics.core.errors import ModelError, did_you_mean

PIXEL = "pixel"


@dataclass(frozen=True)
class Stage:
    """One place in a trunk.

    Attributes:
        name: the public name, e.g. ``stage2``.
        module: the path of the sub-module whose output it is; empty for ``pixel``.
        channels: number of channels there.
        aliases: other names that mean the same place.
    """

    name: str
    module: str
    channels: int
    aliases: tuple[str, ...] = ()


def list_stages(trunk: nn.Module) -> tuple[Stage, ...]:
    """List the stages of a timm model from the bottom up, ``pixel`` first.

    Example:
        >>> import timm
        >>> [stage.name for stage in list_stages(timm.create_model("test_resnet"))]
        ['pixel', 'stem', 'stage1', 'stage2', 'stage3', 'stage4']
        >>> [stage.name for stage in list_stages(timm.create_model("test_vit"))][:3]
        ['pixel', 'patch_embed', 'block0']
    """
    modules = {name for name, _ in trunk.named_modules() if name}
    entries = _feature_entries(trunk)
    if not entries:
        return (Stage(PIXEL, "", 3),)
    flat = len(entries) > 1 and len({reduction for _, _, reduction in entries}) == 1
    named = [stage for stage in (_flat_stages if flat else _pyramid_stages)(entries) if stage.module in modules]
    if not any(stage.name in ("stem", "patch_embed") for stage in named):
        named = [*_embedding_stage(modules, entries[0][1], flat=flat), *named]
    return (Stage(PIXEL, "", 3), *named)


def _feature_entries(trunk: Any) -> list[tuple[str, int, int]]:
    """Read (module, channels, stride) of each entry of timm's ``feature_info``."""
    entries = [entry for entry in getattr(trunk, "feature_info", None) or [] if isinstance(entry, dict)]
    return [
        (str(entry["module"]), int(entry["num_chs"]), int(entry["reduction"]))
        for entry in entries
        if {"module", "num_chs", "reduction"} <= set(entry)
    ]


def _flat_stages(entries: Sequence[tuple[str, int, int]]) -> list[Stage]:
    return [Stage(f"block{i}", module, channels, (module,)) for i, (module, channels, _) in enumerate(entries)]


def _pyramid_stages(entries: Sequence[tuple[str, int, int]]) -> list[Stage]:
    early = [entry for entry in entries if entry[2] < 4]
    late = [entry for entry in entries if entry[2] >= 4]
    stages = [Stage(f"stem{i}", module, channels, (module,)) for i, (module, channels, _) in enumerate(early[:-1])]
    stages += [Stage("stem", module, channels, (module,)) for module, channels, _ in early[-1:]]
    for number, (module, channels, _) in enumerate(late, start=1):
        aliases = dict.fromkeys((module, f"layer{number}"))
        stages.append(Stage(f"stage{number}", module, channels, tuple(aliases)))
    return stages


def _embedding_stage(modules: Iterable[str], channels: int, *, flat: bool) -> list[Stage]:
    present = [name for name in ("patch_embed", "stem") if name in modules]
    if not present:
        return []
    name = "patch_embed" if flat else "stem"
    aliases = {"patch_embed", "stem", present[0]} - {name}
    return [Stage(name, present[0], channels, tuple(sorted(aliases)))]


def find_stage(stages: Sequence[Stage], name: str, *, trunk: str) -> Stage:
    """Look a stage up by name or alias.

    Args:
        stages: of the trunk.
        name: a name or alias; names win.
        trunk: the trunk's name, for the message.

    Raises:
        ModelError: the trunk has no such stage; the message lists them.
    """
    places = {alias: stage for stage in stages for alias in stage.aliases}
    places.update({stage.name: stage for stage in stages})
    if name in places:
        return places[name]
    names = [stage.name for stage in stages]
    raise ModelError(
        f"Trunk {trunk!r} has no stage {name!r}.{did_you_mean(name, places)} Its stages: {', '.join(names)}."
    )
