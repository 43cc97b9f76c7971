"""The written file: self-contained, escaped, complete, and robust against what is missing. User-pains 58, 95, 101."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from proxemics.core.errors import DataError
from proxemics.core.files import read_json, write_json
from proxemics.report import write_report


class Page(HTMLParser):
    """Collects tags with their attributes and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + " "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(glyph_run: Path) -> Page:
    return Page(write_report(glyph_run).read_text(encoding="utf-8"))


@pytest.fixture
def copy(glyph_run: Path, tmp_path: Path) -> Path:
    """A run folder that a test may damage."""
    shutil.copytree(glyph_run, tmp_path / "run")
    return tmp_path / "run"


def test_nothing_outside_the_file_is_named(page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "data", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_policy_forbids_every_request(page: Page) -> None:
    policy = next(one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe-inline'; script-src 'sha256-" in policy


def test_the_page_tells_the_run(page: Page, glyph_run: Path) -> None:
    """User-pains 58 and 59: versions, fingerprint, seed, command, rule."""
    result = read_json(glyph_run / "result.json")
    for told in (
        result["command"],
        result["data"]["fingerprint"],
        result["machine"],
        "Epoch 6 of 8, chosen by map_at_r on the validation classes",
        "None of the test classes was seen in training",
        "torch",
        "2.8.0",
        "3 min 23 s",
        "3,371,024 trunk, 655,872 head",
        "1,312 MB",
        "select: map_at_r",
    ):
        assert told in page.text, told


def test_numbers_stand_beside_the_untrained_ones(page: Page, glyph_run: Path) -> None:
    trained, frozen = read_json(glyph_run / "result.json")["rows"]
    for metrics in (trained["metrics"], frozen["metrics"]):
        assert f"{100 * metrics['recall_at_1']:.1f}\u00a0%" in page.text
    difference = 100 * (trained["metrics"]["map_at_r"] - frozen["metrics"]["map_at_r"])
    assert f"{difference:+.1f}" in page.text
    assert "Share of queries whose nearest other picture shows the same class." in page.text


def test_worst_queries_have_neighbours_paths_and_signs(page: Page) -> None:
    """User-pains 101."""
    pictures = page.all("img")
    assert len([one for one in pictures if (one["alt"] or "").startswith("Query ")]) == 26
    neighbours = [one for one in pictures if (one["alt"] or "").startswith("Neighbour ")]
    assert len(neighbours) == 26 * 8
    assert all((one["title"] or "").endswith(".png") for one in neighbours)
    signs = [one for one in page.all("span") if "sign" in (one.get("class") or "").split()]
    assert {one["title"] for one in signs} == {"same class", "another class"}


def test_every_picture_and_chart_has_a_name(page: Page) -> None:
    assert all("alt" in one for one in page.all("img"))
    assert all(one.get("aria-label") or one.get("aria-hidden") == "true" for one in page.all("svg"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.all("html")[0]["lang"] == "en"


def test_labels_cannot_become_markup(copy: Path) -> None:
    """A class folder may be called anything."""
    evil = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
    for name in ("per_query.parquet", "split.parquet"):
        frame = pd.read_parquet(copy / name)
        first = frame["label"].iloc[-1]
        for column in {"label", "nearest_label"} & set(frame.columns):
            frame[column] = frame[column].replace(first, evil)
        frame.to_parquet(copy / name)
    config = copy / "config.yaml"
    config.write_text(config.read_text() + f"# {evil}\n")
    result = read_json(copy / "result.json")
    result["rows"][0]["dataset"] = f"日本語 {evil}"
    result["rows"][0]["notes"] = [evil]
    write_json(copy / "result.json", result)
    html = write_report(copy).read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.all("script")) == 1
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert evil in page.text.replace("  ", "")
    assert "日本語" in page.text


def test_missing_pictures_become_placeholders(copy: Path) -> None:
    frame = pd.read_parquet(copy / "per_query.parquet")
    frame["path"] = frame["path"].str.replace("pictures/", "gone/", n=1)
    frame.to_parquet(copy / "per_query.parquet")
    page = Page(write_report(copy).read_text(encoding="utf-8"))
    absent = [one for one in page.all("span") if one.get("class") == "absent"]
    assert len(absent) >= 26
    assert all("(picture not available)" in (one["aria-label"] or "") for one in absent)
    assert re.search(r"\d+ pictures could not be read and are shown as a placeholder\.", page.text)


@pytest.mark.parametrize("name", ["metrics.jsonl", "per_query.parquet", "split.parquet", "config.yaml"])
def test_a_missing_file_costs_its_section_only(copy: Path, name: str) -> None:
    (copy / name).unlink()
    page = Page(write_report(copy).read_text(encoding="utf-8"))
    assert "Recall@1" in page.text
    links = {one["href"] for one in page.all("a")}
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert links <= ids
    assert ("#training" in links) == (name != "metrics.jsonl")
    assert ("#queries" in links) == (name != "per_query.parquet")


def test_a_torn_log_line_is_left_out(copy: Path) -> None:
    log = copy / "metrics.jsonl"
    log.write_text(log.read_text() + '{"step": 999, "lo')
    assert "Training loss" in write_report(copy).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["per_query.parquet", "split.parquet"])
def test_a_damaged_table_is_one_line(copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{name} cannot be read: ") as told:
        write_report(copy)
    assert "\n" not in str(told.value)


def test_a_configuration_in_another_encoding_costs_nothing(copy: Path) -> None:
    (copy / "config.yaml").write_bytes("# für später\n".encode("latin-1"))
    assert "# f\ufffdr" in write_report(copy).read_text(encoding="utf-8")


def test_a_smallest_result_is_enough(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"rows": [{"metrics": {"recall_at_1": 0.5}}]})
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "50.0\u00a0%" in page.text
    assert "The untrained trunk was not measured" in page.text


def test_the_budget_holds(copy: Path) -> None:
    """User-pains 95: a report must open from disk at once."""
    small = write_report(copy, out=copy / "small.html", picture_bytes=100_000)
    assert small.stat().st_size < 100_000 * 4 / 3 + 400_000
    assert "thumbnails were left out to keep the file small" in small.read_text(encoding="utf-8")


def test_one_domain_needs_no_table(copy: Path) -> None:
    frame = pd.read_parquet(copy / "per_query.parquet")
    frame["domain"] = ""
    frame.to_parquet(copy / "per_query.parquet")
    assert 'id="domains"' not in write_report(copy).read_text(encoding="utf-8")


def test_the_same_run_gives_the_same_file(copy: Path) -> None:
    first = write_report(copy).read_bytes()
    assert write_report(copy).read_bytes() == first


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*nowhere\. Give a run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no result\.json: it is not a run folder, or the run is not finished"):
        write_report(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(DataError, match="holds no rows of numbers"):
        write_report(tmp_path)
