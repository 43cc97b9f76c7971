"""Losses of pytorch-metric-learning under the contract of this package, so that loop, methods and checks take them.

The loss itself is theirs, unchanged. What the wrapper adds: labels are checked, an empty batch gives 0 with a graph,
half precision ends at the door (so that no parameter is ever cast), and weights that are one or several vectors a class
are called ``proxies``, in the layout of :class:`proxemics.losses.base.ProxyLoss`.

In a configuration the name is that of their class behind ``pml.``, with its number and text arguments as options:
``loss: {name: pml.ProxyAnchorLoss, options: {alpha: 32}}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError, did_you_mean
from proxemics.losses.base import MetricLoss, ProxyLoss
from proxemics.losses.checks import check_batch
from proxemics.losses.fused import compute_dtype

PREFIX = "pml."
"""Begins the names of these losses in a configuration."""
_ROWS, _COLUMNS = "proxies", ("W", "fc", "weight")
"""Where they keep class vectors: as rows, or as columns."""
_SIZES = {"num_classes": "num_classes", "embedding_size": "dim", "descriptors_dim": "dim"}
"""Their arguments that say how large the loss is."""
_OBJECTS = ("distance", "reducer", "embedding_regularizer", "weight_regularizer", "weight_init_func", "collect_stats")

Miner = Callable[[Tensor, Tensor], Any]
"""``miner(embeddings, labels) -> indices``, as in ``pytorch_metric_learning.miners``."""


class WrappedLoss(MetricLoss):
    """A loss of pytorch-metric-learning without class vectors, such as ``MultiSimilarityLoss``; see :func:`wrap`.

    Attributes:
        inner: their loss.
        miner: their miner, or None.
    """

    inner: nn.Module
    miner: Miner | None

    def __init__(self, inner: nn.Module, *, num_classes: int, dim: int, miner: Miner | None = None) -> None:
        super().__init__(num_classes, dim)
        self.inner, self.miner = inner, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return their loss of a batch; see :meth:`MetricLoss.forward`."""
        return _value(self, embeddings, labels)


