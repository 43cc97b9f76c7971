"""Objects: glyphs of the DejaVu and STIX fonts that matplotlib ships, filtered to what a person can tell apart."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from proxemics.core.errors import DataError
from proxemics.core.seeds import numpy_generator

FONTS: dict[str, str] = {
    "sans": "DejaVuSans.ttf",
    "sans_bold": "DejaVuSans-Bold.ttf",
    "sans_oblique": "DejaVuSans-Oblique.ttf",
    "serif": "DejaVuSerif.ttf",
    "serif_bold": "DejaVuSerif-Bold.ttf",
    "serif_italic": "DejaVuSerif-Italic.ttf",
    "mono": "DejaVuSansMono.ttf",
    "mono_bold": "DejaVuSansMono-Bold.ttf",
    "stix": "STIXGeneral.ttf",
    "stix_bold": "STIXGeneralBol.ttf",
    "stix_italic": "STIXGeneralItalic.ttf",
}
"""Domain name to the font file inside matplotlib. DejaVu and STIX may be used and redistributed freely."""

_CATEGORIES = ("Lu", "Ll", "Lo", "Nd", "Nl", "No", "Sm", "Sc", "So", "Po")
_SIDE, _INNER = 32, 22  # side of the thumbnails on which glyphs are compared, and of the glyph in them: room to turn
_SAME = 0.90  # cosine from which two glyphs count as one
_LINES = range(0x2500, 0x25A0)  # box drawing and blocks: they look like L, T and bars
_INK = (0.06, 0.75)  # share of the box that may be ink: below is hair, above is a block
_THIN = 0.45  # smallest ratio of the box's sides


def package_folder(package: str) -> Path:
    """Return the folder of an installed package without importing it.

    Args:
        package: import name, such as ``matplotlib``.

    Raises:
        DataError: the package is not installed.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise DataError(
            f"The confounded set is made of parts that {package} ships, and {package} is not installed. "
            "Install it with: pip install 'proxemics[demo]'."
        )
    return Path(found.submodule_search_locations[0])


def font_path(domain: str) -> Path:
    """Return the font file of a domain.

    Args:
        domain: a key of ``FONTS``.

    Raises:
        DataError: matplotlib, or this font in it, is absent.
    """
    path = package_folder("matplotlib") / "mpl-data" / "fonts" / "ttf" / FONTS[domain]
    if not path.is_file():
        raise DataError(
            f"matplotlib has no font {FONTS[domain]} (domain {domain!r}). Install the wheel from PyPI, "
            "or choose other domains."
        )
    return path


def candidates(domains: Iterable[str]) -> list[int]:
    """Return the code points of letters, digits and symbols that every domain's font can draw.

    Characters made of a letter and an accent are left out: at picture size nobody sees the accent.

    Args:
        domains: keys of ``FONTS``.

    Returns:
        Sorted Unicode code points.

    Example:
        >>> points = candidates(["sans", "serif"])
        >>> len(points) > 1000, ord("A") in points, ord("É") in points
        (True, True, False)
    """
    shared: set[int] | None = None
    for domain in domains:
        points = _charmap(font_path(domain))
        shared = points if shared is None else shared & points
    return sorted(point for point in shared or () if _is_shape(chr(point)))


def _charmap(path: Path) -> set[int]:
    from matplotlib.ft2font import FT2Font

    return set(FT2Font(str(path)).get_charmap())


def _is_shape(character: str) -> bool:
    if ord(character) in _LINES or unicodedata.decomposition(character):
        return False
    return unicodedata.category(character) in _CATEGORIES


class GlyphFont:
    """One font at one size, drawing single glyphs cut to their ink.

    Args:
        domain: a key of ``FONTS``.
        em: font size in pixels.

    Example:
        >>> GlyphFont("sans_bold", 64).mask("A").mode
        'L'
    """

    def __init__(self, domain: str, em: int) -> None:
        self._font = ImageFont.truetype(str(font_path(domain)), em, layout_engine=ImageFont.Layout.BASIC)

    def mask(self, character: str) -> Image.Image | None:
        """Return the glyph's coverage (mode L, 255 is ink) without margin, or None when it has no ink."""
        left, top, right, bottom = (int(edge) for edge in self._font.getbbox(character))
        if right <= left or bottom <= top:
            return None
        canvas = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=self._font)
        box = canvas.getbbox()
        return canvas.crop(box) if box else None


def fit(mask: Image.Image, side: int) -> Image.Image:
    """Resize so that the longer side is ``side`` pixels; the aspect stays."""
    factor = side / max(mask.size)
    width, height = (max(1, round(edge * factor)) for edge in mask.size)
    return mask.resize((width, height), Image.Resampling.BOX if factor < 1 else Image.Resampling.BICUBIC)


