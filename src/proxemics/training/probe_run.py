"""Probe a finished model: what it leans on besides the object. Reads the pictures; the probes are in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.config import Config
from proxemics.core.errors import ConfigError, DataError, LossError, ModelError, did_you_mean
from proxemics.data.split_files import load_split
from proxemics.evaluation.lengths import length_varies
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.masks import Masks, estimate_masks, read_masks
from proxemics.evaluation.probes.measure import Embed, balanced_rows
from proxemics.evaluation.probes.measures import PROBES, Sample, count_passes
from proxemics.models.embedder import Embedder
from proxemics.models.packaged import find_packaged
from proxemics.training.build import build_fabric
from proxemics.training.checkpoint import load_checkpoint
from proxemics.training.evaluate_run import open_model
from proxemics.training.facts import versions
from proxemics.training.log import Reporter, Silent
from proxemics.training.picture_sample import read_batches
from proxemics.training.run_folder import RunFolder
from proxemics.training.tables import rows_of

SCENES = ("background", "scene")
"""Columns that name the background."""
QUANTITIES = ("rotation", "scale", "shift_x", "shift_y", "illumination", "light_slope", "gain", "slope")
"""Columns that the confounded sets use for nuisances; they are decoded when they are there."""
_TASK = "probe"


def probe(
    run: str | Path,
    *,
    source: str | None = None,
    where: Mapping[str, str] | None = None,
    split: str = "test",
    images: int = 1000,
    only: Sequence[str] = (),
    causes: Sequence[str] = (),
    untrained: bool = True,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Probe a model: background reliance, nuisance sensitivity, decodability, geometry, certainty.

    Args:
        run: a run folder or a bundle folder.
        source: other pictures with classes; None takes the split of the run.
        where: filter on the rows of ``source``.
        split: which split of the run.
        images: pictures at most, drawn so that the classes are about equal.
        only: which probes; empty for all.
        causes: further columns to decode.
        untrained: also probe the trunk before training, when its weights are at hand without a network.
        seed: of the draws.
        reporter: hears of progress.

    Returns:
        The card, see :func:`proxemics.evaluation.probes.card.bias_card`, with ``model``, ``source``, ``split``,
        ``where`` and ``versions``.

    Raises:
        ProxemicsError: no model, no pictures, too few pictures a class, or an unknown probe or column.
    """
    unknown = [name for name in only if name not in PROBES]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no probe; there are {', '.join(PROBES)}.{did_you_mean(unknown[0], PROBES)}"
        )
    if images < 8:
        raise ConfigError(f"images={images}; give 8 or more, and some hundreds for numbers that mean something.")
    folder, reporter = RunFolder(Path(run)), reporter or Silent()
    config = folder.read_config() if folder.config.exists() else Config()
    model = open_model(folder.path)
    device = build_fabric(config.model_copy(update={"train": config.train.model_copy(update={"devices": 1})})).device
    model.to(device)
    wanted = tuple(name for name in PROBES if name in only) or PROBES
    rows = _rows(folder, config, source, where, split)
    before = _untrained(model, device) if untrained else None
    sample = _sample(model, before, rows, config, wanted, causes, images, seed, device, reporter)
    if "geometry" in wanted and source is None:  # training classes of another set are no match for these
        sample = _with_seen(sample, folder, model, config, seed, reporter)
    models = [model] if before is None else [model, before]
    reporter.start(_TASK, len(models) * count_passes(sample, wanted))
    card = bias_card(
        embed_with(model, device),
        sample,
        untrained=None if before is None else embed_with(before, device),
        only=wanted,
        proxies=_proxies(folder, model.dim),
        varying_length=length_varies(model),
        grey=_grey(model),
        seed=seed,
        advance=lambda number: reporter.advance(_TASK, number),
    )
    reporter.finish(_TASK)
    return {
        **card,
        "model": {
            "trunk": model.arguments["trunk"],
            "size": model.preprocess.size,
            "dim": model.dim,
            "fingerprint": model.fingerprint(),
        },
        "source": source or config.data.source or config.data.split_file,
        "split": split if source is None else "all",
        "where": dict(where or {}),
        "versions": versions(),
    }


def embed_with(embedder: Embedder, device: torch.device | str) -> Embed:
    """Return a function from pictures (b, 3, S, S) uint8 to raw embeddings, in evaluation mode, without a gradient."""
    embedder.eval()

    def embed(pictures: Tensor) -> Tensor:
        with torch.inference_mode():
            return embedder.encode(embedder.preprocess.normalize(pictures.to(device))).raw

    return embed


def _rows(
    folder: RunFolder, config: Config, source: str | None, where: Mapping[str, str] | None, split: str
) -> pd.DataFrame:
    if source is None:
        if not folder.split.exists():
            raise DataError(f"{folder.path} has no split.parquet; name the pictures to probe with --data.")
        return rows_of(load_split(folder.split), split)
    from proxemics.data.sources import load_table

    data = config.data
    return load_table(source, where=dict(where or {}) or None, label=data.label, domain=data.domain, layout=data.layout)


def _untrained(model: Embedder, device: torch.device | str) -> Embedder | None:
    """Return the trunk as it was before training, without a head, if its weights need no network."""
    name = str(model.arguments["trunk"])
    if find_packaged(name) is None:
        return None
    pooling, norm = str(model.arguments["pooling"]), bool(model.arguments["layer_norm"])
    bare = Embedder(name, dim=0, pooling=pooling, layer_norm=norm, preprocess=model.preprocess)
    return bare.to(device).eval()


