"""CenterPolar: push samples away from their class centroid, then pull everything seen and generated back to it.

    L = L_base(z, y) + λ_g L_base(z̃, y) + λ_4 (L_pull + L_cls + λ_s L_sep)

A step goes: clean pass; C3E in :meth:`CenterPolar.views` (the model is frozen, an expander moves the batch away from
its centroids); C4 in :meth:`CenterPolar.terms` on clean and generated embeddings together; and the centroids follow the
clean embeddings in :meth:`CenterPolar.after_step`.

Source: Yuan et al., arXiv 2601.09121, known to us by its abstract only: every formula here is our reading, and nothing
is a reproduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.data.preprocess import Preprocess
from proxemics.losses.checks import check_count, check_number
from proxemics.methods.base import Method, Needs, Start, Step, View
from proxemics.methods.center_polar.centroids import centroids_of, updated_centroids, working_centroids
from proxemics.methods.center_polar.constraint import centripetal_constraint, check_margin
from proxemics.methods.center_polar.geodesic import angles_between, centrifugal_step
from proxemics.methods.center_polar.learner import GeneratorLearner, check_learning
from proxemics.methods.center_polar.plan import Plan, make_plan
from proxemics.methods.center_polar.schedule import reach
from proxemics.methods.center_polar.style import expand_style
from proxemics.methods.options import check_choice

Expander = Literal["generator", "style", "embedding", "none"]
CentroidMode = Literal["ema", "batch", "joint"]

TOO_FAR, SLOWER = 0.5, 0.9
"""Below this mean accuracy over an epoch, Δ_max is multiplied by that."""


class CenterPolar(Method):
    """Class-centric centrifugal expansion (C3E) and centripetal constraint (C4) on top of any base loss.

    Args:
        num_classes: C.
        dim: M >= 2.
        expander: ``"generator"`` changes pictures, ``"style"`` the statistics of features, ``"embedding"`` moves the
            embeddings themselves, ``"none"`` leaves C4 alone.
        layer: stage for ``"style"``.
        centroid: ``"ema"`` of the clean embeddings, ``"joint"`` of clean and generated ones, or the mean of the
            ``"batch"``, with a gradient.
        momentum: m of ``"ema"`` and ``"joint"``.
        refresh_epochs: how often the centroids are computed anew from the whole training set; 0: never. Without effect
            for ``"joint"``, which would forget the generated samples.
        delta_max: Δ_max, radians.
        phi_max_deg: no sample is asked to be farther from its centroid, degrees.
        margin_s: m_s, the lead over other centroids that an expanded sample keeps.
        lambda_sem: λ_sem.
        lambda_div: λ_div, for ``"generator"``.
        inner_steps: steps on ψ or δ a step of training.
        inner_lr: rate of Adam on ψ.
        style_step: size of a sign step on δ.
        style_budget: largest absolute value in δ.
        mix: share of G(x) in an expanded picture.
        pool: how many ψ are kept.
        tau_c: temperature of L_cls.
        lambda_s: λ_s.
        margin_c: m_c.
        neighbours: centroids that L_sep looks at, a class.
        lambda_4: λ_4.
        lambda_g: λ_g.
        start_epoch: first epoch with expansion; C4 works on clean samples before.
        adaptive: reduce Δ_max where the expanded samples leave their classes.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> method = CenterPolar(10, 64, expander="style")
        >>> method.needs.stages, method.needs.frozen_bn, method.needs.refresh_epochs
        (('layer1',), True, 5)
        >>> CenterPolar(10, 64, expander="stile")
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: expander='stile': use generator or style or embedding or none. Did you mean ...
    """

    centroids: Tensor
    delta_max: Tensor
    correct: Tensor
    counted: Tensor
    judged: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        expander: Expander = "generator",
        layer: str = "layer1",
        centroid: CentroidMode = "ema",
        momentum: float = 0.9,
        refresh_epochs: int = 5,
        delta_max: float = 0.5,
        phi_max_deg: float = 75.0,
        margin_s: float = 0.05,
        lambda_sem: float = 1.0,
        lambda_div: float = 0.1,
        inner_steps: int = 1,
        inner_lr: float = 1e-3,
        style_step: float = 0.1,
        style_budget: float = 0.5,
        mix: float = 0.6,
        pool: int = 5,
        tau_c: float = 0.1,
        lambda_s: float = 1.0,
        margin_c: float = 0.0,
        neighbours: int = 10,
        lambda_4: float = 0.5,
        lambda_g: float = 0.5,
        start_epoch: int = 1,
        adaptive: bool = True,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("dim", dim, low=2)
        check_choice("expander", expander, get_args(Expander))
        check_choice("centroid", centroid, get_args(CentroidMode))
        weights = {
            "lambda_sem": lambda_sem,
            "lambda_s": lambda_s,
            "lambda_4": lambda_4,
            "lambda_g": lambda_g,
            "margin_s": margin_s,
            "style_step": style_step,
            "style_budget": style_budget,
        }
        for name, value in weights.items():
            check_number(name, value, low=0)
        check_learning(inner_steps=inner_steps, inner_lr=inner_lr, lambda_div=lambda_div, mix=mix, pool=pool)
        check_number("tau_c", tau_c, low=0, open_low=True)
        check_number("momentum", momentum, low=0, high=1)
        check_number("delta_max", delta_max, low=0, high=torch.pi)
        check_number("phi_max_deg", phi_max_deg, low=0, high=180)
        check_margin(margin_c, num_classes)
        check_count("neighbours", neighbours)
        check_count("refresh_epochs", refresh_epochs, low=0)
        check_count("start_epoch", start_epoch, low=0)
        self.num_classes, self.dim, self.expander, self.layer = num_classes, dim, expander, layer
        self.centroid, self.momentum = centroid, 0.0 if centroid == "batch" else momentum
        self.phi_max_deg, self.margin_s, self.lambda_sem = phi_max_deg, margin_s, lambda_sem
        self.inner_steps, self.style_step, self.style_budget = inner_steps, style_step, style_budget
        self.tau_c, self.lambda_s, self.margin_c, self.neighbours = tau_c, lambda_s, margin_c, neighbours
        self.lambda_4, self.lambda_g, self.start_epoch, self.adaptive = lambda_4, lambda_g, start_epoch, adaptive
        self.on = lambda_4 > 0 or (lambda_g > 0 and expander != "none")
        self.learner: GeneratorLearner | None = None
        if expander == "generator":
            self.learner = GeneratorLearner(steps=inner_steps, rate=inner_lr, lambda_div=lambda_div, mix=mix, pool=pool)
        self.register_buffer("centroids", torch.zeros(num_classes, dim))
        self.register_buffer("delta_max", torch.tensor(float(delta_max)))
        self.register_buffer("correct", torch.zeros(()))
        self.register_buffer("counted", torch.zeros(()))
        self.register_buffer("judged", torch.tensor(-1))
        self.needs = self._needs(refresh_epochs)
        self._plan: Plan | None = None
        self._pending: list[tuple[Tensor | None, Tensor | None]] = []
        self._stats: dict[str, Tensor] = {}

    def _needs(self, refresh_epochs: int) -> Needs:
        if not self.on:
            return Needs(proxies=False)
        stages = {"generator": ("pixel",), "style": (self.layer,)}.get(self.expander, ())
        return Needs(
            stages=stages,
            per_class=4 if self.centroid == "batch" else 0,
            frozen_bn=bool(stages),
            proxies=False,
            start=True,
            refresh_epochs=0 if self.centroid == "joint" else refresh_epochs,
        )

    def start(self, start: Start) -> None:
        """Set the centroids to the class means of the whole training set."""
        if self.on:
            self.centroids.copy_(centroids_of(start.raw, start.labels, self.centroids))

    def refresh(self, start: Start) -> None:
        """Set the centroids to the class means of the whole training set."""
        self.start(start)

    def views(self, step: Step) -> Sequence[View]:
        """Phase 1: plan the expansion, train the expander on the frozen model, and return what it makes."""
        self._plan = None
        if not self._expands(step):
            return ()
        with torch.autocast(step.z.device.type, enabled=False):
            plan = self._make_plan(step)
        self._plan = plan

        def objective(units: Tensor, rows: Tensor | None = None) -> Tensor:
            return plan.loss(units, rows, margin=self.margin_s, lambda_sem=self.lambda_sem)

        if self.learner is not None:
            return (self.learner.view(step, objective),)
        if self.expander == "style":
            styled, _ = expand_style(
                step,
                step.features[self.layer],
                objective,
                steps=self.inner_steps,
                size=self.style_step,
                budget=self.style_budget,
            )
            return (View(styled),)
        return ()

    def _expands(self, step: Step) -> bool:
        wanted = self.lambda_4 > 0 or self.lambda_g > 0
        return wanted and self.expander != "none" and step.epoch >= self.start_epoch

    def _make_plan(self, step: Step) -> Plan:
        centroids, known = working_centroids(
            self.centroids, step.z.detach(), step.labels, batch=self.centroid == "batch"
        )
        return make_plan(
            step.z,
            step.labels,
            centroids,
            known,
            step.generator,
            delta=self.delta_max.to(step.z.dtype) * reach(step.progress),
            margin=self.margin_s,
            phi_max_deg=self.phi_max_deg,
        )

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Phase 2: the base loss of the expanded samples, and C4 on clean and expanded ones together."""
        if not self.on:
            return {}
        plan, terms = self._plan, {}
        expanded: Tensor | None = None
        if plan is not None:
            expanded, base = self._expanded(step, plan)
            if self.lambda_g > 0:
                terms["c3e_base"] = self.lambda_g * step.loss(base, step.labels)
        if self.lambda_4 > 0:
            centroids, known = working_centroids(self.centroids, step.z, step.labels, batch=self.centroid == "batch")
            units = step.z if expanded is None else torch.cat([step.z, expanded])
            parts = centripetal_constraint(
                units,
                step.labels if expanded is None else step.labels.repeat(2),
                centroids,
                tau=self.tau_c,
                margin=self.margin_c,
                neighbours=self.neighbours,
                known=known,
            )
            terms["c4_pull"], terms["c4_cls"] = self.lambda_4 * parts.pull, self.lambda_4 * parts.cls
            if self.lambda_s > 0:
                terms["c4_sep"] = self.lambda_4 * self.lambda_s * parts.sep
        self._note(step, plan, None if expanded is None else expanded.detach())
        return terms

    def _expanded(self, step: Step, plan: Plan) -> tuple[Tensor, Tensor]:
        """Expanded unit embeddings (B, M), and what the base loss is to see of them."""
        if self.expander == "embedding":
            own = plan.centroids[step.labels]
            moved = centrifugal_step(step.z, own, plan.targets - plan.angles, noise=plan.noise)
            return moved, moved
        return step.seen[0].z, step.seen[0].raw

    @torch.no_grad()
    def _note(self, step: Step, plan: Plan | None, expanded: Tensor | None) -> None:
        """Keep what :meth:`report` and :meth:`after_step` want."""
        accuracy = None
        if plan is None or expanded is None:
            self._stats = {}
        else:
            accuracy = plan.accuracy(expanded)
            self._stats = {
                "theta_clean": plan.angles.mean().rad2deg(),
                "theta_expanded": angles_between(expanded, plan.centroids[plan.labels]).mean().rad2deg(),
                "theta_target": plan.targets.mean().rad2deg(),
                "theta_cap": plan.caps.mean().rad2deg(),
                "accuracy_expanded": accuracy,
            }
        self._plan = None
        self._pending.append((accuracy, expanded if self.centroid == "joint" else None))

    def report(self) -> dict[str, float]:
        """Return mean angles to the centroids in degrees, the accuracy on expanded samples, and Δ_max in radians."""
        if not self._stats:
            return {}
        return {name: float(value) for name, value in self._stats.items()} | {"delta_max": float(self.delta_max)}

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Let the centroids follow, and judge an epoch's expansion at the first step of the next one."""
        if not self.on:
            return
        accuracy, expanded = self._pending.pop(0) if self._pending else (None, None)
        units, labels = step.z, step.labels
        if expanded is not None:
            units, labels = torch.cat([units, expanded]), labels.repeat(2)
        self.centroids.copy_(updated_centroids(self.centroids, units, labels, momentum=self.momentum))
        if self.adaptive and accuracy is not None:
            self._judge(step.epoch, accuracy)

    def _judge(self, epoch: int, accuracy: Tensor) -> None:
        if epoch != int(self.judged):
            if float(self.counted) > 0 and float(self.correct / self.counted) < TOO_FAR:
                self.delta_max.mul_(SLOWER)
            self.correct.zero_()
            self.counted.zero_()
            self.judged.fill_(epoch)
        self.correct.add_(accuracy.to(self.correct))
        self.counted.add_(1)

    def expand_pictures(self, images: Tensor, preprocess: Preprocess, generator: torch.Generator) -> Tensor:
        """Return pictures as C3E generates them now.

        Args:
            images: (B, 3, H, W) float32, normalised by ``preprocess``.
            preprocess: of the model.
            generator: source of the draws, on the device of the pictures.

        Returns:
            (B, 3, H, W) normalised, within the valid range.

        Raises:
            LossError: the expander makes no pictures.

        Example:
            >>> method, same = CenterPolar(3, 8), Preprocess(size=16, resize=16)
            >>> method.expand_pictures(torch.zeros(1, 3, 16, 16), same, torch.Generator().manual_seed(0)).shape
            torch.Size([1, 3, 16, 16])
        """
        if self.learner is None:
            raise LossError(f"expander={self.expander!r} makes no pictures; use expander='generator'.")
        return self.learner.pictures(images, preprocess, generator)

    def check(self, loss: nn.Module) -> None:
        """Refuse a base loss with another number of classes or another dimension.

        Raises:
            LossError: with both.
        """
        given = (getattr(loss, "num_classes", self.num_classes), getattr(loss, "dim", self.dim))
        if given != (self.num_classes, self.dim):
            raise LossError(
                f"{type(loss).__name__} has {given[0]} classes and dimension {given[1]}, but CenterPolar was built "
                f"with {self.num_classes} and {self.dim}; give both the same numbers."
            )
