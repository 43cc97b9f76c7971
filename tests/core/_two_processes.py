"""Run by torchrun in two processes: writes the gradients of every loss on gathered rows to the folder given."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from proxemics.core.ranks import gather_rows, rank, world_size
from proxemics.losses.build import LOSSES, build_loss


def fixture(name: str) -> tuple[torch.nn.Linear, torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    trunk = torch.nn.Linear(6, 8)
    loss = build_loss(name, 5, 8, {})
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(12, 6, generator=generator)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 3])
    return trunk, loss, inputs, labels


def gradients(name: str) -> dict[str, torch.Tensor]:
    """Loss value and gradients, averaged over processes as data-parallel training does."""
    trunk, loss, inputs, labels = fixture(name)
    share = slice(rank() * 12 // world_size(), (rank() + 1) * 12 // world_size())
    rows = gather_rows(trunk(inputs[share]))
    value = loss(rows, gather_rows(labels[share]))
    value.backward()
    found = {"value": value.detach().clone()}
    for key, parameter in [*trunk.named_parameters(prefix="trunk"), *loss.named_parameters(prefix="loss")]:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if world_size() > 1:
            dist.all_reduce(gradient)
            gradient /= world_size()
        found[key] = gradient.contiguous()
    return found


def main() -> None:
    dist.init_process_group("gloo")
    for name in LOSSES:
        save_file(gradients(name), str(Path(sys.argv[1]) / f"{name}-{rank()}.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
