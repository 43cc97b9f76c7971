"""The generator with its memory: it learns ψ on the frozen model, keeps earlier ψ, and makes the view of a step.

ψ, its Adam moments and the pool are buffers: the inner loop alone moves them, and checkpoints hold them. ψ has 12
numbers a kernel size, so every second sample of a batch is enough to learn them from; that saves a third of a pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from proxemics.core.ranks import gather_rows, mean_over_ranks, rank, share_of
from proxemics.data.preprocess import Preprocess
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Step, View
from proxemics.methods.center_polar.adam import adam_step
from proxemics.methods.center_polar.expansion_loss import diversity
from proxemics.methods.center_polar.frozen import evaluating
from proxemics.methods.center_polar.generator import (
    Responses,
    draw_branch,
    expand_pictures,
    initial_psi,
    render,
    respond,
    valid_range,
)

Objective = Callable[[Tensor, Tensor], Tensor]
"""Unit embeddings (n, M) of generated samples and their rows (n,) in the joined batch, to what is minimised."""

EVERY = 2
"""ψ learns from every so many samples of the share."""


def check_learning(*, inner_steps: int, inner_lr: float, lambda_div: float, mix: float, pool: int) -> None:
    """Refuse options of the generator that are out of range, by the names that the methods give them.

    Raises:
        LossError: with the name, the value and the range.

    Example:
        >>> check_learning(inner_steps=1, inner_lr=1e-3, lambda_div=0.1, mix=1.5, pool=5)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: mix must be a finite number at least 0 and at most 1, got 1.5.
    """
    check_number("lambda_div", lambda_div, low=0)
    check_number("inner_lr", inner_lr, low=0, open_low=True)
    check_number("mix", mix, low=0, high=1)
    check_count("inner_steps", inner_steps)
    check_count("pool", pool)


class GeneratorLearner(nn.Module):
    """ψ, its optimiser and its past.

    Slot 0 of the pool is the ψ that learns. At the first step of every further epoch it is copied to slot 1 and the
    older ones move up. The view of a step is made by a ψ drawn from the slots in use, so that with probability
    1/(slots in use) it is the newest, already trained on this batch.

    Args:
        steps: inner steps on ψ a step of training.
        rate: learning rate of Adam.
        lambda_div: λ_div.
        mix: share of G(x) in x̃.
        pool: how many ψ are kept, the newest included.

    Example:
        >>> learner = GeneratorLearner(steps=1, rate=1e-3, lambda_div=0.1, mix=0.6, pool=5)
        >>> {name: tuple(value.shape) for name, value in learner.state_dict().items()}["pool"]
        (5, 4, 4, 3)
    """

    pool: Tensor
    used: Tensor
    epoch: Tensor
    first: Tensor
    second: Tensor
    counts: Tensor

    def __init__(self, *, steps: int, rate: float, lambda_div: float, mix: float, pool: int) -> None:
        super().__init__()
        self.steps, self.rate, self.lambda_div, self.mix = steps, rate, lambda_div, mix
        psi = initial_psi()
        self.register_buffer("pool", psi.repeat(pool, 1, 1, 1))
        self.register_buffer("used", torch.tensor(1))
        self.register_buffer("epoch", torch.tensor(-1))
        self.register_buffer("first", torch.zeros_like(psi))
        self.register_buffer("second", torch.zeros_like(psi))
        self.register_buffer("counts", torch.zeros(len(psi), dtype=torch.int64))

    @property
    def psi(self) -> Tensor:
        """(4, 4, 3), the newest."""
        return self.pool[0]

    def view(self, step: Step, objective: Objective) -> View:
        """Train ψ on the pictures of the step with the model frozen, and return the pictures of one of the pool."""
        self._turn(step.epoch)
        features, generator = step.features["pixel"], step.generator
        images = features.value.detach()
        valid = valid_range(step.embedder.preprocess, images)
        with torch.autocast(images.device.type, enabled=False):
            branch = draw_branch(generator)
            responses = respond(images, branch, generator)
        for _ in range(self.steps):
            gradient = self._gradient(step, objective, responses, branch, valid)
            moments = self.first[branch], self.second[branch]
            adam_step(self.pool[0, branch], gradient, *moments, self.counts[branch], self.rate)
        slot = int(torch.randint(int(self.used), (), generator=generator, device=generator.device))
        with torch.autocast(images.device.type, enabled=False), torch.no_grad():
            made = render(responses, self.pool[slot, branch], _noise(step), valid, mix=self.mix)
        return View(features.with_map(made))

    def pictures(self, images: Tensor, preprocess: Preprocess, generator: torch.Generator) -> Tensor:
        """Return what the newest ψ makes of normalised pictures (B, 3, H, W)."""
        return expand_pictures(images, self.psi, preprocess, generator, mix=self.mix)

    def _gradient(
        self, step: Step, objective: Objective, responses: Responses, branch: int, valid: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return d loss / dψ of the drawn branch, (4, 3), the same on every process."""
        device = responses.images.device.type
        psi = self.pool[0, branch].clone().requires_grad_()
        size = len(responses.images)
        rows = torch.arange(0, size, EVERY, device=responses.images.device)
        some = Responses(responses.images[::EVERY], responses.parts[::EVERY], responses.gains)
        with torch.autocast(device, enabled=False):
            made = render(some, psi, _noise(step)[::EVERY], valid, mix=self.mix)
        with evaluating(step.embedder):
            encoded, _ = step.embedder.encode_from(step.features["pixel"].with_map(made, rows))
        with torch.autocast(device, enabled=False):
            # Over processes, the gathered loss gives W times the part of the own rows, and the mean over processes
            # of that is the whole gradient; the own diversity is a mean already.
            loss = objective(gather_rows(encoded.unit), gather_rows(rows + rank() * size))
            if self.lambda_div > 0:
                other = render(some, psi, _noise(step)[::EVERY], valid, mix=self.mix)
                loss = loss - self.lambda_div * diversity(made, other, valid[1] - valid[0])
            # Means over the batch make small gradients, and half precision loses them: sums go through the model.
            (gradient,) = torch.autograd.grad(loss, psi, torch.full_like(loss, size))
        return torch.nan_to_num(mean_over_ranks(gradient) / size, posinf=0.0, neginf=0.0)

    @torch.no_grad()
    def _turn(self, epoch: int) -> None:
        if epoch == int(self.epoch):
            return
        if int(self.epoch) >= 0:
            self.pool.copy_(torch.cat([self.pool[:1], self.pool[:-1]]))
            self.used.add_(1).clamp_(max=len(self.pool))
        self.epoch.fill_(epoch)


def _noise(step: Step) -> Tensor:
    """Draw for the joined batch and take the own share, (b, 2, 3)."""
    generator = step.generator
    return share_of(torch.randn(len(step.labels), 2, 3, generator=generator, device=generator.device))
