"""What a confounded set is made of: one frozen, validated description from which every pixel follows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.confounded.backgrounds import SOURCES
from proxemics.data.confounded.glyphs import FONTS


def _known(kind: str, names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise DataError(f"{name!r} is no {kind}. Allowed: {', '.join(allowed)}.{hint}")
    if len(set(names)) != len(names):
        raise DataError(f"A {kind} is named twice in {list(names)}; name each once.")
    return names


class ConfoundedSpec(BaseModel):
    """Size, confounding and nuisances of a rendered set; equal specs give equal pixels.

    Picture ``i`` shows class ``i // per_class``; the first ``train_classes`` classes are for training, the others are
    never seen there. ``rho`` only acts on training pictures: test backgrounds are always independent of the class.

    Attributes:
        train_classes: classes with split ``train``.
        test_classes: further classes with split ``test``.
        per_class: pictures of each class.
        size: side of the square pictures in pixels.
        rho: probability in [0, 1] that a training picture lies on the background tied to its class; otherwise the
            background is drawn uniformly from all sources.
        seed: first part of every random number.
        domains: font styles (see ``FONTS``); the pictures of a class take them in turn.
        test_domains: font styles of the test classes; empty means the same as ``domains``.
        backgrounds: names of background sources (see ``SOURCES``); empty means all of them.
        rotation: largest in-plane rotation, degrees, either way.
        translation: share in [0, 1] of the free room around the object that its centre may use.
        scale: smallest and largest longer side of the object as a share of the picture's side.
        illumination: strength in [0, 1] of gain (1 +- illumination / 2) and of a linear light gradient.
        hue: share in [0, 1] of the colour circle from which the object's hue is drawn.

    Example:
        >>> ConfoundedSpec(rho=0.5).num_images
        2400
        >>> ConfoundedSpec(domains=("san",))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pydantic_core._pydantic_core.ValidationError: 1 validation error for ConfoundedSpec
        domains
          Value error, 'san' is no domain. Allowed: sans, ... Did you mean 'sans'? [type=value_error, ...]
        ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_classes: Annotated[int, Field(ge=2)] = 60
    test_classes: Annotated[int, Field(ge=0)] = 60
    per_class: Annotated[int, Field(ge=1)] = 20
    size: Annotated[int, Field(ge=32, le=1024)] = 96
    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    seed: int = 0
    domains: Annotated[tuple[str, ...], Field(min_length=1)] = ("sans_bold", "serif_bold", "mono_bold")
    test_domains: tuple[str, ...] = ()
    backgrounds: tuple[str, ...] = ()
    rotation: Annotated[float, Field(ge=0, le=180)] = 25.0
    translation: Annotated[float, Field(ge=0, le=1)] = 1.0
    scale: tuple[float, float] = (0.36, 0.62)
    illumination: Annotated[float, Field(ge=0, le=1)] = 0.6
    hue: Annotated[float, Field(ge=0, le=1)] = 1.0

    @field_validator("domains", "test_domains")
    @classmethod
    def _check_domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known("domain", value, tuple(FONTS))

    @field_validator("backgrounds")
    @classmethod
    def _check_backgrounds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _known("background", value, tuple(SOURCES))

    @field_validator("scale")
    @classmethod
    def _check_scale(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if not 0.1 <= low <= high <= 1:
            raise DataError(f"scale is {list(value)}; give [smallest, largest] with 0.1 <= smallest <= largest <= 1.")
        return value

    @property
    def num_classes(self) -> int:
        """Training and test classes together."""
        return self.train_classes + self.test_classes

    @property
    def num_images(self) -> int:
        """Pictures in the whole set."""
        return self.num_classes * self.per_class

    @property
    def all_domains(self) -> tuple[str, ...]:
        """Every font style that occurs, training first; a class must have a glyph in each of them."""
        return tuple(dict.fromkeys(self.domains + self.test_domains))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the background sources in use."""
        return self.backgrounds or tuple(SOURCES)
