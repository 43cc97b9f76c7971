"""Emoji-5: many classes in five styles of drawing, rebuilt by anyone from icon sets of npm."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.files import atomic_path, write_json
from proxemics.data.benchmarks.emoji_rule import COUNTS, PATHS, Chosen, choose, digest_of
from proxemics.data.benchmarks.npm import Package, get_package
from proxemics.data.benchmarks.release import Part

PACKAGES = {
    "noto": Package(
        "@iconify-json/noto",
        "1.2.9",
        "sha512-DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw==",
        "Apache-2.0",
    ),
    "twemoji": Package(
        "@iconify-json/twemoji",
        "1.2.5",
        "sha512-uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw==",
        "CC-BY-4.0",
    ),
    "openmoji": Package(
        "@iconify-json/openmoji",
        "1.2.29",
        "sha512-vXdhkqcXVSO6suy+m9LbcUM3OdVyuNOtpV8/als/WqfkQIRxevL5Geb/g+6GH/Qwnq1OqksEmaDGTCmZ5nFKJQ==",
        "CC-BY-SA-4.0",
    ),
    "fluent-emoji-flat": Package(
        "@iconify-json/fluent-emoji-flat",
        "1.2.6",
        "sha512-RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw==",
        "MIT",
    ),
    "fluent-emoji-high-contrast": Package(
        "@iconify-json/fluent-emoji-high-contrast",
        "1.2.6",
        "sha512-esqhZPpkrF7sNX3NsLoh8KW64okEr/bzko7WNnFP+qTJGAqDPDYjp0925yxuivXy3HtVQB8xhIKu3+Nq1byX5w==",
        "MIT",
    ),
}
SIZE = 96
QUALITY = 78
ALPHA_QUALITY = 80
INK = "#1f1f1f"
"""Replaces ``currentColor``, which the high-contrast style is drawn in."""
_LARGEST = 1 << 28
Render = Callable[[str, int], bytes]
"""From SVG text and a size in pixels to a square PNG with an alpha channel."""


def build_emoji(
    folder: str | Path,
    *,
    registry: str | None = None,
    packages: dict[str, Package] | None = None,
    counts: dict[tuple[str, str], Part] | None = None,
    render: Render | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Fetch the icon sets, draw the pictures and write the table.

    Args:
        folder: where to; created. Archives are kept in ``packages/`` there.
        registry: of npm; default: the one that npm is set to, else the public one.
        packages: by style; default: :data:`PACKAGES`, pinned by version and integrity.
        counts: the numbers to hold the set to; default: the official ones.
        render: default: resvg, from the extra ``emoji``.
        progress: called with the pictures done and in all.

    Returns:
        ``folder / "table.csv"``: columns path (relative), label, domain (the style), split, variant. It is written
        last, after ``about.json`` with versions and licences.

    Raises:
        DataError: the extra is absent, a package cannot be fetched or verified, or the numbers differ.
    """
    target = Path(folder).expanduser()
    chosen_packages = PACKAGES if packages is None else packages
    draw = resvg() if render is None else render
    sets = {
        style: read_icons(get_package(package, target / "packages", registry=registry))
        for style, package in chosen_packages.items()
    }
    pictures = choose({style: content["icons"] for style, content in sets.items()})
    check_counts(pictures, COUNTS if counts is None else counts)
    if counts is None and digest_of(one.path for one in pictures) != PATHS:
        raise DataError("Emoji-5: the classes are not those of the set. The icon sets are not the pinned versions.")
    for done, picture in enumerate(pictures, start=1):
        place = target / picture.path
        place.parent.mkdir(parents=True, exist_ok=True)
        _save(draw(svg(sets[picture.style], picture.icon), SIZE), place)
        if progress is not None:
            progress(done, len(pictures))
    write_json(
        target / "about.json",
        {
            "name": "emoji5",
            "size": SIZE,
            "webp_quality": QUALITY,
            "webp_alpha_quality": ALPHA_QUALITY,
            "ink": INK,
            "packages": {style: package._asdict() for style, package in chosen_packages.items()},
        },
    )
    rows = [(one.path, one.label, one.style, one.split, one.variant) for one in pictures]
    with atomic_path(target / "table.csv") as temporary:
        pd.DataFrame(rows, columns=["path", "label", "domain", "split", "variant"]).to_csv(temporary, index=False)
    return target / "table.csv"


def check_counts(pictures: list[Chosen], counts: dict[tuple[str, str], Part]) -> None:
    """Compare pictures and classes of each style and split with what they should be.

    Raises:
        DataError: a number differs; the icon sets are then of other versions.
    """
    for (style, split), want in counts.items():
        rows = [one for one in pictures if (one.style, one.split) == (style, split)]
        have = Part(len(rows), len({one.label for one in rows}))
        if have != want:
            raise DataError(
                f"Emoji-5, {style} {split}: {have.images} pictures of {have.classes} classes, expected {want.images} "
                f"of {want.classes}. The icon sets are not the pinned versions."
            )


def read_icons(archive: Path) -> dict[str, Any]:
    """Read ``icons.json`` of an icon set from the archive of its package.

    Raises:
        DataError: it is not such an archive.
    """
    try:
        with tarfile.open(archive, "r:gz") as opened:
            member = opened.getmember("package/icons.json")
            stream = opened.extractfile(member) if member.isreg() and member.size <= _LARGEST else None
            content = json.load(stream) if stream is not None else {}
    except (tarfile.TarError, KeyError, ValueError, EOFError, OSError) as error:
        raise DataError(f"{archive} is not the package of an icon set: {error}. Delete it and try again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("icons"), dict):
        raise DataError(f"{archive} holds no icons. Delete it and try again.")
    return content


def svg(content: dict[str, Any], icon: str) -> str:
    """Return the SVG text of an icon; sizes that it does not state are those of its set, or 16.

    Example:
        >>> svg({"icons": {"dot": {"body": "<path fill='currentColor'/>"}}}, "dot").count("#1f1f1f")
        1
    """
    one = content["icons"][icon]
    left, top, width, height = (
        one.get(key, content.get(key, default))
        for key, default in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" viewBox="{left} {top} {width} {height}">'
        f"{one['body'].replace('currentColor', INK)}</svg>"
    )


def resvg() -> Render:
    """Return the renderer.

    Raises:
        DataError: it is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise DataError('Drawing Emoji-5 needs a renderer for SVG: pip install "proxemics[emoji]".') from error

    def draw(text: str, size: int) -> bytes:
        png: bytes = resvg_py.svg_to_bytes(svg_string=text, width=size, height=size, skip_system_fonts=True)
        return png

    return draw


def _save(png: bytes, place: Path) -> None:
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGBA").save(place, "WEBP", quality=QUALITY, alpha_quality=ALPHA_QUALITY, method=4)
