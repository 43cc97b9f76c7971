"""Measure a finished model again, on its own test split or on other pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.config import Config, EvaluationConfig
from proxemics.core.errors import ConfigError, DataError
from proxemics.data.split_files import load_split
from proxemics.evaluation.assess import Assessment, assess
from proxemics.evaluation.lengths import length_varies
from proxemics.evaluation.protocols import musgrave, zero_shot
from proxemics.methods.build import methods_label
from proxemics.models.bundle import load_bundle
from proxemics.models.embedder import Embedder
from proxemics.training.build import build_fabric
from proxemics.training.class_sums import per_class
from proxemics.training.log import Reporter, Silent
from proxemics.training.results import result_row, trace
from proxemics.training.run_folder import RunFolder
from proxemics.training.shards import embed_rows_with_certainty
from proxemics.training.tables import check_unseen, rows_of, settle_protocol


def open_model(path: str | Path) -> Embedder:
    """Load the model of a run folder or of a bundle folder.

    Raises:
        DataError: it is neither.
    """
    folder = Path(path)
    for place in (folder / "bundle", folder):
        if (place / "model.safetensors").exists():
            return load_bundle(place)
    if (folder / "config.yaml").exists():
        raise DataError(f"The run in {folder} is not finished; give its `proxemics train` command again to go on.")
    raise DataError(f"{folder} holds no model; give a run folder or a bundle folder written by `proxemics train`.")


def evaluate(
    run: str | Path,
    *,
    more: Sequence[str | Path] = (),
    source: str | None = None,
    where: dict[str, str] | None = None,
    split: str = "test",
    config: Config | None = None,
    evaluation: EvaluationConfig | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Evaluate a model.

    Args:
        run: a run folder or a bundle folder.
        more: with the protocol musgrave, the models of the other folds.
        source: other pictures, all of which are evaluated; None takes the split of the run.
        where: filter on the rows of ``source``.
        split: which split of the run, ``test`` or ``val``.
        config: settings of reading and placing; default: those of the run.
        evaluation: protocol and metrics; default: those of the run.
        reporter: hears of progress.

    Returns:
        A result with one row, in the schema of the result files; with several models two, ``separated`` (the mean of
        the models) and ``concatenated`` (their joined embeddings).

    Raises:
        ProxemicsError: no model, no pictures, or a protocol that does not fit.
    """
    folder = RunFolder(Path(run))
    settings = config or (folder.read_config() if folder.config.exists() else Config())
    if evaluation is not None:
        settings = settings.model_copy(update={"evaluation": evaluation})
    if more:
        return evaluate_folds([run, *more], settings, source=source, where=where, split=split, reporter=reporter)
    embedder = open_model(folder.path)
    rows = _rows(folder, settings, source, where, split)
    if source is None:
        settings = settle_protocol(settings, load_split(folder.split))
        check_unseen(settings, load_split(folder.split))
    found, embedder = _measure(settings, embedder, rows, reporter or Silent())
    shown = (
        settings
        if source is None
        else settings.model_copy(
            update={"data": settings.data.model_copy(update={"source": source, "where": where or {}})}
        )
    )
    return {
        **trace(shown, rows),
        "rows": [
            {
                **result_row(
                    shown,
                    found,
                    method=methods_label(settings.methods),
                    split=split if source is None else "all",
                    size=embedder.preprocess.size,
                ),
                "per_class": per_class(found, rows["label"].to_numpy()),
            }
        ],
    }


def _rows(
    folder: RunFolder, settings: Config, source: str | None, where: dict[str, str] | None, split: str
) -> pd.DataFrame:
    if source is None:
        if not folder.split.exists():
            raise DataError(f"{folder.path} has no split.parquet; name the pictures to evaluate with --data.")
        return rows_of(load_split(folder.split), split)
    from proxemics.data.sources import load_table

    data = settings.data
    frame = load_table(source, where=where or None, label=data.label, domain=data.domain, layout=data.layout)
    return frame.reset_index(drop=True)


