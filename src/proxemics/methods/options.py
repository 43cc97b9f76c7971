"""Checks of options that the methods share."""

from __future__ import annotations

from proxemics.core.errors import LossError, did_you_mean


def check_choice(name: str, value: str, options: tuple[str, ...]) -> None:
    """Refuse an option that is not among ``options``.

    Raises:
        LossError: with the options and the nearest one.

    Example:
        >>> check_choice("det", "mod", ("mode", "none"))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: det='mod': use mode or none. Did you mean 'mode'?
    """
    if value not in options:
        raise LossError(f"{name}={value!r}: use {' or '.join(options)}.{did_you_mean(str(value), options)}")
