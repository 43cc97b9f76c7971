"""Bombs, floods, slow and broken clients, tricks with paths: right status codes, no crash, no leak."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from proxemics.serve.app import create_app
from proxemics.serve.guard import HEADERS
from proxemics.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def strict(gallery: Any, serve: Any) -> Any:
    """A service with little room and little patience."""
    return serve(gallery.settings(max_bytes=100_000, max_in_flight=6, queue=4, head_timeout_s=1.0, body_timeout_s=1.0))


def png(width: int, height: int, *chunks: tuple[bytes, bytes], depth: int = 1) -> bytes:
    """A black grey PNG with any size in its header."""
    rows = zlib.compress(bytes(1 + (width * depth + 7) // 8) * height, 9)
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", rows), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def post(service: Any, data: bytes, **options: Any) -> httpx.Response:
    answer: httpx.Response = service.client.post("/v1/search", content=data, **options)
    return answer


def code_of(answer: httpx.Response, status: int) -> str:
    """Check that an answer is an error with one line, and return its code."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "code", "status", "request_id"}
    assert body["status"] == status
    assert body["error"].strip()
    assert "\n" not in body["error"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return str(body["code"])


@pytest.mark.parametrize(
    ("limits", "code"), [({"decode_timeout_s": 0.02}, "slow_picture"), ({"request_timeout_s": 0.02}, "took_too_long")]
)
def test_what_takes_too_long_to_answer_is_503(gallery: Any, serve: Any, limits: dict[str, float], code: str) -> None:
    hasty = serve(gallery.settings(max_pixels=100_000_000, max_bytes=10_000_000, **limits))
    answer = post(hasty, png(9000, 9000, depth=8))  # small to send, long to decode
    assert code_of(answer, 503) == code
    assert int(answer.headers["retry-after"]) > 0
    deadline = time.monotonic() + 60
    while hasty.client.get("/health").status_code != 200:  # until the decoder is done
        assert time.monotonic() < deadline
        time.sleep(0.1)
    hasty.stop()


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_bombs_are_refused_by_their_header(service: Any) -> None:
    bomb = png(20_000, 10_000)
    assert len(bomb) < 40_000
    before = service.memory_mb()
    for _ in range(5):
        assert code_of(post(service, bomb), 413) == "too_many_pixels"
    assert code_of(post(service, png(1, 60_000_000)), 413) == "too_many_pixels"
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"
    assert code_of(post(service, gif), 413) == "too_many_pixels"
    text = zlib.compress(bytes(300_000_000), 9)
    assert code_of(post(service, png(8, 8, (b"zTXt", b"note\0\0" + text))), 422) == "damaged_picture"
    assert service.memory_mb() - before < 60
    assert service.client.get("/health").status_code == 200


def test_damaged_pictures_are_named_so(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    jpeg = encode(photo(1, (400, 300)), "JPEG")
    for data in (jpeg[: len(jpeg) // 2], encode(photo(1, (200, 100)))[:-900], png(64, 64)[:-20]):
        assert code_of(post(service, data), 422) == "damaged_picture"
    assert post(service, jpeg).status_code == 200


@pytest.mark.parametrize(
    "data", [b"hello", b"\0" * 5000, b"%PDF-1.4\n", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_what_is_no_picture_is_415(service: Any, data: bytes) -> None:
    assert code_of(post(service, data), 415) == "no_known_format"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    assert code_of(post(service, svg), 415) == "no_known_format"


def test_a_form_must_hold_one_picture(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    data = encode(photo(1))
    assert code_of(post(service, b""), 400) == "no_picture"
    client = service.client
    assert code_of(client.post("/v1/search", files={"other": ("a", data)}), 400) == "no_picture"
    assert code_of(client.post("/v1/search", files=[("picture", ("a", data))] * 2), 400) == "no_picture"
    assert code_of(client.post("/v1/search", files=[("picture", ("a", data))] * 70), 400) == "bad_request"
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    assert code_of(post(service, b"--x\r\nnonsense", headers=broken), 400)
    assert code_of(post(service, data, headers={"Content-Type": "multipart/form-data"}), 400) == "bad_request"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "MPO"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_allowed_formats(service: Any, encode: Callable[..., bytes], photo: Any, kind: str, mode: str) -> None:
    if kind in ("WEBP", "JPEG", "MPO") and mode == "P":
        mode = "CMYK" if kind == "JPEG" else "RGB"
    assert post(service, encode(photo(2).convert(mode), kind)).status_code == 200


def test_slivers_and_single_pixels(service: Any, encode: Callable[..., bytes]) -> None:
    for size in ((1, 1), (1, 30_000), (30_000, 1)):
        assert post(service, encode(Image.new("RGB", size, "red"))).status_code == 200


# --- sizes and times --------------------------------------------------------------------------------------------------


def test_large_bodies_are_refused_whether_they_say_so_or_not(strict: Any) -> None:
    assert code_of(post(strict, bytes(100_001)), 413) == "body_too_large"

    def pieces() -> Any:
        for _ in range(40):
            yield bytes(10_000)

    assert code_of(strict.client.post("/v1/search", content=pieces()), 413) == "body_too_large"
    assert code_of(strict.client.post("/v1/search", files={"picture": ("a", bytes(150_000))}), 413) == "body_too_large"


def talk(port: int, *pieces: bytes, pause: float = 0.0, wait: float = 30.0) -> bytes:
    """Send raw bytes, then read until the service closes the connection; fail when it does not."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause)
        received = b""
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            pass
    return received


def head(length: int, host: str = "127.0.0.1", path: str = "/v1/search") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\nContent-Length: {length}\r\n\r\n".encode()
    )


def test_slow_clients_are_told_and_let_go(strict: Any) -> None:
    dribbled = talk(strict.port, b"GET /health HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"X-Slow: ", pause=0.2)
    assert b" 408 " in dribbled
    assert json.loads(dribbled.partition(b"\r\n\r\n")[2])["code"] == "slow_head"
    assert b" 408 " in talk(strict.port), "a client that says nothing holds its connection"
    body = talk(strict.port, head(50_000), b"\x89PNG\r\n", b"\x1a\n", pause=0.3)
    assert b" 408 " in body
    assert b'"slow_body"' in body
    assert b"onnection: close" in body
    assert strict.client.get("/health").status_code == 200


def test_a_client_that_sends_on_after_its_answer_is_let_go(strict: Any) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        connection.sendall(head(10**9))
        answer = connection.recv(65536)
        assert b" 413 " in answer
        with pytest.raises(OSError, match=r"."):  # a reset or a broken pipe, as the system likes
            dribble(connection)


def dribble(connection: socket.socket) -> None:
    """Send on for half a minute."""
    for _ in range(600):
        connection.sendall(bytes(1000))
        time.sleep(0.05)


def test_uploads_that_break_off_leave_nothing_behind(strict: Any) -> None:
    def handles() -> int:
        return len(list(Path(f"/proc/{strict.process.pid}/fd").iterdir()))

    strict.client.get("/health")
    before = handles()
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", strict.port)) as connection:
            connection.sendall(head(50_000) + bytes(20_000))
    for _ in range(600):
        if handles() <= before:
            break
        time.sleep(0.1)
    assert handles() <= before
    assert strict.client.get("/health").status_code == 200


def test_what_is_no_http_is_400(strict: Any) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        answer = talk(strict.port, nonsense)
        assert answer.startswith(b"HTTP/1.1 400 "), nonsense
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "bad_request"
    assert b" 431 " in (huge := talk(strict.port, b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000)) or b" 400 " in huge


# --- many at once -----------------------------------------------------------------------------------------------------


async def flood(address: str, data: bytes, count: int) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        return list(await asyncio.gather(*(client.post("/v1/search", content=data) for _ in range(count))))


def test_a_flood_within_the_limits_is_answered(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    answers = asyncio.run(flood(service.address, encode(photo(7, (300, 200)), "JPEG"), 64))
    assert Counter(answer.status_code for answer in answers) == {200: 64}
    results = [answer.json()["results"] for answer in answers]
    assert len({json.dumps([hit["id"] for hit in one]) for one in results}) == 1, "the company in the batch matters"
    scores = [[hit["score"] for hit in one] for one in results]
    assert all(one == pytest.approx(scores[0], abs=1e-5) for one in scores)


def test_a_flood_over_the_limits_is_sent_away_in_part(strict: Any, encode: Callable[..., bytes], photo: Any) -> None:
    answers = asyncio.run(flood(strict.address, encode(photo(7, (600, 400)), "JPEG", quality=70), 64))
    counts = Counter(answer.status_code for answer in answers)
    assert set(counts) == {200, 503}
    refused = [answer for answer in answers if answer.status_code == 503]
    assert {code_of(answer, 503) for answer in refused} == {"overloaded"}
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert post(strict, encode(photo(7))).status_code == 200


def test_a_client_that_asks_too_often_is_told_when_to_come_back(gallery: Any) -> None:
    app = create_app(ServeSettings(**gallery.settings(rate=0.5, burst=3)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        statuses = [client.get("/v1/labels").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        answer = client.get("/v1/labels")
        assert code_of(answer, 429) == "too_many"
        assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert client.get("/health").status_code == 200
        assert client.get("/static/serve.css").status_code == 200


def test_memory_does_not_grow(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    bodies = [encode(photo(seed, (500, 400)), "JPEG") for seed in range(5)]
    broken = [bodies[0][:3000], b"nonsense", png(20_000, 10_000)]
    files = Path(f"/proc/{service.process.pid}/fd")

    def work(count: int) -> None:
        for number in range(count):
            post(service, bodies[number % 5])
            post(service, broken[number % 3])
            service.client.get("/v1/labels", params={"text": str(number)})

    work(100)
    before, open_before = service.memory_mb(), len(list(files.iterdir()))
    work(100)
    assert service.memory_mb() - before < 15
    assert len(list(files.iterdir())) <= open_before + 2


# --- names, origins, paths --------------------------------------------------------------------------------------------


def test_other_names_and_other_sites_are_refused(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    answer = service.client.get("/v1/info", headers={"Host": "evil.example"})
    assert code_of(answer, 400) == "unknown_host"
    for name, value in (("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")):
        answer = service.client.post("/v1/search", content=encode(photo(1)), headers={name: value})
        assert code_of(answer, 403) == "other_site"
    answer = service.client.options("/v1/search", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_every_answer_carries_the_headers_of_a_careful_site(service: Any) -> None:
    for path in ("/", "/v1/info", "/nothing", "/static/htmx.min.js", "/v1/picture?id=none"):
        answer = service.client.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"]
        assert "server" not in answer.headers
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../templates/page.html",
        "/static/%2e%2e/templates/page.html",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/htmx.min.js%00.css",
        "//etc/passwd",
        "/v1/picture?id=../../../../etc/passwd",
        "/v1/picture?id=/etc/passwd",
        "/v1/picture?id=file:///etc/passwd",
        "/v1/item?id=..%2fmanifest.json",
        "/page/neighbours?id=%2fetc%2fpasswd",
    ],
)
def test_no_path_of_a_request_is_read(service: Any, path: str) -> None:
    answer = talk(service.port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer
    assert b"doctype" not in answer


def test_file_names_are_only_text(service: Any, encode: Callable[..., bytes], photo: Any, tmp_path: Path) -> None:
    target = tmp_path / "written.png"
    for name in (str(target), "../" * 9 + str(target)[1:], "C:\\temp\\a.png", "a" * 1000 + ".png"):
        buffer = io.BytesIO(encode(photo(1)))
        answer = service.client.post("/v1/search", files={"picture": (name, buffer, "image/png")})
        assert answer.status_code == 200
        shown = answer.json()["query"]["name"]
        assert "/" not in shown
        assert "\\" not in shown
        assert len(shown) <= 200
    assert not target.exists()
