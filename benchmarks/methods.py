"""Time the methods: what each computes in a step, beside the least it could cost and the plain way to write it.

Every row is one entry of ROWS: a name and a function from it to the implementations that take turns. Floors:
six bare matrix products for the expected likelihood, a NormSoftmax step at 100 classes for the expansion, one pair of
transforms for the amplitudes, and the whole training step of the base run for the rows called ``step_``.
Writes benchmarks/results/methods.json. Usage: ``python benchmarks/methods.py [--rounds 5] [--only el_nivmf see ...]``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _measure import RESULTS, Task, compare, describe, one_thread, row, write_results
from torch import Tensor

from proxemics.losses import NormSoftmax
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Start
from proxemics.methods.build import Shapes, build_methods
from proxemics.methods.couce import ODBA, amplitude_randomization
from proxemics.methods.probabilistic import el_nivmf, sample_vmf, vmf_log_normalizer
from proxemics.methods.see_geometry import simplex, spherical_expansion
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

Tasks = dict[str, Callable[[], Task]]


def warm_heap() -> None:
    """Take and give back 30 MB, as any training step does: the allocator then keeps freed blocks for the next step."""
    torch.manual_seed(0)
    torch.empty(7_500_000).fill_(0)


# --- expected likelihood of nivMF densities: forward and backward, sampling included ----------------------------------

SAMPLES, BATCH, DIM = 5, 128, 512
Similarity = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]


def ours_el_nivmf(z: Tensor, mu: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    return el_nivmf(z, mu, kappa, num_samples=SAMPLES, temperature=0.1, centred=True, generator=generator)


def _mean_over_draws(log_density: Tensor) -> Tensor:
    return torch.logsumexp(log_density / 0.1, 0) - math.log(SAMPLES)


def _class_part(mu: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    unit = torch.nn.functional.normalize(mu, dim=-1)
    g = (kappa * unit).norm(dim=-1)
    prior = vmf_log_normalizer(g, mu.shape[1], centred=True) + torch.log(kappa).sum(-1) - g.log()
    return unit, prior - prior.detach().mean()


def broadcast_el_nivmf(z: Tensor, mu: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    """The formula as it stands, with a tensor over draws, images, classes and dimensions."""
    draws = sample_vmf(z, z.norm(dim=-1), SAMPLES, generator)
    unit, prior = _class_part(mu, kappa)
    moved = draws[:, :, None] * kappa
    cosines = torch.nn.functional.cosine_similarity(moved, kappa * unit, dim=-1)
    return _mean_over_draws(prior + (kappa * unit).norm(dim=-1) * cosines)


def autograd_el_nivmf(z: Tensor, mu: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    """Two matrix products, with the backward pass left to autograd."""
    draws = sample_vmf(z, z.norm(dim=-1), SAMPLES, generator)
    unit, prior = _class_part(mu, kappa)
    squared = kappa.square()
    cosines = draws @ (squared * unit).t() * torch.rsqrt(draws.square() @ squared.t())
    return _mean_over_draws(prior + cosines)


def el_nivmf_task(similarity: Similarity, classes: int, repeats: int) -> Task:
    warm_heap()
    z = (torch.randn(BATCH, DIM) * 14).requires_grad_()
    mu = torch.nn.functional.normalize(torch.randn(classes, DIM), dim=-1).requires_grad_()
    kappa = (18 + torch.randn(classes, DIM)).requires_grad_()
    labels, generator = torch.arange(BATCH) // 2 * 7919 % classes, torch.Generator().manual_seed(0)
    u, table = torch.randn(SAMPLES * BATCH, DIM), mu.detach()

    def step() -> None:
        z.grad = mu.grad = kappa.grad = None
        torch.nn.functional.cross_entropy(similarity(z, mu, kappa, generator), labels).backward()

    def floor() -> tuple[Tensor, ...]:
        """The six products, in the faster orientation, each result kept as long as it is needed."""
        numerator, denominator = table @ u.t(), table @ u.t()
        return numerator.t() @ table, denominator.t() @ table, numerator @ u, denominator @ u

    return Task(step, floor, repeats)


def el_nivmf_tasks(classes: int) -> Tasks:
    ways: dict[str, Similarity] = {"ours": ours_el_nivmf, "autograd": autograd_el_nivmf}
    if classes <= 100:
        ways["broadcast"] = broadcast_el_nivmf
    repeats = {"ours": 20, "autograd": 20, "broadcast": 1} if classes <= 100 else {"ours": 3, "autograd": 3}
    return {name: partial(el_nivmf_task, way, classes, repeats[name]) for name, way in ways.items()}


# --- draws ---------------------------------------------------------------------------------------------------------


def sampling_task(looped: bool) -> Task:
    warm_heap()
    mu, kappa = torch.randn(BATCH, DIM), torch.full((BATCH,), 320.0)
    generator = torch.Generator().manual_seed(0)

    def one_by_one() -> None:
        for i in range(BATCH):
            sample_vmf(mu[i : i + 1], kappa[i : i + 1], SAMPLES, generator)

    def at_once() -> None:
        sample_vmf(mu, kappa, SAMPLES, generator)

    return Task(one_by_one if looped else at_once, None, 2 if looped else 20)


def sampling_tasks() -> Tasks:
    return {"ours": partial(sampling_task, False), "image by image": partial(sampling_task, True)}


# --- spherical expansion: forward ------------------------------------------------------------------------------------

SEE_BATCH = 180


def qr_expansion(z: Tensor, w: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """One orthonormalisation a sample."""
    cosine = (z * w).sum(-1, keepdim=True)
    residual = z - cosine * w
    rho = residual.norm(dim=-1, keepdim=True)
    noise = torch.randn(len(z), z.shape[1], count - 1, generator=generator)
    columns, triangle = torch.linalg.qr(torch.cat([w[..., None], (residual / rho)[..., None], noise], 2))
    columns = columns * torch.diagonal(triangle, dim1=-2, dim2=-1).sign()[:, None]
    return cosine[..., None] * w[:, None] + rho[..., None] * (torch.tensor(simplex(count)) @ columns[..., 1:].mT)


def see_task(expand: Callable[[Tensor, Tensor, int, torch.Generator], Tensor], dim: int, count: int) -> Task:
    warm_heap()
    loss = NormSoftmax(100, dim)
    z = torch.nn.functional.normalize(torch.randn(SEE_BATCH, dim), dim=-1).requires_grad_()
    labels = torch.arange(SEE_BATCH) // 2 * 7919 % 100
    fixed, own, generator = z.detach(), loss.proxies.detach()[labels], torch.Generator().manual_seed(0)
    own = torch.nn.functional.normalize(own, dim=-1)

    def loss_step() -> None:
        z.grad = None
        loss.zero_grad(set_to_none=True)
        loss(z, labels).backward()

    return Task(lambda: expand(fixed, own, count, generator), loss_step, 30)


def see_tasks(dim: int, count: int) -> Tasks:
    return {
        "ours": partial(see_task, spherical_expansion, dim, count),
        "qr": partial(see_task, qr_expansion, dim, count),
    }


# --- amplitude randomisation: forward, 64 pictures of 224 px --------------------------------------------------------

PICTURES = (64, 3, 224, 224)


def ours_mix(x: Tensor, generator: torch.Generator, bands: int = 3) -> Tensor:
    edges = tuple(i / bands for i in range(bands + 1))
    return amplitude_randomization(x, bands=edges, eta=(1.0,) * bands, generator=generator)


def ours_scale(x: Tensor, generator: torch.Generator) -> Tensor:
    return amplitude_randomization(x, mode="scale", generator=generator)


def polar_mix(x: Tensor, generator: torch.Generator) -> Tensor:
    """The recipe as it is usually written: full spectrum, modulus and argument, one weight a picture."""
    spectrum = torch.fft.fft2(x, norm="ortho")
    modulus, argument = spectrum.abs(), spectrum.angle()
    share = torch.rand(len(x), 1, 1, 1, generator=generator)
    partners = torch.randperm(len(x), generator=generator)
    return torch.fft.ifft2(torch.polar(torch.lerp(modulus, modulus[partners], share), argument), norm="ortho").real


def amplitude_task(change: Callable[[Tensor, torch.Generator], Tensor]) -> Task:
    warm_heap()
    x, generator = torch.randn(PICTURES), torch.Generator().manual_seed(0)

    def transforms() -> None:
        for picture in x:
            torch.fft.irfft2(torch.fft.rfft2(picture), s=PICTURES[-2:])

    return Task(lambda: change(x, generator), transforms, 2)


def amplitude_tasks() -> Tasks:
    ways = {
        "ours": ours_mix,
        "ours, 16 bands": partial(ours_mix, bands=16),
        "ours, scale": ours_scale,
        "polar": polar_mix,
    }
    return {name: partial(amplitude_task, way) for name, way in ways.items()}


# --- whole training steps: EfficientNet-Lite0, 160 px, batch 64, 100 classes, AdamW -----------------------------------

STEP_METHODS: dict[str, dict[str, dict[str, object]]] = {
    "see": {"see": {}},
    "odba": {"odba": {}},
    "msrci": {"msrci": {}},
    "el_nivmf": {"probabilistic": {}},
    "couce": {"couce": {}},
    "center_polar_style": {"center_polar": {"expander": "style"}},
    "center_polar_generator": {"center_polar": {}},
    "expansion_equalisation": {"expansion_equalisation": {}},
}
CLASSES, SIDE, STEP_BATCH = 100, 160, 64


def training_steps(config: dict[str, dict[str, object]]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a step late in a run, when all terms are there, and one of the base: of the same model, side by side."""
    embedder = Embedder("tf_efficientnet_lite0", dim=DIM, weights="none", size=SIDE)
    loss = build_loss("proxy_anchor", CLASSES, DIM, {}, generator=torch.Generator().manual_seed(0))
    methods = build_methods(config, Shapes(CLASSES, DIM))
    start = Start(torch.randn(4 * CLASSES, DIM), torch.arange(CLASSES).repeat(4), loss, embedder.head)
    with torch.no_grad():
        for method in methods:
            if method.needs.start:
                method.start(start)
            for part in method.modules():
                if isinstance(part, ODBA):  # as after its first ten batches
                    part.filled.copy_(torch.tensor([len(part.collected), 10, 1]))
    whole = TrainingStep(embedder, loss, methods, steps_per_epoch=50).train()
    base = TrainingStep(embedder, loss, [], steps_per_epoch=50).train()
    images, labels = torch.randn(STEP_BATCH, 3, SIDE, SIDE), torch.arange(STEP_BATCH) // 4
    batch = Batch(embedder.stage_features("pixel", images), labels, torch.zeros_like(labels), torch.arange(STEP_BATCH))

    def stepping(step: TrainingStep) -> Callable[[], None]:
        optimizer = torch.optim.AdamW([p for p in step.parameters() if p.requires_grad], lr=1e-5)

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(step(batch, 20, 0.9, 0).values())).sum().backward()
            optimizer.step()
            step.look_back()

        return run

    return stepping(whole), stepping(base)


def step_task(config: dict[str, dict[str, object]]) -> Task:
    warm_heap()
    whole, base = training_steps(config)
    return Task(whole, base, repeats=1, turns=3)


def step_tasks(name: str) -> Tasks:
    return {"ours": partial(step_task, STEP_METHODS[name])}


ROWS: dict[str, Callable[[], Tasks]] = {
    "el_nivmf_128x512_c100": partial(el_nivmf_tasks, 100),
    "el_nivmf_128x512_c11318": partial(el_nivmf_tasks, 11318),
    "sample_vmf_640x512": sampling_tasks,
    "amplitude_64x3x224x224": amplitude_tasks,
    **{f"step_{name}": partial(step_tasks, name) for name in STEP_METHODS},
    **{f"see_180x{dim}_n{n}": partial(see_tasks, dim, n) for dim in (128, 512) for n in (2, 4, 8, 16)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names begin so")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    one_thread()
    rows = []
    for name, tasks in ROWS.items():
        if name.startswith(tuple(arguments.only)):
            rows.append(row(name, compare(tasks(), arguments.rounds)))
            print(describe(rows[-1]), flush=True)
    print("written:", write_results("methods", rows, ["proxemics", "torch"], arguments.out))


if __name__ == "__main__":
    main()
