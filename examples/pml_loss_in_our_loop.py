"""A loss of pytorch-metric-learning in the training loop of Proxemics: by its name, with its options.

    pip install "proxemics[train,demo]" pytorch-metric-learning
    python examples/pml_loss_in_our_loop.py --loss MultiSimilarityLoss

The run folder is that of any other run: resumable, with `config.yaml`, bundle and `result.json`. On the command line
it is ``proxemics train table.csv --set loss.name=pml.MultiSimilarityLoss``.
"""

import argparse
from pathlib import Path
from typing import Any

from proxemics import fit, make_config
from proxemics.data.confounded import ConfoundedSpec, write

OPTIONS: dict[str, dict[str, float]] = {
    "ProxyAnchorLoss": {"alpha": 32, "margin": 0.1},
    "MultiSimilarityLoss": {"alpha": 2, "beta": 50, "base": 0.5},
}


def main(loss: str, folder: Path, *, epochs: int = 4, classes: int = 40, size: int = 64) -> dict[str, Any]:
    """Train on glyphs and return what `result.json` holds."""
    spec = ConfoundedSpec(train_classes=classes, test_classes=classes, per_class=10, size=size, rho=0)
    table = write(spec, folder / "pictures")
    config = make_config(
        {
            "data": {"source": str(table), "size": size, "cache": "features"},
            "model": {"trunk": "tf_efficientnet_lite0", "dim": 128, "freeze_stages": 3},
            "loss": {"name": f"pml.{loss}", "options": OPTIONS.get(loss, {})},
            "methods": {"see": {"num_synthetic": 4}} if loss == "ProxyAnchorLoss" else {},
            "optim": {"lr": 5e-4, "warmup_epochs": 0},
            "train": {"epochs": epochs, "batch_size": 32, "per_class": 4, "select": "last", "tensorboard": False},
            "evaluation": {"recall_at": [1, 2, 4, 8], "bootstrap": 100},
        }
    )
    return fit(config, folder / loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loss", default="ProxyAnchorLoss", help="a class of pytorch_metric_learning.losses")
    parser.add_argument("--out", type=Path, default=Path("runs/pml"))
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    trained, untrained = main(args.loss, args.out, epochs=args.epochs)["rows"]
    for row in (untrained, trained):
        print(f"{row['base']} {row['method']}: Recall@1 {row['metrics']['recall_at_1']:.3f} on unseen classes")