class WrappedProxyLoss(ProxyLoss):
    """A loss of pytorch-metric-learning with class vectors, such as ``ProxyAnchorLoss``; see :func:`wrap`.

    Attributes:
        inner: their loss, which owns the parameters.
        miner: their miner, or None.
    """

    inner: nn.Module
    miner: Miner | None

    def __init__(self, inner: nn.Module, *, num_classes: int, dim: int, miner: Miner | None = None) -> None:
        super().__init__(num_classes, dim)
        self.inner, self.miner = inner, miner

    @property
    def proxies(self) -> Tensor:  # type: ignore[override]  # a view of the parameter that the inner loss owns
        """(C, M), or (C, K, M) for losses with K vectors a class: a view of their parameter, which follows it."""
        rows = _class_vectors(self.inner)
        assert rows is not None
        return rows if len(rows) == self.num_classes else rows.view(self.num_classes, -1, self.dim)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return their loss of a batch; see :meth:`MetricLoss.forward`."""
        return _value(self, embeddings, labels)

    def _class_similarities(self, units: Tensor, proxies: Tensor) -> Tensor:
        if proxies.ndim == 2:
            return units @ proxies.t()
        return (units @ proxies.flatten(0, 1).t()).view(len(units), *proxies.shape[:2]).amax(2)


def wrap(loss: nn.Module, *, num_classes: int, dim: int, miner: Miner | None = None) -> WrappedLoss | WrappedProxyLoss:
    """Make a loss of pytorch-metric-learning keep the contract of this package.

    Args:
        loss: any of their losses that is called with embeddings and labels. It is not copied.
        num_classes: C; labels must lie in 0..C-1.
        dim: M.
        miner: one of their miners; its pairs or triplets go to the loss.

    Returns:
        A module ``(embeddings (B, M), labels (B,)) -> scalar``; with ``proxies`` where the loss has class vectors. Then
        ``similarities`` takes the nearest of several vectors of a class.

    Raises:
        LossError: no module, or class vectors of other sizes than ``num_classes`` and ``dim``.

    Example:
        >>> from pytorch_metric_learning.losses import NormalizedSoftmaxLoss
        >>> loss = wrap(NormalizedSoftmaxLoss(10, 4), num_classes=10, dim=4)
        >>> loss.proxies.shape, loss(torch.randn(3, 4), torch.tensor([0, 9, 1])).shape
        (torch.Size([10, 4]), torch.Size([]))
    """
    if not isinstance(loss, nn.Module):
        raise LossError(f"wrap() takes a loss of pytorch-metric-learning, got {type(loss).__name__}; build it first.")
    rows = _class_vectors(loss)
    if rows is None:
        return WrappedLoss(loss, num_classes=num_classes, dim=dim, miner=miner)
    if rows.shape[1] != dim or len(rows) % num_classes:
        raise LossError(
            f"{type(loss).__name__} holds {len(rows)} vectors of dimension {rows.shape[1]}, which are not those of "
            f"{num_classes} classes of dimension {dim}; give wrap() the numbers that the loss was built with."
        )
    return WrappedProxyLoss(loss, num_classes=num_classes, dim=dim, miner=miner)


def build_wrapped(
    name: str, num_classes: int, dim: int, options: Mapping[str, Any] | None = None
) -> WrappedLoss | WrappedProxyLoss:
    """Build a loss of pytorch-metric-learning from its name and wrap it.

    Args:
        name: of the class, for instance ``ProxyAnchorLoss``, with or without :data:`PREFIX`.
        num_classes: C, handed on where the class asks for it.
        dim: M, likewise.
        options: further arguments: numbers, text, true or false.

    Raises:
        LossError: the package is absent, or has no such loss; or an option is unknown or not allowed.

    Example:
        >>> build_wrapped("pml.ProxyAnchorLoss", 10, 4, {"alpha": 16}).inner.alpha
        16
        >>> build_wrapped("pml.ProxyAnchorLoss", 10, 4, {"alfa": 16})
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: Loss 'pml.ProxyAnchorLoss' has no option 'alfa'. Did you mean 'alpha'? ...
    """
    short = name.removeprefix(PREFIX)
    kind = _find_class(short)
    parameters = _parameters(kind)
    sizes = {"num_classes": num_classes, "dim": dim}
    given: dict[str, Any] = {
        key: sizes[_SIZES[key]]
        for key, parameter in parameters.items()
        if key in _SIZES and parameter.default is parameter.empty
    }
    known = [key for key in parameters if key not in (*_SIZES, *_OBJECTS)]
    for key, value in (options or {}).items():
        if key not in known:
            raise LossError(
                f"Loss {PREFIX + short!r} has no option {key!r}.{did_you_mean(key, known)} "
                f"Options: {', '.join(known) or 'none'}. Objects such as a distance are given from Python, with wrap()."
            )
        given[key] = value
    try:
        loss = kind(**given)
    except (TypeError, ValueError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise LossError(
            f"Loss {PREFIX + short!r} cannot be built from its name: {reason}. Build it in Python and use wrap()."
        ) from error
    return wrap(loss, num_classes=num_classes, dim=dim)


def _find_class(name: str) -> type[nn.Module]:
    try:
        from pytorch_metric_learning import losses
    except ImportError as error:
        raise LossError(
            f"Loss {PREFIX + name!r} comes from pytorch-metric-learning: pip install pytorch-metric-learning."
        ) from error
    known = {
        key: kind
        for key, kind in vars(losses).items()
        if isinstance(kind, type) and issubclass(kind, losses.BaseMetricLossFunction) and not key.startswith("Base")
    }
    if name not in known:
        raise LossError(
            f"pytorch-metric-learning has no loss {name!r}.{did_you_mean(name, known)} It has {', '.join(known)}."
        )
    return known[name]


def _parameters(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Collect the named arguments along the classes that hand ``**kwargs`` on."""
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base is nn.Module:
            break
        own = vars(base).get("__init__")
        for key, parameter in inspect.signature(own).parameters.items() if own is not None else ():
            if key != "self" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                found.setdefault(key, parameter)
    return found


def _class_vectors(loss: nn.Module) -> Tensor | None:
    """Return the class vectors as rows (C * K, M), a view of the parameter; None when there are none."""
    parameters = dict(loss.named_parameters(recurse=False))
    if _ROWS in parameters and type(loss).__name__ != "ManifoldLoss":  # whose proxies belong to no class
        return parameters[_ROWS]
    for name in _COLUMNS:
        if name in parameters and parameters[name].ndim == 2:
            return parameters[name].t()
    return None


def _value(loss: WrappedLoss | WrappedProxyLoss, embeddings: Tensor, labels: Tensor) -> Tensor:
    labels = check_batch(embeddings, labels, num_classes=loss.num_classes, dim=loss.dim)
    result = compute_dtype(embeddings)
    weights = next((one for one in loss.parameters() if one.is_floating_point()), None)
    with torch.autocast(embeddings.device.type, enabled=False):
        # Their losses cast their own parameters to the type of the embeddings, so the embeddings get that of these.
        rows = embeddings.to(result if weights is None else weights.dtype)
        if not len(rows):
            return rows.sum().to(result) + sum((0 * one.sum()).to(result) for one in loss.parameters())
        pairs = None if loss.miner is None else loss.miner(rows, labels)
        value: Tensor = loss.inner(rows, labels) if pairs is None else loss.inner(rows, labels, pairs)
        return value.to(result)
