"""The page's templates and the files it loads, all read once when the service starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from proxemics.__about__ import __version__

TYPES = {
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx.LICENSE": "text/plain; charset=utf-8",
    "serve.js": "text/javascript; charset=utf-8",
    "serve.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    """A file that the page loads, with a name for its content."""

    content: bytes
    media_type: str
    digest: str


def read_static() -> dict[str, StaticFile]:
    """Read the files by their fixed names; a request is answered from this dictionary, never from the disk."""
    folder = files("proxemics.serve") / "static"
    contents = {name: (folder / name).read_bytes() for name in TYPES}
    return {
        name: StaticFile(content, TYPES[name], hashlib.sha256(content).hexdigest()[:12])
        for name, content in contents.items()
    }


class Renderer:
    """Fills templates; what comes from a request or an index is escaped."""

    def __init__(self) -> None:
        self.static = read_static()
        self._environment = Environment(
            loader=PackageLoader("proxemics.serve"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(score=score, bar=bar_width, breakable=breakable)
        self._environment.globals.update(
            version=__version__, links={name: f"/static/{name}?v={one.digest}" for name, one in self.static.items()}
        )

    def page(
        self, name: str, values: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Render a template into an HTML answer that no cache keeps."""
        text = self._environment.get_template(name).render(values)
        # A path may hold bytes that no encoding explains.
        return HTMLResponse(text.encode("utf-8", "replace"), status, {"Cache-Control": "no-store", **(headers or {})})


def breakable(text: str) -> Markup:
    """Escape a name and allow line breaks after the marks that join its words.

    Example:
        >>> breakable("a<b/c")
        Markup('a&lt;b/<wbr>c')
    """
    return Markup(re.sub(r"([_/.\\-])", r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped just before


def score(value: float | None) -> str:
    r"""Write a cosine with three decimals and a real minus.

    Example:
        >>> score(0.91234), score(-0.5), score(None)
        ('0.912', '−0.500', '–')
    """
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def bar_width(value: float | None) -> int:
    """Return how much of a bar of 100 a cosine fills; what is negative fills none.

    Example:
        >>> bar_width(0.756), bar_width(-0.2), bar_width(None)
        (76, 0, 0)
    """
    return 0 if value is None else round(100 * min(1.0, max(0.0, value)))
