"""How a run sees its pictures: embeddings, background descriptors and the places that an atom answers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.geometry import normalize
from proxemics.core.seeds import torch_generator
from proxemics.methods.base import Step
from proxemics.methods.couce import ODBA, heat_maps, location_responses
from proxemics.training.log import Reporter
from proxemics.training.picture_sample import read_batches
from proxemics.training.run_state import RunState


class Shown(NamedTuple):
    """A picture of an atom: its row, its pixels (S, S, 3) uint8, and a heat map (h, w) in [0, 1] or None."""

    row: int
    pixels: NDArray[np.uint8]
    heat: NDArray[np.float32] | None


class Looker:
    """Runs pictures through the model as a training step would, in evaluation mode.

    Args:
        state: of the run; its modules are moved to the device of the run, or to the CPU where there is none.
        odba: the method that keeps the dictionary.
    """

    def __init__(self, state: RunState, odba: ODBA) -> None:
        self.state, self.odba = state, odba
        self.device = "cuda" if torch.cuda.is_available() and state.config.train.device != "cpu" else "cpu"
        for module in (state.embedder, state.loss, odba):
            module.to(self.device)

    @torch.no_grad()
    def step(self, pixels: Tensor) -> Step:
        """Make the step of a batch (b, 3, S, S) uint8 by hand; it serves for gates and descriptors only."""
        embedder, stage = self.state.embedder, self.odba.gate_stage
        images = embedder.preprocess.normalize(pixels.to(self.device))
        encoded, features = embedder.encode_with(images, [] if stage is None else [stage])
        return Step(
            z=encoded.unit,
            raw=encoded.raw,
            tokens=encoded.tokens,
            grid=encoded.grid,
            features=features,
            labels=torch.zeros(len(pixels), dtype=torch.int64, device=self.device),
            loss=self.state.loss,
            embedder=embedder,
            generator=torch_generator(0, "inspect", device=self.device),
        )

    def centred(self, vectors: Tensor) -> Tensor:
        """Unit vectors less the running mean of the backgrounds, as the atoms see them; the mean is 0 if unused."""
        return normalize(normalize(vectors) - self.odba.mean)

    @torch.no_grad()
    def survey(self, rows: pd.DataFrame, reporter: Reporter, task: str) -> tuple[pd.DataFrame, Tensor, Tensor]:
        """Return the rows that could be read, their embeddings (n, M) and their background descriptors (n, M)."""
        kept: list[int] = []
        units, backgrounds = [torch.zeros(0, self.odba.dim)], [torch.zeros(0, self.odba.dim)]
        reporter.start(task, len(rows))
        for numbers, pixels in self._batches(rows):
            if numbers:
                step = self.step(pixels)
                kept += numbers
                units.append(step.z.cpu())
                backgrounds.append(self.centred(self.odba.descriptors(step, self.odba.background_gate(step))).cpu())
            reporter.advance(task, len(numbers))
        reporter.finish(task)
        return rows.iloc[kept].reset_index(drop=True), torch.cat(units), torch.cat(backgrounds)

    @torch.no_grad()
    def show(self, rows: pd.DataFrame, best: Tensor, atoms: Tensor, reporter: Reporter) -> list[list[Shown]]:
        """Return for each atom its rows (K, count) with their pixels and heat maps; each picture is run once."""
        wanted = torch.from_numpy(np.unique(best.numpy()))
        found: list[dict[int, Shown]] = [{} for _ in atoms]
        reporter.start("heat maps", len(wanted))
        for numbers, pixels in self._batches(rows.iloc[wanted.numpy()]):
            if not numbers:
                continue
            step = self.step(pixels)
            maps = self._heat(step, atoms.to(self.device))
            for place, number in enumerate(wanted[numbers].tolist()):
                picture = pixels[place].permute(1, 2, 0).numpy()
                for atom in (best == number).any(1).nonzero()[:, 0].tolist():
                    found[atom][number] = Shown(number, picture, None if maps is None else maps[atom][place])
            reporter.advance("heat maps", len(numbers))
        reporter.finish("heat maps")
        return [[one[number] for number in own.tolist() if number in one] for one, own in zip(found, best, strict=True)]

    def _heat(self, step: Step, atoms: Tensor) -> list[NDArray[np.float32]] | None:
        """Where each atom answers, K times (b, h, w); places whose gate is shut count for little, as in training."""
        if step.grid[1] == 1 and step.grid[0] > 2:
            return None
        places = self.centred(step.embedder.project(step.tokens))
        gate = None if self.odba.extract_gate == "channel" else self.odba.background_gate(step)
        return [heat_maps(location_responses(places, atom, gate), step.grid).cpu().numpy() for atom in atoms]

    def _batches(self, rows: pd.DataFrame) -> Iterator[tuple[list[int], Tensor]]:
        most = self.state.config.data.max_pixels
        return read_batches(rows["path"].to_list(), self.state.embedder.preprocess, max_pixels=most)