def thumbnail(mask: Image.Image | None) -> Image.Image | None:
    """Return the comparison picture of a glyph, or None when it is blank, a hair, a block or a stick.

    Args:
        mask: mode L, cut to its ink, or None.

    Returns:
        Mode L, 32 x 32: the ink, longer side fitted to 22 pixels, centred, slightly blurred.
    """
    if mask is None or min(mask.size) < _THIN * max(mask.size):
        return None
    small = fit(mask, _INNER)
    if not _INK[0] <= float(np.asarray(small, dtype=np.float32).mean()) / 255 <= _INK[1]:
        return None
    page = Image.new("L", (_SIDE, _SIDE))
    page.paste(small, ((_SIDE - small.width) // 2, (_SIDE - small.height) // 2))
    return page.filter(ImageFilter.GaussianBlur(1))


def _levels(page: Image.Image, angle: float = 0.0) -> np.ndarray:
    """Turn a thumbnail by ``angle`` degrees and quantise it to 16 levels, so that dot products are exact in float32."""
    turned = page.rotate(angle, Image.Resampling.BILINEAR) if angle else page
    return (np.asarray(turned, dtype=np.float32).ravel() // 16).astype(np.float32)


def _angles(rotation: float) -> list[float]:
    """Return the turns, in steps of at most 12 degrees, by which two pictures may differ."""
    reach = min(2 * rotation, 180.0)
    steps = math.ceil(reach / 12)
    return [0.0, *(sign * reach * step / steps for step in range(1, steps + 1) for sign in (1, -1))]


def _looks_like_any(turned: np.ndarray, others: np.ndarray, norms: np.ndarray) -> bool:
    """Tell whether a row of ``turned`` (T, P) has cosine ``_SAME`` with one of ``others`` (N, P); ``norms`` (N,)."""
    shared = others @ turned.T  # whole numbers below 2 ** 24: exact in float32, whatever the order of summation
    return bool((shared >= _SAME * norms[:, None] * np.linalg.norm(turned, axis=1)).any())


def choose_glyphs(domains: Sequence[str], count: int, *, rotation: float = 0.0, seed: int = 0) -> list[int]:
    """Choose code points whose glyphs are neither blank nor look like one chosen before, across all domains.

    Candidates are visited in an order drawn from ``seed``, so a longer list starts with the shorter one. Two glyphs
    look alike when their blurred thumbnails, scaled to the same box and turned against each other as far as two
    pictures can be, have a cosine of 0.9 or more. That merges Latin A, Greek Alpha and Cyrillic A, o and O, and, with
    ``rotation``, arrows of neighbouring directions.

    Args:
        domains: keys of ``FONTS``; a code point must have a distinct glyph in each.
        count: how many to choose.
        rotation: largest turn of a picture, degrees; two pictures may differ by twice that.
        seed: order of the candidates.

    Returns:
        ``count`` distinct code points in the order of choice.

    Raises:
        DataError: fewer distinct glyphs exist.

    Example:
        >>> chosen = choose_glyphs(["sans", "serif"], 5, seed=1)
        >>> chosen == choose_glyphs(["sans", "serif"], 9, seed=1)[:5]
        True
    """
    fonts = [GlyphFont(domain, 64) for domain in domains]
    points = candidates(domains)
    angles = _angles(rotation)
    chosen: list[int] = []
    seen = np.zeros((count * len(fonts), _SIDE * _SIDE), dtype=np.float32)
    norms = np.zeros(count * len(fonts))
    for position in numpy_generator(seed, "confounded", "glyphs").permutation(len(points)):
        if len(chosen) == count:
            break
        pages = [page for font in fonts if (page := thumbnail(font.mask(chr(points[position])))) is not None]
        if len(pages) < len(fonts):
            continue
        turned = np.stack([_levels(page, angle) for angle in angles for page in pages])
        known = len(chosen) * len(fonts)
        if not _looks_like_any(turned, seen[:known], norms[:known]):
            upright = turned[: len(fonts)]  # the first angle is 0
            seen[known : known + len(fonts)], norms[known : known + len(fonts)] = (
                upright,
                np.linalg.norm(upright, axis=1),
            )
            chosen.append(points[position])
    if len(chosen) < count:
        raise DataError(
            f"{count} classes were asked for, and the domains {', '.join(domains)} have {len(chosen)} glyphs in common "
            "that look different. Ask for fewer classes, a smaller rotation or fewer domains."
        )
    return chosen