def _measure(
    settings: Config, embedder: Embedder, rows: pd.DataFrame, reporter: Reporter
) -> tuple[Assessment, Embedder]:
    embeddings, kappa = _embed(settings, embedder, rows, reporter)
    known = kappa if length_varies(embedder) else None
    return assess(embeddings, rows, settings.evaluation, seed=settings.seed, kappa=known), embedder


def _embed(
    settings: Config, embedder: Embedder, rows: pd.DataFrame, reporter: Reporter
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    fabric = build_fabric(settings.model_copy(update={"train": settings.train.model_copy(update={"devices": 1})}))
    embedder.to(fabric.device)
    return embed_rows_with_certainty(
        settings, embedder, rows, fabric=fabric, cache=None, reporter=reporter, task="evaluate"
    )


def evaluate_folds(
    runs: Sequence[str | Path],
    settings: Config,
    *,
    source: str | None = None,
    where: dict[str, str] | None = None,
    split: str = "test",
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Evaluate the models of several folds together (Musgrave et al. 2020).

    Args:
        runs: folders of the models, two or more.
        settings: with ``evaluation.protocol: musgrave``.
        source: other pictures; None takes the split of the runs.
        where: filter on the rows of ``source``.
        split: which split.
        reporter: hears of progress.

    Returns:
        A result with the rows ``separated`` and ``concatenated``, and the values of each model in ``models``.

    Raises:
        ConfigError: another protocol.
        DataError: the runs were tested on different pictures, or two of them were chosen on the same fold.
    """
    if settings.evaluation.protocol != "musgrave":
        raise ConfigError("Several models are measured together with --protocol musgrave only; give one run.")
    folders = [RunFolder(Path(run)) for run in runs]
    tables = [_rows(folder, settings, source, where, split) for folder in folders]
    _check_folds(folders, tables)
    embedders = [open_model(folder.path) for folder in folders]
    rows = tables[0]
    parts = [_embed(settings, one, rows, reporter or Silent())[0] for one in embedders]
    bootstrap = settings.evaluation.bootstrap
    found = musgrave(
        parts, rows["label"].to_list(), recall_at=settings.evaluation.recall_at, bootstrap=bootstrap, seed=settings.seed
    )
    chosen = zero_shot({"label": rows["label"].to_list()})
    joined = result_row(
        settings,
        Assessment(found.concatenated, chosen),
        method=methods_label(settings.methods),
        split=split if source is None else "all",
        size=embedders[0].preprocess.size,
    )
    joined["dims"] = [one.dim for one in embedders]
    joined["protocol"] = "musgrave concatenated"
    apart = {**joined, "protocol": "musgrave separated", "metrics": found.separated, "intervals": {}}
    apart["models"] = [{"run": str(run), "metrics": dict(one)} for run, one in zip(runs, found.each, strict=True)]
    return {**trace(settings, rows), "rows": [joined, apart]}


def _check_folds(folders: Sequence[RunFolder], tables: Sequence[pd.DataFrame]) -> None:
    """Refuse runs with different test pictures, and two runs that hold out the same classes."""
    held: dict[frozenset[str], Path] = {}
    for folder, rows in zip(folders, tables, strict=True):
        same = len(rows) == len(tables[0]) and bool(
            (rows[["path", "label"]] == tables[0][["path", "label"]]).all(axis=None)
        )
        if not same:
            raise DataError(f"{folder.path} and {folders[0].path} were tested on different pictures.")
        if folder.split.exists():
            table = load_split(folder.split)
            classes = frozenset(table.loc[table["split"] == "val", "label"])
            if classes in held:
                raise DataError(
                    f"{held[classes]} and {folder.path} were chosen on the same classes; train one run for each "
                    "evaluation.fold of 0, 1, 2 and 3."
                )
            held[classes] = folder.path
