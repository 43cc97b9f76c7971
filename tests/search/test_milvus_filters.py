"""Milvus Lite beside code that hands tensors to faiss."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from warm_processes import Warm

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (there is none for Windows)")
pytest.importorskip("pytorch_metric_learning", reason="pytorch-metric-learning is not installed")


@pytest.mark.parametrize("first", ["pytorch_metric_learning.utils.inference", "proxemics.search.milvus.faiss_params"])
def test_filters_beside_code_that_teaches_tensors_to_faiss(warm: Warm, tmp_path: Path, first: str) -> None:
    """pytorch-metric-learning imports faiss.contrib.torch_utils, whose ``search`` takes no parameters."""
    file = f"milvus:{tmp_path / 'a.db'}?index=birds"
    program = f"""
        import importlib, sys
        assert "faiss" not in sys.modules
        if "{first}".endswith("faiss_params"):
            from proxemics.search.milvus.faiss_params import keep_search_params
            keep_search_params()
            keep_search_params()
        import pytorch_metric_learning.utils.inference
        import numpy as np, torch
        from proxemics.search import Items, Index, ModelKey
        from proxemics.search.where import Condition
        rows = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
        items = Items([str(one) for one in range(2000)], rows, [{{"rare": one % 4 == 0}} for one in range(2000)])
        with Index.create({file!r}, ModelKey(model="a" * 64, preprocess="224", dim=8), kind="hnsw") as index:
            index.add(items)
            index.compact()
        with Index.open({file!r}) as index:  # the graph is built when it is loaded, at the latest
            hits = index.search(rows[:1], 10, where=[Condition("rare", "eq", True)])[0]
        print(len(hits), all(int(one) % 4 == 0 for one in hits.ids))
        flat = importlib.import_module("faiss").IndexFlatIP(8)
        flat.add(torch.from_numpy(rows))
        print(flat.search(torch.from_numpy(rows[:1]), 1)[1].tolist(), flat.search(rows[:1], 1)[1].shape)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    done = warm.run([str(tmp_path / "program.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "10 True"
    assert done.stdout.splitlines()[1].endswith("(1, 1)")
