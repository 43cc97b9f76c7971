"""Retrieval metrics on validation classes at the end of each epoch of a Lightning run.

    pip install "proxemics[train,demo]" "lightning!=2.6.2,!=2.6.3"
    python examples/lightning_callback.py

`RetrievalCallback` collects what ``validation_step`` returns, searches the validation classes among themselves and logs
``val/recall_at_1``, ``val/map_at_r`` and so on, which checkpoints and early stopping can monitor.
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from proxemics.data.confounded import ConfoundedSpec, render
from proxemics.evaluation.callback import RetrievalCallback
from proxemics.losses import ProxyAnchor
from proxemics.models import Embedder


class MetricLearner(LightningModule):
    """An embedder with a proxy loss."""

    def __init__(self, classes: int, *, dim: int, size: int) -> None:
        super().__init__()
        self.model = Embedder("tf_efficientnet_lite0", dim=dim, size=size, freeze_stages=3)
        self.loss = ProxyAnchor(classes, dim)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        value: Tensor = self.loss(self.model.encode(images).raw, labels)
        self.log("loss", value, on_step=False, on_epoch=True)
        return value

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return what the callback needs; with several processes also the number of each picture, as ``ids``."""
        images, labels = batch
        return {"embeddings": self.model(images), "labels": labels}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Proxies learn a hundred times faster than the trunk."""
        groups = [{"params": self.model.parameters()}, {"params": self.loss.parameters(), "lr": 0.05}]
        return torch.optim.AdamW(groups, lr=5e-4)


def main(epochs: int, folder: Path, *, classes: int = 40, size: int = 64) -> tuple[dict[str, float], dict[str, float]]:
    """Train and return what the callback logged of the untrained model and after the last epoch."""
    spec = ConfoundedSpec(train_classes=classes, test_classes=classes, per_class=10, size=size, rho=0)
    arrays, _, table = render(spec)
    module = MetricLearner(classes, dim=128, size=size)
    pictures = module.model.preprocess.normalize(torch.from_numpy(arrays).permute(0, 3, 1, 2))
    labels, seen = torch.tensor(table["label"].factorize()[0]), (table["split"] == "train").to_numpy(copy=True)
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(pictures[seen], labels[seen]), 32, shuffle=True, drop_last=True)
    unseen = DataLoader(TensorDataset(pictures[~seen], labels[~seen]), 100)
    callback = RetrievalCallback(recall_at=(1, 2, 4))
    best = ModelCheckpoint(folder, monitor="val/map_at_r", mode="max")
    trainer = Trainer(
        max_epochs=epochs, callbacks=[callback, best], accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0,
    )  # fmt: skip
    (untrained,) = trainer.validate(module, unseen, verbose=False)
    trainer.fit(module, train, unseen)
    return dict(untrained), {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    args = parser.parse_args()
    before, after = main(args.epochs, args.out)
    for name, found in (("untrained", before), ("trained", after)):
        print(f"{name}: Recall@1 {found['val/recall_at_1']:.3f} on unseen classes")
