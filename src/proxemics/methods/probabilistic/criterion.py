"""Probabilistic proxies as a method: images and classes are densities on the sphere, with eight ways to compare them.

    L = weight · mean_i [ -sim(i, y_i)/t + LSE_c sim(i, c)/t ] + ω · L_base

The raw embedding is the density of an image: its direction is the mean, its length the concentration. The proxies of
the base loss are the directions of the classes; concentrations and temperature belong to the method. ω → ∞ is the base
loss alone, ω = 0 the probabilistic loss alone. Retrieval uses the cosine in any case, so that nothing stays in the
exported model.

Source: Kirchhof et al., ECCV 2022 (arXiv 2207.03784); settings from the authors' release.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize, upcast
from proxemics.losses.checks import check_batch, check_count, check_number
from proxemics.methods.base import Method, Needs, Start, Step
from proxemics.methods.options import check_choice
from proxemics.methods.probabilistic.bounds import FloorGradient, bounded, unbounded
from proxemics.methods.probabilistic.distances import b_vmf, el_vmf, kl_vmf, l2_similarity, vmf_log_density
from proxemics.methods.probabilistic.nivmf import Det, TemperaturePosition, check_stretch
from proxemics.methods.probabilistic.normalizer import Normalizer, check_dim, vmf_log_normalizer
from proxemics.methods.probabilistic.released_anchor import released_proxy_anchor
from proxemics.methods.probabilistic.sampling import Sampler, sample_vmf
from proxemics.methods.probabilistic.stretched import StretchOptions, stretched_logits
from proxemics.methods.probabilistic.warm_start import class_means, scale_last_linear

Distance = Literal["cos", "l2", "vmf", "nivmf", "el-vmf", "b-vmf", "kl-vmf", "el-nivmf"]
Guidance = Literal["base", "released"]

SETTINGS: dict[str, tuple[float, float, float]] = {
    "cos": (1 / 256, 10.0, 1.0),
    "l2": (1.0, 200.0, 1.0),
    "vmf": (1 / 32, 10.0, 1.0),
    "nivmf": (1 / 32, 10.0, 1.0),
    "el-vmf": (1.0, 10.0, 150.0),
    "b-vmf": (1.0, 10.0, 150.0),
    "kl-vmf": (1.0, 10.0, 150.0),
    "el-nivmf": (0.003, 18.0, 50.0),
}
"""Temperature, concentration and factor on the last layer that a distance starts from (release; vmf: our reading)."""


class ProbabilisticProxies(Method):
    """Compare images and classes as densities, alone or with a base loss as a guide.

    Args:
        num_classes: C.
        dim: M >= 2, the embedding dimension.
        num_proxies: K, proxies a class of the base loss; several form an equal mixture (our reading).
        distance: the similarity.
        weight: factor on the probabilistic loss; 0 switches the method off altogether, and the base loss is left alone.
        omega: factor on the base loss while ``weight`` > 0; 0 trains by the probabilistic loss alone.
        guidance: ``"base"`` guides by the base loss, ``"released"`` by the Proxy Anchor of the release instead.
        share_directions: directions are the proxies of the base loss; False keeps own ones.
        num_samples: draws an image, for el-nivmf.
        temperature: t at the start; None: see :data:`SETTINGS`.
        learn_temperature: learn log t.
        temperature_position: ``"inner"`` or ``"outer"`` of the mean over draws.
        concentration: κ of all classes at the start, and the length of the directions after the warm start; None: see
            :data:`SETTINGS`.
        kappa_floor: smallest κ of a class.
        floor_gradient: what the gradient does at the floor.
        det: factor D of the nivMF density.
        stretch_sample: stretch the draw as well as the class.
        normalizer: log C, exact or a fit.
        sampler: exact or the release's.
        warm_start: set the directions to the class means before the first step.
        init_norm_multiplier: factor on the last linear layer before the first step; None: see :data:`SETTINGS`.
        init_norm: scale the last linear layer to this mean length of the training embeddings instead (our reading).
        head_rate: factor on the learning rate of the head; None: as much as ``init_norm_multiplier`` lengthened its
            last layer, so that it turns as fast as without (our reading; steps of Adam do not grow with the weights);
            1 as in the release. Under AdamW the decay of the head rises with it.
        kappa_rate: learning rate of κ relative to that of the proxies.
        temperature_rate: learning rate of log t relative to that of the proxies.

    Raises:
        LossError: an option, or a combination of options, that means nothing.

    Example:
        >>> method = ProbabilisticProxies(10, 64, omega=0.0)
        >>> z, w = torch.randn(4, 64) * 3, torch.randn(10, 64)
        >>> method.logits(z, w, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 10])
        >>> method.base_weight, method.rates()
        (0.0, {'kappa': 4.0, 'log_temperature': 0.04})
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        num_proxies: int = 1,
        distance: Distance = "el-nivmf",
        weight: float = 1.0,
        omega: float = 5.0,
        guidance: Guidance = "base",
        share_directions: bool = True,
        num_samples: int = 5,
        temperature: float | None = None,
        learn_temperature: bool = True,
        temperature_position: TemperaturePosition = "inner",
        concentration: float | None = None,
        kappa_floor: float = 0.1,
        floor_gradient: FloorGradient = "straight-through",
        det: Det = "released",
        stretch_sample: bool = True,
        normalizer: Normalizer = "debye",
        sampler: Sampler = "stable",
        warm_start: bool = True,
        init_norm_multiplier: float | None = None,
        init_norm: float | None = None,
        head_rate: float | None = None,
        kappa_rate: float = 4.0,
        temperature_rate: float = 0.04,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("num_proxies", num_proxies)
        check_count("num_samples", num_samples)
        check_dim(dim)
        check_choice("distance", distance, get_args(Distance))
        check_choice("guidance", guidance, get_args(Guidance))
        check_choice("temperature_position", temperature_position, get_args(TemperaturePosition))
        check_choice("sampler", sampler, get_args(Sampler))
        check_choice("floor_gradient", floor_gradient, get_args(FloorGradient))
        check_stretch(det, stretch_sample)
        vmf_log_normalizer(torch.zeros(()), dim, normalizer=normalizer)
        start_t, start_kappa, start_factor = SETTINGS[distance]
        self.temperature_start = start_t if temperature is None else temperature
        self.concentration = start_kappa if concentration is None else concentration
        self.norm_multiplier = start_factor if init_norm_multiplier is None else init_norm_multiplier
        check_number("weight", weight, low=0)
        check_number("omega", omega, low=0)
        positive = {
            "temperature": self.temperature_start,
            "kappa_floor": kappa_floor,
            "init_norm_multiplier": self.norm_multiplier,
            "init_norm": 1.0 if init_norm is None else init_norm,
            "head_rate": 1.0 if head_rate is None else head_rate,
            "kappa_rate": kappa_rate,
            "temperature_rate": temperature_rate,
        }
        for name, value in positive.items():
            check_number(name, value, low=0, open_low=True)
        check_number("concentration", self.concentration, low=kappa_floor, open_low=floor_gradient == "softplus")
        if guidance == "released" and num_proxies > 1:
            raise LossError("guidance='released' knows one proxy a class; use guidance='base', or num_proxies=1.")
        self.num_classes, self.dim, self.num_proxies = num_classes, dim, num_proxies
        self.distance, self.weight, self.omega, self.guidance = distance, weight, omega, guidance
        self.share_directions, self.num_samples, self.sampler = share_directions, num_samples, sampler
        self.kappa_floor, self.floor_gradient = kappa_floor, floor_gradient
        self.warm_start, self.init_norm = warm_start, init_norm
        self.normalizer: Normalizer = normalizer
        self.stretch = StretchOptions(det, stretch_sample, normalizer, inner=temperature_position == "inner")
        scales = self.init_norm is not None or self.norm_multiplier != 1
        self.needs = Needs(
            proxies=share_directions or (guidance == "base" and omega > 0),
            start=weight > 0 and (warm_start or scales),
            head=weight > 0 and scales,
        )
        scaled_by = self.norm_multiplier if weight > 0 and init_norm is None else 1.0
        self._head_rate = scaled_by if head_rate is None else head_rate
        self._rates = {"kappa": kappa_rate, "log_temperature": temperature_rate}
        self._make_parameters(learn_temperature)

    def _make_parameters(self, learn_temperature: bool) -> None:
        rows = self.num_classes * self.num_proxies
        start = unbounded(self.concentration, self.kappa_floor, self.floor_gradient)
        if self.distance != "cos":
            shape = (rows, self.dim) if self.distance.endswith("nivmf") else (rows,)
            self.kappa = nn.Parameter(torch.full(shape, float(start)))
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(self.temperature_start)), requires_grad=learn_temperature
        )
        if not self.share_directions:
            directions = torch.empty(self.num_classes, self.num_proxies, self.dim)
            nn.init.xavier_normal_(directions.view(rows, self.dim), gain=self.concentration)
            self.directions = nn.Parameter(directions)

    @property
    def base_weight(self) -> float:
        """ω while the method is on and the base loss is the guide; 1 while it is off; 0 with the released guide."""
        if self.weight == 0:
            return 1.0
        return self.omega if self.guidance == "base" else 0.0

    @property
    def head_rate(self) -> float:
        """Factor on the learning rate of the head."""
        return self._head_rate

    @property
    def temperature(self) -> Tensor:
        """0-d, > 0."""
        return self.log_temperature.exp()

    def rates(self) -> dict[str, float]:
        """κ and log t learn 4 and 0.04 times as fast as the proxies: in the release 20000, 200 and 5000 times 1e-5."""
        names = {name for name, _ in self.named_parameters()}
        return {name: rate for name, rate in self._rates.items() if name in names}

    def concentrations(self) -> Tensor:
        """κ of the classes: (C·K,) for isotropic distances, (C·K, M) for the nivMF ones, at least ``kappa_floor``."""
        return bounded(self.kappa, self.kappa_floor, self.floor_gradient)

    def check(self, loss: nn.Module) -> None:
        """Refuse a base loss with other proxies than the method was built for.

        Raises:
            LossError: with both shapes.
        """
        proxies = getattr(loss, "proxies", None)
        if not self.share_directions or proxies is None:
            return
        wanted = (self.num_classes, self.num_proxies, self.dim)
        given = tuple(proxies.shape) if proxies.ndim == 3 else (len(proxies), 1, proxies.shape[-1])
        if given != wanted:
            raise LossError(
                f"{type(loss).__name__} has {given[0]} classes, {given[1]} proxies a class and dimension {given[2]}, "
                f"but ProbabilisticProxies was built with {wanted[0]}, {wanted[1]} and {wanted[2]}; "
                "give both the same numbers."
            )

    @torch.no_grad()
    def start(self, start: Start) -> None:
        """Scale the last linear layer, and point the directions to the class means."""
        if self.weight == 0:
            return
        factor = self.norm_multiplier
        if self.init_norm is not None:
            factor = self.init_norm / max(float(torch.linalg.vector_norm(start.raw, dim=-1).mean()), 1e-12)
        if factor != 1:
            scale_last_linear(start.head, factor)
        if self.warm_start:
            directions = start.loss.proxies if self.share_directions else self.directions
            assert isinstance(directions, Tensor)
            directions.copy_(class_means(start.raw, start.labels, directions, length=self.concentration))

    def logits(self, raw: Tensor, directions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return sim(i, c) / t up to a constant that all classes share.

        Args:
            raw: (B, M) floating embeddings before normalisation.
            directions: (C, M) or (C, K, M) floating, any length.
            generator: source of the draws, for el-nivmf.

        Returns:
            (B, C) in float32 or float64.
        """
        with torch.autocast(raw.device.type, enabled=False):
            raw = upcast(raw)
            flat = directions.reshape(-1, self.dim).to(raw.dtype)
            values = self._component_logits(raw, flat, generator)
        if self.num_proxies == 1:
            return values
        mixed = values.reshape(len(raw), self.num_classes, self.num_proxies)
        return torch.logsumexp(mixed, -1) - math.log(self.num_proxies)

    def _component_logits(self, raw: Tensor, directions: Tensor, generator: torch.Generator | None) -> Tensor:
        t = self.temperature.to(raw.dtype)
        if self.distance == "cos":
            return normalize(raw) @ normalize(directions).t() / t
        kappa_z = torch.linalg.vector_norm(raw, dim=-1)
        kappa = self.concentrations().to(raw.dtype)
        if self.distance == "el-nivmf":
            draws = sample_vmf(raw, kappa_z, self.num_samples, generator, sampler=self.sampler)
            return stretched_logits(draws, directions, kappa, t, self.stretch)[0]
        if self.distance == "nivmf":
            return stretched_logits(normalize(raw)[None], directions, kappa, t, self.stretch)[0]
        cosines = normalize(raw) @ normalize(directions).t()
        if self.distance == "l2":
            return l2_similarity(cosines, kappa_z, kappa) / t
        if self.distance == "vmf":
            return vmf_log_density(cosines, kappa, self.dim, centred=True, normalizer=self.normalizer) / t
        if self.distance == "el-vmf":
            return el_vmf(cosines, kappa_z, kappa, self.dim, centred=True, normalizer=self.normalizer) / t
        closed = b_vmf if self.distance == "b-vmf" else kl_vmf
        return closed(cosines, kappa_z, kappa, self.dim, normalizer=self.normalizer) / t

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the probabilistic loss of the clean view, and the released guide if it was asked for."""
        if self.weight == 0:
            return {}
        directions = step.loss.proxies if self.share_directions else self.directions
        assert isinstance(directions, Tensor)
        raw = step.raw
        labels = check_batch(raw, step.labels, num_classes=self.num_classes, dim=self.dim)
        logits = self.logits(raw, directions, step.generator)
        terms = {"probabilistic": self.weight * torch.nn.functional.cross_entropy(logits, labels)}
        if self.guidance == "released" and self.omega > 0:
            proxies = directions.reshape(-1, self.dim)
            terms["guidance"] = self.omega * released_proxy_anchor(raw, labels, proxies=proxies)
        return terms
