"""Measure CPU time and peak memory of competing implementations, fairly on a busy machine.

Wall clock means nothing while other programs run, so process CPU time at one thread is taken. Rounds are interleaved
(A, B, C, A, B, C, ...), each run in its own forked process, so that no implementation warms another's memory and
the growth of the peak (VmHWM) belongs to one. A floor - the least arithmetic that the task needs - is timed in the same
process before and after; ratios to it hold while the machine's speed wanders. Linux only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STARTED_WITH_ONE = all(os.environ.get(name) == "1" for name in THREADS)
for _name in THREADS:
    os.environ.setdefault(_name, "1")

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Task:
    """What one forked process runs after its data are made.

    Attributes:
        step: the work of one implementation.
        floor: the least arithmetic for it, or None.
        repeats: steps per timing.
        turns: timings of each, taking turns.
    """

    step: Callable[[], object]
    floor: Callable[[], object] | None = None
    repeats: int = 3
    turns: int = 2


@dataclass(frozen=True)
class Sample:
    """One forked run: CPU seconds a step, CPU seconds of a floor, and MB that the peak grew over the loaded data."""

    cpu: float
    floor: float | None
    growth_mb: float


def one_thread() -> None:
    """Start the program again with one thread for every numerical library, unless that is so already; call it first.

    The libraries read the environment when they are imported, so setting it later would be too late for some.
    """
    if not _STARTED_WITH_ONE:
        os.environ.update(dict.fromkeys(THREADS, "1"))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def compare(tasks: Mapping[str, Callable[[], Task]], rounds: int) -> dict[str, list[Sample]]:
    """Run every task once a round, each in its own forked process, in interleaved order.

    Args:
        tasks: name to a function that makes the data and returns the :class:`Task`; it runs in the child.
        rounds: how many times each is run.

    Returns:
        Name to one sample a round.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, make in tasks.items():
            samples[name].append(_forked(make))
    return samples


def _forked(make: Callable[[], Task]) -> Sample:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(make, sender))
    process.start()
    sender.close()
    try:
        sample: Sample = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the measured process ended with code {process.exitcode}") from None
    process.join()
    return sample


def _child(make: Callable[[], Task], sender: Connection) -> None:
    task = make()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is loaded now
    before = _status_mb("VmRSS")
    task.step()
    task.step()
    growth = _status_mb("VmHWM") - before
    times, floors = [], []
    if task.floor is not None:
        task.floor()
    for _ in range(task.turns):  # each of the two comes after the other, for coming after itself is faster
        times.append(_cpu(task.step, task.repeats))
        if task.floor is not None:
            floors.append(_cpu(task.floor, task.repeats))
    cpu = statistics.mean(times)
    sender.send(Sample(cpu, statistics.mean(floors) if floors else None, growth))
    sender.close()


def _cpu(step: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        step()
    return (time.process_time() - start) / repeats


def _status_mb(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def row(name: str, samples: Mapping[str, Sequence[Sample]], *, ours: str = "ours") -> dict[str, Any]:
    """Reduce samples to a timing row of the result schema, medians first, with spreads beside them.

    Args:
        name: of the row.
        samples: from :func:`compare`; all keys but ``ours`` are peers.
        ours: key of this package's implementation.

    Returns:
        ``name, ours, floor, peers, unit, peak_growth_mb`` and, as extras, ``peers_peak_growth_mb``, ``over_floor``
        (min, median, max of each run's ratio to the floor in its own process) and ``rounds``.
    """
    peers = [key for key in samples if key != ours]
    floors = [s.floor for runs in samples.values() for s in runs if s.floor is not None]
    over = {key: sorted(s.cpu / s.floor for s in runs if s.floor) for key, runs in samples.items()}
    return {
        "name": name,
        "ours": _median(s.cpu for s in samples[ours]),
        "floor": _median(floors) if floors else None,
        "peers": {key: _median(s.cpu for s in samples[key]) for key in peers},
        "unit": "CPU s",
        "peak_growth_mb": round(_median(s.growth_mb for s in samples[ours]), 1),
        "peers_peak_growth_mb": {key: round(_median(s.growth_mb for s in samples[key]), 1) for key in peers},
        "over_floor": {key: [round(v[0], 3), round(_median(v), 3), round(v[-1], 3)] for key, v in over.items() if v},
        "rounds": len(samples[ours]),
    }


def _median(values: Any) -> float:
    return float(f"{statistics.median(values):.6g}")


def write_results(
    name: str, rows: Sequence[Mapping[str, Any]], packages: Sequence[str], folder: Path = RESULTS
) -> Path:
    """Write rows to ``<folder>/<name>.json`` with command, commit, versions and machine.

    Args:
        name: of the file, without suffix.
        rows: from :func:`row`.
        packages: distributions whose versions are recorded.
        folder: where to; ``benchmarks/results`` unless told.

    Returns:
        The path written.
    """
    versions = {"python": platform.python_version(), **{package: _version(package) for package in packages}}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    script = Path(sys.argv[0])
    content = {
        "schema": 1,
        "command": " ".join(
            [
                "python",
                f"benchmarks/{script.name}",
                *(Path(one).name if one.startswith("/") else one for one in sys.argv[1:]),
            ]
        ),
        "commit": commit,
        "versions": versions,
        "machine": machine(),
        "rows": [dict(r) for r in rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    return path


def machine() -> str:
    """Name the machine without saying whose it is, and the vector instructions that products are fast with."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    return ", ".join(
        [
            f"{os.cpu_count()} cores",
            _cpu_name(),
            *(name for flag, name in known.items() if flag in flags),
            "1 thread used",
        ]
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def describe(result: Mapping[str, Any]) -> str:
    """Return one line for the terminal about a row."""
    parts = [f"{result['name']}: ours {result['ours'] * 1e3:.2f} ms, {result['peak_growth_mb']:.0f} MB"]
    if result["floor"]:
        parts.append("x floor " + "/".join(f"{v:.2f}" for v in result["over_floor"]["ours"]))
    for peer, seconds in result["peers"].items():
        memory = result["peers_peak_growth_mb"][peer]
        share = result["peak_growth_mb"] / memory if memory > 0 else float("nan")
        parts.append(
            f"{peer} {seconds * 1e3:.2f} ms, {memory:.0f} MB: time x{result['ours'] / seconds:.2f}, memory x{share:.2f}"
        )
    return "; ".join(parts)
