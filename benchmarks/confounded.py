"""Measure how fast the confounded set is rendered and written, and how hard it is for the untrained trunk.

    python benchmarks/confounded.py                 # rendering and writing
    python benchmarks/confounded.py --frozen        # also R@1 of the frozen trunk on the test classes
    python benchmarks/confounded.py --out benchmarks/results/confounded.json

Times are CPU seconds of one process. ``floor`` is what the two unavoidable Pillow calls of a picture cost: cutting and
scaling the background, and turning the glyph.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from proxemics.core.files import write_json
from proxemics.data.confounded import ConfoundedSpec, Scene, render, write
from proxemics.data.confounded.backgrounds import cut_crop, load_source
from proxemics.data.confounded.compose import place


def cpu_seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return median(times)


def timing_rows(spec: ConfoundedSpec, repeats: int) -> list[dict[str, Any]]:
    scene = Scene(spec)
    causes = [scene.causes(index) for index in range(spec.num_images)]
    layer = Image.new("RGB", (85, 85))
    region = load_source("wood")

    def floor() -> None:
        for item in causes:
            cut_crop(region, item.crop, spec.size)
            place(layer, item.pose, spec.size)

    def draw() -> None:
        for index in range(spec.num_images):
            scene.draw(scene.causes(index))

    def write_as(format: str) -> Callable[[], object]:
        def action() -> None:
            with tempfile.TemporaryDirectory() as folder:
                write(spec, folder, format=format)  # type: ignore[arg-type]

        return action

    lowest = cpu_seconds(floor, repeats)
    actions = {
        "confounded_setup": lambda: Scene(spec),
        "confounded_draw": draw,
        "confounded_write_png": write_as("png"),
        "confounded_write_jpeg": write_as("jpeg"),
    }
    rows = []
    for name, action in actions.items():
        seconds = cpu_seconds(action, repeats)
        per_second = round(spec.num_images / seconds) if name != "confounded_setup" else None
        rows.append(
            {"name": name, "ours": seconds, "floor": lowest, "peers": {}, "unit": "CPU s", "pictures": spec.num_images}
            | ({"pictures_per_s": per_second} if per_second else {})
        )
        print(f"{name:24s} {seconds:7.2f} CPU s   {per_second or '':>6} pictures/s   (floor {lowest:.2f} s)")
    return rows


def frozen_row(spec: ConfoundedSpec) -> dict[str, Any]:
    import torch

    from proxemics.evaluation import evaluate_embeddings
    from proxemics.models import Embedder

    rendered = render(spec)
    test = (rendered.table["split"] == "test").to_numpy()
    embedder = Embedder("tf_efficientnet_lite0", dim=0, size=spec.size).eval()
    batches = np.array_split(rendered.pictures[test], max(1, int(test.sum()) // 60))
    with torch.inference_mode():
        embeddings = torch.cat(
            [embedder(embedder.preprocess.normalize(torch.from_numpy(b).permute(0, 3, 1, 2))) for b in batches]
        )
    result = evaluate_embeddings(embeddings, rendered.table.loc[test, "label"].to_numpy())
    recall = float(result["recall_at_1"])
    print(f"frozen tf_efficientnet_lite0, {spec.size} px: R@1 {100 * recall:.1f} % on {int(test.sum())} test pictures")
    return {
        "dataset": "confounded_glyphs", "protocol": "zero_shot", "trunk": "tf_efficientnet_lite0", "size": spec.size,
        "base": "none", "method": "frozen", "augmentation": "none", "seed": spec.seed, "split": "test",
        "metrics": {"recall_at_1": recall, "map_at_r": float(result["map_at_r"])},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=96, help="side of the pictures, pixels")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frozen", action="store_true", help="also measure the frozen trunk")
    parser.add_argument("--out", help="result file to write")
    options = parser.parse_args()
    spec = ConfoundedSpec(size=options.size)
    rows = timing_rows(spec, options.repeats)
    if options.frozen:
        rows.append(frozen_row(spec))
    if options.out:
        write_json(
            options.out,
            {
                "schema": 1,
                "command": "python " + " ".join(sys.argv),
                "versions": {name: version(name) for name in ("numpy", "pillow", "matplotlib", "scikit-image")},
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main()
