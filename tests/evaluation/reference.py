"""Retrieval metrics the slow way: one float64 matrix, one sort a query, the definitions written out."""

from __future__ import annotations

import numpy as np

TIE = 1e-13


def similarities(query, gallery, metric="cosine"):
    query, gallery = np.asarray(query, dtype=np.float64), np.asarray(gallery, dtype=np.float64)
    if metric == "euclidean":
        return -np.sqrt(((query[:, None] - gallery[None]) ** 2).sum(-1))
    if metric == "cosine":
        query = query / np.maximum(np.linalg.norm(query, axis=1, keepdims=True), 1e-300)
        gallery = gallery / np.maximum(np.linalg.norm(gallery, axis=1, keepdims=True), 1e-300)
    return query @ gallery.T


def order(similarity, allowed, same, reading="index"):
    """Gallery rows from nearest to farthest. Similarities within TIE are made equal first."""
    items = np.flatnonzero(allowed)
    values = similarity[items]
    by_value = np.argsort(-values, kind="stable")
    run = np.concatenate([[0], np.cumsum(-np.diff(values[by_value]) > TIE)])
    level = np.empty(len(items), dtype=np.int64)
    level[by_value] = run
    tie_break = {"index": items, "optimistic": ~same[items], "pessimistic": same[items]}[reading]
    return items[np.lexsort([items, tie_break, level])]


def evaluate(
    query,
    labels,
    gallery=None,
    gallery_labels=None,
    *,
    ks=(1, 10, 100, 1000),
    metric="cosine",
    precision_at=(),
    horizon=None,
    forbidden=(),
    reading="index",
):
    """Return a dictionary of per-query arrays; NaN for lone queries."""
    own = gallery is None
    if own:
        gallery, gallery_labels = query, labels
    labels, gallery_labels = np.asarray(labels), np.asarray(gallery_labels)
    matrix = similarities(query, gallery, metric)
    names = [f"recall_at_{k}" for k in ks] + ["map_at_r", "r_precision", "map_c_roth"]
    names += [f"precision_at_{k}" for k in precision_at] + ([f"map_at_{horizon}"] if horizon else [])
    out = {name: np.full(len(labels), np.nan) for name in names}
    out["order"] = []
    for i in range(len(labels)):
        allowed = np.ones(len(gallery_labels), dtype=bool)
        if own:
            allowed[i] = False
        for a, b in forbidden:
            if a == i:
                allowed[b] = False
        same = gallery_labels == labels[i]
        items = order(matrix[i], allowed, same, reading)
        out["order"].append(items)
        rel = same[items].astype(float)
        r = int(rel.sum())
        if r == 0:
            continue
        prec = np.cumsum(rel) / np.arange(1, len(rel) + 1)
        for k in ks:
            out[f"recall_at_{k}"][i] = rel[:k].max()
        out["r_precision"][i] = rel[:r].sum() / r
        out["map_at_r"][i] = (prec[:r] * rel[:r]).sum() / r
        out["map_c_roth"][i] = (prec[: r + 1] * rel[: r + 1]).sum() / (r + 1)
        for k in precision_at:
            out[f"precision_at_{k}"][i] = rel[:k].sum() / k
        if horizon:
            out[f"map_at_{horizon}"][i] = (prec[:horizon] * rel[:horizon]).sum() / min(r, horizon)
    return out


def means(result):
    return {name: float(np.nanmean(values)) for name, values in result.items() if name != "order"}
