"""What an index remembers, and whose queries it refuses."""

from __future__ import annotations

import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Manifest, ModelKey
from proxemics.search.manifest import FORMAT, read_manifest

KEY = ModelKey(model="a" * 64, preprocess="p1", dim=8)


def test_it_reads_back_what_it_wrote() -> None:
    manifest = Manifest(key=KEY, kind="hnsw", dtype="int8", title="Vögel", created="2026-01-01T00:00:00+00:00")
    assert read_manifest(manifest.model_dump_json(), "x") == manifest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "b" * 64}, "model aaaaaaaaaaaa and the query comes from bbbbbbbbbbbb"),
        ({"preprocess": "p2"}, "preprocessing p1 and the query was prepared with p2"),
        ({"dim": 9}, "length 8, and the query has 9"),
    ],
)
def test_another_model_is_refused_with_both_sides(change: dict[str, object], told: str) -> None:
    with pytest.raises(SearchError, match=told):
        Manifest(key=KEY).check(KEY.model_copy(update=change))


def test_user_pain_88_a_newer_format_is_refused_with_what_to_do() -> None:
    text = Manifest(key=KEY).model_dump_json().replace(f'"format":{FORMAT}', f'"format":{FORMAT + 1},"new":1')
    with pytest.raises(SearchError, match=f"x has format {FORMAT + 1}, .* reads up to {FORMAT}; install a newer one"):
        read_manifest(text, "x")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "one"}', '{"key": {"model": "", "dim": 3}}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(SearchError, match="The manifest of the index x is not usable"):
        read_manifest(text, "x")


@pytest.mark.parametrize("dim", [0, 16001])
def test_vectors_have_1_to_16000_numbers(dim: int) -> None:
    with pytest.raises(ValueError, match="dim"):
        ModelKey(model="m", dim=dim)
