"""Filters of Milvus Lite beside code that hands tensors to faiss.

Milvus Lite hands a filter to faiss as ``search(..., params=...)``. ``faiss.contrib.torch_utils``, which
pytorch-metric-learning imports, replaces the ``search`` of every class of faiss by one that takes tensors as well and
has no ``params``: from then on Milvus Lite fails in that process. Here the argument comes back.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any


def keep_search_params() -> None:
    """Have ``search`` of faiss take ``params``, whether tensors are taught to it before or after this call.

    That module is imported here, for a module is imported once: a later import changes nothing. Does nothing without
    faiss.

    Example:
        >>> keep_search_params()
    """
    try:
        faiss = importlib.import_module("faiss")
        importlib.import_module("faiss.contrib.torch_utils")
    except ImportError:
        return
    for one in {each for each in vars(faiss).values() if inspect.isclass(each)}:
        search: Any = vars(one).get("search")
        if "search_numpy" in vars(one) and "params" not in inspect.signature(search).parameters:
            setattr(one, "search", _with_params(search))  # noqa: B010  mypy knows no class with this name


def _with_params(search: Callable[..., Any]) -> Callable[..., Any]:
    def either(self: Any, *given: Any, params: Any = None, **named: Any) -> Any:
        if params is None:
            return search(self, *given, **named)
        return self.search_numpy(*given, params=params, **named)

    return either
