"""Run in two processes: embeds five pictures on all processes and writes what each of them got to the folder given."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from lightning_fabric import Fabric

from proxemics.core.config import make_config
from proxemics.models.embedder import Embedder
from proxemics.training.log import Silent
from proxemics.training.shards import embed_rows_with_certainty


def main() -> None:
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    config = make_config({}, ["data.workers=0"])
    fabric = Fabric(accelerator="cpu", devices=processes, strategy="ddp")
    fabric.launch()
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64)
    rows = pd.DataFrame({"path": sorted(str(path) for path in folder.glob("*.png"))})
    found = embed_rows_with_certainty(
        config, embedder, rows, fabric=fabric, cache=None, reporter=Silent(), task="embed"
    )
    np.savez(folder / f"of-{fabric.global_rank}.npz", units=found[0], kappa=found[1])


if __name__ == "__main__":
    main()
