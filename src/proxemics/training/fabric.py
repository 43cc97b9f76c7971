"""Lightning Fabric, imported without torchmetrics.

On import, ``lightning_fabric`` asks whether torchmetrics is of version 1 or later by importing all of it, which took
2.6 seconds of an EPYC where it is installed, more than half of the start of a training. Nothing else of it is wanted,
so an empty module stands in for the while: without a ``__version__`` the answer comes from the metadata of the
installed package. Another thread that imports torchmetrics for the first time just then would get the empty one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

_NAME = "torchmetrics"
_STAND_IN = None
if _NAME not in sys.modules and find_spec(_NAME) is not None:
    _STAND_IN = sys.modules[_NAME] = ModuleType(_NAME)
try:
    from lightning_fabric import Fabric
finally:
    if _STAND_IN is not None and sys.modules.get(_NAME) is _STAND_IN:
        del sys.modules[_NAME]

__all__ = ["Fabric"]
