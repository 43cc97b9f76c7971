"""ODBA: background directions collected in a dictionary, adjusted for, and pushed out of the embedding.

    L = L_base + w(t) [ λ_b L_bd + λ_o L_orth ]

The dictionary is moved by the descriptors of every batch before it is used, from the first step on; the terms wait
until it has been filled.

A reading of the abstract of CouCE (arXiv 2606.30365): no equation of the paper was obtainable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize
from proxemics.core.ranks import gather_rows, share_of
from proxemics.losses.base import ProxyLoss
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Method, Needs, Step, View
from proxemics.methods.couce.adjustment import Estimator, attended, draw_strata, enumerated, shifted
from proxemics.methods.couce.background import background_descriptors
from proxemics.methods.couce.diagnostics import gate_histogram, recall_by_part
from proxemics.methods.couce.dictionary import (
    UpdateGate,
    coherence,
    random_atoms,
    revive_atoms,
    seed_dictionary,
    span_energy,
    span_split,
    update_dictionary,
)
from proxemics.methods.couce.exchange import background_content, exchange_background, relevance_gate
from proxemics.methods.couce.gates import border_gate, channel_gate, profile_gate, resize_gate, spatial_gate
from proxemics.methods.couce.orthogonality import Orth, soft_orthogonality, spectral_orthogonality
from proxemics.methods.couce.ramp import Ramp
from proxemics.methods.options import check_choice
from proxemics.models.partial import StageFeatures

ExtractGate = Literal["spatial", "border", "channel", "profile", "none"]
ExchangeGate = Literal["border", "relevance"]

SEED_BATCHES, SEED_ROWS = 10, 16
"""The dictionary starts from the descriptors of so many batches; room is kept for so many rows an atom."""


class ODBA(Method):
    """Adjust for background with a dictionary of its directions, and keep embeddings orthogonal to them.

    Args:
        dim: M, the embedding dimension.
        atoms: K <= M.
        extract_gate: what of a map is background; see :mod:`proxemics.methods.couce.gates`.
        gate_temp: temperature of that gate.
        gate_stage: compute the spatial or border gate on the finer map of this earlier stage; None: on the last map.
        update_gate: what may move an atom; see :mod:`proxemics.methods.couce.dictionary`.
        sigma_v2: σ_v² of ``update_gate="atom"``.
        momentum: m of the moving averages.
        first_momentum: m during the first epoch.
        soft_orth_step: η, step of the soft orthogonalisation of the atoms.
        centre: take the running mean of the descriptors off them first, so that atoms hold what differs between
            backgrounds and not what all pictures share.
        rho_max: largest share of an atom that is added to an embedding.
        estimator: of the backdoor term; see :mod:`proxemics.methods.couce.adjustment`, and for ``"exchange"``
            :mod:`proxemics.methods.couce.exchange`.
        exchange_stage: where backgrounds are exchanged.
        exchange_gate: how they are told from objects: by unlikeness to the border of the map, or by relevance to the
            own class.
        exchange_gate_stage: compute the border gate on the map of this stage; None: on that of ``exchange_stage``.
        exchange_temp: temperature of that gate.
        heads_dim: h of the attention of ``estimator="nwgm"``.
        lambda_b: weight of the backdoor term.
        lambda_o: weight of the orthogonality term.
        orth: ``"soft"``, ``"srip"``, or ``"project"``: the base loss sees the embeddings without the span of the atoms.
        orth_proxies: add the same term for the proxies.
        start_epoch: first epoch with terms.
        ramp_epochs: length of the ramp w; 0: none.
        patience: steps without a descriptor after which an atom starts anew from one that no atom is near to.

    Raises:
        LossError: an option is out of range, or a combination means nothing.

    Example:
        >>> ODBA(128).dictionary.shape
        torch.Size([64, 128])
        >>> ODBA(16)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: 64 atoms need an embedding of dimension 64 or more, got 16; use at most 16 ...
    """

    dictionary: Tensor
    mean: Tensor
    prior: Tensor
    idle: Tensor
    collected: Tensor
    filled: Tensor

    def __init__(
        self,
        dim: int,
        *,
        atoms: int = 64,
        extract_gate: ExtractGate = "spatial",
        gate_temp: float = 0.5,
        gate_stage: str | None = None,
        update_gate: UpdateGate = "atom",
        sigma_v2: float = 0.5,
        momentum: float = 0.99,
        first_momentum: float = 0.9,
        soft_orth_step: float = 0.1,
        centre: bool = True,
        rho_max: float = 0.5,
        estimator: Estimator = "mc",
        heads_dim: int = 64,
        exchange_stage: str = "layer2",
        exchange_gate: ExchangeGate = "border",
        exchange_gate_stage: str | None = None,
        exchange_temp: float = 0.25,
        lambda_b: float = 0.5,
        lambda_o: float = 0.1,
        orth: Orth = "soft",
        orth_proxies: bool = False,
        start_epoch: int = 1,
        ramp_epochs: float = 5,
        patience: int = 200,
    ) -> None:
        super().__init__()
        for name, count in {"dim": dim, "atoms": atoms, "heads_dim": heads_dim, "patience": patience}.items():
            check_count(name, count)
        check_count("start_epoch", start_epoch, low=0)
        for name, value in {"gate_temp": gate_temp, "exchange_temp": exchange_temp, "sigma_v2": sigma_v2}.items():
            check_number(name, value, low=0, open_low=True)
        for name, value in {
            "momentum": momentum,
            "first_momentum": first_momentum,
            "soft_orth_step": soft_orth_step,
        }.items():
            check_number(name, value, low=0, high=1)
        for name, value in {"rho_max": rho_max, "lambda_b": lambda_b, "lambda_o": lambda_o}.items():
            check_number(name, value, low=0)
        check_choice("extract_gate", extract_gate, get_args(ExtractGate))
        check_choice("exchange_gate", exchange_gate, get_args(ExchangeGate))
        check_choice("update_gate", update_gate, get_args(UpdateGate))
        check_choice("estimator", estimator, get_args(Estimator))
        check_choice("orth", orth, get_args(Orth))
        _check_combinations(dim, atoms, extract_gate, gate_stage, estimator, orth, orth_proxies)
        self.dim, self.num_atoms = dim, atoms
        self.extract_gate, self.gate_temp, self.gate_stage = extract_gate, gate_temp, gate_stage
        self.update_gate: UpdateGate = update_gate
        self.sigma_v2, self.momentum, self.first_momentum = sigma_v2, momentum, first_momentum
        self.soft_orth_step, self.rho_max, self.estimator = soft_orth_step, rho_max, estimator
        self.lambda_b, self.lambda_o, self.orth, self.orth_proxies = lambda_b, lambda_o, orth, orth_proxies
        self.start_epoch, self.patience, self.centre = start_epoch, patience, centre
        self.exchange_stage, self.exchange_temp = exchange_stage, exchange_temp
        self.exchange_gate, self.exchange_gate_stage = exchange_gate, exchange_gate_stage or exchange_stage
        self.exchanges = estimator == "exchange" and lambda_b > 0
        self.ramp = Ramp(ramp_epochs)
        self.register_buffer("dictionary", random_atoms(atoms, dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("prior", torch.full((atoms,), 1 / atoms))
        self.register_buffer("idle", torch.zeros(atoms, dtype=torch.int64))
        self.register_buffer("collected", torch.zeros(SEED_ROWS * atoms, dim))
        self.register_buffer("filled", torch.zeros(3, dtype=torch.int64))  # rows, batches, whether seeded
        if self.active:
            self.needs = Needs(
                stages=tuple(dict.fromkeys(self._stages())),
                gradients=self.exchanges and exchange_gate == "relevance",
                proxies=extract_gate == "profile" or (orth_proxies and lambda_o > 0),
                grid=extract_gate == "border" or gate_stage is not None,
            )
            if estimator == "nwgm" and lambda_b > 0:
                self._make_attention(heads_dim)
        else:
            self.needs = Needs(proxies=False)
        self._seen: dict[str, Tensor] = {}

    def _stages(self) -> Iterator[str]:
        if self.exchanges:
            yield self.exchange_stage
            yield self.exchange_gate_stage
        if self.gate_stage is not None:
            yield self.gate_stage

    def _make_attention(self, width: int) -> None:
        """Own draws: the global generator belongs to the base run."""
        generator = torch.Generator().manual_seed(1)
        for name in ("query", "key"):
            weight = torch.randn(width, self.dim, generator=generator)
            self.register_parameter(name, nn.Parameter(weight))

    @property
    def active(self) -> bool:
        """Whether any weight is above 0."""
        return self.lambda_b > 0 or self.lambda_o > 0

    @property
    def seeded(self) -> bool:
        """Whether the dictionary has started from descriptors."""
        return bool(self.filled[2])

    @property
    def base_weight(self) -> float:
        """0 with ``orth="project"``: the base loss of the projected embeddings is then a term of the method."""
        return 0.0 if self.orth == "project" and self.lambda_o > 0 else 1.0

    def check(self, loss: nn.Module) -> None:
        """Refuse a loss of another dimension.

        Raises:
            LossError: with both dimensions.
        """
        given = getattr(loss, "dim", self.dim)
        if given != self.dim:
            raise LossError(f"ODBA was built for dimension {self.dim}, and the loss for {given}; give both the same.")
        if self.exchanges and self.exchange_gate == "relevance" and not isinstance(loss, ProxyLoss):
            raise LossError(
                f"exchange_gate='relevance' needs class similarities and {type(loss).__name__} has none; choose a "
                "proxy loss such as proxy_anchor, or exchange_gate='border'."
            )

    def views(self, step: Step) -> Sequence[View]:
        """Return the batch with exchanged backgrounds, for ``estimator="exchange"`` once the epoch has come."""
        if not self.exchanges or step.epoch < self.start_epoch:
            return ()
        features = step.features[self.exchange_stage]
        maps = features.as_map()
        gate = self._exchange_gate(step)
        content = gather_rows(background_content(maps.detach(), gate))
        partners = torch.randperm(len(step.labels), generator=step.generator, device=step.generator.device)
        changed = exchange_background(maps, gate, content[share_of(partners)])
        return (View(features.with_map(changed)),)

    def _exchange_gate(self, step: Step) -> Tensor:
        """Return where backgrounds are, (b, 1, H, W) on the maps that are exchanged."""
        features = step.features[self.exchange_stage]
        maps = features.as_map().detach()
        if self.exchange_gate == "border":
            with torch.no_grad():
                gate = self._border_gate(step.features[self.exchange_gate_stage], self.exchange_temp, maps)
            return gate.view(len(maps), 1, *maps.shape[2:])
        assert isinstance(step.loss, ProxyLoss)
        with torch.autocast(step.z.device.type, enabled=False):
            similarities = step.loss.similarities(step.raw)
            lead = similarities.gather(1, step.labels[:, None]).sum() - similarities.mean(1).sum()
        (slope,) = torch.autograd.grad(lead, features.value, retain_graph=True)
        return relevance_gate(maps, features.like(slope).as_map(), self.exchange_temp)

    @staticmethod
    def _border_gate(features: StageFeatures, temperature: float, like: Tensor) -> Tensor:
        """The border gate of one stage, brought to the grid of another's map: (b, H * W)."""
        maps = features.as_map().detach()
        grid, target = (int(maps.shape[2]), int(maps.shape[3])), (int(like.shape[2]), int(like.shape[3]))
        return resize_gate(border_gate(maps.flatten(2).transpose(1, 2), grid, temperature), grid, target)

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Move the dictionary, then return ``odba_backdoor`` and ``odba_orth``, weighted."""
        return self.terms_at(step, self.ramp.weight(step)) if self.active else {}

    def terms_at(self, step: Step, ramp: float) -> dict[str, Tensor]:
        """As :meth:`terms`, with the value of the ramp given."""
        if not self.active:
            return {}
        gate = self.background_gate(step)
        self.observe(step, self.descriptors(step, gate))
        atoms, prior = self.dictionary.clone(), self.prior.clone()  # graphs keep these when the next part moves them
        with torch.no_grad():
            self._seen = {"gate": gate.detach(), "z": step.z.detach(), "labels": step.labels}
            self._seen["orth"] = soft_orthogonality(step.z, atoms)
        waiting = step.epoch < self.start_epoch or not self.seeded
        terms: dict[str, Tensor] = {}
        for seen in step.seen:
            terms["odba_backdoor"] = ramp * self.lambda_b * step.loss(seen.raw, seen.labels)
        if self.base_weight == 0:
            raw = step.raw if waiting else span_split(step.z, atoms)[1]
            terms["base"] = step.loss(raw, step.labels)
        if waiting:
            return terms
        if self.lambda_b > 0 and not self.exchanges:
            terms["odba_backdoor"] = ramp * self.lambda_b * self.backdoor(step, atoms, prior)
        if self.lambda_o > 0 and self.orth != "project":
            terms["odba_orth"] = ramp * self.lambda_o * self.orthogonality(step, atoms)
        return terms

    @torch.no_grad()
    def background_gate(self, step: Step) -> Tensor:
        """Return the gate over the places (b, P) of the own share, or over its channels (b, C)."""
        tokens = step.tokens
        if self.extract_gate == "channel":
            return channel_gate(tokens, self.gate_temp)
        if self.extract_gate == "profile":
            proxies = step.loss.proxies
            assert isinstance(proxies, Tensor)
            return profile_gate(step.embedder.project(tokens), proxies, self.gate_temp)
        if self.extract_gate == "none":
            return torch.ones_like(tokens[..., 0])
        border = self.extract_gate == "border"
        if self.gate_stage is None:
            return border_gate(tokens, step.grid, self.gate_temp) if border else spatial_gate(tokens, self.gate_temp)
        maps = step.features[self.gate_stage].as_map().detach()
        places, grid = maps.flatten(2).transpose(1, 2), (int(maps.shape[2]), int(maps.shape[3]))
        fine = border_gate(places, grid, self.gate_temp) if border else spatial_gate(places, self.gate_temp)
        return resize_gate(fine, (int(maps.shape[2]), int(maps.shape[3])), step.grid)

    def descriptors(self, step: Step, gate: Tensor) -> Tensor:
        """Return the background descriptors (B, M) of the joined batch."""
        own = background_descriptors(step.tokens, gate, step.embedder.project, channels=self.extract_gate == "channel")
        return gather_rows(own)

    @torch.no_grad()
    def observe(self, step: Step, descriptors: Tensor) -> None:
        """Collect descriptors until the dictionary can start, then move it by each batch.

        Args:
            step: for labels, epoch and random numbers.
            descriptors: (B, M) unit, of the joined batch.
        """
        if self.centre:
            descriptors = self._centred(descriptors)
        if not self.seeded and not self._collect(descriptors, step.generator):
            return
        first = step.epoch < 1
        update = update_dictionary(
            self.dictionary,
            self.prior,
            descriptors,
            step.labels,
            gate=self.update_gate,
            sigma_v2=self.sigma_v2,
            momentum=self.first_momentum if first else self.momentum,
            soft_orth_step=self.soft_orth_step,
        )
        self.dictionary.copy_(update.dictionary)
        self.prior.copy_(update.prior)
        self.idle.add_(1).masked_fill_(update.counts > 0, 0)
        stale = self.idle >= self.patience
        if bool(stale.any()):
            self.dictionary.copy_(revive_atoms(self.dictionary, descriptors, stale))
            self.idle.masked_fill_(stale, 0)

    def _centred(self, descriptors: Tensor) -> Tensor:
        """Move the running mean and take it off."""
        share = 1.0 if not bool(self.mean.any()) else 1 - self.first_momentum
        self.mean.lerp_(descriptors.mean(0), share)
        return normalize(descriptors - self.mean)

    def _collect(self, descriptors: Tensor, generator: torch.Generator) -> bool:
        """Keep a tenth of the room for each of ten batches; later ones only fill what is missing to one row an atom."""
        rows, batches, _ = self.filled.tolist()
        room = len(self.collected)
        taken = descriptors[: min(max(1, room // SEED_BATCHES), room - rows)]
        self.collected[rows : rows + len(taken)] = taken
        rows, batches = rows + len(taken), batches + 1
        ready = bool(rows == room or (batches >= SEED_BATCHES and rows >= self.num_atoms))
        self.filled.copy_(torch.tensor([rows, batches, int(ready)]))
        if ready:
            self.dictionary.copy_(seed_dictionary(self.collected[:rows], self.num_atoms, generator))
        return ready

    def backdoor(self, step: Step, atoms: Tensor, prior: Tensor) -> Tensor:
        """Return L_bd.

        Args:
            step: the embeddings and the loss.
            atoms: (K, M).
            prior: (K,).
        """
        strata, rho = draw_strata(len(step.z), prior, self.rho_max, step.generator)
        if self.estimator == "enum":
            return enumerated(step.z, step.labels, atoms, prior, rho, step.loss)
        if self.estimator == "nwgm":
            query, key = self.get_parameter("query"), self.get_parameter("key")
            moved = attended(step.z, atoms, prior, rho, lambda z: z @ query.t(), lambda d: d @ key.t())
        else:
            moved = shifted(step.z, atoms[strata], rho)
        value: Tensor = step.loss(moved, step.labels)
        return value

    def orthogonality(self, step: Step, atoms: Tensor) -> Tensor:
        """Return L_orth of the embeddings, and of the proxies if asked for."""
        groups = [step.z]
        if self.orth_proxies:
            proxies = step.loss.proxies
            assert isinstance(proxies, Tensor)
            groups.append(normalize(proxies).flatten(0, -2))
        if self.orth == "soft":
            return torch.stack([soft_orthogonality(rows, atoms) for rows in groups]).sum()
        start = torch.randn(len(atoms), generator=step.generator, device=atoms.device)
        return torch.stack([spectral_orthogonality(rows, atoms, start) for rows in groups]).sum()

    def report(self) -> dict[str, float]:
        """Return the state of gate and dictionary; the gate is that of the own share of the batch."""
        if not self._seen:
            return {}
        gate, used = self._seen["gate"], self.prior > 0.1 / self.num_atoms
        # Small matrices are factorised faster on a CPU than on a GPU.
        z, labels, atoms = (one.cpu() for one in (self._seen["z"], self._seen["labels"], self.dictionary))
        parts = recall_by_part(z, labels, atoms)
        return {
            "gate_mean": float(gate.mean()),
            "gate_open": float((gate > 0.5).float().mean()),
            "coherence": float(coherence(self.dictionary)),
            "atoms_used": float(used.sum()),
            "orth": float(self._seen["orth"]),
            "orth_random": self.num_atoms / self.dim,
            "span_energy": float(span_energy(z, atoms).mean()),
            **{f"gate_bin_{place}": float(share) for place, share in enumerate(gate_histogram(gate))},
            **(
                dict(zip(("batch_recall", "batch_recall_span", "batch_recall_rest"), parts, strict=True))
                if parts
                else {}
            ),
        }


def _check_combinations(
    dim: int, atoms: int, extract_gate: str, gate_stage: str | None, estimator: str, orth: str, orth_proxies: bool
) -> None:
    if gate_stage is not None and extract_gate not in ("spatial", "border"):
        raise LossError(
            f"gate_stage={gate_stage!r} belongs to extract_gate='spatial' or 'border', got "
            f"extract_gate={extract_gate!r}; leave one of them out."
        )
    if estimator == "enum" and atoms > 16:
        raise LossError(f"estimator='enum' runs the loss once an atom and {atoms} are too many; use atoms=16 or fewer.")
    if orth == "project" and atoms >= dim:
        raise LossError(f"orth='project' with {atoms} atoms leaves nothing of dimension {dim}; use fewer atoms.")
    if orth == "project" and orth_proxies:
        raise LossError("orth_proxies adds to the orthogonality term, which orth='project' replaces; leave one out.")
