"""All methods by name, for configuration files and the command line."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from proxemics.core.errors import LossError, did_you_mean
from proxemics.methods.base import Method
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation
from proxemics.methods.couce import MSRCI, ODBA, CouCE
from proxemics.methods.needs import check_together
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.see import SEE

METHODS: dict[str, type[Method]] = {
    "see": SEE,
    "probabilistic": ProbabilisticProxies,
    "odba": ODBA,
    "msrci": MSRCI,
    "couce": CouCE,
    "center_polar": CenterPolar,
    "expansion_equalisation": ExpansionEqualisation,
}


@dataclass(frozen=True)
class Shapes:
    """What methods are built to fit; handed to the parameters of these names.

    Attributes:
        num_classes: C, training classes.
        dim: M, length of the embedding.
        num_proxies: K, proxies a class of the base loss.
    """

    num_classes: int
    dim: int
    num_proxies: int = 1


def build_methods(methods: Mapping[str, Mapping[str, Any] | None], shapes: Shapes) -> list[Method]:
    """Build the methods of a configuration, in its order.

    Args:
        methods: name to options; those not given keep their defaults.
        shapes: what they must fit.

    Raises:
        LossError: unknown name or option (with the nearest one), a value that is not allowed, or methods that would
            undo each other.

    Example:
        >>> [type(one).__name__ for one in build_methods({"see": {"weight": 0.1}}, Shapes(10, 64))]
        ['SEE']
        >>> build_methods({"sea": {}}, Shapes(10, 64))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: Unknown method 'sea'. Did you mean 'see'? Known methods: see, ...
    """
    built = [build_method(name, options or {}, shapes) for name, options in methods.items()]
    check_together(built)
    return built


def build_method(name: str, options: Mapping[str, Any], shapes: Shapes) -> Method:
    """Build one method from its name and options; see :func:`build_methods`.

    Example:
        >>> build_method("see", {"num_synthetic": "many"}, Shapes(10, 64))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: methods.see.num_synthetic: Input should be a valid integer, ... got 'many'.
    """
    if name not in METHODS:
        raise LossError(f"Unknown method {name!r}.{did_you_mean(name, METHODS)} Known methods: {', '.join(METHODS)}.")
    return _build(METHODS[name], f"methods.{name}", options, shapes)


def methods_label(methods: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return the name that result files give to a set of methods.

    Args:
        methods: as in the configuration; for probabilistic proxies the distance is the name.

    Example:
        >>> methods_label({}), methods_label({"see": {}, "probabilistic": {"distance": "nivmf"}})
        ('none', 'see+nivmf')
    """
    names = []
    for name, options in methods.items():
        chosen = {**method_options(name), **(options or {})} if name == "probabilistic" else {}
        names.append(str(chosen["distance"]).replace("-", "_") if chosen else name)
    return "+".join(names) or "none"


def method_options(name: str) -> dict[str, object]:
    """Return the options of a method with their defaults.

    Example:
        >>> method_options("see")["num_synthetic"]
        8
    """
    return {key: parameter.default for key, parameter in _options(METHODS[name]).items()}


def _options(kind: type[Method]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(kind).parameters
    return {key: one for key, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def _build(kind: type[Method], path: str, options: Mapping[str, Any], shapes: Shapes) -> Method:
    known, hints = _options(kind), typing.get_type_hints(kind.__init__)
    arguments: dict[str, Any] = {
        name: getattr(shapes, name) for name in inspect.signature(kind).parameters if hasattr(shapes, name)
    }
    for key, value in options.items():
        if key not in known:
            raise LossError(f"{path} has no option {key!r}.{did_you_mean(key, known)} Options: {', '.join(known)}.")
        part = _method_in(hints[key])
        if part is not None and isinstance(value, Mapping):
            arguments[key] = _build(part, f"{path}.{key}", value, shapes)
        else:
            arguments[key] = _checked(f"{path}.{key}", value, hints[key])
    return kind(**arguments)


def _method_in(hint: Any) -> type[Method] | None:
    """Find the method class in a hint such as ``ODBA | None``."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return next((one for one in members if isinstance(one, type) and issubclass(one, Method)), None)


def _checked(path: str, value: object, hint: Any) -> object:
    if _method_in(hint) is not None:
        raise LossError(f"{path} holds options, such as {{weight: 0.5}}, and got {value!r}.")
    try:
        return TypeAdapter(hint).validate_python(value, strict=False)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise LossError(f"{path}: {reason}, got {value!r}.") from None
