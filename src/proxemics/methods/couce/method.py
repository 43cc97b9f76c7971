"""CouCE: background adjusted for by a dictionary (ODBA), nuisances varied in the spectrum (MSRCI), with one ramp.

    L = L_base(z, y) + w(t) [ λ_b L_bd + λ_o L_orth + λ_v L_inv + λ_a L_base(z~, y) ]

A reading of the abstract of CouCE (arXiv 2606.30365): no equation of the paper was obtainable, so this is no
reproduction. Nothing is left in the exported model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from proxemics.methods.base import Method, Needs, Step, View
from proxemics.methods.couce.msrci import MSRCI
from proxemics.methods.couce.odba import ODBA
from proxemics.methods.couce.ramp import Ramp


class CouCE(Method):
    """Both parts; each is switched off by its weights.

    Args:
        dim: M, the embedding dimension.
        odba: the part that adjusts for background; None: with its defaults. Its own ``ramp_epochs`` is not used.
        msrci: the part that varies nuisances; None: with its defaults. Its own ``ramp_epochs`` is not used.
        ramp_epochs: length of the common ramp w; 0: none.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> method = CouCE(128, msrci=MSRCI(layer="pixel", mode="scale"))
        >>> method.needs.stages, method.odba.num_atoms
        (('pixel',), 64)
    """

    def __init__(
        self, dim: int, *, odba: ODBA | None = None, msrci: MSRCI | None = None, ramp_epochs: float = 5
    ) -> None:
        super().__init__()
        self.odba = ODBA(dim) if odba is None else odba
        self.msrci = MSRCI() if msrci is None else msrci
        self.ramp = Ramp(ramp_epochs)
        parts = (self.odba.needs, self.msrci.needs)
        self.needs = Needs(
            stages=tuple(dict.fromkeys(stage for needs in parts for stage in needs.stages)),
            gradients=any(needs.gradients for needs in parts),
            proxies=any(needs.proxies for needs in parts),
            grid=any(needs.grid for needs in parts),
        )
        self._first = 0

    @property
    def base_weight(self) -> float:
        """That of :class:`ODBA`."""
        return self.odba.base_weight

    def check(self, loss: nn.Module) -> None:
        """Refuse a loss that one of the parts cannot work with."""
        self.odba.check(loss)
        self.msrci.check(loss)

    def views(self, step: Step) -> Sequence[View]:
        """Return the views of both parts."""
        first = self.odba.views(step)
        self._first = len(first)
        return [*first, *self.msrci.views(step)]

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the terms of both parts, weighted."""
        if not (self.odba.active or self.msrci.active):
            return {}
        ramp = self.ramp.weight(step)
        first, second = step.seen[: self._first], step.seen[self._first :]
        return self.odba.terms_at(replace(step, seen=first), ramp) | self.msrci.terms_at(
            replace(step, seen=second), ramp
        )

    def report(self) -> dict[str, float]:
        """Return the reports of both parts."""
        return self.odba.report() | self.msrci.report()
