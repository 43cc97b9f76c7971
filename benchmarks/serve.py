"""The HTTP service on loopback: requests a second, latency, time outside the model, and what hostile clients do to it.

A service in a process of its own embeds JPEGs of 500 x 400 pixels with EfficientNet-Lite0 at 224 px and searches 20,000
rows. The photographs are those that scikit-image ships; the other rows of the index are random.

``serve_clients_N``: N clients that each send the next picture when the last is answered; rounds take turns. ``ours`` is
the CPU time of the service for a request, ``floor`` that of decoding and embedding one picture with the same engine
and nothing around it. ``requests_per_s``, ``p50_ms`` and ``p99_ms`` are time on the wall, and the clients run on the
same cores. ``outside_model`` is the share of the wall time in which the model was not at work: with one client the
share of a request that is not the model, with many what keeps the model waiting. ``load_average`` tells how busy the
machine was with other things as well.

``serve_flood``, ``serve_slow``, ``serve_bomb``, ``serve_truncated``, ``serve_fuzz``: many clients at once, clients that
dribble while another one measures, 200 megapixels in a few kilobytes, halves of pictures, and made-up requests. Their
rows count the status codes; ``wrong`` counts answers outside those that are right for the row, ``crashed`` says whether
the service died, ``peak_growth_mb`` how much memory it took on the way.

Usage: ``python benchmarks/serve.py [--rounds 3] [--requests 100] [--fuzz 10000] [--out FOLDER]``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _results import RESULTS, write_results
from PIL import Image

from proxemics.export.engines.open import open_engine
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search.index import Index
from proxemics.search.items import Items
from proxemics.search.manifest import ModelKey
from proxemics.serve.decode import prepare

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "immunohistochemistry", "retina", "hubble_deep_field")
SIZE, ROWS, DIM = (500, 400), 20_000, 512
CLIENTS = (1, 8, 32)
TICKS = os.sysconf("SC_CLK_TCK")
DEADLINE_S = 120.0


def pictures(count: int) -> list[bytes]:
    """Cut JPEGs out of the photographs of scikit-image."""
    photos, draw, cut = import_module("skimage.data"), random.Random(0), []
    for place in range(count):
        whole = Image.fromarray(getattr(photos, PHOTOS[place % len(PHOTOS)])()[..., :3])
        scale = draw.uniform(0.6, 1.0) * min(whole.width / SIZE[0], whole.height / SIZE[1])
        width, height = round(SIZE[0] * scale), round(SIZE[1] * scale)
        left, top = draw.randint(0, whole.width - width), draw.randint(0, whole.height - height)
        part = whole.resize(SIZE, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
        cut.append(encoded(part, "JPEG", quality=90))
    return cut


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def build(folder: Path) -> None:
    """Write a bundle and an index of random rows."""
    embedder = Embedder("tf_efficientnet_lite0", dim=DIM, size=224).eval()
    save_bundle(embedder, folder / "bundle")
    key = ModelKey(model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=DIM)
    vectors = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    meta = [{"label": f"class {row % 500}"} for row in range(ROWS)]
    with Index.create(str(folder / "index"), key, title="Benchmark") as index:
        index.add(Items.make([f"row {row}" for row in range(ROWS)], vectors, meta))


def floor_cpu_s(folder: Path, bodies: Sequence[bytes]) -> float:
    """Return the CPU seconds of decoding and embedding one picture, one after the other, with nothing around it."""
    engine = open_engine(folder / "bundle", threads=1)  # further threads would spin while they wait, and count
    times = []
    for _ in range(3):
        started = time.process_time()
        for body in bodies[:20]:
            engine.encode(prepare(body, engine.preprocess, max_pixels=10**7)[None])
        times.append((time.process_time() - started) / 20)
    return min(times)


class Service:
    """`proxemics serve` in a process."""

    def __init__(self, folder: Path) -> None:
        command = ["-m", "proxemics", "serve", str(folder / "bundle"), "--index", str(folder / "index")]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--port", "0", "--rate", "0", "--allow-enrol"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"the service did not start:\n{self.process.communicate()[1]}")
        self.port = int(line.split("http://", 1)[1].split()[0].rpartition(":")[2])

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self) -> float:
        """Return the memory that the process holds, MB of 10^6 bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))

    def stages(self) -> dict[str, float]:
        """Return seconds and counts of the stages, and the batches."""
        _, body = asyncio.run(ask_once(self.port, request("GET", "/metrics")))
        rows = (line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows if "stage" in name or "batch" in name}

    def stop(self) -> None:
        """End the service."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def request(
    method: str, path: str, body: bytes = b"", *, headers: Sequence[str] = (), host: str = "127.0.0.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status = 100
    while status == 100:  # "go on", before the answer itself
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return status, await reader.readexactly(length)


async def ask_once(port: int, data: bytes) -> tuple[int, bytes]:
    """Send one request over a connection of its own; status 0 means that none came."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        return await asyncio.wait_for(read_answer(reader), DEADLINE_S)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        return 0, b""
    finally:
        if writer is not None:
            writer.close()


