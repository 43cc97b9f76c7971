"""The files of a run: what they are called and how they are read back."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from proxemics.core.config import Config, load_config, save_config
from proxemics.core.errors import DataError, TrainingError
from proxemics.core.files import read_json
from proxemics.data.split_files import load_split
from proxemics.data.table import fingerprint


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The complete configuration, as YAML."""
        return self.path / "config.yaml"

    @property
    def split(self) -> Path:
        """The table with its splits."""
        return self.path / "split.parquet"

    @property
    def bundle(self) -> Path:
        """The model and its preprocessing."""
        return self.path / "bundle"

    @property
    def result(self) -> Path:
        """The numbers, with everything needed to trace them."""
        return self.path / "result.json"

    @property
    def per_query(self) -> Path:
        """One row a test query."""
        return self.path / "per_query.parquet"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @property
    def expansion(self) -> Path:
        """Training pictures beside what the generator of a method makes of them; a JSON file beside it names them."""
        return self.path / "expansion.jpg"

    @property
    def dictionary(self) -> Path:
        """What the background dictionary has learnt, by ``proxemics inspect dictionary``."""
        return self.path / "dictionary.html"

    @property
    def probe(self) -> Path:
        """The bias card, by ``proxemics probe``."""
        return self.path / "probe.json"

    @property
    def checkpoint(self) -> Path:
        """The latest checkpoint and the best weights."""
        return self.path / "checkpoint"

    @property
    def holds_work(self) -> bool:
        """Whether a run has left anything here that would be lost."""
        return self.result.exists() or (self.checkpoint / "latest.json").exists()

    def read_config(self) -> Config:
        """Return the configuration of the run."""
        if not self.config.exists():
            raise DataError(
                f"{self.path} is not a run folder: it has no config.yaml. Give a folder that `proxemics train` wrote."
            )
        return load_config(self.config)

    def read_result(self) -> dict[str, Any]:
        """Return the result file."""
        result: dict[str, Any] = read_json(self.result)
        return result

    def clear(self) -> None:
        """Throw away what runs write, and nothing else that lies in the folder."""
        for name in OWN_NAMES:
            place = self.path / name
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    def claim(self, config: Config, table: pd.DataFrame) -> None:
        """Make the folder belong to this configuration, or say why it cannot.

        Raises:
            TrainingError: it holds a run with another configuration (the message names the keys that differ), or a run
                on other pictures or another split, whose classes would be mixed up.
        """
        if self.config.exists() and self.holds_work:
            other = load_config(self.config)
            different = differing_keys(other.model_dump(), config.model_dump())
            # How the pictures are read and where the arithmetic is done may change between two sittings of one run.
            different = [key for key in different if key not in _FREE and not _same_place(key, other, config)]
            if different:
                shown = ", ".join(different[:4]) + (" ..." if len(different) > 4 else "")
                raise TrainingError(
                    f"{self.path} holds a run with another {shown}; "
                    "use another --out, or --restart to throw that run away."
                )
            if self.split.exists() and fingerprint(load_split(self.split)) != fingerprint(table):
                raise TrainingError(
                    f"{self.path} holds a run on other pictures or another split; use another --out, or --restart to "
                    "throw that run away."
                )
        save_config(config, self.config)


OWN_NAMES = (
    "checkpoint", "cache", "bundle", "tensorboard", "config.yaml", "split.parquet", "metrics.jsonl", "result.json",
    "evaluation.json", "per_query.parquet", "embeddings.npy", "embeddings_untrained.npy", "report.html",
    "expansion.jpg", "expansion.json", "dictionary.html", "probe.json", "probe-part.json",
)  # fmt: skip
"""Everything that a run writes into its folder."""
_FREE = frozenset(
    {
        "data.cache_folder",
        "data.workers",
        "data.worker_start",
        "train.device",
        "train.checkpoint_steps",
        "train.tensorboard",
    }
)


def _same_place(key: str, first: Config, second: Config) -> bool:
    """Whether ``photos`` and ``photos/`` were written for one folder."""
    if key not in ("data.source", "data.root", "data.split_file"):
        return False
    name = key.removeprefix("data.")
    places = [getattr(one.data, name) for one in (first, second)]
    return None not in places and Path(places[0]).resolve() == Path(places[1]).resolve()


def differing_keys(first: dict[str, Any], second: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys whose values differ.

    Example:
        >>> differing_keys({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
        ['b.c']
    """
    result: list[str] = []
    for key in {**first, **second}:
        a, b = first.get(key), second.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            result += differing_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            result.append(f"{prefix}{key}")
    return result
