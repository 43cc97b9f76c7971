"""Forward and backward pass of a trunk in training, beside the same trunk with the library's own layers.

One batch of 32 through EfficientNet-Lite0 with resting batch norms, at the sizes people train with, and at 112 px from
the output of its frozen lower stages on, as the controlled study has it. The floor is the trunk as it is, timed in the
same process in turn, so ``over_floor`` below 1 is what :mod:`proxemics.models.training_pass` saves.
Writes benchmarks/results/training_pass.json. Usage: ``python benchmarks/training_pass.py [--rounds 3] [--only NAME]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from _measure import Task, compare, describe, one_thread, row, write_results

from proxemics.models import Embedder
from proxemics.models import embedder as embedder_module

BATCH = 32
ROWS = {"lite0_112_from_stage2": (112, 3), "lite0_112": (112, 0), "lite0_160": (160, 0), "lite0_224": (224, 0)}
"""Name: side in pixels and how many stages are frozen."""


def task(size: int, frozen: int) -> Task:
    """Make the trunk and a batch, and pass it with and without the redirected layers."""
    torch.manual_seed(0)
    embedder = Embedder("tf_efficientnet_lite0", dim=256, weights="none", freeze_stages=frozen, size=size).train()
    images = torch.randn(BATCH, 3, size, size)
    with torch.no_grad():
        features = embedder.features_at(images, "stage2" if frozen else "pixel")
    redirects = embedder_module.redirects

    def step(redirected: Callable[[torch.nn.Module], bool]) -> None:
        embedder.zero_grad()
        embedder_module.redirects = redirected
        encoded, _ = embedder.encode_from(features)
        encoded.unit[:, 0].sum().backward()

    return Task(partial(step, redirects), partial(step, lambda _: False), repeats=1, turns=3)


def main() -> None:
    """Run the benchmark."""
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(ROWS), action="append")
    options = parser.parse_args()
    rows = []
    for name in options.only or ROWS:
        rows.append(row(name, compare({"ours": partial(task, *ROWS[name])}, options.rounds)))
        print(describe(rows[-1]), flush=True)
    write_results("training_pass", rows, ("torch", "timm"))


if __name__ == "__main__":
    main()
