"""What a report of 20,000 pictures costs: time and memory to build, size, time to open from disk.

Usage: ``python benchmarks/report.py [--data ../shared/data/index.csv] [--count 20000] [--rounds 3]``. Without
``--data`` small pictures are drawn. A run folder is made with embeddings of a known amount of error, real ranks and
real numbers; then ``proxemics report`` writes its page and Chromium opens it from disk. Writes
benchmarks/results/report.json.

Rows, with N pictures:

* ``report_build_N``: CPU seconds of a new process that writes the report. Floor: a process with the same imports that
  reads each picture once to its thumbnail.
* ``report_size_N``: MB (10^6 bytes) of the page. Floor: its encoded pictures alone.
* ``report_load_N``: seconds from the start of the navigation to the end of the load event, in a new browser each time.
  Floor: a page of as many bytes that holds nothing but text.
* ``report_map_N``: seconds from the start of the navigation until all points of the map are drawn. Same floor.
* ``report_hover_N``: seconds from pointing at a picture until its thumbnail is drawn, its sheet not yet decoded; median
  of 20 pictures.

There are no peers: TensorBoard's Projector needs a server and refuses sprites above 8,192 pixels.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from _results import write_results
from PIL import Image

from proxemics.core.config import Config
from proxemics.core.files import write_json
from proxemics.data.split_files import save_split
from proxemics.evaluation.assess import assess
from proxemics.training.results import result_row, save_per_query, trace

LIMITS = {"size": 25.0, "map": 3.0}  # MB and seconds that a report of 20,000 pictures must keep
IMPORTS = (
    "import sys\nfrom proxemics.report.write import write_report\nfrom proxemics.report.sprites import read_tile\n"
)
BUILD = IMPORTS + "write_report(sys.argv[1])"
READ = (
    IMPORTS + "import pandas\nfor path in pandas.read_parquet(sys.argv[1] + '/split.parquet').path: read_tile(path, 40)"
)


def pictures(data: str | None, count: int, folder: Path) -> pd.DataFrame:
    """Return ``count`` pictures with label and domain."""
    if data is not None:
        table = pd.read_csv(data)
        table = pd.concat([table[table["dataset"] != "emoji"], table[table["dataset"] == "emoji"]]).head(count)
        if len(table) < count:
            raise SystemExit(f"{data} lists {len(table)} pictures; give --count {len(table)} or fewer.")
        root = Path(data).resolve().parent
        labels = table["dataset"] + "/" + table["label"].astype(str)
        return pd.DataFrame(
            {
                "path": [str(root / path) for path in table["path"]],
                "label": labels,
                "domain": table["domain"].astype(str),
            }
        ).reset_index(drop=True)
    draw = np.random.default_rng(0)
    rows = []
    for number in range(count):
        path = folder / "pictures" / f"class{number % 500:03d}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = draw.integers(0, 256, (7, 9, 3), dtype=np.uint8)
        Image.fromarray(small).resize((200, 160), Image.Resampling.BICUBIC).save(path, quality=80)
        rows.append({"path": str(path), "label": path.parent.name, "domain": ("day", "night")[number % 2]})
    return pd.DataFrame(rows)


def make_run(table: pd.DataFrame, run: Path) -> None:
    """Write what a training leaves: embeddings that hold the class, the domain and noise, and their evaluation."""
    draw = np.random.default_rng(1)
    parts = []
    for column, weight in (("label", 1.0), ("domain", 0.6)):
        codes, names = pd.factorize(table[column])
        parts.append(weight * draw.normal(size=(len(names), 128))[codes])
    vectors = (sum(parts) + 1.6 * draw.normal(size=(len(table), 128))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    run.mkdir(parents=True)
    table = table.assign(split="test")
    save_split(table, run / "split.parquet")
    np.save(run / "embeddings.npy", vectors, allow_pickle=False)
    config = Config.model_validate(
        {"data": {"source": "pictures"}, "evaluation": {"bootstrap": 0, "clustering": False}}
    )
    found = assess(vectors, table, config.evaluation, intervals=False)
    save_per_query(found, table, run / "per_query.parquet")
    write_json(
        run / "result.json",
        {**trace(config, table), "rows": [result_row(config, found, method="none", split="test", size=160)]},
    )


def child(program: str, run: Path) -> tuple[float, float, float]:
    """Run a program in a new Python; return its wall time, its CPU time and its peak memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program, str(run)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit("the measured program failed")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def browser() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.get("about:blank")
    return driver


