"""The parts on their own: batches, buckets, checks, marks, labels, files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.requests import HTTPConnection

from proxemics.core.errors import ConfigError, SearchError
from proxemics.core.files import write_json
from proxemics.search import Condition, Hits, Index, Items, ModelKey
from proxemics.serve.batching import Batcher
from proxemics.serve.certainty import read_scale
from proxemics.serve.checks import check_host, check_key, check_origin, client_of
from proxemics.serve.errors import Refusal
from proxemics.serve.feedback import Feedback
from proxemics.serve.index_thread import IndexQuery, IndexThread
from proxemics.serve.labels import LabelCatalogue
from proxemics.serve.limits import REMEMBERED, RateLimiter
from proxemics.serve.pictures import PictureStore, inside, read_small
from proxemics.serve.routes.page import whole
from proxemics.serve.schemas import Mark
from proxemics.serve.session import LIFETIME_S, Sessions
from proxemics.serve.settings import ServeSettings, check_exposure, read_key

HTMX_SHA256 = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
SERVE = files("proxemics.serve")

# --- batches ----------------------------------------------------------------------------------------------------------


def run_batches(items: int, *, size: int, limit: int = 1000, wait_s: float = 0.0) -> tuple[list[int], list[object]]:
    """Submit all items at once; return the sizes of the batches and the results or errors."""
    sizes: list[int] = []

    def double(batch: Sequence[int]) -> list[int]:
        time.sleep(0.005)
        if 13 in batch:
            raise ZeroDivisionError("unlucky")
        return [item * 2 for item in batch]

    async def main() -> list[object]:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(double, thread=thread, size=size, limit=limit, wait_s=wait_s, on_batch=sizes.append)
            batcher.start()
            results = await asyncio.gather(*(batcher.submit(item) for item in range(items)), return_exceptions=True)
            await batcher.stop()
            return list(results)

    return sizes, asyncio.run(main())


def test_items_that_wait_go_together_and_in_order() -> None:
    sizes, results = run_batches(12, size=5)
    assert results == [item * 2 for item in range(12)]
    assert sizes == [5, 5, 2]


def test_an_error_reaches_its_batch_and_no_other() -> None:
    _, results = run_batches(20, size=5)
    wrong = [place for place, result in enumerate(results) if isinstance(result, ZeroDivisionError)]
    assert wrong == [10, 11, 12, 13, 14]
    assert results[15] == 30


def test_an_error_among_the_results_reaches_its_request_alone() -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(1) as thread:
            batcher: Batcher[int, int] = Batcher(
                lambda items: [ValueError("three") if item == 3 else item for item in items], thread=thread
            )
            batcher.start()
            others = asyncio.gather(*(batcher.submit(item) for item in (0, 1, 2)))
            with pytest.raises(ValueError, match="three"):
                await batcher.submit(3)
            results = await others
            await batcher.stop()
            return list(results)

    assert asyncio.run(main()) == [0, 1, 2]


def test_conditions_that_the_index_refuses_fail_no_other_query(tmp_path: Path) -> None:
    with Index.create(str(tmp_path / "index"), ModelKey(model="m", dim=2)) as index:
        index.add(Items.make(["a"], [[1, 0]]))
    thread = IndexThread(str(tmp_path / "index"), read_only=True)
    vector = np.array([1, 0], np.float32)
    bad = IndexQuery(vector, 1, (Condition("label", "like", "x"),))
    first, refused, last = thread.search([IndexQuery(vector, 1), bad, IndexQuery(vector, 2)])
    thread.close()
    assert isinstance(refused, SearchError)
    assert isinstance(first, Hits)
    assert isinstance(last, Hits)
    assert (first.ids, last.missing) == (["a"], 1)


@pytest.mark.parametrize("text", ["0", "101", "0010000", "0010" + "0" * 5000, "-1", "1e1", "\u0661"])
def test_a_number_of_rows_out_of_range_is_422(text: str) -> None:
    with pytest.raises(Refusal, match="is no number from 1 to 100") as caught:
        whole(text)
    assert caught.value.status_code == 422


def test_more_than_may_wait_are_refused_with_503() -> None:
    _, results = run_batches(12, size=4, limit=8)
    refused = [result for result in results if isinstance(result, Refusal)]
    assert len(refused) == 4
    assert refused[0].status_code == 503
    assert refused[0].headers == {"Retry-After": "1"}


def test_an_item_waits_for_announced_ones_and_only_for_them() -> None:
    sizes: list[int] = []

    async def main() -> float:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(list[int], thread=thread, size=8, wait_s=30.0, on_batch=sizes.append)
            batcher.start()
            started = time.monotonic()
            await batcher.submit(0)  # nobody is announced, so it does not wait half a minute

            async def late() -> int:
                with batcher.coming():
                    await asyncio.sleep(0.05)
                return await batcher.submit(2)

            task = asyncio.create_task(late())
            await asyncio.sleep(0.01)
            await asyncio.gather(batcher.submit(1), task)
            await batcher.stop()
            return time.monotonic() - started

    assert asyncio.run(main()) < 25
    assert sizes == [1, 2]


def test_a_request_that_was_given_up_takes_no_place_in_a_batch() -> None:
    sizes: list[int] = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(list[int], thread=thread, size=8, on_batch=sizes.append)
            batcher.start()
            tasks = [asyncio.create_task(batcher.submit(item)) for item in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            assert await asyncio.gather(tasks[0], tasks[2]) == [0, 2]
            await batcher.stop()

    asyncio.run(main())
    assert sizes == [2]


def test_stopping_refuses_what_waits() -> None:
    async def main() -> list[object]:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(lambda batch: (time.sleep(0.1), list(batch))[1], thread=thread, size=1)
            batcher.start()
            tasks = [asyncio.create_task(batcher.submit(item)) for item in range(2)]
            await asyncio.sleep(0.03)
            await batcher.stop()
            return list(await asyncio.gather(*tasks, return_exceptions=True))

    done, refused = asyncio.run(main())
    assert done == 0
    assert isinstance(refused, Refusal)


# --- who may ask ------------------------------------------------------------------------------------------------------


def connection(method: str = "GET", path: str = "/v1/info", **headers: str) -> HTTPConnection:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "client": ("10.0.0.9", 5)}
    return HTTPConnection(scope)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:8000", "[::1]:8000", "birds.example:80"])
def test_own_names_and_addresses_are_let_through(host: str) -> None:
    assert check_host({"birds.example"})(connection(host=host)) is None


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "localhost.evil.example:8000"])
def test_a_name_that_was_pointed_here_is_refused(host: str) -> None:
    refusal = check_host({"birds.example"})(connection(host=host))
    assert refusal is not None
    assert refusal.status_code == 400


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8000"}, True),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
        ({"origin": ""}, False),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
    ],
)
def test_pages_of_other_sites_cannot_post(headers: dict[str, str], passes: bool) -> None:
    assert (check_origin(connection("POST", host="127.0.0.1:8000", **headers)) is None) == passes
    assert check_origin(connection("GET", host="127.0.0.1:8000", **headers)) is None


def test_a_claimed_address_is_not_believed() -> None:
    assert client_of(connection(x_forwarded_for="1.2.3.4", forwarded="for=1.2.3.4")) == "10.0.0.9"


def test_keys_and_sessions() -> None:
    now = 1000.0
    sessions = Sessions(clock=lambda: now)
    check = check_key("k" * 20, sessions)
    assert check(connection(x_api_key="k" * 20)) is None
    assert check(connection(authorization="bearer " + "k" * 20)) is None
    assert check(connection(path="/health")) is None
    assert check(connection(path="/static/serve.css")) is None
    cookie = sessions.begin()
    assert check(connection(cookie=f"proxemics_session={cookie}")) is None
    for refused in (
        connection(),
        connection(x_api_key="k" * 19),
        connection(x_api_key="ü"),
        connection(authorization="Basic " + "k" * 20),
        connection(path="/health/../v1/info"),
        connection(path="/healthy"),
        connection(cookie=f"proxemics_session={cookie[:-1]}0x"),
        connection(cookie="proxemics_session=²²²²²²²²²².abc"),
        connection(x_api_key="wrong", cookie=f"proxemics_session={cookie}"),
    ):
        refusal = check(refused)
        assert refusal is not None
        assert refusal.status_code == 401
    now += LIFETIME_S
    assert not sessions.holds(cookie)
    assert not Sessions(clock=lambda: 1000.0).holds(cookie), "another process accepts the session"


def test_buckets_are_forgotten() -> None:
    now = 0.0
    limiter = RateLimiter(1.0, 2, clock=lambda: now)
    for client in range(REMEMBERED + 5):
        assert limiter.wait(str(client)) == 0
    assert len(limiter) == REMEMBERED


def test_the_service_is_not_opened_by_accident(tmp_path: Path) -> None:
    base = {"model": tmp_path, "index": "i"}
    assert ServeSettings(**base).host == "127.0.0.1"  # user-pains 88
    check_exposure(ServeSettings(**base))
    for host in ("0.0.0.0", "::", "192.168.1.5", "gallery.example"):
        with pytest.raises(ConfigError, match=r"--key-file, or say --no-key"):
            check_exposure(ServeSettings(**base, host=host))
        check_exposure(ServeSettings(**base, host=host, no_key=True))
        check_exposure(ServeSettings(**base, host=host, key="k" * 16))
    with pytest.raises(ConfigError, match="at least 16"):
        check_exposure(ServeSettings(**base, key="short"))


def test_keys_from_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    assert read_key(file).get_secret_value() == "0123456789abcdef"
    assert "0123" not in repr(read_key(file))
    for content in ("", "one\ntwo\n", "schlüssel"):
        file.write_text(content)
        with pytest.raises(ConfigError, match="one line"):
            read_key(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(tmp_path / "absent")


# --- pictures, marks, labels, certainty -------------------------------------------------------------------------------


def test_links_do_not_lead_out_of_the_root(tmp_path: Path) -> None:
    root = (tmp_path / "root").resolve()
    root.mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    (root / "own.png").write_bytes(b"x")
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "round.png").symlink_to(root / "round.png")
    assert inside(root, "own.png") == root / "own.png"
    assert inside(root, str(root / "own.png")) == root / "own.png"
    for path in ("out.png", "round.png", "../secret.png", str(tmp_path / "secret.png"), "", ".", "a\0b", "x" * 5000):
        assert inside(root, path) is None, path


def test_large_photos_are_shrunk_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stripes = np.zeros((3000, 2000, 3), np.uint8)
    stripes[:1500, :, 0] = 250
    Image.fromarray(stripes).save(tmp_path / "a.jpg", exif=exif)
    Image.fromarray(stripes).save(tmp_path / "broken.jpg")
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "broken.jpg").read_bytes()[:9000])
    read = read_small(tmp_path / "a.jpg", 240, max_pixels=10**7)
    assert read.size == (750, 500)
    store = PictureStore(tmp_path)
    data = store.thumbnail("a", {"path": "a.jpg"}, "small")
    assert data is not None
    with Image.open(io.BytesIO(data)) as small:
        assert small.size == (240, 160)
        assert small.getpixel((200, 80))[0] > 200
        assert small.getpixel((40, 80))[0] < 50
    assert store.thumbnail("b", {"path": "broken.jpg"}, "small") is None
    assert store.thumbnail("c", {"path": "../a.jpg"}, "small") is None
    assert store.thumbnail("d", {}, "small") is None
    assert PictureStore(tmp_path, max_pixels=1000).thumbnail("a", {"path": "a.jpg"}, "small") is None


def test_thumbnails_are_forgotten_when_there_are_too_many(tmp_path: Path) -> None:
    for place in range(6):
        noise = np.random.default_rng(place).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{place}.png")
    store = PictureStore(tmp_path, cache_bytes=10_000)
    for place in range(6):
        assert store.thumbnail(str(place), {"path": f"{place}.png"}, "small")
    (tmp_path / "5.png").unlink()
    (tmp_path / "0.png").unlink()
    assert store.thumbnail("5", {"path": "5.png"}, "small"), "the latest is not remembered"
    assert store.thumbnail("0", {"path": "0.png"}, "small") is None
    store.forget("5")
    assert store.thumbnail("5", {"path": "5.png"}, "small") is None


def test_marks_are_replaced_kept_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "feedback.sqlite"
    store = Feedback(file, model="m1", limit=2)
    mark = Mark(query_kind="picture", query="q", query_name="=1+1.jpg", result="a,b", score=-0.25, verdict="wrong")
    assert store.put(mark, label="@cat") == 1
    assert store.put(mark.model_copy(update={"verdict": "right"}), label="@cat") == 1
    assert store.put(mark.model_copy(update={"result": "c"}), label=None) == 2
    with pytest.raises(Refusal) as caught:
        store.put(mark.model_copy(update={"result": "d"}), label=None)
    assert caught.value.status_code == 507
    store.close()
    other = Feedback(file, model="m2")
    assert other.marks("picture", "q") == {}, "marks of another model"
    lines = other.csv().splitlines()
    other.close()
    assert lines[0] == "at,query_kind,query,query_name,result,label,score,verdict,model"
    assert lines[1].split(",", 1)[1] == "picture,q,'=1+1.jpg,\"a,b\",'@cat,-0.25,right,m1"
    assert lines[2].endswith(",c,,-0.25,wrong,m1")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at" * 50)
    with pytest.raises(ConfigError, match=r"name one that may be written with --feedback\.$"):
        Feedback(tmp_path / "notes.txt", model="m")


def test_labels_are_ranked_by_how_they_match() -> None:
    catalogue = LabelCatalogue({"owl": 1, "owlet moth": 9, "snowy_owl": 2, "Fowler": 50, "Eule": 3})
    assert [label for label, _ in catalogue.find("OWL")] == ["owl", "owlet moth", "snowy_owl", "Fowler"]
    assert [label for label, _ in catalogue.find("", 2)] == ["Fowler", "owlet moth"]
    catalogue.add("owl", -1)
    assert catalogue.find("owl", 1) == [("owlet moth", 9)]
    assert len(catalogue) == 4


def test_certainty_needs_a_run_whose_loss_saw_lengths(tmp_path: Path) -> None:
    import pandas as pd

    assert read_scale(tmp_path) is None
    kappa = np.arange(200.0)
    queries = pd.DataFrame({"path": "x", "label": "a", "nearest_label": np.where(kappa < 50, "b", "a"), "kappa": kappa})
    queries.to_parquet(tmp_path / "per_query.parquet")
    (tmp_path / "config.yaml").write_text("data:\n  source: table.csv\n")
    assert read_scale(tmp_path) is None, "the loss of this run saw cosines only"
    (tmp_path / "config.yaml").write_text("data:\n  source: table.csv\nmethods:\n  probabilistic: {}\n")
    scale = read_scale(tmp_path / "bundle")
    assert scale is not None
    read = [scale.read(value) for value in (-1.0, 100.0, 199.0)]
    assert [(one.word, one.share, one.error_rate) for one in read] == [
        ("low", 0.0, None),
        ("medium", 0.5, 0.0),
        ("high", 0.95, 0.0),
    ]
    assert scale.read(0.0).error_rate == 0.25
    assert scale.read(float("inf")).kappa == 0.0


def test_an_exported_bundle_brings_its_own_scale(tmp_path: Path) -> None:
    rows = [{"kappa": 5.0, "kept": 0.4, "queries": 40, "errors": 1, "error_rate": 0.025}]
    rows.append({"kappa": 1.0, "kept": 1.0, "queries": 100, "errors": 12, "error_rate": 0.12})
    found = {"schema": 1, "trained": True, "meaning": "", "queries": 100, "errors": 12, "levels": rows}
    write_json(tmp_path / "certainty.json", found)
    scale = read_scale(tmp_path)
    assert scale is not None
    assert scale.read(6.0).share == 0.6
    assert scale.read(6.0).error_rate is None, "12 errors are too few to speak of a rate"
    for change in ({"trained": False}, {"trained": None}, {"queries": 5}, {"levels": []}):
        write_json(tmp_path / "certainty.json", {**found, **change})
        assert read_scale(tmp_path) is None, change


# --- files of the page ------------------------------------------------------------------------------------------------


def test_htmx_is_the_one_that_was_vendored_with_its_licence() -> None:
    content = (SERVE / "static" / "htmx.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == HTMX_SHA256
    assert "Zero-Clause BSD" in (SERVE / "static" / "htmx.LICENSE").read_text(encoding="utf-8")


def test_templates_hold_no_inline_script_style_or_foreign_address() -> None:
    pages = [page for page in (SERVE / "templates").iterdir() if page.name.endswith(".html")]
    assert len(pages) > 5
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|https?://|hx-on|js:", text), page.name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), page.name
