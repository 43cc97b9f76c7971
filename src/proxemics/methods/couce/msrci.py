"""MSRCI: what a picture says about the classes must not change when the amplitudes of its features do.

    L = L_base + w(t) [ λ_v L_inv + λ_a L_base(z~, y) ]        z~ the embedding of the changed features

A reading of the abstract of CouCE (arXiv 2606.30365): no equation of the paper was obtainable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.core.ranks import gather_rows, share_of, world_size
from proxemics.losses.base import ProxyLoss
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Method, Needs, Step, View
from proxemics.methods.couce.divergence import class_similarities, symmetric_kl
from proxemics.methods.couce.draws import Mode, check_randomization, draw_strengths
from proxemics.methods.couce.gates import resize_gate, spatial_gate
from proxemics.methods.couce.ramp import Ramp
from proxemics.methods.couce.randomization import amplitude_randomization, amplitudes
from proxemics.methods.couce.spectrum import Bands
from proxemics.methods.options import check_choice
from proxemics.models.hooks import StageHook

Pick = Literal["all", "one"]


def chosen_rows(count: int, fraction: float) -> list[int]:
    """Return the rows i of ``count`` with ⌊(i+1) f⌋ > ⌊i f⌋: ⌊count · f⌋ of them, spread evenly.

    Args:
        count: b.
        fraction: f in [0, 1].

    Example:
        >>> chosen_rows(6, 0.5), chosen_rows(3, 1.0), chosen_rows(1, 0.5)
        ([1, 3, 5], [0, 1, 2], [])
    """
    marks = [math.floor(i * fraction + 1e-9) for i in range(count + 1)]
    return [i for i in range(count) if marks[i + 1] > marks[i]]


@dataclass(frozen=True)
class Draw:
    """Random numbers of one stage, for the joined batch of B pictures.

    Attributes:
        strengths: (B, n_b).
        partners: (B,) int64, or None where no partner is needed.
    """

    strengths: Tensor
    partners: Tensor | None


class MSRCI(Method):
    """Randomise amplitudes of features in bands, and keep the distribution over the proxies.

    Args:
        layer: the stage, or several, whose map is changed; ``"pixel"`` for the pictures.
        pick: with several stages, change ``"all"`` in one pass, or ``"one"``, drawn at each step.
        bands: edges of the frequency bands, from 0 to 1.
        mode: see :func:`amplitude_randomization`.
        eta: largest λ of each band, for ``mode="mix"``.
        sigma: strength of ``mode="scale"``.
        probability: of a swap, for ``mode="swap"``: one number for all bands or one a band.
        keep_dc: leave the means of the channels alone.
        relu: cut the changed map at zero, for maps that come from a ReLU.
        foreground_only: leave the map unchanged where the spatial gate of the last map says background.
        gate_temp: temperature of that gate.
        fraction: share of the batch that gets a changed view.
        tau: temperature of the distributions.
        top_negatives: compare over the own class and so many nearest others; None: over all classes.
        stop_grad: hold the first argument of each divergence constant.
        detach_proxies: keep the gradient of the divergence from the proxies.
        lambda_v: weight of the divergence.
        lambda_a: weight of the base loss on the changed view.
        ramp_epochs: length of the ramp w; 0: none.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> MSRCI(layer=("layer1", "layer2")).needs.stages
        ('layer1', 'layer2')
        >>> MSRCI(lambda_v=0.0).needs.stages
        ()
    """

    def __init__(
        self,
        *,
        layer: str | tuple[str, ...] = "layer2",
        pick: Pick = "all",
        bands: Bands = (0.0, 1 / 3, 2 / 3, 1.0),
        mode: Mode = "mix",
        eta: tuple[float, ...] = (0.5, 1.0, 1.0),
        sigma: float = 0.5,
        probability: float | tuple[float, ...] = 0.5,
        keep_dc: bool = False,
        relu: bool = False,
        foreground_only: bool = False,
        gate_temp: float = 0.5,
        fraction: float = 0.5,
        tau: float = 0.1,
        top_negatives: int | None = None,
        stop_grad: bool = True,
        detach_proxies: bool = False,
        lambda_v: float = 1.0,
        lambda_a: float = 0.0,
        ramp_epochs: float = 5,
    ) -> None:
        super().__init__()
        layers = (layer,) if isinstance(layer, str) else tuple(layer)
        if not layers or len(set(layers)) < len(layers):
            raise LossError(f"layer={layer!r}: name one stage, or several different ones.")
        check_choice("pick", pick, get_args(Pick))
        check_randomization(tuple(bands), mode, tuple(eta), sigma, probability)
        check_number("fraction", fraction, low=0, high=1, open_low=True)
        check_number("tau", tau, low=0, open_low=True)
        check_number("gate_temp", gate_temp, low=0, open_low=True)
        check_number("lambda_v", lambda_v, low=0)
        check_number("lambda_a", lambda_a, low=0)
        if top_negatives is not None:
            check_count("top_negatives", top_negatives)
        self.layers, self.pick, self.bands, self.eta = layers, pick, tuple(bands), tuple(eta)
        self.mode: Mode = mode
        self.sigma, self.keep_dc, self.relu = sigma, keep_dc, relu
        self.probability = tuple(probability) if isinstance(probability, tuple | list) else probability
        self.foreground_only, self.gate_temp, self.fraction = foreground_only, gate_temp, fraction
        self.tau, self.top_negatives, self.stop_grad, self.detach_proxies = (
            tau,
            top_negatives,
            stop_grad,
            detach_proxies,
        )
        self.lambda_v, self.lambda_a = lambda_v, lambda_a
        self.ramp = Ramp(ramp_epochs)
        self.needs = Needs(
            stages=layers if self.active else (), proxies=lambda_v > 0, grid=self.active and foreground_only
        )
        self._seen: dict[str, Tensor] = {}

    @property
    def active(self) -> bool:
        """Whether any weight is above 0."""
        return self.lambda_v > 0 or self.lambda_a > 0

    def check(self, loss: nn.Module) -> None:
        """Refuse a loss without class similarities.

        Raises:
            LossError: the divergence has a weight and the loss is no proxy loss.
        """
        if self.lambda_v > 0 and not isinstance(loss, ProxyLoss):
            raise LossError(
                f"MSRCI compares similarities to classes and {type(loss).__name__} has none; choose a proxy loss such "
                "as proxy_anchor, or set lambda_v=0."
            )

    def views(self, step: Step) -> Sequence[View]:
        """Return the batch, or a share of it, with other amplitudes at the lowest stage chosen, hooks at the others."""
        self._seen = {}
        own = chosen_rows(len(step.tokens), self.fraction)
        if not self.active or not own:
            return ()
        order = step.embedder.stages
        layers = sorted(self.layers, key=lambda name: order.index(step.embedder.stage_name(name)))
        if self.pick == "one":
            place = torch.randint(len(layers), (), generator=step.generator, device=step.generator.device)
            layers = [layers[int(place)]]
        rows = None if len(own) == len(step.tokens) else torch.tensor(own, device=step.labels.device)
        changes = [self._change(step, name, rows, lowest=name == layers[0]) for name in layers]
        lowest = step.features[layers[0]]
        maps = lowest.as_map()
        changed = changes[0](maps if rows is None else maps[rows])
        hooks = [StageHook(name, fn, as_map=True) for name, fn in zip(layers[1:], changes[1:], strict=True)]
        return (View(lowest.with_map(changed, rows), rows, tuple(hooks)),)

    def draw(self, step: Step) -> Draw:
        """Draw for the joined batch."""
        count, device = len(step.labels), step.labels.device
        strengths = draw_strengths(
            count,
            len(self.bands) - 1,
            mode=self.mode,
            eta=self.eta,
            sigma=self.sigma,
            probability=self.probability,
            generator=step.generator,
            device=device,
        )
        if self.mode == "scale":
            return Draw(strengths, None)
        return Draw(strengths, torch.randperm(count, generator=step.generator, device=device))

    def _change(self, step: Step, name: str, rows: Tensor | None, *, lowest: bool) -> Callable[[Tensor], Tensor]:
        """Return the change of the maps of ``rows`` at a stage; partners are clean maps of that stage."""
        draw = self.draw(step)
        own = slice(None) if rows is None else rows
        strengths = share_of(draw.strengths)[own]
        partners = None if draw.partners is None else share_of(draw.partners)[own]
        clean = step.features[name]

        def change(maps: Tensor) -> Tensor:
            others = None
            # The maps hold the partners themselves only where all of the batch is changed and nothing was before.
            if partners is not None and (not lowest or rows is not None or world_size() > 1):
                others = self._partner_amplitudes(clean.as_map().detach(), partners)
            changed = amplitude_randomization(
                maps,
                bands=self.bands,
                mode=self.mode,
                eta=self.eta,
                keep_dc=self.keep_dc,
                strengths=strengths,
                partners=partners,
                partner_amplitudes=others,
            )
            return self._blend(maps, changed, step, step.tokens[own])

        return change

    @staticmethod
    def _partner_amplitudes(maps: Tensor, partners: Tensor) -> Tensor:
        """Amplitudes of the partners, which may be rows of another process."""
        if world_size() == 1:
            return amplitudes(maps[partners])
        return gather_rows(amplitudes(maps))[partners]

    def _blend(self, maps: Tensor, changed: Tensor, step: Step, tokens: Tensor) -> Tensor:
        if self.relu:
            changed = changed.clamp_min(0)
        if not self.foreground_only:
            return changed
        size = (int(maps.shape[2]), int(maps.shape[3]))
        gate = resize_gate(spatial_gate(tokens.detach(), self.gate_temp), step.grid, size)
        return torch.lerp(changed, maps, gate.view(-1, 1, *size).to(changed.dtype))

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return ``msrci_invariance`` and ``msrci_view``, weighted."""
        return self.terms_at(step, self.ramp.weight(step)) if self.active else {}

    def terms_at(self, step: Step, ramp: float) -> dict[str, Tensor]:
        """As :meth:`terms`, with the value of the ramp given."""
        terms: dict[str, Tensor] = {}
        if not step.seen:
            return terms
        seen = step.seen[0]
        clean = step.z if len(seen.rows) == len(step.z) else step.z[seen.rows]
        if self.lambda_v > 0:
            assert isinstance(step.loss, ProxyLoss)
            divergence = symmetric_kl(
                class_similarities(step.loss, clean, detach_proxies=self.detach_proxies),
                class_similarities(step.loss, seen.z, detach_proxies=self.detach_proxies),
                tau=self.tau,
                stop_grad=self.stop_grad,
                labels=seen.labels,
                top_negatives=self.top_negatives,
            )
            terms["msrci_invariance"] = ramp * self.lambda_v * divergence
            self._seen["divergence"] = divergence.detach()
        if self.lambda_a > 0:
            terms["msrci_view"] = ramp * self.lambda_a * step.loss(seen.raw, seen.labels)
        self._seen["view_cosine"] = (clean.detach() * seen.z.detach()).sum(1).mean()
        return terms

    def report(self) -> dict[str, float]:
        """Return the divergence before its weight, and the mean cosine of the two views of a picture."""
        return {name: float(value) for name, value in self._seen.items()}
