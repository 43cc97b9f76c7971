"""The figures of the index, out of ``results/search.json`` and into ``docs/search.md``; nothing is measured here.

python benchmarks/search_page.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _page import publish
from _results import ROOT

SIZES = {"100000x512": "100,000 × 512", "500000x128": "500,000 × 128"}
SERVERS = {"pgvector": "PostgreSQL", "milvus_file": "Milvus Lite, file", "milvus_server": "Milvus Lite, its server"}
BATCHES = (1, 8, 64, 200, 300, 1000)


def tables(whole: Mapping[str, Any]) -> str:
    """Format exact searches beside faiss, graphs beside usearch, and servers."""
    rows = {row["name"]: row for row in whole["rows"]}
    parts = {
        "Exact searches, beside faiss `IndexFlatIP` with whichever of its two settings is faster for the batch": _exact,
        "Graphs, 500 queries in one call, and one query a call": _graphs,
        "Servers on the same machine, one client, seconds on the wall": _servers,
    }
    names = {"exact": _exact, "hnsw": _graphs, "pgvector": _servers, "milvus": _servers}
    lines: list[str] = []
    for title, part in parts.items():
        own = {name: row for name, row in rows.items() if names[name.split("_")[0]] is part}
        if not own:
            continue
        lines += [f"{title} ({_where(own)}):", "", *part(own), ""]
    return "\n".join(lines).strip()


def _where(rows: Mapping[str, Any]) -> str:
    """Name the machine, or which rows were measured on which: by type, with sizes where that does not tell."""
    types: dict[str, dict[str, set[str]]] = {}
    for name, row in rows.items():
        dtype = "`int8`" if "int8" in name else "`float32`"
        types.setdefault(dtype, {}).setdefault(row["machine"], set()).add(SIZES[name.rsplit("_", 1)[1]])
    kinds: dict[str, list[str]] = {}
    for dtype, machines in sorted(types.items()):
        for machine, sizes in machines.items():
            kinds.setdefault(machine, []).append(
                dtype if len(machines) == 1 else f"{dtype} of {', '.join(sorted(sizes))}"
            )
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{' and '.join(found)}: {machine}" for machine, found in sorted(kinds.items()))


def _exact(rows: Mapping[str, Any]) -> list[str]:
    heads = [f"{size}, `{dtype}`" for size in SIZES.values() for dtype in ("float32", "int8")]
    lines = [f"| queries at once | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for batch in BATCHES:
        cells = []
        for size in SIZES:
            for kind in ("exact", "exact_int8"):
                row = rows.get(f"{kind}_batch_{batch}_{size}")
                cells.append(f"{row['qps']:,}/s, {row['speed_over_best_faiss']:.2f} × faiss" if row else "–")
        lines.append(f"| {batch:,} | {' | '.join(cells)} |")
    return lines


def _graphs(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        "| rows | kept as | recall@10 | queries/s | to usearch | one by one | to usearch | build | graph | folder |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size, title in SIZES.items():
        for dtype in ("float32", "int8"):
            many, single = rows.get(f"hnsw_{dtype}_{size}"), rows.get(f"hnsw_{dtype}_single_{size}")
            if many is None or single is None:
                continue
            lines.append(
                f"| {title} | `{dtype}` | {many['recall']:.3f} | {many['qps']:,} "
                f"| {1 + many['overhead_over_usearch']:.2f} × | {single['qps']:,} "
                f"| {1 + single['overhead_over_usearch']:.2f} × | {many['build_cpu_s']:.0f} s "
                f"| {many['graph_bytes'] / 1e6:.0f} MB | {many['folder_bytes'] / 1e6:.0f} MB |"
            )
    return lines


def _servers(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        "| server | rows | recall@10 | queries/s, one by one | in batches of 100 | build | disk | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, title in SIZES.items():
        for server, shown in SERVERS.items():
            for kind in ("exact", "hnsw"):
                row = rows.get(f"{server}_{kind}_{size}")
                if row is not None:
                    lines.append(
                        f"| {shown}, `{kind}` | {title} | {row['recall']:.3f} | {row['qps']:,} "
                        f"| {row['qps_in_batches_of_100']:,} | {row['build_s']:.0f} s | {row['disk_mb']:.0f} MB "
                        f"| {row['peak_growth_mb']:.0f} MB |"
                    )
    return lines


def main() -> None:
    """Write the tables."""
    publish("search", tables, ROOT / "docs" / "search.md")


if __name__ == "__main__":
    main()
