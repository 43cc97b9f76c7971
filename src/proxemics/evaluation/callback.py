"""Retrieval metrics for the loops of others: a collector of embeddings, and a callback for Lightning around it.

``RetrievalCallback`` subclasses the ``Callback`` of whichever package is in use, ``lightning`` or
``pytorch_lightning``. Neither is imported before the class is asked for, because this room needs torch and NumPy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxemics.core.errors import ConfigError, EvaluationError
from proxemics.core.ranks import gather_rows, world_size
from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.metrics import check_wanted
from proxemics.evaluation.result import EvaluationResult

MALICIOUS = ("2.6.2", "2.6.3")
"""Releases of Lightning that an attacker published."""
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
"""What may be installed, and where its ``Callback`` is."""


class Collector:
    """Gathers the embeddings of an evaluation batch by batch, over all processes, and evaluates them once.

    Args:
        recall_at: values of k for Recall@k.

    Example:
        >>> collector = Collector(recall_at=(1,))
        >>> for label in range(3):
        ...     collector.add(torch.eye(3)[[label, label]], torch.tensor([label, label]))
        >>> collector.evaluate()["map_at_r"], len(collector)
        (1.0, 0)
    """

    def __init__(self, *, recall_at: Sequence[int] = (1, 2, 4, 8)) -> None:
        self.recall_at = check_wanted(tuple(recall_at), (), None, None).recall_at
        self.clear()

    def __len__(self) -> int:
        return sum(map(len, self._labels))

    def clear(self) -> None:
        """Forget everything."""
        self._rows: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._ids: list[Tensor] = []

    def add(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None) -> None:
        """Keep a batch.

        Args:
            embeddings: (b, D) floating, any length; kept in float32 on the CPU.
            labels: (b,) integers.
            ids: (b,) integers, one a picture. Needed with several processes, because a sampler there may hand out a
                picture twice, which would then find itself.

        Raises:
            EvaluationError: other shapes, or labels or ids that are not integers.
        """
        for name, value in (("labels", labels), ("ids", ids)):
            if value is not None and (value.ndim != 1 or value.is_floating_point() or len(value) != len(embeddings)):
                raise EvaluationError(
                    f"{name} of type {value.dtype} and shape {tuple(value.shape)} for {len(embeddings)} embeddings; "
                    "give one integer a row."
                )
        if embeddings.ndim != 2:
            raise EvaluationError(f"Embeddings of shape {tuple(embeddings.shape)}; give (rows, dimensions).")
        self._rows.append(embeddings.detach().float().cpu())
        self._labels.append(labels.detach().long().cpu())
        if ids is not None:
            self._ids.append(ids.detach().long().cpu())

    def evaluate(self, *, device: torch.device | str = "cpu") -> EvaluationResult:
        """Search all pictures among themselves and forget them; every process gets the same numbers.

        Args:
            device: where processes exchange rows; that of the model where they talk by NCCL.

        Raises:
            EvaluationError: nothing was added, ids are missing where they are needed, or the embeddings cannot be
                evaluated (one class only, NaN, no query with a positive).
        """
        known = sum(map(len, self._ids)) == len(self)  # a process without a batch has no id either
        if world_size() == 1 and not self._rows:
            raise EvaluationError("No embeddings were added, so there is nothing to evaluate.")
        if world_size() > 1 and not known:
            raise EvaluationError(
                f"{world_size()} processes evaluate together, and a sampler may give a picture to two of them; add the "
                "number of each picture as ids, so that none counts twice."
            )
        rows = _join(self._rows, device, torch.zeros(0, 0))
        labels, ids = (_join(parts, device, torch.zeros(0).long()) for parts in (self._labels, self._ids))
        self.clear()
        if known:
            first = np.unique(ids.numpy(), return_index=True)[1]  # in the order of the ids, whoever brought them
            rows, labels = rows[first], labels[first]
        return evaluate_embeddings(rows, labels.numpy(), recall_at=self.recall_at, bootstrap=0)


def _join(parts: list[Tensor], device: torch.device | str, nothing: Tensor) -> Tensor:
    """Join the batches of all processes, which may have none or different numbers of rows."""
    own = torch.cat(parts) if parts else nothing
    if world_size() == 1:
        return own
    shapes = gather_rows(torch.tensor([list(own.shape)], device=device))
    padded = own.new_zeros(shapes.amax(0).tolist())
    padded[: len(own), ...] = own if len(own) else 0
    joined = gather_rows(padded.to(device)).cpu().chunk(len(shapes))
    return torch.cat([part[:size] for part, size in zip(joined, shapes[:, 0].tolist(), strict=True)])


def find_lightning() -> str:
    """Return the module that holds ``Callback``: that of the package already imported, else of the one installed.

    Raises:
        ConfigError: neither package is installed, or the release is one of :data:`MALICIOUS`.
    """
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in dict.fromkeys([*loaded, *_PACKAGES]):
        try:
            release = version(name)
        except PackageNotFoundError:
            continue
        if release in MALICIOUS:
            raise ConfigError(
                f"{name} {release} was published by an attacker; remove it, change the passwords and keys of this "
                f'machine, and install another: pip install "{name}!=2.6.2,!=2.6.3".'
            )
        return _PACKAGES[name]
    raise ConfigError('RetrievalCallback needs Lightning: pip install "lightning!=2.6.2,!=2.6.3".')


class _Hooks:
    """Logs zero-shot Recall@k and MAP@R of the validation classes at the end of each validation epoch.

    ``validation_step`` returns a mapping with ``embeddings`` (b, D) and ``labels`` (b,), and with several processes
    ``ids`` (b,), the number of each picture. Give the validation loader classes that are not trained on. The numbers
    are logged by ``module.log_dict``, so that ``ModelCheckpoint`` and ``EarlyStopping`` can monitor them. The sanity
    check before training is passed over: a few batches hold too few pictures of a class.

    Args:
        recall_at: values of k for Recall@k.
        prefix: in front of the names, as in ``val/recall_at_1`` and ``val/map_at_r``.
        dataloader: number of the validation loader, where the module has several.

    Raises:
        ConfigError: Lightning is not installed, or is a release that an attacker published.
        EvaluationError: an output has no embeddings, or the embeddings cannot be evaluated.
    """

    def __init__(self, *, recall_at: Sequence[int] = (1, 2, 4, 8), prefix: str = "val/", dataloader: int = 0) -> None:
        self.prefix, self.dataloader = prefix, dataloader
        self.collector = Collector(recall_at=recall_at)
        self.result: EvaluationResult | None = None
        """Of the last epoch, with every query."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget what an interrupted epoch left."""
        self.collector.clear()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the embeddings of a batch."""
        if trainer.sanity_checking or dataloader_idx != self.dataloader:
            return
        if not isinstance(outputs, Mapping) or not {"embeddings", "labels"} <= set(outputs):
            given = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise EvaluationError(
                f"{type(pl_module).__name__}.validation_step returned {given}; RetrievalCallback needs a mapping with "
                "'embeddings' and 'labels'."
            )
        self.collector.add(outputs["embeddings"], outputs["labels"], outputs.get("ids"))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate and log."""
        if trainer.sanity_checking:
            return
        self.result = self.collector.evaluate(device=pl_module.device)
        names = (*(f"recall_at_{k}" for k in self.collector.recall_at), "map_at_r")
        pl_module.log_dict({self.prefix + name: float(self.result[name]) for name in names}, prog_bar=True)


@cache
def _callback(module: str) -> type[Any]:
    base = import_module(module).Callback
    facts = {"__module__": __name__, "__qualname__": "RetrievalCallback", "__doc__": _Hooks.__doc__}
    return type("RetrievalCallback", (_Hooks, base), facts)


if TYPE_CHECKING:
    from lightning.pytorch import Callback

    class RetrievalCallback(_Hooks, Callback):
        """See ``_Hooks``; at run time the base is the ``Callback`` of the package in use."""


def __getattr__(name: str) -> Any:
    if name == "RetrievalCallback":
        return _callback(find_lightning())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
