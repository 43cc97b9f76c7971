"""Image embeddings that hold up on classes and domains never seen in training.

The three verbs of the library are loaded when first used, so that ``import proxemics`` needs torch and NumPy alone:
``fit`` trains from a configuration, ``evaluate`` measures a model, ``make_config`` builds a configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxemics.__about__ import __version__
from proxemics.core.config import Config, load_config, make_config
from proxemics.core.errors import ProxemicsError

if TYPE_CHECKING:
    from proxemics.training.evaluate_run import evaluate
    from proxemics.training.pipeline import fit

__all__ = ["Config", "ProxemicsError", "__version__", "evaluate", "fit", "load_config", "make_config"]


def __getattr__(name: str) -> Any:
    if name == "fit":
        from proxemics.training.pipeline import fit

        return fit
    if name == "evaluate":
        from proxemics.training.evaluate_run import evaluate

        return evaluate
    raise AttributeError(f"module 'proxemics' has no attribute {name!r}")
