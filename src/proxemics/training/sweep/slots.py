"""Where runs may go: one slot a worker, each with its device and its share of the cores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from proxemics.core.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time.

    Attributes:
        name: for people: ``cpu``, ``cuda:1``, or ``auto`` where the run chooses.
        arguments: options for ``proxemics train``.
        environment: variables for its process.
    """

    name: str
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def make_slots(devices: str = "auto", workers: int | None = None, threads: int | None = None) -> list[Slot]:
    """Share devices and cores among workers.

    Args:
        devices: ``auto`` (every GPU there is, else what the recipe says), ``cpu``, or numbers such as ``0,1``.
        workers: runs at a time; default: one a device. Workers beyond the devices share them in turn.
        threads: of each run; default: the cores divided by the workers.

    Raises:
        ConfigError: the devices are not there, or a number is not positive.

    Example:
        >>> [slot.name for slot in make_slots("cpu", workers=2, threads=1)]
        ['cpu', 'cpu']
    """
    for name, value in (("--workers", workers), ("--threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value}: give a positive number.")
    names = _device_names(devices)
    count = workers or len(names)
    share = threads or max(1, _cores() // count)
    return [_slot(names[number % len(names)], share) for number in range(count)]


def _device_names(devices: str) -> list[str]:
    text = devices.strip().lower()
    if text == "cpu":
        return ["cpu"]
    if text != "auto" and not re.fullmatch(r"\d+(,\d+)*", text):
        raise ConfigError(f"--devices {devices!r}: write auto, cpu, or numbers of GPUs such as 0,1.")
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        return [f"cuda:{number}" for number in range(there)] or ["auto"]
    wanted = [int(number) for number in text.split(",")]
    if max(wanted) >= there:
        raise ConfigError(f"--devices {devices}: this machine has {there} GPUs{', numbered from 0' if there else ''}.")
    return [f"cuda:{number}" for number in wanted]


def _slot(name: str, threads: int) -> Slot:
    environment = {variable: str(threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if name == "auto":
        return Slot(name, [], environment)
    if name == "cpu":
        return Slot(name, ["--set", "train.device=cpu"], {**environment, "CUDA_VISIBLE_DEVICES": ""})
    number = int(name.partition(":")[2])
    # Numbers count what this process may see, which may itself be a part of the machine.
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    shown = visible[number] if number < len(visible) else str(number)
    return Slot(name, ["--set", "train.device=cuda"], {**environment, "CUDA_VISIBLE_DEVICES": shown})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
