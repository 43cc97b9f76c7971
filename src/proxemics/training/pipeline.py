"""The main job: a table in; a trained, honestly measured model and its run folder out."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.config import Config
from proxemics.core.errors import ProxemicsError
from proxemics.core.files import atomic_path, write_json
from proxemics.data.labels import LabelMap
from proxemics.data.split_files import save_split
from proxemics.evaluation.assess import Assessment, assess, check_answerable, for_choosing
from proxemics.evaluation.lengths import length_varies
from proxemics.losses import ProxyLoss
from proxemics.methods.build import methods_label
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.training.build import (
    build_base_loss,
    build_embedder,
    build_fabric,
    build_run_methods,
    build_sampler,
    settle_batch_size,
)
from proxemics.training.checkpoint import POINTER
from proxemics.training.expansion import save_expansion
from proxemics.training.fabric import Fabric
from proxemics.training.inputs import Inputs
from proxemics.training.log import Reporter, Silent
from proxemics.training.loop import Progress, Trainer
from proxemics.training.results import describe_run, save_per_query
from proxemics.training.run_folder import RunFolder
from proxemics.training.tables import (
    check_unseen,
    fit_protocol,
    prepare_table,
    refuse_test_rows,
    rows_of,
    settle_protocol,
)

VALIDATION_METRICS = ("recall_at_1", "map_at_r", "r_precision")


def fit(
    config: Config,
    out: str | Path,
    *,
    frame: pd.DataFrame | None = None,
    restart: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Split, train, choose on the validation classes, measure once on the test classes, and write the run folder.

    A run that was interrupted goes on from its latest checkpoint and ends with the same weights, bit for bit on a CPU.

    Args:
        config: everything about the run.
        out: the run folder.
        frame: a table with splits to use instead of ``config.data``.
        restart: throw away what the folder holds.
        reporter: hears of progress; default: nobody.

    Returns:
        The content of ``result.json``.

    Raises:
        ProxemicsError: with one line on what is wrong and how to mend it.
    """
    reporter = reporter or Silent()
    folder = RunFolder(Path(out))
    began = time.perf_counter()
    table = prepare_table(config) if frame is None else fit_protocol(config, frame)
    config = settle_protocol(config, table)
    check_protocol(table, config)
    config = settle_batch_size(config, rows_of(table, "train"))
    embedder = build_embedder(config)  # before anything is thrown away: a wrong trunk or loss must cost nothing
    check_parts(config, embedder, rows_of(table, "train"))
    fabric = build_fabric(config)
    fabric.launch()
    on_first_process(fabric, lambda: open_folder(folder, config, table, restart=restart))
    if folder.result.exists():
        reporter.say(f"The run in {folder.path} is finished; --restart trains it again.")
        return folder.read_result() if fabric.is_global_zero else {}
    on_first_process(fabric, lambda: save_split(table, folder.split))

    progress, labels, inputs = train(config, embedder, table, fabric=fabric, folder=folder, reporter=reporter)
    if fabric.is_global_zero:
        save_bundle(embedder, folder.bundle, labels=labels.names)
    fabric.barrier()

    test = rows_of(table, "test")
    trained = measure(config, embedder, test, inputs, name="embeddings", reporter=reporter)
    frozen = measure_frozen(config, test, inputs, reporter=reporter)
    result: dict[str, Any] = {}
    if fabric.is_global_zero:
        save_per_query(trained, test, folder.per_query)
        result = describe_run(
            config, table, progress, {methods_label(config.methods): trained, "frozen": frozen}, embedder
        )
        result["timing"]["total_seconds"] = round(time.perf_counter() - began, 1)
        write_json(folder.result, result)
        shutil.rmtree(folder.path / "cache", ignore_errors=True)
    fabric.barrier()
    return result


def check_parts(config: Config, embedder: Embedder, rows: pd.DataFrame) -> None:
    """Build loss and methods for the training classes once, so that wrong options fail before any work is done."""
    loss = build_base_loss(config, num_classes=rows["label"].nunique(), dim=embedder.dim)
    build_run_methods(config, loss, embedder, num_domains=rows["domain"].nunique(dropna=False))


def open_folder(folder: RunFolder, config: Config, table: pd.DataFrame, *, restart: bool) -> None:
    """Make the run folder ready for this run, or refuse; ``restart`` throws away what an older run left."""
    build_sampler(config, np.unique(rows_of(table, "train")["label"], return_inverse=True)[1], rank=0, world_size=1)
    if restart:
        folder.clear()
    folder.claim(config, table)


def on_first_process(fabric: Fabric, action: Callable[[], None]) -> None:
    """Let the first process act while the others wait; if it fails, all of them raise its message."""
    failed: ProxemicsError | None = None
    if fabric.is_global_zero:
        try:
            action()
        except ProxemicsError as error:
            failed = error
    message: str | None = fabric.broadcast(None if failed is None else str(failed))
    if failed is not None:
        raise failed
    if message is not None:
        raise ProxemicsError(message)


