"""The job on Ray: the actor on its own, and two nodes on this machine of which one loses an actor in the middle."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.core.errors import ExportError, ImageError
from proxemics.export.engines.open import open_engine
from proxemics.export.jobs.batches import cut_batches
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.places import PlaceReader
from proxemics.export.jobs.prepare import embed_batch
from proxemics.export.jobs.ray_job import EmbedActor, _pack, _result, _row, run_on_ray
from proxemics.export.jobs.run import JobOptions, embed_pictures

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # stay on the loopback address; read when ray is imported
pytest.importorskip("ray")
OPTIONS = JobOptions(engine="torch", threads=1, device="cpu", batch=4, part_rows=16, on_error="skip")


def test_an_actor_gives_what_this_machine_gives(bundle: Path, photos: Path, pack: Callable[..., Path]) -> None:
    (photos / "ant" / "2.png").write_bytes(b"x")
    engine = open_engine(bundle, engine="torch", threads=1)
    actor = EmbedActor(_pack(bundle, engine.facts), "torch", "float32", 10**6)
    for source in (photos, pack(photos, "zip"), pack(photos, "tar")):
        batches = list(cut_batches(open_pictures(source).places, [0], batch=5))
        for batch in batches:
            columns = {name: [value] for name, value in _row(batch).items()}
            sent = {name: values[0] for name, values in actor(columns).items()}
            found = _result(sent)
            wanted = embed_batch(engine, PlaceReader(), batch, max_pixels=10**6)
            np.testing.assert_array_equal(found.vectors, wanted.vectors)
            np.testing.assert_array_equal(found.rows, wanted.rows)
            np.testing.assert_array_equal(found.kappa, wanted.kappa)
            assert (found.part, found.count, found.failures) == (wanted.part, wanted.count, wanted.failures)
        assert len(json.loads(actor({n: [v] for n, v in _row(batches[0]).items()})["failures"][0])) == 1


def test_a_compressed_tar_is_refused(bundle: Path, photos: Path, pack: Callable[..., Path]) -> None:
    facts = open_engine(bundle, engine="torch", threads=1).facts
    batches = cut_batches(open_pictures(pack(photos, "tar.gz")).places, [0])
    with pytest.raises(ExportError, match="is a compressed tar"):
        next(run_on_ray(bundle, facts, batches, max_pixels=10**6))


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes on the loopback address, one CPU each; no dashboard, no usage reports."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
    started = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    started.add_node(**node)
    try:
        yield started.address
    finally:
        ray.shutdown()
        started.shutdown()


def actors_of(parent: int) -> list[int]:
    """Return the processes under this one that hold an engine; Ray writes the name of the class into their titles."""
    children: dict[int, list[int]] = {}
    titles: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                titles[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [parent]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            if b"EmbedActor" in titles.get(child, b""):
                found.append(child)
    return sorted(found)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    root = tmp_path / "many"
    generator = np.random.default_rng(1)
    for number in range(400):
        file = root / f"class{number % 5}" / f"{number:04d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (300, 400, 3)).astype(np.uint8)).save(file)
    (root / "class0" / "0005.jpg").write_bytes(b"broken")
    return root


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nodes_give_the_same_file_and_survive_the_death_of_a_worker(
    bundle: Path, many: Path, tmp_path: Path, cluster: str
) -> None:
    pictures = open_pictures(many, on_error="skip")
    embed_pictures(bundle, pictures, tmp_path / "local.parquet", OPTIONS)
    killed: list[int] = []
    seen: set[int] = set()

    class Killer:
        """Kills one of the actors as soon as two of them have been seen and the first batch is back."""

        def start(self, task: str, total: int, done: int = 0) -> None:
            threading.Thread(target=self._watch, daemon=True).start()

        def _watch(self) -> None:
            for _ in range(2000):
                seen.update(actors_of(os.getpid()))
                time.sleep(0.05)

        def advance(self, task: str, by: int = 1, note: str = "") -> None:
            alive = actors_of(os.getpid())
            if not killed and len(alive) > 1:
                os.kill(alive[-1], signal.SIGKILL)
                killed.append(alive[-1])

        def finish(self, task: str) -> None:
            pass

        def say(self, text: str) -> None:
            pass

    options = JobOptions(**{**vars(OPTIONS), "ray": True, "ray_address": cluster})
    report = embed_pictures(bundle, pictures, tmp_path / "ray.parquet", options, reporter=Killer())
    assert len(killed) == 1, "no actor was killed; the job was over too soon"
    assert len(seen) >= 2
    assert (report.count, report.skipped) == (399, 1)
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "local.parquet").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_of_its_own_stops_at_an_unreadable_picture(bundle: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "cat" / "6.png").write_bytes(b"x")
    options = JobOptions(**{**vars(OPTIONS), "ray": True, "on_error": "stop"})
    with pytest.raises(ImageError, match=r"cat/6\.png"):
        embed_pictures(bundle, open_pictures(photos), tmp_path / "a.parquet", options)
    import ray

    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_cluster_at_the_address(bundle: Path, photos: Path, tmp_path: Path) -> None:
    options = JobOptions(**{**vars(OPTIONS), "ray": True, "ray_address": "127.0.0.1:1"})
    with pytest.raises(ExportError, match=r"No Ray cluster at 127\.0\.0\.1:1"):
        embed_pictures(bundle, open_pictures(photos), tmp_path / "a.parquet", options)
