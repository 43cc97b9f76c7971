"""A verb that takes --set, and says so to somebody who gives a setting as an option of its own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class SettingsCommand(TyperCommand):
    """Answers ``--epochs 3`` with ``--set train.epochs=3`` rather than with the options that look like it."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options.

        Args:
            ctx: what the command line keeps while it reads; typer does not export its type.
            args: the words after the name of the verb.
        """
        known = {name for option in self.params for name in (*option.opts, *option.secondary_opts)}
        if "--set" in known:
            for place, given in enumerate(args):
                name, _, value = given.partition("=")
                if given == "--":
                    break
                if name.startswith("--") and name not in known:
                    self._explain(ctx, name, value or next(iter(args[place + 1 :]), ""))
        return super().parse_args(ctx, args)

    def _explain(self, ctx: Any, name: str, value: str) -> None:
        from proxemics.core.config import setting_like

        if key := setting_like(name.removeprefix("--")):
            ctx.fail(f"No such option: {name}. It is a setting: --set {key}={value or '...'}")
