"""Time one loss step (forward and backward, float32, batch 180, 512-d) against pytorch-metric-learning and bare GEMMs.

The floor is the three matrix products that any proxy loss needs: z Wᵀ, G W and Gᵀ z.
Writes benchmarks/results/losses.json. Usage: ``python benchmarks/losses.py [--rounds 5] [--classes 100 11318]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _measure import RESULTS, Task, compare, describe, one_thread, row, write_results
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from proxemics import losses as ours

BATCH, DIM, CENTERS = 180, 512, 10

OURS: dict[str, Callable[[int], nn.Module]] = {
    "proxy_anchor": lambda c: ours.ProxyAnchor(c, DIM),
    "proxy_nca": lambda c: ours.ProxyNCAPlusPlus(c, DIM),
    "norm_softmax": lambda c: ours.NormSoftmax(c, DIM),
    "arcface": lambda c: ours.ArcFace(c, DIM),
    "cosface": lambda c: ours.CosFace(c, DIM),
    "soft_triple": lambda c: ours.SoftTriple(c, DIM, centers=CENTERS, tau=0.0),
    "soft_triple_regularised": lambda c: ours.SoftTriple(c, DIM, centers=CENTERS),
    "pd_loss": lambda c: ours.PDLoss(c, DIM),
}

# pytorch-metric-learning's ProxyNCALoss keeps the own class in the denominator, which is ProxyNCA++; its SoftTriple has
# no regulariser by default, and the optional one builds a (CK, CK) table, so that row has no peer.
PEERS: dict[str, Callable[[int], nn.Module]] = {
    "proxy_anchor": lambda c: pml.ProxyAnchorLoss(c, DIM),
    "proxy_nca": lambda c: pml.ProxyNCALoss(c, DIM, softmax_scale=9),
    "norm_softmax": lambda c: pml.NormalizedSoftmaxLoss(c, DIM),
    "arcface": lambda c: pml.ArcFaceLoss(c, DIM),
    "cosface": lambda c: pml.CosFaceLoss(c, DIM),
    "soft_triple": lambda c: pml.SoftTripleLoss(c, DIM, centers_per_class=CENTERS),
}


def make_task(build: Callable[[int], nn.Module], classes: int, proxies: int) -> Task:
    torch.manual_seed(0)
    loss = build(classes)
    embeddings = torch.randn(BATCH, DIM, requires_grad=True)
    labels = torch.arange(BATCH) // 2 * 7919 % classes
    weights = next(loss.parameters()).detach()
    weights = weights.reshape(-1, DIM) if weights.shape[-1] == DIM else weights.t()
    rows, table = embeddings.detach(), torch.ones(BATCH, proxies)

    def step() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()

    def floor() -> tuple[Tensor, Tensor, Tensor]:
        return rows @ weights.t(), table @ weights, table.t() @ rows

    return Task(step, floor, repeats=max(3, 20_000 // proxies) if proxies < 50_000 else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 11318])
    parser.add_argument("--losses", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--large", action="store_true", help="also two losses at 100,000 classes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    one_thread()
    runs = [(classes, name) for classes in arguments.classes for name in arguments.losses]
    if arguments.large:
        runs += [(100_000, "proxy_anchor"), (100_000, "norm_softmax")]
    rows = []
    for classes, name in runs:
        proxies = classes * (CENTERS if name.startswith("soft_triple") else 1)
        tasks = {"ours": partial(make_task, OURS[name], classes, proxies)}
        if name in PEERS:
            tasks["pytorch-metric-learning"] = partial(make_task, PEERS[name], classes, proxies)
        rows.append(row(f"loss_{name}_{BATCH}x{DIM}_c{classes}", compare(tasks, arguments.rounds)))
        print(describe(rows[-1]), flush=True)
    packages = ["proxemics", "torch", "pytorch-metric-learning"]
    print("written:", write_results("losses", rows, packages, arguments.out))


if __name__ == "__main__":
    main()
