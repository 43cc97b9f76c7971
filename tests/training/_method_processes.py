"""Run in two processes: terms, gradients and buffers of every method, to the folder given."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from proxemics.core.ranks import rank, share_of, world_size
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Start
from proxemics.methods.build import Shapes, build_methods
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

CASES: dict[str, dict[str, dict[str, object]]] = {
    "see": {"see": {"num_synthetic": 4, "rho_min": 0.4}},
    "el_nivmf": {"probabilistic": {"temperature": 0.1}},
    "odba": {"odba": {"atoms": 8, "lambda_b": 1.0}},
    "odba_class": {"odba": {"atoms": 4, "update_gate": "class", "extract_gate": "profile", "orth_proxies": True}},
    "odba_finer": {"odba": {"atoms": 4, "gate_stage": "stage2", "estimator": "nwgm"}},
    "odba_exchange": {"odba": {"atoms": 4, "estimator": "exchange", "lambda_b": 1.0}},
    "msrci": {"msrci": {"lambda_a": 0.5}},
    "msrci_half": {"msrci": {"layer": "pixel", "fraction": 0.5, "mode": "swap", "lambda_a": 1.0}},
    "couce": {"couce": {"odba": {"atoms": 8}}},
    "center_polar": {"center_polar": {}},
    "center_polar_style": {"center_polar": {"expander": "style", "inner_steps": 2}},
    "expansion_equalisation": {"expansion_equalisation": {}},
    "all": {
        "see": {"num_synthetic": 4, "rho_min": 0.4},
        "probabilistic": {},
        "couce": {"odba": {"atoms": 8}},
        "center_polar": {"expander": "style"},
    },
}
CLASSES, DIM, SIDE = 5, 16, 32
STEPS = 12


def outcome(name: str, *, trunk: str = "test_resnet") -> dict[str, Tensor]:
    """Some steps, enough to seed a dictionary; gradients are averaged over processes as data-parallel training does."""
    embedder = Embedder(trunk, dim=DIM, weights="none", size=SIDE)
    loss = build_loss("proxy_anchor", CLASSES, DIM, {}, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    methods = build_methods(CASES[name], Shapes(CLASSES, DIM))
    step = TrainingStep(embedder, loss, methods).train()
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    raw = torch.randn(20, DIM, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        for method in methods:
            if method.needs.start:
                method.start(Start(raw, torch.arange(20) % CLASSES, loss, embedder.head))
    found: dict[str, Tensor] = {}
    for number in range(STEPS):
        step.zero_grad()
        images = torch.randn(8, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(number))
        own = share_of(labels)
        none = torch.zeros_like(own)
        terms = step(Batch(embedder.stage_features("pixel", share_of(images)), own, none, none), 6, 0.5, number)
        torch.stack(list(terms.values())).sum().backward()
        step.look_back()
        if number < STEPS - 1:
            continue
        found |= {f"term.{key}": value.detach().clone() for key, value in terms.items()}
        for key, parameter in step.named_parameters():
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                if world_size() > 1:
                    dist.all_reduce(gradient)
                    gradient /= world_size()
                found[f"gradient.{key}"] = gradient.contiguous()
    found |= {f"buffer.{key}": value.clone() for key, value in step.methods.state_dict().items()}
    return found


def main() -> None:
    dist.init_process_group("gloo")
    for name in CASES:
        save_file(outcome(name), str(Path(sys.argv[1]) / f"{name}-{rank()}.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
