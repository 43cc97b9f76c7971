"""Run in two processes: writes terms, gradients and buffers of two steps of each method to a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from proxemics.core.ranks import rank, world_size
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Start
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

METHODS = {
    "generator": lambda: CenterPolar(5, 16, inner_lr=0.05),
    "style": lambda: CenterPolar(5, 16, expander="style", inner_steps=2, centroid="joint"),
    "embedding": lambda: CenterPolar(5, 16, expander="embedding", centroid="batch"),
    "equalisation": lambda: ExpansionEqualisation(5, 16, align="kl", inner_lr=0.05),
}


def outcome(name: str) -> dict[str, torch.Tensor]:
    """Take two steps without an optimiser; gradients are averaged over processes as data-parallel training does."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(8, 3, 64, 64, generator=generator) - 0.5, torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    embedder = Embedder("test_resnet", dim=16, weights="none", size=64).train()
    loss = build_loss("norm_softmax", 5, 16, {}, generator=torch.Generator().manual_seed(0))
    method: Method = METHODS[name]()
    with torch.no_grad():
        method.start(Start(embedder.encode(images).raw, labels, loss, None))
    whole = TrainingStep(embedder, loss, [method])
    share = slice(rank() * 8 // world_size(), (rank() + 1) * 8 // world_size())
    nothing = torch.zeros_like(labels)[share]
    found = {}
    for number in range(2):
        features = embedder.stage_features("pixel", images[share], size=(64, 64))
        terms = whole(Batch(features, labels[share], nothing, nothing), number + 1, 0.5, number)
        torch.stack(list(terms.values())).sum().backward()
        whole.look_back()
        found |= {f"term {number} {key}": value.detach().clone() for key, value in terms.items()}
    for key, parameter in [*embedder.named_parameters(), *loss.named_parameters()]:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if world_size() > 1:
            dist.all_reduce(gradient)
            gradient /= world_size()
        found[f"gradient {key}"] = gradient.contiguous()
    return found | {f"buffer {key}": value.clone() for key, value in method.state_dict().items()}


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name in METHODS:
        save_file(outcome(name), str(Path(sys.argv[1]) / f"{name}-{rank()}.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
