"""Rendering: causes to pixels, and a whole specification to arrays and a table."""

from __future__ import annotations

import colorsys
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from proxemics.data.confounded.backgrounds import cut_crop, load_sources
from proxemics.data.confounded.causes import Causes, draw_causes
from proxemics.data.confounded.compose import Composite, blend, place, relight
from proxemics.data.confounded.glyphs import GlyphFont, choose_glyphs, fit
from proxemics.data.confounded.spec import ConfoundedSpec

if TYPE_CHECKING:
    import pandas as pd

_EM = 160  # font size at which glyphs are drawn before they are fitted
_MARGIN = 4  # room around a glyph for outline and shadow, in outline widths
_OUTLINE = np.asarray([18, 16, 22], dtype=np.float32)


class Rendered(NamedTuple):
    """A rendered set in memory.

    Attributes:
        pictures: (N, S, S, 3) uint8.
        masks: (N, S, S) uint8, 255 on the object.
        table: one row a picture: label, domain, split, background and the other causes.
    """

    pictures: np.ndarray
    masks: np.ndarray
    table: pd.DataFrame


def class_name(point: int) -> str:
    """Return a readable, file-safe name of a code point.

    Example:
        >>> class_name(ord("Ω")), class_name(0x10FFFE)
        ('greek-capital-letter-omega', 'u-10fffe')
    """
    return unicodedata.name(chr(point), f"U {point:x}").lower().replace(" ", "-")


class Scene:
    """Fonts, classes and backgrounds of one specification, loaded once and then drawing any picture of it.

    Args:
        spec: what to draw.

    Attributes:
        spec: as given.
        points: code point of each class.
        names: name of each class.

    Raises:
        DataError: a part is not installed, or there are too few distinct glyphs.

    Example:
        >>> scene = Scene(ConfoundedSpec(train_classes=2, test_classes=2, per_class=2))
        >>> picture, mask = scene.draw(scene.causes(0))
        >>> picture.shape, mask.shape
        ((96, 96, 3), (96, 96))
    """

    def __init__(self, spec: ConfoundedSpec) -> None:
        self.spec = spec
        self.points = choose_glyphs(spec.all_domains, spec.num_classes, rotation=spec.rotation, seed=spec.seed)
        self.names = [class_name(point) for point in self.points]
        self._regions = {name: _reduce(region, 2 * spec.size) for name, region in load_sources(spec.sources).items()}
        self._fonts = {domain: GlyphFont(domain, _EM) for domain in spec.all_domains}
        self._glyphs: dict[tuple[int, str], Image.Image] = {}

    def causes(self, index: int) -> Causes:
        """Return the causes of picture ``index``; see :func:`draw_causes`."""
        return draw_causes(self.spec, index)

    def draw(self, causes: Causes) -> Composite:
        """Draw a picture from its causes, which may be changed with ``dataclasses.replace`` to intervene.

        Args:
            causes: from :meth:`causes`.

        Returns:
            Picture (S, S, 3) and mask (S, S), uint8. The mask is the glyph with its outline, without its shadow.
        """
        spec = self.spec
        behind = cut_crop(self._regions[causes.background], causes.crop, spec.size).astype(np.float32)
        glyph = self._glyph(causes.class_id, causes.domain)
        layers = place(glyph, causes.pose, spec.size, margin=_MARGIN * _edge(spec.size))
        alpha = np.asarray(layers, dtype=np.float32) * np.float32(1 / 255)
        fill, outline, shadow = alpha[..., 0:1], alpha[..., 1:2], alpha[..., 2:3]
        colour = np.asarray(colorsys.hsv_to_rgb(causes.hue, causes.shade, 0.95), dtype=np.float32) * 255
        pixels = behind * (1 - np.float32(0.6) * shadow)
        pixels = blend(blend(pixels, _OUTLINE, outline), colour, fill)
        return Composite(relight(pixels, causes.light), np.ascontiguousarray(np.asarray(layers)[..., 1]))

    def row(self, causes: Causes) -> dict[str, str | int | float | bool]:
        """Return the table row of a picture."""
        return {
            "label": self.names[causes.class_id],
            "domain": causes.domain,
            "split": causes.split,
            "background": causes.background,
            "tied": causes.tied,
            "rotation": causes.pose.rotation,
            "scale": causes.pose.scale,
            "shift_x": causes.pose.x,
            "shift_y": causes.pose.y,
            "illumination": causes.light.gain,
            "light_slope": causes.light.slope,
            "light_angle": causes.light.angle,
            "hue": causes.hue,
            "index": causes.index,
        }

    def _glyph(self, class_id: int, domain: str) -> Image.Image:
        key = (class_id, domain)
        if key not in self._glyphs:
            mask = self._fonts[domain].mask(chr(self.points[class_id]))
            assert mask is not None  # choose_glyphs drops blank ones
            self._glyphs[key] = _layers(fit(mask, round(0.72 * self.spec.size)), self.spec.size)
        return self._glyphs[key]


def _reduce(region: Image.Image, side: int) -> Image.Image:
    """Shrink a region whose shorter side is above ``side``, so that crops of it are cheap."""
    factor = side / min(region.size)
    if factor >= 1:
        return region
    return region.resize((round(region.width * factor), round(region.height * factor)), Image.Resampling.BOX)


def _edge(size: int) -> int:
    """Return the width of the outline in pixels."""
    return max(1, round(size / 64))


def _layers(mask: Image.Image, size: int) -> Image.Image:
    """Pack fill, outline and shadow of a glyph into the three bands of one picture, so that one transform moves all."""
    edge = _edge(size)
    margin = _MARGIN * edge
    fill = Image.new("L", (mask.width + 2 * margin, mask.height + 2 * margin))
    fill.paste(mask, (margin, margin))
    outline = fill.filter(ImageFilter.MaxFilter(2 * edge + 1)).filter(ImageFilter.BoxBlur(0.4))
    shadow = Image.new("L", fill.size)
    shadow.paste(outline, (edge, edge))
    return Image.merge("RGB", (fill, outline, shadow.filter(ImageFilter.GaussianBlur(1.5 * edge))))


def render(spec: ConfoundedSpec) -> Rendered:
    """Render a whole set in memory; equal specs give equal arrays, bit for bit.

    Args:
        spec: what to draw.

    Returns:
        Pictures, masks and the table of causes.

    Raises:
        DataError: a part is not installed, or there are too few distinct glyphs.

    Example:
        >>> pictures, masks, table = render(ConfoundedSpec(train_classes=2, test_classes=2, per_class=3))
        >>> pictures.shape, sorted(set(table["split"]))
        ((12, 96, 96, 3), ['test', 'train'])
    """
    import pandas as pd

    scene = Scene(spec)
    pictures = np.empty((spec.num_images, spec.size, spec.size, 3), dtype=np.uint8)
    masks = np.empty((spec.num_images, spec.size, spec.size), dtype=np.uint8)
    rows = []
    for index in range(spec.num_images):
        causes = scene.causes(index)
        pictures[index], masks[index] = scene.draw(causes)
        rows.append(scene.row(causes))
    return Rendered(pictures, masks, pd.DataFrame(rows))
