"""Emoji-5 with a frozen trunk: Recall@1 from every style to every other, on the classes that no training sees.

Build the set first (``proxemics data emoji --to emoji5``), then::

    python benchmarks/real_emoji_baseline.py emoji5 [--trunk tf_efficientnet_lite0] [--size 128]

Prints a Markdown table: row = style of the query, column = style of the gallery, in percent.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from proxemics.data.sources import load_table
from proxemics.evaluation.extract import extract_embeddings
from proxemics.models.embedder import Embedder


def cross_style(frame: pd.DataFrame, embeddings: np.ndarray) -> dict[tuple[str, str], float]:
    """Return Recall@1 in percent by (query style, gallery style); every class has one picture a style."""
    parts = {}
    for style, rows in frame.groupby("domain"):
        order = rows.sort_values("label")
        parts[str(style)] = (order["label"].to_numpy(), embeddings[order.index])
    result = {}
    for query, (labels, left) in parts.items():
        for gallery, (names, right) in parts.items():
            if query != gallery:
                nearest = names[(left @ right.T).argmax(axis=1)]
                result[query, gallery] = float(100 * (nearest == labels).mean())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trunk", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    frame = load_table(options.folder / "table.csv", where={"split": "test", "variant": "default"})
    embedder = Embedder(options.trunk, dim=0, weights=options.weights, size=options.size)
    table = cross_style(frame, extract_embeddings(embedder, frame["path"].tolist()))
    styles = sorted({query for query, _ in table})
    print(f"| query \\ gallery | {' | '.join(styles)} |")
    print("|---" * (len(styles) + 1) + "|")
    for query in styles:
        cells = ["-" if query == gallery else f"{table[query, gallery]:.1f}" for gallery in styles]
        print(f"| {query} | {' | '.join(cells)} |")
    print(f"\nMean of the {len(table)} directions: {np.mean(list(table.values())):.1f}")


if __name__ == "__main__":
    main()
