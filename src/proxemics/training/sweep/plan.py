"""A sweep's plan: the YAML file that names data sets, variants, seeds and, if any, settings to try."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from proxemics.core.errors import ConfigError, did_you_mean

Settings = dict[str, Any]
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
_NAME = re.compile(r"[\w.+-]+")


class Search(BaseModel):
    """Which settings to try before the runs that count."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    trials: int = Field(1, ge=1)
    """Draws from the space; the same number, and the same values of shared keys, for each variant."""
    seed: int = Field(0, ge=0)
    """Seed of the draws."""
    seeds: list[Annotated[int, Field(ge=0)]] | None = Field(None, min_length=1)
    """Seeds that the trials run on; default: the first seed of the plan."""
    metric: Literal["recall_at_1", "map_at_r", "r_precision"] | None = None
    """The metric on the validation classes that chooses; default: train.select of the recipe."""
    space: dict[str, Any] = Field(default_factory=dict)
    """Key to [low, high], [low, high, log], [low, high, int] or {choice: [...]}, for all variants."""
    spaces: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Variant to a space of its own, beside the shared one."""


class Plan(BaseModel):
    """What a sweep runs: data sets x variants x settings x seeds over one recipe."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    config: Settings = Field(default_factory=dict)
    """The recipe that all runs share."""
    datasets: dict[str, Settings] = Field(default={"": {}}, min_length=1)
    """Name to overrides; left out: the data of the recipe."""
    variants: dict[str, Settings] = Field(min_length=1)
    """Name to overrides, nested or with dotted keys; the first is the baseline of tables."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0, 1, 2], min_length=1)
    """Seeds of the runs."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Key to values; every combination is run for each variant."""
    search: Search | None = None
    """Choose settings for each variant on the validation classes first."""
    equal_budget: bool = True
    """Refuse variants that train for another number of epochs, on other batches, pictures or trunks."""

    @field_validator("datasets", "variants", mode="before")
    @classmethod
    def _empty_is_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in value:
            if not _NAME.fullmatch(str(name)):
                raise ValueError(
                    f"the name {name!r} would not do as part of a folder name; use letters, digits, _ - + ."
                )
        return {str(name): one or {} for name, one in value.items()}

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("a seed is listed twice")
        return value

    @model_validator(mode="after")
    def _known_variants(self) -> Plan:
        for name in self.search.spaces if self.search else {}:
            if name not in self.variants:
                raise ValueError(f"search.spaces names {name!r}.{did_you_mean(name, self.variants)} It is no variant")
        if self.search and not (self.grid or self.search.space or self.search.spaces):
            raise ValueError("search needs a space, or a grid beside it")
        return self


def load_plan(path: str | Path) -> Plan:
    """Read a plan; ``base`` names a recipe beside it, and ``config`` and ``data`` change that recipe.

    Raises:
        ConfigError: the file or its recipe is absent or wrong; the message names the key.
    """
    place = Path(path)
    values = _read(place)
    base = values.pop("base", None)
    recipe = {} if base is None else _read(place.parent / str(base))
    config, data = values.pop("config", None) or {}, values.pop("data", None) or {}
    if not isinstance(config, dict) or not isinstance(data, dict):
        raise ConfigError(f"{path}: config and data must hold keys and values, such as 'train: {{epochs: 3}}'.")
    values["config"] = merge(merge(recipe, config), {"data": data} if data else {})
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_explain(item) for item in error.errors())) from None


def _read(path: Path) -> Settings:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"No file {path}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, such as 'variants: {{plain: {{}}}}'.")
    numbers: Settings = _numbers(values)
    return numbers


def _numbers(value: Any) -> Any:
    """Read ``1e-4``, which YAML 1.1 takes for a word, as a number, wherever it stands."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return ``base`` with ``changes`` over it; keys may be nested or dotted.

    Another loss than that of ``base`` starts from its own published options.

    Example:
        >>> merge({"optim": {"lr": 1, "eps": 2}}, {"optim.lr": 3, "seed": 4})
        {'optim': {'lr': 3, 'eps': 2}, 'seed': 4}
        >>> merge({"loss": {"name": "proxy_anchor", "options": {"alpha": 16}}}, {"loss": {"name": "arcface"}})
        {'loss': {'name': 'arcface'}}
    """
    result: Settings = dict(base)
    for key, value in changes.items():
        first, dot, rest = key.partition(".")
        change = {rest: value} if dot else value
        if not isinstance(change, Mapping):
            result[first] = change
            continue
        old = result.get(first)
        nested = dict(old) if isinstance(old, Mapping) else {}
        if first == "loss" and change.get("name", nested.get("name")) != nested.get("name"):
            nested.pop("options", None)
        result[first] = merge(nested, change)
    return result


def _explain(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = (
            Search.model_fields if where.startswith("search.") else {**Plan.model_fields, "base": None, "data": None}
        )
        return f"{where}: no such key.{did_you_mean(str(item['loc'][-1]), known)} Allowed: {', '.join(known)}."
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}." if where else f"{message}."
