"""What all pages share: the template engine with its filters, and the files beside the templates."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING

from proxemics.core.errors import ProxemicsError
from proxemics.report.explain import explain
from proxemics.report.page import amount, change, percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def make_environment() -> Environment:
    """Return the template engine: everything is escaped, and a name that is missing is an error.

    Raises:
        ProxemicsError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ProxemicsError(
            "The report needs jinja2, which is not installed. Install it with: pip install 'proxemics[report]'."
        ) from error
    environment = Environment(
        loader=PackageLoader("proxemics.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, amount=amount, change=change, breakable=breakable)
    environment.globals.update(explain=explain)
    return environment


def breakable(text: str) -> Markup:
    """Escape a name and allow line breaks after the marks that join its words.

    Example:
        >>> breakable("snow_bunting")
        Markup('snow_<wbr>bunting')
    """
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/.\\-])", r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped just before


def read_part(name: str) -> str:
    """Return the text of a file beside the templates."""
    return (files("proxemics.report") / "templates" / name).read_text(encoding="utf-8")


def plain_text(html: str) -> str:
    """Replace what is no text: a path may hold bytes that no encoding explains."""
    return html.encode("utf-8", "replace").decode("utf-8")
