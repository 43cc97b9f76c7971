"""The training loop: readable from top to bottom, exact to resume, and blind to the test classes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxemics.core.config import Config
from proxemics.core.errors import TrainingError
from proxemics.core.seeds import derive_seed
from proxemics.data.dataset import Batch as LoadedBatch
from proxemics.data.dataset import ImageDataset
from proxemics.data.loader import ImageLoader, make_loader
from proxemics.data.sampler import MPerClass, Shuffled
from proxemics.evaluation.extract import start_method
from proxemics.methods.base import Batch, Method, Start
from proxemics.models.embedder import Embedder
from proxemics.models.stages import PIXEL
from proxemics.training import checkpoint as ckpt
from proxemics.training.ema import WeightAverage
from proxemics.training.fabric import Fabric
from proxemics.training.groups import make_optimizer, parameter_groups
from proxemics.training.guard import check_finite
from proxemics.training.log import Reporter, RunLog, Silent
from proxemics.training.schedule import rate_factor
from proxemics.training.step import TrainingStep
from proxemics.training.stored_features import StoredDataset

Validate = Callable[[Embedder], dict[str, float]]
Survey = Callable[[], tuple[Tensor, Tensor]]


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best_value: float | None = None
    best_epoch: int | None = None
    bad_epochs: int = 0
    finished: bool = False
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains an embedder with a base loss and methods on the rows of ``dataset``.

    Args:
        config: the whole configuration.
        embedder: the model; trained in place.
        loss: the base loss.
        dataset: the training rows only.
        sampler: yields the row numbers of each batch of this process.
        out: the run folder; checkpoints go to ``out/checkpoint``.
        fabric: a launched Fabric.
        validate: measures the model on the validation classes; None keeps the last epoch.
        methods: plug-ins.
        survey: embeds the whole training set, (n, D) before normalisation in evaluation mode, and gives its labels; for
            methods that start from it.
        reporter: hears of progress.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        loss: nn.Module,
        *,
        dataset: ImageDataset | StoredDataset,
        sampler: MPerClass | Shuffled,
        out: Path,
        fabric: Fabric,
        validate: Validate | None = None,
        methods: Sequence[Method] = (),
        survey: Survey | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.config = config
        self.embedder = embedder
        self.loss = loss
        self.dataset = dataset
        self.sampler = sampler
        self.folder = out / "checkpoint"
        self.out = out
        self.fabric = fabric
        self.validate = validate
        self.reporter = reporter or Silent()
        self.progress = Progress()
        self.methods = list(methods)
        self.survey = survey
        self.whole = TrainingStep(embedder, loss, methods, entry=dataset.stage, steps_per_epoch=sampler.steps_per_epoch)
        # Groups are built before the warm-up stops any gradient, so that every trainable parameter is accounted for.
        self.groups = parameter_groups(embedder, loss, config.optim, methods=methods)
        self._trunk_parameters = [p for p in embedder.trunk_parameters() if p.requires_grad]
        self.module, self.optimizer = fabric.setup(self.whole, make_optimizer(self.groups, config.optim))
        self.average = WeightAverage(embedder, decay=config.train.ema) if config.train.ema else None

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps an epoch."""
        return self.sampler.steps_per_epoch

    def run(self, *, resume: bool = True) -> Progress:
        """Train to the end, from the latest checkpoint if there is one and ``resume`` is set.

        Returns:
            Where the run ended; the chosen weights are in the embedder.

        Raises:
            TrainingError: the loss became NaN or infinite, or the checkpoint does not fit.
            ImageError: a picture cannot be read.
        """
        resumed = resume and self._load()
        if not resumed:
            self._survey_for([method for method in self.methods if method.needs.start], refresh=False)
        for group in self.groups:
            size = sum(parameter.numel() for parameter in group["params"])
            self.reporter.say(f"{group['name']}: {size:,} parameters at learning rate {group['base_lr']:g}")
        log = self._open_log(resume_step=self.progress.step if resumed else None)
        epochs = self.config.train.epochs
        self.reporter.start("train", epochs * self.steps_per_epoch, done=self.progress.step)
        loader = self._loader()
        try:
            while not self.progress.finished and self.progress.epoch < epochs:
                self._train_epoch(loader, log)
                self._end_epoch(log)
        finally:
            if log is not None:
                log.close()
            loader.close()
            self.reporter.finish("train")
        self._finish()
        return self.progress

    def _train_epoch(self, loader: ImageLoader, log: RunLog | None) -> None:
        progress, config = self.progress, self.config
        self.sampler.set_epoch(progress.epoch)
        self.sampler.start(progress.step_in_epoch)
        self.dataset.set_epoch(progress.epoch)
        if progress.epoch and not progress.step_in_epoch:
            due = [
                one
                for one in self.methods
                if one.needs.refresh_epochs and not progress.epoch % one.needs.refresh_epochs
            ]
            self._survey_for(due, refresh=True)
        self.module.train()
        self._warm_up(progress.epoch < config.optim.warmup_epochs)
        began, seen = time.perf_counter(), 0
        last = began
        for rows in loader:
            terms = self._train_step(rows)
            progress.step += 1
            progress.step_in_epoch += 1
            seen += self.sampler.batch_size
            now = time.perf_counter()
            progress.seconds, last = progress.seconds + now - last, now
            rate = seen / (now - began)
            self.reporter.advance("train", 1, note=f"loss {sum(terms.values()):.3f}  {rate:.0f} images/s")
            if log is not None:
                rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
                log.write(
                    {
                        "step": progress.step,
                        "epoch": progress.epoch,
                        "loss": sum(terms.values()),
                        "terms": terms,
                        **self._reports(),
                        "lr": rates,
                        "images_per_s": round(rate, 1),
                    }
                )
            if (
                progress.step_in_epoch % config.train.checkpoint_steps
                == 0
                < self.steps_per_epoch - progress.step_in_epoch
            ):
                self._save()

    def _train_step(self, rows: LoadedBatch) -> dict[str, float]:
        """One optimiser step; weights are untouched when the loss is not finite."""
        progress, config = self.progress, self.config
        self._set_rates()
        # Dropout draws from torch's own generator; tying it to the step makes resuming exact without saving it.
        torch.manual_seed(derive_seed(config.seed, "step", progress.step, self.fabric.global_rank))
        parts = config.train.accumulate
        total: dict[str, float] = {}
        batches = list(self._parts(rows, parts))
        for number, batch in enumerate(batches):
            share = len(batch.labels) / len(rows["label"])
            with self.fabric.no_backward_sync(self.module, enabled=number < len(batches) - 1):
                done = progress.step / max(config.train.epochs * self.steps_per_epoch, 1)
                seed = derive_seed(config.seed, "methods", progress.step, number)
                terms: dict[str, Tensor] = self.module(batch, progress.epoch, done, seed)
                values = {name: value.item() for name, value in terms.items()}
                check_finite(values, progress.step + 1)
                self.fabric.backward(torch.stack(list(terms.values())).sum() * share)
            for name, value in values.items():
                total[name] = total.get(name, 0.0) + value * share
        if config.optim.clip_norm is not None:  # one call a step: under 16-mixed each call unscales the gradients
            norm = config.optim.clip_norm
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=norm, error_if_nonfinite=False)
        elif config.optim.clip_value is not None:
            self.fabric.clip_gradients(self.module, self.optimizer, clip_val=config.optim.clip_value)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.whole.look_back()
        if self.average is not None:
            self.average.update(self.embedder)
        return total

    def _parts(self, rows: LoadedBatch, parts: int) -> Iterator[Batch]:
        device = self.fabric.device
        count = math.ceil(len(rows["label"]) / parts)
        for start in range(0, len(rows["label"]), count):
            share = slice(start, start + count)
            entering = rows["image"][share].to(device)
            stage = self.dataset.stage
            if stage == PIXEL:
                entering = self.embedder.preprocess.normalize(entering)
                size = (int(entering.shape[2]), int(entering.shape[3]))
            else:
                entering, size = entering.float(), None
            yield Batch(
                features=self.embedder.stage_features(stage, entering, size=size),
                labels=rows["label"][share].to(device),
                domains=rows["domain"][share].to(device),
                ids=rows["id"][share].to(device),
            )

    def _reports(self) -> dict[str, dict[str, float]]:
        found = {f"{type(one).__name__}.{key}": value for one in self.methods for key, value in one.report().items()}
        return {"methods": found} if found else {}

    @torch.no_grad()
    def _survey_for(self, methods: Sequence[Method], *, refresh: bool) -> None:
        """Show the whole training set to the methods that asked for it."""
        if not methods:
            return
        if self.survey is None:
            names = " and ".join(type(method).__name__ for method in methods)
            raise TrainingError(f"{names} must see the whole training set; build the Trainer with survey=...")
        raw, labels = self.survey()
        device = self.fabric.device
        start = Start(raw.to(device), labels.to(device), self.loss, self.embedder.head)
        for method in methods:
            if refresh:
                method.refresh(start)
            else:
                method.start(start)

    def _set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            factor = rate_factor(
                group["name"],
                self.progress.step,
                steps_per_epoch=self.steps_per_epoch,
                epochs=self.config.train.epochs,
                optim=self.config.optim,
            )
            group["lr"] = group["base_lr"] * factor

    def _warm_up(self, warming: bool) -> None:
        """During the warm-up the trunk needs no gradients, which makes these epochs about three times faster."""
        for parameter in self._trunk_parameters:
            parameter.requires_grad_(not warming)

    def _end_epoch(self, log: RunLog | None) -> None:
        """Measure on the validation classes, keep the best weights, decide whether to stop."""
        progress, config = self.progress, self.config
        epoch = progress.epoch
        record: dict[str, Any] = {"step": progress.step, "epoch": epoch}
        if self.validate is not None:
            values = self._measure()
            record["val"] = values
            if config.train.select != "last":
                self._choose(values[config.train.select], epoch)
                record["best"] = progress.best_epoch == epoch
            shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            self.reporter.say(f"epoch {epoch + 1}/{config.train.epochs}: validation {shown}")
        progress.history.append(record)
        progress.epoch += 1
        progress.step_in_epoch = 0
        patience = config.train.patience
        progress.finished = progress.epoch >= config.train.epochs or (
            patience is not None and progress.bad_epochs >= patience
        )
        if log is not None:
            log.write(record)
        self._save()

    def _measure(self) -> dict[str, float]:
        assert self.validate is not None
        if self.average is None:
            return self.validate(self.embedder)
        with self.average.applied_to(self.embedder):
            return self.validate(self.embedder)

    def _choose(self, value: float, epoch: int) -> None:
        progress = self.progress
        if progress.best_value is not None and not value > progress.best_value:
            progress.bad_epochs += 1
            return
        progress.best_value, progress.best_epoch, progress.bad_epochs = value, epoch, 0
        if self.fabric.is_global_zero:
            ckpt.save_tensors(self.folder / "best.safetensors", self._model_tensors())

    def _model_tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = dict(self.embedder.state_dict())
        if self.average is not None:
            tensors.update(self.average.shadow)
        return tensors

    def _finish(self) -> None:
        """Leave the chosen weights in the embedder."""
        self._warm_up(False)
        best = self.folder / "best.safetensors"
        if self.config.train.select != "last" and self.progress.best_epoch is not None:
            self.fabric.barrier()
            ckpt.load_module(self.embedder, ckpt.load_tensors(best))
        elif self.average is not None:
            self.embedder.load_state_dict(self.average.shadow, strict=False)

    def _save(self) -> None:
        self.fabric.barrier()
        if not self.fabric.is_global_zero:
            return
        tensors = ckpt.with_prefix("model", self.embedder.state_dict())
        tensors |= ckpt.with_prefix("loss", self.loss.state_dict())
        tensors |= ckpt.with_prefix("methods", self.whole.methods.state_dict())
        bad = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
        if bad:
            raise TrainingError(
                f"Non-finite weights after step {self.progress.step} ({bad[0]}); the last finite checkpoint is kept. "
                "Lower optim.lr or optim.proxy_lr_mult, or set optim.clip_norm=1."
            )
        tensors |= ckpt.with_prefix("optimizer", ckpt.flatten_optimizer(self._plain_optimizer()))
        if self.average is not None:
            tensors |= ckpt.with_prefix("average", self.average.shadow)
        facts = {"progress": {**vars(self.progress)}, "seed": self.config.seed}
        ckpt.save_checkpoint(self.folder, tensors, facts, step=self.progress.step)

    def _load(self) -> bool:
        loaded = ckpt.load_checkpoint(self.folder)
        if loaded is None:
            return False
        tensors, facts = loaded
        if facts["seed"] != self.config.seed:
            raise TrainingError(
                f"The checkpoint in {self.folder} was written with seed={facts['seed']} and this run has "
                f"seed={self.config.seed}; use that seed, another --out, or --restart."
            )
        ckpt.load_module(self.embedder, ckpt.under_prefix("model", tensors))
        ckpt.load_module(self.loss, ckpt.under_prefix("loss", tensors))
        ckpt.load_module(self.whole.methods, ckpt.under_prefix("methods", tensors))
        ckpt.restore_optimizer(self._plain_optimizer(), ckpt.under_prefix("optimizer", tensors))
        if self.average is not None:
            shadow = ckpt.under_prefix("average", tensors)
            self.average.shadow = {name: value.to(self.fabric.device) for name, value in shadow.items()}
        self.progress = Progress(**facts["progress"])
        return True

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        assert isinstance(inner, torch.optim.Optimizer)
        return inner

    def _open_log(self, resume_step: int | None) -> RunLog | None:
        if not self.fabric.is_global_zero:
            return None
        return RunLog(self.out, tensorboard=self.config.train.tensorboard, resume_step=resume_step)

    def _loader(self) -> ImageLoader:
        data = self.config.data
        workers = data.workers if self.dataset.stage == PIXEL else 0  # mapped features need no decoding
        return make_loader(self.dataset, self.sampler, workers=workers, context=start_method(data.worker_start))
