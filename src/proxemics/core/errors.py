"""One family of errors whose messages are meant for people.

Every message says what was given, what is allowed and how to fix it, in one line. The command line prints the message
alone and exits with code 2; library users catch :class:`ProxemicsError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ProxemicsError(Exception):
    """Base of all errors that Proxemics raises on purpose."""


class ConfigError(ProxemicsError, ValueError):
    """A configuration key or value is wrong."""


class DataError(ProxemicsError, ValueError):
    """A table, folder, label or split is not usable."""


class ImageError(DataError):
    """A picture cannot be read; the message names its path."""


class ModelError(ProxemicsError, ValueError):
    """A trunk, its weights or its options are not usable."""


class LossError(ProxemicsError, ValueError):
    """A loss was built with, or given, something it cannot use."""


class EvaluationError(ProxemicsError, ValueError):
    """Embeddings or labels cannot be evaluated."""


class SearchError(ProxemicsError, ValueError):
    """An index, or what it was asked, is not usable."""


class ExportError(ProxemicsError, RuntimeError):
    """A model cannot be exported, or an engine cannot run it."""


class TrainingError(ProxemicsError, RuntimeError):
    """Training cannot go on; the last good checkpoint is kept."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return a sentence with the nearest options, or an empty string when nothing is near.

    Args:
        name: what was given.
        options: what is allowed.

    Returns:
        ``" Did you mean 'x'?"`` with a leading space, ready to append to a message.

    Example:
        >>> did_you_mean("proxy_ancor", ["proxy_anchor", "arcface"])
        " Did you mean 'proxy_anchor'?"
        >>> did_you_mean("zzz", ["proxy_anchor", "arcface"])
        ''
    """
    near = get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
