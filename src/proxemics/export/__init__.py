"""Bundles for other machines: ONNX, hubs, fast engines.

The names below are loaded when first used, so that an engine does not load what writes a bundle. The room can be
called: ``proxemics.export(run, out)`` is :func:`proxemics.export.write.export`, whichever part was loaded first.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemics.export.onnx import export_onnx
    from proxemics.export.write import export

__all__ = ["export", "export_onnx"]

_HOMES = {"export": "proxemics.export.write", "export_onnx": "proxemics.export.onnx"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'proxemics.export' has no attribute {name!r}")


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        written: dict[str, Any] = __getattr__("export")(*arguments, **options)
        return written


sys.modules[__name__].__class__ = _Room
