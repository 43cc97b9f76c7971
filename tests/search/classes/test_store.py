"""The class book on disk: whole or not at all, one writer at a time, and nothing left of what is forgotten."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from proxemics.core.errors import SearchError
from proxemics.search.classes import ClassBook, changing_book, load_book, save_book
from proxemics.search.manifest import ModelKey

KEY = ModelKey(model="a" * 64, preprocess="p", dim=6)
FILES = ["classes.json", "classes.safetensors"]


def book_of(names: str, seed: int = 0, weighting: str = "equal") -> ClassBook:
    book = ClassBook(KEY, weighting=weighting)
    rows = np.random.default_rng(seed).normal(size=(len(names), 6))
    book.enrol(list(names), rows, np.arange(1.0, len(names) + 1))
    return book


@pytest.mark.parametrize("weighting", ["equal", "length"])
def test_it_comes_back_bit_for_bit(tmp_path: Path, weighting: str) -> None:
    book = book_of("aabbbc", weighting=weighting)
    save_book(book, tmp_path)
    found = load_book(tmp_path, KEY)
    assert (found.names, found.key, found.weighting) == (book.names, KEY, weighting)
    for name in book.names:
        assert (found[name].weight, found[name].squares, found[name].count) == (
            book[name].weight,
            book[name].squares,
            book[name].count,
        )
        np.testing.assert_array_equal(found[name].total, book[name].total)
    assert sorted(one.name for one in tmp_path.iterdir()) == FILES
    listed = json.loads((tmp_path / "classes.json").read_text())
    assert [one["name"] for one in listed["classes"]] == ["a", "b", "c"]


def test_names_of_all_scripts_and_an_empty_book(tmp_path: Path) -> None:
    book = ClassBook(KEY)
    book.enrol(["köln 🐈", "日本", '"quoted"'], np.eye(6)[:3])
    save_book(book, tmp_path)
    assert load_book(tmp_path).names == book.names
    save_book(ClassBook(KEY), tmp_path)
    assert len(load_book(tmp_path, KEY)) == 0


def test_a_forgotten_class_leaves_no_byte(tmp_path: Path) -> None:
    """Not its name, and not one of the numbers of its sum."""
    rows = np.random.default_rng(5).normal(size=(3, 6))
    with changing_book(tmp_path, KEY, create=True) as book:
        book.enrol(["Ada Lovelace", "cat", "dog"], rows)
        total = book["Ada Lovelace"].total.copy()
    content = (tmp_path / "classes.safetensors").read_bytes()
    assert total.tobytes() in content
    assert b"Ada Lovelace" in content
    with changing_book(tmp_path, KEY) as book:
        book.forget(["Ada Lovelace"])
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert b"Lovelace" not in content
        assert all(number.tobytes() not in content for number in total)
    assert load_book(tmp_path).names == ["cat", "dog"]


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    save_book(book_of("ab"), tmp_path)
    before = (tmp_path / "classes.safetensors").read_bytes()

    def fail() -> None:
        with changing_book(tmp_path, KEY) as book:
            book.forget(["a"])
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "classes.safetensors").read_bytes() == before


def enrol_ten(folder: Path, writer: int) -> None:
    for number in range(10):
        with changing_book(folder, KEY) as book:
            book.enrol([f"{writer}-{number}"], np.random.default_rng(number).normal(size=(1, 6)))


def test_writers_take_turns(tmp_path: Path) -> None:
    """Four processes add ten classes each, one class at a time; none is lost."""
    save_book(ClassBook(KEY), tmp_path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=enrol_ten, args=(tmp_path, one)) for one in range(4)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(timeout=120)
    assert [one.exitcode for one in writers] == [0, 0, 0, 0]
    assert len(load_book(tmp_path)) == 40
    assert sorted(one.name for one in tmp_path.iterdir()) == FILES


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="holds no enrolled classes; add one with `proxemics enrol`"):
        load_book(tmp_path)
    with pytest.raises(SearchError, match="holds no enrolled classes"), changing_book(tmp_path, KEY):
        pass
    path = save_book(book_of("ab"), tmp_path)
    with pytest.raises(SearchError, match="The class book holds vectors of model aaaaaaaaaaaa"):
        load_book(tmp_path, KEY.model_copy(update={"model": "b" * 64}))
    asked = changing_book(tmp_path, KEY, weighting="length")
    with pytest.raises(SearchError, match="weighs pictures by equal, and length was asked for"), asked:
        pass
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'\\"schema\\": 1', b'\\"schema\\": 9'))
    with pytest.raises(SearchError, match="is of format 9, which is newer"):
        load_book(tmp_path)
    path.write_bytes(whole.replace(b'\\"pictures\\": 1', b'\\"pictures\\": 0', 1))
    with pytest.raises(SearchError, match="its list of classes is not understood"):
        load_book(tmp_path)
    path.write_bytes(whole[:-8])
    with pytest.raises(SearchError, match="cannot be read"):
        load_book(tmp_path)
    path.write_bytes(b"no safetensors")
    with pytest.raises(SearchError, match="cannot be read"):
        load_book(tmp_path)


def test_other_tensors_are_no_class_book(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"total": np.ones((2, 6))}, tmp_path / "classes.safetensors")
    with pytest.raises(SearchError, match="is no class book"):
        load_book(tmp_path)
    head = (book_of("ab"), tmp_path)
    save_book(*head)
    text = (tmp_path / "classes.json").read_text()
    for total in (np.ones((3, 6)), np.full((2, 6), np.nan), np.ones((2, 6), np.float32)):
        tensors = {"total": total, "weight": np.ones((2, 2))}
        save_file(tensors, tmp_path / "classes.safetensors", metadata={"class_book": text})
        with pytest.raises(SearchError, match="its tensors do not fit its list of 2 classes"):
            load_book(tmp_path)
