"""Result files: numbers that can be traced to a seed, a split, versions, data, a configuration and a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from proxemics.core.config import Config, EvaluationConfig
from proxemics.core.files import atomic_path
from proxemics.data.table import fingerprint
from proxemics.evaluation.assess import Assessment
from proxemics.evaluation.combine import TASK
from proxemics.evaluation.protocols.four_folds import FOLDS
from proxemics.evaluation.result import EvaluationResult
from proxemics.models.embedder import Embedder
from proxemics.training import facts
from proxemics.training.class_sums import paired_differences
from proxemics.training.loop import Progress
from proxemics.training.tables import count_splits, dataset_name, rows_of

SCHEMA = 1


def trace(config: Config, table: pd.DataFrame) -> dict[str, Any]:
    """Return what every result file carries beside its numbers."""
    return {
        "schema": SCHEMA,
        "command": facts.command(),
        "commit": facts.commit(),
        "versions": facts.versions(),
        "machine": facts.machine(),
        "seed": config.seed,
        "config": config.model_dump(mode="json"),
        "data": {
            "source": config.data.source or config.data.split_file,
            "fingerprint": fingerprint(table),
            "num_images": len(table),
            "num_classes": int(table["label"].nunique()),
            "splits": count_splits(table),
        },
        "protocol": config.evaluation.protocol,
        "unseen_classes": _unseen(table),
    }


def _unseen(table: pd.DataFrame) -> bool | None:
    """Whether no test class is among the classes trained or chosen on; None where the table has no training rows."""
    seen = set(table.loc[table["split"].isin(["train", "val"]), "label"])
    tested = set(table.loc[table["split"] == "test", "label"])
    return not seen & tested if seen and tested else None


def result_row(config: Config, found: Assessment, *, method: str, split: str, size: int) -> dict[str, Any]:
    """Return one row of a result file; ``method`` is none for the base run and frozen for the untrained trunk."""
    whole = found.result.to_dict()
    return {
        "dataset": dataset_name(config),
        "protocol": protocol_name(config.evaluation),
        "trunk": "tf_efficientnet_lite0" if config.model.trunk == "auto" else config.model.trunk,
        "size": size,
        "base": config.loss.name,
        "method": method,
        "augmentation": config.data.augmentation,
        "seed": config.seed,
        "split": split,
        "metrics": whole["metrics"],
        "intervals": whole["intervals"],
        "num_queries": whole["num_queries"],
        "num_lone": whole["num_lone"],
        "num_ties": whole["num_ties"],
        "notes": whole.get("notes", []),
        **{
            name: {task: _task(one) for task, one in results.items()}
            for name, results in (("tasks", found.tasks), ("beside", found.beside))
            if results
        },
        **({"certainty": found.certainty} if found.certainty is not None else {}),
        **({"verification": found.verification.to_dict()} if found.verification is not None else {}),
    }


def protocol_name(evaluation: EvaluationConfig) -> str:
    """Name the protocol with its domains, or the fold of its classes.

    Example:
        >>> protocol_name(EvaluationConfig(protocol="single_domain", source_domain="photo"))
        'single_domain photo -> other domains'
        >>> protocol_name(EvaluationConfig(protocol="musgrave", fold=2))
        'musgrave fold 3 of 4'
    """
    kind = evaluation.protocol
    if kind == "cross_domain" and not evaluation.query_domain:
        return f"{kind} all pairs"
    if kind == "cross_domain":
        return f"{kind} {evaluation.query_domain} -> {evaluation.gallery_domain or 'other domains'}"
    if kind == "single_domain":
        return f"{kind} {evaluation.source_domain} -> other domains"
    return f"{kind} fold {evaluation.fold + 1} of {FOLDS}" if kind == "musgrave" else kind


def _task(result: EvaluationResult) -> dict[str, Any]:
    """Return the numbers of one task of several."""
    whole = result.to_dict()
    return {name: whole[name] for name in ("metrics", "intervals", "num_queries", "num_lone", "num_ties", "notes")}


def describe_run(
    config: Config, table: pd.DataFrame, progress: Progress, found: dict[str, Assessment], embedder: Embedder
) -> dict[str, Any]:
    """Return the content of ``result.json`` of a run.

    Args:
        config: everything about the run.
        table: all rows with their splits.
        progress: where the training ended.
        found: method name to assessment, the trained model first.
        embedder: the trained model.
    """
    train = config.train
    rule = (
        "the last epoch"
        if train.select == "last" or progress.best_epoch is None
        else f"epoch {progress.best_epoch + 1} of {progress.epoch}, chosen by {train.select} on the validation classes"
    )
    size = embedder.preprocess.size
    rows = [
        result_row(config, one, method=method, split=f"test; {rule}" if method != "frozen" else "test", size=size)
        for method, one in found.items()
    ]
    if "frozen" in found and config.evaluation.bootstrap:
        labels = rows_of(table, "test")["label"].astype(str).to_numpy()
        for row, one in zip(rows, found.values(), strict=True):
            if row["method"] != "frozen":
                row["over_untrained"] = paired_differences(one, found["frozen"], labels, config)
    return {
        **trace(config, table),
        "selection": rule,
        "model": embedder.describe(),
        "rows": rows,
        "history": progress.history,
        "timing": {"training_seconds": round(progress.seconds, 1), "steps": progress.step},
        "peak_memory_mb": facts.peak_memory_mb(),
    }


def save_per_query(found: Assessment, rows: pd.DataFrame, path: Path) -> None:
    """Write one row a query: who it is, who is nearest, and how well it was retrieved.

    With the lengths of the raw embeddings at hand, ``kappa`` is that of the query and ``nearest_kappa`` that of the
    nearest picture (NaN where there is none). Where a protocol has several tasks, ``task`` names that of the query and
    ``weight`` is what its values are multiplied by for the mean over all queries to be the mean over the tasks.
    """
    per_query = found.result.per_query
    queries = rows.iloc[found.selection.query].reset_index(drop=True)
    gallery = rows.iloc[found.selection.gallery].reset_index(drop=True)
    neighbours = np.asarray(per_query["neighbours"])
    paths, labels = gallery["path"].to_numpy(), gallery["label"].to_numpy()
    frame = queries[["path", "label", "domain"]].copy()
    if TASK in found.result.groups:
        frame[TASK] = found.result.groups[TASK]
    frame["nearest_path"] = paths[neighbours[:, 0]]
    frame["nearest_label"] = labels[neighbours[:, 0]]
    frame["similarity"] = np.asarray(per_query["neighbour_similarities"])[:, 0]
    if found.kappa is not None:
        frame["kappa"] = found.kappa[found.selection.query]
        nearest = found.kappa[found.selection.gallery][neighbours[:, 0]]
        frame["nearest_kappa"] = np.where(neighbours[:, 0] >= 0, nearest, np.float32("nan"))
    frame["neighbours"] = [list(paths[row[row >= 0]]) for row in neighbours]
    frame["neighbour_similarities"] = [
        [float(value) for value in values[row >= 0]]
        for row, values in zip(neighbours, np.asarray(per_query["neighbour_similarities"]), strict=True)
    ]
    for name, values in per_query.items():
        array = np.asarray(values)
        if array.ndim == 1 and name not in frame.columns:
            frame[name] = array
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
