"""From the configuration to the parts of a run."""

from __future__ import annotations

import math
import os

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from proxemics.core.config import Config
from proxemics.core.errors import ConfigError
from proxemics.core.seeds import derive_seed
from proxemics.data.sampler import MPerClass, Shuffled
from proxemics.losses.build import build_loss
from proxemics.methods.base import Method
from proxemics.methods.build import Shapes, build_methods
from proxemics.methods.needs import check_batches, check_needs
from proxemics.models.embedder import Embedder
from proxemics.training.fabric import Fabric

DEFAULT_BATCH = 64


def build_fabric(config: Config) -> Fabric:
    """Build the launcher of processes, placement and precision; under ``torchrun`` it joins the processes there are.

    Raises:
        ConfigError: the device does not exist here.
    """
    device = config.train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"train.device={device!r}: use auto, cpu, cuda or mps.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device=cuda, but this machine has no CUDA device; use train.device=cpu or auto.")
    devices = config.train.devices
    if device == "cuda" and devices > torch.cuda.device_count():
        raise ConfigError(f"train.devices={devices}, but there are {torch.cuda.device_count()} CUDA devices.")
    started = int(os.environ.get("WORLD_SIZE", devices))
    if started != devices:
        raise ConfigError(
            f"{started} processes were started (WORLD_SIZE) and train.devices={devices}; add --devices {started}."
        )
    strategy = "auto" if devices == 1 else "ddp_find_unused_parameters_true"
    return Fabric(accelerator=device, devices=devices, strategy=strategy, precision=config.train.precision)


def build_embedder(config: Config) -> Embedder:
    """Build the model; its head starts from the seed of the run."""
    model = config.model
    return Embedder(
        model.trunk,
        dim=model.dim,
        pooling=model.pooling,
        weights=model.weights,
        head_init=model.head_init,
        layer_norm=model.layer_norm,
        freeze_bn=model.freeze_bn,
        freeze_stages=model.freeze_stages,
        size=config.data.size,
        seed=derive_seed(config.seed, "model"),
    )


def build_base_loss(config: Config, *, num_classes: int, dim: int) -> nn.Module:
    """Build the base loss; its proxies start from the seed of the run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "loss"))
        return build_loss(config.loss.name, num_classes, dim, config.loss.options)


def build_run_methods(config: Config, loss: nn.Module, embedder: Embedder, *, num_domains: int) -> list[Method]:
    """Build the methods of a run, and check them against loss, model and batches.

    Args:
        config: ``methods``, with the seed for whatever they draw at the start.
        loss: the base loss.
        embedder: the model.
        num_domains: domains among the training pictures.

    Raises:
        ProxemicsError: with what does not fit and how to mend it.
    """
    proxies = getattr(loss, "proxies", None)
    shapes = Shapes(
        num_classes=int(loss.num_classes),  # type: ignore[arg-type]  # every loss has it; nn.Module does not say so
        dim=embedder.dim,
        num_proxies=proxies.shape[1] if proxies is not None and proxies.ndim == 3 else 1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "methods"))
        methods = build_methods(config.methods, shapes)
    for method in methods:
        check_needs(method, embedder, loss)
        check_batches(method, per_class=config.train.per_class, num_domains=num_domains)
    return methods


def settle_batch_size(config: Config, train_rows: pd.DataFrame) -> Config:
    """Fill in the batch size where the configuration leaves it open: 64, or what the training classes allow.

    Args:
        config: returned as it is when it names a batch size.
        train_rows: the training pictures, with ``label``.

    Example:
        >>> import pandas as pd
        >>> from proxemics.core.config import Config
        >>> settle_batch_size(Config(), pd.DataFrame({"label": list("aabbccdde")})).train.batch_size
        20
    """
    train = config.train
    if train.batch_size is not None:
        return config
    room = train_rows["label"].nunique() * train.per_class if train.per_class else len(train_rows)
    unit = math.lcm(max(train.per_class, 1), train.devices * train.accumulate)
    size = max(min(DEFAULT_BATCH, room) // unit, 1) * unit
    return config.model_copy(update={"train": train.model_copy(update={"batch_size": size})})


def build_sampler(config: Config, labels: NDArray[np.int64], *, rank: int, world_size: int) -> MPerClass | Shuffled:
    """Build the batch sampler of one process.

    Raises:
        DataError: the batch does not fit the classes; the message says what would.
    """
    train = config.train
    size = train.batch_size or DEFAULT_BATCH
    if train.per_class:
        return MPerClass(labels, size, train.per_class, seed=config.seed, rank=rank, world_size=world_size)
    return Shuffled(len(labels), size, seed=config.seed, rank=rank, world_size=world_size)