def _sample(
    model: Embedder,
    before: Embedder | None,
    rows: pd.DataFrame,
    config: Config,
    wanted: Sequence[str],
    causes: Sequence[str],
    images: int,
    seed: int,
    device: torch.device | str,
    reporter: Reporter,
) -> Sample:
    for name in causes:
        if name not in rows.columns:
            names = [str(column) for column in rows.columns]
            raise DataError(
                f"There is no column {name!r} to decode; there are {', '.join(names)}.{did_you_mean(name, names)}"
            )
    chosen, pictures = _pictures(rows, model, config, images, seed, reporter, "read")
    if len(chosen) < 8 or chosen["label"].nunique() < 2:
        raise DataError(
            f"{len(chosen)} readable pictures of {chosen['label'].nunique()} classes that have two or more; a probe "
            "needs 8 pictures of two classes."
        )
    masks = None
    if {"background", "decodability"} & set(wanted):
        masks = read_masks(chosen, model.preprocess, max_pixels=config.data.max_pixels)
        masks = masks or _estimated(model, before or _untrained(model, device), pictures, device)
    scenes = next((name for name in SCENES if name in chosen.columns and chosen[name].nunique() > 1), None)
    categories, quantities = _columns(chosen, scenes, causes)
    return Sample(
        pictures=pictures,
        classes=_codes(chosen["label"]),
        masks=masks,
        scenes=None if scenes is None else _codes(chosen[scenes]),
        categories=categories,
        quantities=quantities,
    )


def _codes(values: pd.Series[Any]) -> NDArray[np.int64]:
    return np.unique(values.astype(str).to_numpy(), return_inverse=True)[1].astype(np.int64)


def _pictures(
    rows: pd.DataFrame, model: Embedder, config: Config, images: int, seed: int, reporter: Reporter, task: str
) -> tuple[pd.DataFrame, Tensor]:
    """Draw rows and read their pictures; what cannot be read is left out."""
    chosen = rows.iloc[balanced_rows(_codes(rows["label"]), images, seed)].reset_index(drop=True)
    kept, pixels = [], [torch.zeros(0, 3, model.preprocess.size, model.preprocess.size, dtype=torch.uint8)]
    reporter.start(task, len(chosen))
    for numbers, batch in read_batches(chosen["path"].to_list(), model.preprocess, max_pixels=config.data.max_pixels):
        kept += numbers
        pixels.append(batch)
        reporter.advance(task, len(numbers))
    reporter.finish(task)
    return chosen.iloc[kept].reset_index(drop=True), torch.cat(pixels)


def _estimated(model: Embedder, before: Embedder | None, pictures: Tensor, device: torch.device | str) -> Masks | None:
    """Estimate masks with the untrained trunk, so that models are compared on the same ones, or else with the own."""
    judge, name = (model, "this model's own trunk") if before is None else (before, "the untrained trunk")
    try:
        return estimate_masks(judge, pictures, name=name, device=device)
    except (LossError, ModelError):
        return None


def _columns(
    rows: pd.DataFrame, scenes: str | None, causes: Sequence[str]
) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    """Choose what to decode: domain and background, known nuisances, and the columns that were asked for."""
    names = [name for name in ("domain", scenes) if name is not None]
    categories = {name: rows[name].tolist() for name in names if rows[name].nunique() > 1}
    quantities: dict[str, list[object]] = {}
    for name in (*QUANTITIES, *causes):
        if name in categories or name not in rows.columns:
            continue
        numbers = pd.to_numeric(rows[name], errors="coerce")
        if numbers.notna().all() and numbers.nunique() > 8:
            quantities[name] = numbers.tolist()
        elif name in causes:
            categories[name] = rows[name].tolist()
    return categories, quantities


def _with_seen(
    sample: Sample, folder: RunFolder, model: Embedder, config: Config, seed: int, reporter: Reporter
) -> Sample:
    """Add as many pictures of training classes, if the run has its split."""
    if not folder.split.exists():
        return sample
    table = load_split(folder.split)
    rows = table[table["split"] == "train"].reset_index(drop=True)
    if rows.empty:
        return sample
    chosen, pictures = _pictures(rows, model, config, len(sample.pictures), seed, reporter, "read training classes")
    return replace(sample, seen=pictures, seen_classes=_codes(chosen["label"])) if len(chosen) else sample


def _proxies(folder: RunFolder, dim: int) -> Tensor | None:
    """Return the proxies of the last checkpoint, if the run has one and its loss has proxies of this size."""
    loaded = load_checkpoint(folder.checkpoint) if folder.checkpoint.is_dir() else None
    names = ("loss/proxies", "loss/inner.proxies")  # the latter of a loss of pytorch-metric-learning
    proxies = next((loaded[0][name] for name in names if name in loaded[0]), None) if loaded is not None else None
    return proxies if proxies is not None and proxies.ndim in (2, 3) and proxies.shape[-1] == dim else None


def _grey(model: Embedder) -> tuple[float, float, float]:
    """The colour that the preprocessing maps to zero."""
    red, green, blue = (255 * value for value in model.preprocess.mean)
    return (red, green, blue)
