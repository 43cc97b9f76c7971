"""The structural model: which causes made picture ``i``. Pixels follow from causes alone, so causes can be set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxemics.core.errors import DataError
from proxemics.core.seeds import numpy_generator
from proxemics.data.confounded.backgrounds import Crop
from proxemics.data.confounded.compose import Light, Pose
from proxemics.data.confounded.spec import ConfoundedSpec


@dataclass(frozen=True)
class Causes:
    """Everything a picture is made from. Replace a field to intervene: same object, other background.

    Attributes:
        index: number of the picture in the set.
        class_id: number of the class, 0 to ``num_classes - 1``.
        split: ``train`` or ``test``.
        domain: font style.
        background: name of the background source.
        tied: the background was taken because of the class and not drawn independently.
        crop: place of the background's crop in its region.
        pose: rotation, scale and place of the object.
        light: gain and gradient of the illumination.
        hue: hue of the object in [0, 1).
        shade: saturation of the object in [0, 1].
    """

    index: int
    class_id: int
    split: str
    domain: str
    background: str
    tied: bool
    crop: Crop
    pose: Pose
    light: Light
    hue: float
    shade: float


def tied_background(spec: ConfoundedSpec, class_id: int) -> str:
    """Return the background source tied to a class: sources are shuffled by the seed and dealt out in turn.

    Example:
        >>> spec = ConfoundedSpec()
        >>> tied_background(spec, 0) == tied_background(spec, len(spec.sources))
        True
    """
    order = numpy_generator(spec.seed, "confounded", "ties").permutation(len(spec.sources))
    return spec.sources[int(order[class_id % len(order)])]


def draw_causes(spec: ConfoundedSpec, index: int) -> Causes:
    """Draw the causes of one picture; they depend on the spec and ``index`` only, never on other pictures.

    Args:
        spec: the set.
        index: 0 to ``spec.num_images - 1``.

    Returns:
        The causes.

    Raises:
        DataError: no such picture.

    Example:
        >>> draw_causes(ConfoundedSpec(), 45).class_id
        2
    """
    if not 0 <= index < spec.num_images:
        raise DataError(f"There is no picture {index}; this set has 0 to {spec.num_images - 1}.")
    class_id, place = divmod(index, spec.per_class)
    train = class_id < spec.train_classes
    domains = spec.domains if train or not spec.test_domains else spec.test_domains
    draw = numpy_generator(spec.seed, "confounded", "picture", index)
    numbers = iter(draw.random(16).tolist())
    tied = next(numbers) < (spec.rho if train else 0.0)
    free = spec.sources[int(next(numbers) * len(spec.sources))]
    return Causes(
        index=index,
        class_id=class_id,
        split="train" if train else "test",
        domain=domains[place % len(domains)],
        background=tied_background(spec, class_id) if tied else free,
        tied=tied,
        crop=Crop(next(numbers), next(numbers), next(numbers), next(numbers) < 0.5),
        pose=_pose(spec, [next(numbers) for _ in range(4)]),
        light=_light(spec, [next(numbers) for _ in range(3)]),
        hue=(spec.hue * (next(numbers) - 0.5)) % 1.0,
        shade=0.45 + 0.5 * next(numbers),
    )


def _pose(spec: ConfoundedSpec, numbers: list[float]) -> Pose:
    turn, factor, x, y = numbers
    low, high = spec.scale
    return Pose(
        rotation=spec.rotation * (2 * turn - 1),
        scale=low + (high - low) * factor,
        x=spec.translation * (2 * x - 1),
        y=spec.translation * (2 * y - 1),
    )


def _light(spec: ConfoundedSpec, numbers: list[float]) -> Light:
    gain, slope, angle = numbers
    return Light(1 + spec.illumination * (gain - 0.5), spec.illumination * slope, 360 * angle)


def co_occurrence(causes: list[Causes], spec: ConfoundedSpec) -> np.ndarray:
    """Count how often each class lies on each source.

    Args:
        causes: of any pictures of the set.
        spec: the set.

    Returns:
        (num_classes, sources) int64.
    """
    table = np.zeros((spec.num_classes, len(spec.sources)), dtype=np.int64)
    column = {name: number for number, name in enumerate(spec.sources)}
    for cause in causes:
        table[cause.class_id, column[cause.background]] += 1
    return table
