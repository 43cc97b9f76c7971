"""Measure a finished model again, on its own test split or on other pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from proxemics.core.config import Config, EvaluationConfig
from proxemics.core.errors import DataError
from proxemics.data.split_files import load_split
from proxemics.evaluation.assess import Assessment, assess
from proxemics.evaluation.lengths import length_varies
from proxemics.methods.build import methods_label
from proxemics.models.bundle import load_bundle
from proxemics.models.embedder import Embedder
from proxemics.training.build import build_fabric
from proxemics.training.log import Reporter, Silent
from proxemics.training.results import result_row, trace
from proxemics.training.run_folder import RunFolder
from proxemics.training.shards import embed_rows_with_certainty
from proxemics.training.tables import rows_of


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
        source: other pictures, all of which are evaluated; None takes the split of the run.
        where: filter on the rows of ``source``.
        split: which split of the run, ``test`` or ``val``.
        config: settings of reading and placing; default: those of the run.
        evaluation: protocol and metrics; default: those of the run.
        reporter: hears of progress.

    Returns:
        A result with one row, in the schema of the result files.

    Raises:
        ProxemicsError: no model, no pictures, or a protocol that does not fit.
    """
    folder = RunFolder(Path(run))
    settings = config or (folder.read_config() if folder.config.exists() else Config())
    if evaluation is not None:
        settings = settings.model_copy(update={"evaluation": evaluation})
    embedder = open_model(folder.path)
    rows = _rows(folder, settings, source, where, split)
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
            result_row(
                shown,
                found,
                method=methods_label(settings.methods),
                split=split if source is None else "all",
                size=embedder.preprocess.size,
            )
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
    fabric = build_fabric(settings.model_copy(update={"train": settings.train.model_copy(update={"devices": 1})}))
    embedder.to(fabric.device)
    embeddings, kappa = embed_rows_with_certainty(
        settings, embedder, rows, fabric=fabric, cache=None, reporter=reporter, task="evaluate"
    )
    known = kappa if length_varies(embedder) else None
    return assess(embeddings, rows, settings.evaluation, seed=settings.seed, kappa=known), embedder
