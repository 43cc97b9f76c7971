"""Run in two processes: terms, gradients and buffers of CouCE over shares of one batch, into the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from proxemics.core.ranks import share_of, world_size
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch
from proxemics.methods.couce import MSRCI, ODBA, CouCE
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

CASES: dict[str, dict[str, object]] = {
    "half": {"fraction": 0.5, "mode": "swap"},
    "layers": {"layer": ("layer1", "layer3"), "foreground_only": True},
    "scale": {"mode": "scale", "layer": "pixel", "top_negatives": 2},
}


def outcome(case: str) -> dict[str, torch.Tensor]:
    """Two steps, the second with a dictionary that has just started."""
    embedder = Embedder("test_resnet", dim=16, weights="none", size=64)
    loss = build_loss("proxy_anchor", 5, 16, {}, generator=torch.Generator().manual_seed(0))
    msrci = MSRCI(**({"lambda_a": 0.5} | CASES[case]))  # type: ignore[arg-type]
    method = CouCE(16, odba=ODBA(16, atoms=6, start_epoch=0, update_gate="class"), msrci=msrci)
    method.odba.filled.copy_(torch.tensor([0, 9, 0]))
    step = TrainingStep(embedder, loss, [method])
    images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    labels, ids = torch.arange(8) % 3, torch.arange(8)
    found: dict[str, torch.Tensor] = {}
    for number in range(2):
        features = embedder.stage_features("pixel", share_of(images), size=(64, 64))
        batch = Batch(features, share_of(labels), torch.zeros_like(share_of(labels)), share_of(ids))
        terms = step(batch, 7, 0.5 + number / 10, number)
        torch.stack(list(terms.values())).sum().backward()
        step.look_back()
        found |= {f"{number}.{name}": value.detach().clone() for name, value in terms.items()}
    for name, parameter in step.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if world_size() > 1:
            dist.all_reduce(gradient)
            gradient /= world_size()
        found[name] = gradient.contiguous()
    found |= {name: value.contiguous() for name, value in method.state_dict().items()}
    return found


def main() -> None:
    dist.init_process_group("gloo")
    for case in CASES:
        save_file(outcome(case), str(Path(sys.argv[1]) / f"{case}-{dist.get_rank()}.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