def train(
    config: Config, embedder: Embedder, table: pd.DataFrame, *, fabric: Fabric, folder: RunFolder, reporter: Reporter
) -> tuple[Progress, LabelMap, Inputs]:
    """Train on the split train and choose on the split val; rows of the split test are never looked at.

    Args:
        config: everything about the run.
        embedder: the model, trained in place and left with the chosen weights.
        table: rows with splits.
        fabric: a launched Fabric.
        folder: where checkpoints and logs go.
        reporter: hears of progress.

    Returns:
        Where the training ended, the training classes in the order of their proxies, and how pictures reach the model.
    """
    train_rows, val_rows = rows_of(table, "train"), rows_of(table, "val")
    labels = LabelMap.fit(train_rows["label"])
    ids = labels.encode(train_rows["label"])
    domains = pd.factorize(train_rows["domain"], sort=True)[0]
    loss = build_base_loss(config, num_classes=len(labels), dim=embedder.dim)
    methods = build_run_methods(config, loss, embedder, num_domains=len(set(domains.tolist())))
    inputs = Inputs(config, embedder, methods, fabric=fabric, folder=folder, reporter=reporter)
    embedder.to(fabric.device)

    def survey() -> tuple[Tensor, Tensor]:
        unit, kappa = inputs.embed(embedder, train_rows, task="survey of the training pictures")
        return torch.from_numpy(unit * kappa[:, None]), torch.from_numpy(ids)

    if isinstance(loss, ProxyLoss) and loss.starts_from_class_means and not (folder.checkpoint / POINTER).exists():
        loss.set_class_means(*survey())
    if config.train.accumulate > 1 and not getattr(loss, "per_sample_mean", True):
        reporter.say(
            f"Note: {config.loss.name} looks at the batch as a set, so train.accumulate={config.train.accumulate} is "
            f"not the same as one batch of {config.train.batch_size}."
        )
    trainer = Trainer(
        config,
        embedder,
        loss,
        dataset=inputs.training(embedder, train_rows, ids, domains),
        sampler=build_sampler(config, ids, rank=fabric.global_rank, world_size=fabric.world_size),
        out=folder.path,
        fabric=fabric,
        validate=validator(config, val_rows, inputs, reporter),
        methods=methods,
        survey=survey,
        reporter=reporter,
    )
    progress = trainer.run()
    if fabric.is_global_zero:
        named = dict(zip(config.methods, methods, strict=True))
        save_expansion(config, named, embedder.preprocess, train_rows, folder)
    return progress, labels, inputs


def validator(
    config: Config, rows: pd.DataFrame, inputs: Inputs, reporter: Reporter
) -> Callable[[Embedder], dict[str, float]]:
    """Return a function that measures a model on the validation classes.

    Raises:
        TrainingError: a row of the test split is among the rows.
    """
    refuse_test_rows(rows, "choosing the model")
    choosing = config.model_copy(update={"evaluation": for_choosing(config.evaluation, rows)})
    if choosing.evaluation.protocol != config.evaluation.protocol:
        reporter.say(f"The validation classes are measured by {choosing.evaluation.protocol}, among themselves.")

    def validate(model: Embedder) -> dict[str, float]:
        embeddings, _ = inputs.embed(model, rows, task="validate", name="val")
        found = assess_aloud(choosing, embeddings, rows, reporter, intervals=False).result
        return {name: float(found[name]) for name in VALIDATION_METRICS}

    return validate


def measure(
    config: Config, embedder: Embedder, rows: pd.DataFrame, inputs: Inputs, *, name: str, reporter: Reporter
) -> Assessment:
    """Embed the test rows, keep the embeddings as ``<name>.npy`` and evaluate them."""
    embedder.to(inputs.fabric.device)
    embeddings, kappa = inputs.embed(embedder, rows, task="evaluate")
    if inputs.fabric.is_global_zero:
        save_array(inputs.folder.path / f"{name}.npy", embeddings)
    return assess_aloud(config, embeddings, rows, reporter, kappa=kappa if length_varies(embedder) else None)


def assess_aloud(
    config: Config,
    embeddings: NDArray[np.float32],
    rows: pd.DataFrame,
    reporter: Reporter,
    *,
    intervals: bool = True,
    kappa: NDArray[np.float32] | None = None,
) -> Assessment:
    """Evaluate, and say what the evaluation warns of, such as embeddings that have collapsed to one point."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = assess(embeddings, rows, config.evaluation, seed=config.seed, intervals=intervals, kappa=kappa)
    for warning in caught:
        reporter.say(f"Warning: {warning.message}")
    return found


def measure_frozen(config: Config, rows: pd.DataFrame, inputs: Inputs, *, reporter: Reporter) -> Assessment:
    """Evaluate the pretrained trunk as it comes: average pooling, no head, nothing trained."""
    model = config.model.model_copy(update={"dim": 0, "pooling": "avg", "layer_norm": False})
    embedder = build_embedder(config.model_copy(update={"model": model}))
    return measure(config, embedder, rows, inputs, name="embeddings_untrained", reporter=reporter)


def check_protocol(table: pd.DataFrame, config: Config) -> None:
    """Find out before any training whether the protocol fits the test and validation rows.

    Raises:
        EvaluationError: no query could find a picture of its class, or there is one class only.
        DataError: a class or domain that must be unseen was seen.
    """
    rows = rows_of(table, "val")
    check_answerable(rows, for_choosing(config.evaluation, rows), split="val")
    check_answerable(rows_of(table, "test"), config.evaluation, split="test")
    check_unseen(config, table)


def save_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write an array as NPY, atomically."""
    with atomic_path(path) as temporary:
        np.save(temporary, array, allow_pickle=False)