@dataclass
class Load:
    """What clients saw and what the service spent, over all rounds."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    model_s: float = 0.0
    batches: float = 0.0


async def drive(port: int, bodies: Sequence[bytes], clients: int, requests: int, load: Load) -> None:
    """Let clients send pictures over connections that they keep."""
    left = iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in left:
            started = time.perf_counter()
            writer.write(request("POST", "/v1/search?k=10", bodies[number % len(bodies)]))
            status, _ = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
            load.latencies.append(time.perf_counter() - started)
            load.statuses[status] += 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))


def measure(service: Service, bodies: Sequence[bytes], clients: int, requests: int, load: Load) -> None:
    """Add one round to what was measured."""
    before, cpu, wall = service.stages(), service.cpu_s(), time.perf_counter()
    asyncio.run(drive(service.port, bodies, clients, requests, load))
    load.wall_s += time.perf_counter() - wall
    load.cpu_s += service.cpu_s() - cpu
    after = service.stages()
    model, batches = 'proxemics_stage_seconds_sum{stage="model"}', "proxemics_batch_size_count"
    load.model_s += after[model] - before[model]
    load.batches += after[batches] - before[batches]


def load_row(clients: int, load: Load, floor: float, growth: float) -> dict[str, Any]:
    count = len(load.latencies)
    ordered = sorted(load.latencies)
    return {
        "name": f"serve_clients_{clients}",
        "ours": round(load.cpu_s / count, 5),
        "floor": round(floor, 5),
        "peers": {},
        "unit": "CPU s",
        "peak_growth_mb": round(growth, 1),
        "requests_per_s": round(count / load.wall_s, 2),
        "p50_ms": round(1000 * median(ordered), 1),
        "p99_ms": round(1000 * ordered[min(count - 1, int(0.99 * count))], 1),
        "outside_model": round(1 - load.model_s / load.wall_s, 3),
        "mean_batch": round(count / load.batches, 2),
        "load_average": round(os.getloadavg()[0], 1),
        "requests": count,
        "statuses": {str(status): number for status, number in sorted(load.statuses.items())},
    }


# --- hostile clients --------------------------------------------------------------------------------------------------


def hostile_row(
    name: str, service: Service, work: Callable[[], Counter[int]], right: Callable[[int], bool], **more: Any
) -> dict[str, Any]:
    """Run some hostility and say what came back, and whether the service is still well."""
    before = service.memory_mb()
    statuses = work()
    alive = service.process.poll() is None and asyncio.run(ask_once(service.port, request("GET", "/health")))[0] == 200
    return {
        "name": name,
        "requests": sum(statuses.values()),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "wrong": sum(number for status, number in statuses.items() if not right(status)),
        "crashed": not alive,
        "peak_growth_mb": round(service.memory_mb() - before, 1),
        **more,
    }


async def all_at_once(port: int, requests: Sequence[bytes], together: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    left = iter(requests)

    async def client() -> None:
        for data in left:
            statuses[(await ask_once(port, data))[0]] += 1

    await asyncio.gather(*(client() for _ in range(together)))
    return statuses


def bomb() -> bytes:
    """200 megapixels of one bit each, as PNG of about 25 kB."""
    width, height = 20_000, 10_000
    rows = zlib.compress(bytes(1 + width // 8) * height, 9)
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


async def while_others_dribble(
    port: int, bodies: Sequence[bytes], slow: int, requests: int, load: Load
) -> Counter[int]:
    """Measure one honest client while others send a byte now and then."""
    statuses: Counter[int] = Counter()

    async def dribble() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(bodies[0])}\r\n\r\n".encode()
        )
        answer = asyncio.create_task(read_answer(reader))
        for byte in bodies[0]:
            writer.write(bytes([byte]))
            await asyncio.wait([answer], timeout=0.5)
            if answer.done():
                break
        writer.close()
        statuses[(await answer)[0] if answer.exception() is None else 0] += 1

    others = [asyncio.create_task(dribble()) for _ in range(slow)]
    await asyncio.sleep(1)
    await drive(port, bodies, 1, requests, load)
    await asyncio.gather(*others)
    return statuses


def made_up(count: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Make up requests: wrong methods and paths, odd values, headers and bodies, and pictures with flipped bytes."""
    draw = random.Random(0)
    reads = ("/", "/v1/neighbours", "/v1/labels", "/v1/items", "/v1/item", "/v1/picture", "/v1/info", "/health",
             "/v1/feedback.csv", "/page/items", "/page/neighbours", "/static/serve.js", "/static/../x", "/login",
             "/nothing", "/openapi.json", "/metrics")  # fmt: skip
    writes = ("/v1/search", "/v1/search", "/v1/feedback", "/v1/enrol", "/v1/forget", "/page/search", "/page/map",
              "/page/feedback", "/login", "/logout")  # fmt: skip
    others = ("PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE")
    values = ("", "1", "-1", "0", "1e99", "row 1", "null", "%00", "%FF%FE", "../../etc/passwd", "'; DROP TABLE rows;",
              "a" * 3000, "%F0%9F%90%A6", "label=class 1", "label<x", "[]", "{}")  # fmt: skip
    headers = ("Content-Type: application/json", "Content-Type: multipart/form-data; boundary=b", "HX-Request: true",
               "Content-Type: multipart/form-data", "Origin: https://evil.example", "Cookie: proxemics_session=1.2",
               "Accept: text/html", "Content-Encoding: gzip", "Expect: 100-continue", "X-API-Key: k",
               "Range: bytes=0-1", "Content-Type: application/x-www-form-urlencoded")  # fmt: skip

    def body() -> bytes:
        kind = draw.randrange(6)
        if kind == 0:
            return b""
        if kind == 1:
            return draw.randbytes(draw.randrange(1, 400))
        if kind == 2:
            return json.dumps({"query_kind": draw.choice(values), "query": "a", "result": draw.choice(values)}).encode()
        picture = bytearray(draw.choice(bodies)[: draw.choice((200, 3000, 10**6))])
        for _ in range(draw.randrange(8)):
            picture[draw.randrange(len(picture))] = draw.randrange(256)
        if kind == 3:
            start = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="../x"\r\n\r\n'
            return start + bytes(picture) + draw.choice((b"\r\n--b--\r\n", b"\r\n--b", b""))
        return bytes(picture)

    def one() -> bytes:
        names = draw.sample(("id", "k", "where", "text", "size", "query", "limit", "x"), draw.randrange(4))
        query = "&".join(f"{name}={draw.choice(values)}".replace(" ", "+") for name in names)
        path, method = draw.choice(((draw.choice(reads), "GET"), (draw.choice(writes), "POST")))
        if draw.random() < 0.1:
            method = draw.choice(others)
        chosen = draw.sample(headers, draw.randrange(3))
        return request(method, f"{path}?{query}", body() if method != "GET" else b"", headers=chosen)

    return [one() for _ in range(count)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write `results/serve.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each number of clients (default: 3)")
    parser.add_argument("--requests", type=int, default=100, help="requests of a round (default: 100)")
    parser.add_argument("--fuzz", type=int, default=10_000, help="made-up requests (default: 10000)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for serve.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder, bodies = Path(name), pictures(40)
        build(folder)
        floor = floor_cpu_s(folder, bodies)
        service = Service(folder)
        try:
            rows = loads(service, bodies, floor, options.rounds, options.requests)
            rows += hostilities(service, bodies, rows[0], options.requests, options.fuzz)
        finally:
            service.stop()
    rows[-1]["exit_code"] = service.process.returncode
    packages = ("fastapi", "uvicorn", "starlette", "onnxruntime", "torch", "numpy", "pillow", "simplejpeg")
    print(write_results("serve", rows, packages=packages, folder=options.out))


def loads(service: Service, bodies: Sequence[bytes], floor: float, rounds: int, requests: int) -> list[dict[str, Any]]:
    measure(service, bodies, 8, 40, Load())  # warms up
    loads, before = {clients: Load() for clients in CLIENTS}, service.memory_mb()
    for _ in range(rounds):
        for clients, load in loads.items():
            measure(service, bodies, clients, requests, load)
    growth = service.memory_mb() - before
    rows = [load_row(clients, load, floor, growth) for clients, load in loads.items()]
    for row in rows:
        print(
            f"{row['name']}: {row['requests_per_s']} requests/s, p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms, "
            f"outside the model {row['outside_model']:.0%}, CPU a request {1000 * row['ours']:.1f} ms "
            f"(picture and model alone {1000 * row['floor']:.1f} ms), batch {row['mean_batch']}",
            flush=True,
        )
    return rows


def hostilities(
    service: Service, bodies: Sequence[bytes], alone: dict[str, Any], requests: int, fuzz: int
) -> list[dict[str, Any]]:
    port, search = service.port, lambda body: request("POST", "/v1/search", body)
    flood = [search(bodies[number % len(bodies)]) for number in range(256)]
    halves = [search(bodies[number % len(bodies)][: 4000 + 97 * number]) for number in range(100)]
    cut = [search(body)[:-2000] for body in bodies[:20]]  # announces more than it sends, and waits
    dribbled = Load()
    rows = [
        hostile_row("serve_flood", service, lambda: run(all_at_once(port, flood, 256)), lambda s: s in (200, 503)),
        hostile_row(
            "serve_bomb", service, lambda: run(all_at_once(port, [search(bomb())] * 50, 8)), lambda s: s == 413
        ),
        hostile_row("serve_truncated", service, lambda: run(all_at_once(port, halves, 8)), lambda s: s in (200, 422)),
        hostile_row(
            "serve_slow",
            service,
            lambda: run(while_others_dribble(port, bodies, 50, requests, dribbled)),
            lambda s: s == 408,
        ),
        hostile_row("serve_unfinished", service, lambda: run(all_at_once(port, cut, 20)), lambda s: s == 408),
        hostile_row(
            "serve_fuzz",
            service,
            lambda: run(all_at_once(port, made_up(fuzz, bodies), 8)),
            lambda s: 200 <= s < 500 or s == 503,
        ),
    ]
    ordered = sorted(dribbled.latencies)
    rows[3] |= {"p50_ms": round(1000 * median(ordered), 1), "p50_ms_without": alone["p50_ms"]}
    for row in rows:
        print(
            f"{row['name']}: {row['requests']} requests, {row['statuses']}, {row['wrong']} wrong, "
            f"{'crashed' if row['crashed'] else 'well'}, memory {row['peak_growth_mb']:+.0f} MB",
            flush=True,
        )
    return rows


run = asyncio.run

if __name__ == "__main__":
    main()
