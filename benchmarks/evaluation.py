"""Time six retrieval metrics in one call against pytorch-metric-learning and the bare matrix product.

Recall@1, @10, @100, @1000, MAP@R and R-Precision of N unit vectors in 512 dimensions, each the query of all others. The
floor is the N x N float32 product in tiles that stay in cache. Writes benchmarks/results/evaluation.json.
Usage: ``python benchmarks/evaluation.py [--rounds 5] [--only NAME]``. The large set takes minutes and gigabytes (the
peer's), so it runs one round unless told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import RESULTS, Sample, describe, one_thread, row, write_results
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from proxemics.evaluation import evaluate_embeddings

DIM = 512
KS = (1, 10, 100, 1000)
NAMES = [*(f"recall_at_{k}" for k in KS), "map_at_r", "r_precision"]
PEER_NAMES = {"map_at_r": "mean_average_precision_at_r"}
SETS: dict[str, tuple[int, int, int, int, float, int]] = {
    # images, classes, smallest and largest class, noise, rounds: sizes of the SOP and of the CUB test set
    "evaluation_60502x512": (60_502, 11_316, 2, 12, 2.5, 1),
    "evaluation_5924x512": (5_924, 100, 40, 95, 3.5, 5),
}


def make_data(images: int, classes: int, low: int, high: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Class centres plus noise, on the sphere; class sizes between ``low`` and ``high`` that sum to ``images``."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(low, high + 1, size=classes)
    while sizes.sum() != images:
        step = 1 if sizes.sum() < images else -1
        some = rng.permutation(classes)[: abs(images - int(sizes.sum()))]
        sizes[some] = np.clip(sizes[some] + step, low, high)
    labels = rng.permutation(np.repeat(np.arange(classes), sizes))
    centres = rng.standard_normal((classes, DIM), dtype=np.float32)
    points = centres[labels] + np.float32(noise) * rng.standard_normal((images, DIM), dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return torch.from_numpy(points), torch.from_numpy(labels)


class SixMetrics(AccuracyCalculator):
    """pytorch-metric-learning has no Recall@k beyond Precision@1; this adds it in its own manner."""

    def requires_knn(self) -> list[str]:
        """Ask for neighbours for Recall@k, too."""
        return [*super().requires_knn(), *(f"recall_at_{k}" for k in KS)]


def _recall(k: int) -> Callable[..., float]:
    def calculate(
        self: SixMetrics,
        knn_labels: torch.Tensor,
        query_labels: torch.Tensor,
        not_lone_query_mask: torch.Tensor,
        label_comparison_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        **_: Any,
    ) -> float:
        hit = label_comparison_fn(query_labels[not_lone_query_mask][:, None], knn_labels[not_lone_query_mask][:, :k])
        return float(hit.any(dim=1).double().mean())

    return calculate


for _k in KS:
    setattr(SixMetrics, f"calculate_recall_at_{_k}", _recall(_k))


def ours(points: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    result = evaluate_embeddings(points, labels, recall_at=KS)
    return {name: result[name] for name in NAMES}


def peer(points: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    calculator = SixMetrics(
        include=("mean_average_precision_at_r", "r_precision", *(f"recall_at_{k}" for k in KS)),
        k=min(KS[-1], len(points) - 1),
        knn_func=CustomKNN(CosineSimilarity(), batch_size=512),
    )
    values = calculator.get_accuracy(points, labels)
    return {name: float(values[PEER_NAMES.get(name, name)]) for name in NAMES}


IMPLEMENTATIONS = {"ours": ours, "pytorch-metric-learning": peer}


def _cpu(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _floor(images: int) -> float:
    """CPU seconds of the whole product, from tiles that take about a second."""
    left, right, out = torch.randn(512, DIM), torch.randn(4096, DIM), torch.empty(512, 4096)
    torch.mm(left, right.T, out=out)
    tiles = 30
    return _cpu(lambda: [torch.mm(left, right.T, out=out) for _ in range(tiles)]) / tiles * images**2 / out.numel()


def _status_mb(key: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0]) / 1024


def _child(run: Callable[..., dict[str, float]], name: str, sender: Connection) -> None:
    points, labels = make_data(*SETS[name][:5])
    run(points[:2048], labels[:2048] // 8)  # what is imported and set up once is not part of the task
    before = _floor(len(points))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is loaded now
    start = _status_mb("VmRSS")
    values: dict[str, float] = {}
    cpu = _cpu(lambda: values.update(run(points, labels)))
    growth = _status_mb("VmHWM") - start
    sender.send((Sample(cpu, (before + _floor(len(points))) / 2, growth), values))


def measure(name: str, implementation: str) -> tuple[Sample, dict[str, float]]:
    """One run in a process of its own."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(IMPLEMENTATIONS[implementation], name, sender))
    process.start()
    sender.close()
    answer: tuple[Sample, dict[str, float]] = receiver.recv()
    process.join()
    return answer


def main() -> None:
    """Run the benchmark."""
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="runs of each implementation; 5 for the small set, 1 for the large")
    parser.add_argument("--only", choices=list(SETS), help="one set")
    parser.add_argument("--no-peers", action="store_true", help="time ours alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in [options.only] if options.only else list(SETS):
        samples: dict[str, list[Sample]] = {key: [] for key in IMPLEMENTATIONS if key == "ours" or not options.no_peers}
        values: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds or SETS[name][5]):
            for key in samples:
                sample, values[key] = measure(name, key)
                samples[key].append(sample)
        result = row(name, samples)
        result["values"] = values["ours"]
        result["largest_difference"] = max(
            (abs(other[metric] - values["ours"][metric]) for other in values.values() for metric in NAMES), default=0.0
        )
        rows.append(result)
        print(describe(result))
        print(f"  {values['ours']}, peers differ by at most {result['largest_difference']:.1e}")
    print("written to", write_results("evaluation", rows, ("torch", "numpy", "pytorch-metric-learning"), options.out))


if __name__ == "__main__":
    main()
