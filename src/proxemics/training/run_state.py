"""A run as its last checkpoint left it: model, loss and methods, to look into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from proxemics.core.config import Config
from proxemics.core.errors import DataError
from proxemics.data.labels import LabelMap
from proxemics.data.split_files import load_split
from proxemics.methods.base import Method
from proxemics.models.embedder import Embedder
from proxemics.training.build import build_base_loss, build_embedder, build_run_methods
from proxemics.training.checkpoint import load_checkpoint, load_module, under_prefix
from proxemics.training.run_folder import RunFolder
from proxemics.training.tables import rows_of


@dataclass(frozen=True)
class RunState:
    """The parts of a run at its last checkpoint, in evaluation mode, on the CPU.

    Attributes:
        config: of the run.
        embedder: with the weights of the checkpoint; the bundle may hold those of another epoch.
        loss: the base loss.
        methods: by the name that the configuration gives them, in its order.
        labels: the training classes in the order of their proxies.
        table: one row a picture, with its split.
        progress: where the run stood: ``epoch`` (how many are done), ``best_epoch`` and so on.
    """

    config: Config
    embedder: Embedder
    loss: nn.Module
    methods: dict[str, Method]
    labels: LabelMap
    table: pd.DataFrame
    progress: dict[str, Any]

    @property
    def bundle_sentence(self) -> str:
        """How the checkpoint relates to the model that the run hands over."""
        done = self.progress.get("epoch", 0)
        parts = [
            f"Model and methods are those of the last checkpoint, after epoch {done} of {self.config.train.epochs}"
        ]
        best = self.progress.get("best_epoch")
        if self.config.train.ema:
            parts.append("the bundle holds running averages of the weights, so its embeddings differ somewhat")
        elif self.config.train.select != "last" and best is not None and best + 1 != done:
            parts.append(f"the bundle holds the model of epoch {best + 1}, so its embeddings differ")
        return "; ".join(parts) + "."


def open_state(path: str | Path) -> RunState:
    """Build the parts of a run and fill them from its last checkpoint; no pretrained weights are asked for.

    Args:
        path: a run folder, finished or not.

    Raises:
        DataError: it is no run folder, or has no checkpoint yet.
        TrainingError: the checkpoint is damaged or does not fit the configuration.
    """
    folder = RunFolder(Path(path))
    config = folder.read_config()
    loaded = load_checkpoint(folder.checkpoint)
    if loaded is None or not folder.split.exists():
        raise DataError(
            f"{folder.path} has no checkpoint to look into; give its `proxemics train` command again, which writes one."
        )
    tensors, facts = loaded
    table = load_split(folder.split)
    rows = rows_of(table, "train")
    labels = LabelMap.fit(rows["label"])
    bare = config.model_copy(update={"model": config.model.model_copy(update={"weights": "none"})})
    embedder = build_embedder(bare)
    loss = build_base_loss(config, num_classes=len(labels), dim=embedder.dim)
    methods = build_run_methods(config, loss, embedder, num_domains=rows["domain"].nunique(dropna=False))
    for name, module in (("model", embedder), ("loss", loss), ("methods", nn.ModuleList(methods))):
        load_module(module, under_prefix(name, tensors))
        module.eval()
    named = dict(zip(config.methods, methods, strict=True))
    return RunState(config, embedder, loss, named, labels, table, dict(facts["progress"]))
