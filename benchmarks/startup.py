"""How long until `proxemics --help` is printed, and what importing the package costs.

Run it with ``python benchmarks/startup.py [--repeat N]``; it fails when `proxemics --help` loads torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from _results import RESULTS, write_results

HELP = "import sys; sys.argv = ['proxemics', '--help']\nfrom proxemics.cli.main import main\nmain()"
SAY_IF_TORCH = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
EMPTY = "pass"
TORCH = "import torch"
# name -> (our program, the least it can cost, peers that do the same: package -> (module that must be there, program))
CASES: dict[str, tuple[str, str, dict[str, tuple[str, str]]]] = {
    "help": (HELP, EMPTY, {}),
    "import_proxemics": ("import proxemics", EMPTY, {}),
    "import_losses": (
        "import proxemics.losses",
        TORCH,
        {"pytorch-metric-learning": ("pytorch_metric_learning", "import pytorch_metric_learning.losses")},
    ),
    "import_evaluation": ("import proxemics.evaluation", TORCH, {}),
}
# (wall s, CPU s, peak MB)
Cost = tuple[float, float, float]


def run_once(program: str) -> Cost:
    """Run ``program`` in a new Python; return its wall time, its CPU time and its peak memory."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    message = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{program!r} failed:\n{message.decode(errors='replace')}")
    unit = 1 if sys.platform == "darwin" else 1024
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6


def measure(programs: dict[str, str], repeat: int) -> dict[str, Cost]:
    """Run the programs in turns and return the median of each column; the first turn warms the disk and is dropped."""
    costs: dict[str, list[Cost]] = {name: [] for name in programs}
    for turn in range(repeat + 1):
        for name, program in programs.items():
            cost = run_once(program)
            if turn:
                costs[name].append(cost)
    return {
        name: (median(c[0] for c in runs), median(c[1] for c in runs), median(c[2] for c in runs))
        for name, runs in costs.items()
    }


def rows_of(name: str, repeat: int) -> list[dict[str, Any]]:
    """Measure one case; return its row of wall time and its row of CPU time."""
    ours, floor, peers = CASES[name]
    present = {peer: program for peer, (module, program) in peers.items() if find_spec(module)}
    costs = measure({"ours": ours, "floor": floor, **present}, repeat)
    growth = round(costs["ours"][2] - costs["floor"][2], 1)
    return [
        {
            "name": name + suffix,
            "ours": round(costs["ours"][column], 3),
            "floor": round(costs["floor"][column], 3),
            "peers": {peer: round(costs[peer][column], 3) for peer in present},
            "unit": unit,
            "peak_growth_mb": growth,
        }
        for column, unit, suffix in ((0, "s", "_wall"), (1, "CPU s", ""))
    ]


def help_loads_torch() -> bool:
    """Return whether printing the help of the command line imports torch."""
    done = subprocess.run([sys.executable, "-c", SAY_IF_TORCH + HELP], capture_output=True, text=True, check=True)
    return done.stderr.strip().splitlines()[-1] == "True"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and write `results/startup.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="measured runs a program (default: 5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for startup.json")
    options = parser.parse_args(arguments)
    if help_loads_torch():
        raise SystemExit("proxemics --help loads torch; import it inside the verbs instead")
    rows = [row for name in CASES for row in rows_of(name, options.repeat)]
    for row in rows:
        print(f"{row['name']:<22} ours {row['ours']:.3f}  floor {row['floor']:.3f}  {row['peers']}  {row['unit']}")
    print(
        write_results(
            "startup", rows, packages=("torch", "numpy", "typer", "pytorch-metric-learning"), folder=options.out
        )
    )


if __name__ == "__main__":
    main()
