"""Run in two processes: seven pictures in uneven shares, one of them in both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from proxemics.core.errors import EvaluationError
from proxemics.core.ranks import rank
from proxemics.evaluation.callback import Collector

BATCHES = ([[0, 2], [4]], [[1, 3], [5, 0], [6]])


def main() -> None:
    """Write what this process finds."""
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(7) % 3 + 2**40
    centres = torch.randn(3, 6, generator=generator)[torch.arange(7) % 3]
    points = centres + torch.randn(7, 6, generator=generator)
    collector = Collector(recall_at=(1, 2))
    for rows in map(torch.tensor, BATCHES[rank()]):
        collector.add(points[rows], labels[rows], rows)
    found = collector.evaluate()
    if rank() == 0:  # a process may have no batch at all
        collector.add(points, labels, torch.arange(7))
    assert dict(collector.evaluate()) == dict(found)
    refused = ""
    collector.add(points, labels)
    try:
        collector.evaluate()
    except EvaluationError as error:
        refused = str(error)
    answer = {"metrics": dict(found), "queries": found.num_queries, "refused": refused}
    (Path(sys.argv[1]) / f"{rank()}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
