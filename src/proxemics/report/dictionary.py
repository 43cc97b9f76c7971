"""The page on a background dictionary: numbers with how to read them, and what each atom answers to, as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.__about__ import __version__
from proxemics.core.files import write_text
from proxemics.report.environment import make_environment, plain_text, read_part
from proxemics.report.overlay import veil
from proxemics.report.thumbnails import jpeg_uri, png_uri
from proxemics.training.dictionary_view import AtomPicture, DictionaryView, SplitRecall

SIDE = 128
_FEW_QUERIES = 300
_POINT, _QUERIES = 0.01, 3
"""Differences of R@1 below a point, or of fewer than three queries, are not read."""


@dataclass(frozen=True)
class Reading:
    """A number with how to read it: title, value, what stands beside the value, sentences."""

    title: str
    value: str
    beside: str
    text: str


def write_dictionary(view: DictionaryView, out: str | Path) -> Path:
    """Write the page: one file that holds everything and asks nothing of any network.

    Args:
        view: from :func:`proxemics.training.inspect_dictionary.inspect_dictionary`.
        out: the file; replaced atomically.

    Raises:
        ProxemicsError: jinja2 is not installed, or the file cannot be written.
    """
    pictures = {one.path: jpeg_uri(small(one.pixels)) for atom in view.atoms for one in atom.pictures}
    style = read_part("report.css") + read_part("dictionary.css")
    html = (
        make_environment()
        .get_template("dictionary.html")
        .render(
            view=view,
            readings=readings(view),
            recalls=recall_rows(view.recall),
            verdict=recall_verdict(view.recall),
            pictures=pictures,
            overlay=overlay,
            most=max((atom.prior for atom in view.atoms), default=1.0) or 1.0,
            side=SIDE,
            style=style,
            version=__version__,
        )
    )
    target = Path(out)
    write_text(target, plain_text(html))
    return target


def readings(view: DictionaryView) -> list[Reading]:
    """Return the numbers at the top of the page, each with a line on how to read it."""
    ratio = view.orth / view.orth_random
    if ratio < 0.5:
        leaning = "Far below: embeddings hold little of what the atoms hold."
    elif ratio <= 1.5:
        leaning = "About that: embeddings neither avoid the atoms nor lean on them."
    else:
        leaning = f"{ratio:.1f} times that: embeddings lean on what the atoms hold."
    apart = (
        "Two atoms are nearly the same."
        if view.coherence > 0.7
        else "The atoms are nearly orthogonal."
        if view.coherence < 0.2
        else "Some atoms share a part."
    )
    return [
        Reading(
            "Coherence",
            f"{view.coherence:.2f}",
            "largest |cosine| of two atoms",
            f"0: orthogonal, 1: the same. {apart}",
        ),
        Reading(
            "Atoms used",
            f"{view.used}",
            f"of {view.num_atoms}",
            "Atoms with a prior above a tenth of an equal share, 1/K. Far fewer than K: there are fewer kinds of "
            "background than atoms.",
        ),
        Reading(
            "L_orth",
            f"{view.orth:.3f}",
            f"random embeddings: K/M = {view.orth_random:.3f}",
            f"Mean of Σ⟨z, d⟩² over the atoms. {leaning}",
        ),
        Reading(
            "Energy in span(D)",
            f"{100 * view.energy:.1f} %",
            f"of embeddings; of backgrounds {100 * view.energy_background:.1f} %",
            "The first should be low, or near K/M; the second high: then the atoms together hold the backgrounds.",
        ),
    ]


def recall_rows(recall: SplitRecall | None) -> list[tuple[str, float | None, str]]:
    """Return (what, R@1, how to read it) of the parts of the embeddings."""
    if recall is None:
        return []
    return [
        ("Whole embeddings", recall.whole, "As the model is used."),
        ("Part in span(D)", recall.inside, "What the directions of backgrounds find alone."),
        (
            "Part in random directions",
            recall.random_inside,
            "What as many directions find by themselves. The part in span(D) should find no more.",
        ),
        (
            "Complement of span(D)",
            recall.outside,
            "If it is worse than the whole by more than random directions cost, the atoms hold class information.",
        ),
        (
            "Complement of random directions",
            recall.random_outside,
            "What leaving out as many directions costs by itself. The complement of span(D) should cost no more.",
        ),
    ]


def recall_verdict(recall: SplitRecall | None) -> str:
    """Say in a sentence what the parts of the embeddings tell.

    Example:
        >>> recall_verdict(SplitRecall(0.8, 0.5, 0.7, 0.5, 0.79, 1000))[:45]
        'Without span(D) R@1 falls by 10.0 points (wit'
    """
    if recall is None:
        return "The validation pictures could not be read or evaluated, so nothing can be said about class information."
    if recall.outside is None or recall.random_outside is None:
        return "There are as many atoms as dimensions: nothing is left outside of their span."
    lost, by_chance = recall.whole - recall.outside, recall.whole - recall.random_outside
    more = (recall.inside or 0.0) - (recall.random_inside or 0.0)
    least = max(_POINT, _QUERIES / max(recall.num_queries, 1))
    if lost >= max(by_chance, 0) + least:
        text = (
            f"Without span(D) R@1 falls by {100 * lost:.1f} points (without as many random directions by "
            f"{100 * by_chance:.1f}): the dictionary holds class information, and pushing embeddings out of it takes "
            "signal away. Fewer atoms or a smaller lambda_o are worth a try."
        )
    elif lost <= -least:
        text = (
            f"Without span(D) R@1 rises by {-100 * lost:.1f} points: what the atoms hold misleads the search, and "
            "the embeddings still hold some of it."
        )
    elif more >= least:
        text = (
            f"The part in span(D) alone finds {100 * more:.1f} points more than as many random directions: the "
            "dictionary holds class information. The rest holds it as well, so that nothing is lost without it."
        )
    else:
        text = "The span of the atoms tells classes apart no better than as many random directions."
    if recall.num_queries < _FEW_QUERIES:
        text += f" There are only {recall.num_queries} queries, so a few points may be chance."
    return text


def overlay(picture: AtomPicture) -> str | None:
    """Return a veil to lay over a picture: clear where the atom answers most, dark where it answers least.

    A veil shows what stands at the places that answer in its own colours, which a coloured heat map would hide.
    """
    if picture.heat is None:
        return None
    return png_uri(veil(picture.heat, SIDE // 4))


def small(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return a square picture (S, S, 3) at the side of the page's pictures, or smaller."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS) if image.width > SIDE else image


def summary_lines(view: DictionaryView) -> list[str]:
    """Return the numbers at the top of the page for the terminal."""
    lines = [
        f"{view.method}: {view.num_atoms} atoms of {view.dim} dimensions, {view.used} used, "
        f"coherence {view.coherence:.2f}",
        f"L_orth {view.orth:.3f} (random embeddings: {view.orth_random:.3f}), energy in span(D) {view.energy:.3f}, "
        f"of backgrounds {view.energy_background:.3f}",
    ]
    if view.recall is not None:
        parts = [(name, value) for name, value, _ in recall_rows(view.recall)]
        shown = ", ".join(
            f"{name[0].lower()}{name[1:]} {'-' if value is None else f'{100 * value:.1f}'}" for name, value in parts
        )
        lines.append(f"R@1 on {view.recall.num_queries} validation pictures: {shown}")
    return [*lines, recall_verdict(view.recall)]
