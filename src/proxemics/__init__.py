"""Image embeddings that hold up on classes and domains never seen in training.

The names below are loaded when first used, so that ``import proxemics`` and ``proxemics --help`` are quick and ask
for no more than they need: ``fit`` trains from a configuration, ``evaluate`` measures a model,
``probe`` asks what it leans on, ``export`` writes it for other machines, ``Index`` searches its vectors, and
``make_config`` and ``load_config`` build a configuration.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxemics.__about__ import __version__

if TYPE_CHECKING:
    from proxemics.core.config import Config, load_config, make_config
    from proxemics.core.errors import ProxemicsError
    from proxemics.export.write import export
    from proxemics.search.index import Index
    from proxemics.training.evaluate_run import evaluate
    from proxemics.training.pipeline import fit
    from proxemics.training.probe_run import probe

__all__ = [
    "Config", "Index", "ProxemicsError", "__version__", "evaluate", "export", "fit", "load_config", "make_config",
    "probe",
]  # fmt: skip

_HOMES = {
    "Config": "proxemics.core.config",
    "Index": "proxemics.search.index",
    "ProxemicsError": "proxemics.core.errors",
    "evaluate": "proxemics.training.evaluate_run",
    "fit": "proxemics.training.pipeline",
    "load_config": "proxemics.core.config",
    "make_config": "proxemics.core.config",
    "probe": "proxemics.training.probe_run",
}


def __getattr__(name: str) -> Any:
    if name == "export":  # a room that can be called, so that the name means one thing whatever was loaded first
        return import_module("proxemics.export")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'proxemics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
