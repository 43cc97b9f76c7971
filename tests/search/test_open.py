"""From an address to a back-end."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Index
from proxemics.search.open import backend_of


@pytest.mark.parametrize(
    ("address", "backend"),
    [
        ("photos.index", "local"),
        ("/data/a:b/photos", "local"),
        ("a:b", "local"),
        ("C:\\photos", "local"),
        ("./x", "local"),
        ("postgresql://u@h/d?index=a", "pgvector"),
        ("postgres://u@h/d", "pgvector"),
        ("milvus:a.db?index=a", "milvus"),
        ("milvus+http://h:19530?index=a", "milvus"),
        ("milvus+https://h?index=a", "milvus"),
    ],
)
def test_the_scheme_names_the_backend(address: str, backend: str) -> None:
    assert backend_of(address) == backend


def test_an_unknown_scheme_is_refused_without_its_password() -> None:
    with pytest.raises(SearchError, match="'redis://me@host/1' starts with redis:, which names no back-end") as told:
        backend_of("redis://me:secret@host/1")
    assert "secret" not in str(told.value)
    with pytest.raises(SearchError, match="is empty; give a folder"):
        backend_of(" ")


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SearchError, match=f"{tmp_path}/none does not exist"):
        Index.open("~/none")