TIMES = """
const load = performance.getEntriesByType('navigation')[0].loadEventEnd;
const mark = performance.getEntriesByName('map-drawn')[0];
return [load / 1000, mark ? mark.startTime / 1000 : 0];
"""
HOVER = """
const [i, done] = arguments, section = document.querySelector('section.map');
const thumb = section.querySelector('.mapcard canvas');
const began = performance.now();
section.map.choose(i);
(function look() {
  if (thumb.dataset.row === String(i)) done((performance.now() - began) / 1000); else setTimeout(look, 1);
})();
"""


def opened(page: Path) -> tuple[float, float]:
    """Open a page from disk in a new browser; return when it was loaded and when its map was drawn."""
    driver = browser()
    try:
        driver.get(page.resolve().as_uri())
        deadline = time.monotonic() + 120
        load, mark = driver.execute_script(TIMES)
        while not load and time.monotonic() < deadline:
            time.sleep(0.05)
            load, mark = driver.execute_script(TIMES)
        said = driver.get_log("browser")
        if said:
            raise SystemExit(f"the browser complains: {said}")
        return float(load), float(mark)
    finally:
        driver.quit()


def hovered(page: Path, count: int) -> list[float]:
    driver = browser()
    try:
        driver.get(page.resolve().as_uri())
        return [float(driver.execute_async_script(HOVER, count * number // 20)) for number in range(20)]
    finally:
        driver.quit()


def row(name: str, ours: float, floor: float | None, unit: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "ours": round(ours, 4),
        "floor": None if floor is None else round(floor, 4),
        "peers": {},
        "unit": unit,
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="CSV with path, dataset, label and domain; default: pictures are drawn")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true", help="measure, and write no result file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run, plain = folder / "run", folder / "plain.html"
        make_run(pictures(arguments.data, arguments.count, folder), run)
        page = run / "report.html"
        builds, reads, loads, floors = [], [], [], []
        for _ in range(arguments.rounds):
            builds.append(child(BUILD, run))
            reads.append(child(READ, run))
            plain.write_text(f"<!doctype html><title>plain</title><template>{'A' * page.stat().st_size}</template>")
            loads.append(opened(page))
            floors.append(opened(plain)[0])
        text = page.read_text(encoding="utf-8")
        encoded = sum(
            map(len, re.findall(r"(?<=base64,)[A-Za-z0-9+/=]{100,}|(?<=class=\"sheet\">)[A-Za-z0-9+/=]+", text))
        )
        hover = hovered(page, arguments.count)
    size = len(text.encode()) / 1e6
    count, floor = arguments.count, median(floors)
    rows = [
        row(
            f"report_build_{count}", median(one[1] for one in builds), median(one[1] for one in reads), "CPU s",
            peak_growth_mb=round(median(one[2] for one in builds) - median(one[2] for one in reads), 1),
            wall_s=round(median(one[0] for one in builds), 2), rounds=arguments.rounds,
        ),
        row(f"report_size_{count}", size, encoded / 1e6, "MB"),
        row(f"report_load_{count}", median(one[0] for one in loads), floor, "s", rounds=arguments.rounds),
        row(f"report_map_{count}", median(one[1] for one in loads), floor, "s", rounds=arguments.rounds),
        row(f"report_hover_{count}", median(hover), None, "s"),
    ]  # fmt: skip
    for one in rows:
        print(one)
    over = [name for name, value in (("size", rows[1]["ours"]), ("map", rows[3]["ours"])) if value > LIMITS[name]]
    if over:
        print(f"OVER THE LIMIT: {', '.join(over)}")
    if not arguments.dry_run:
        print(write_results("report", rows, packages=("numpy", "pillow", "pandas", "jinja2", "selenium")))


if __name__ == "__main__":
    main()
