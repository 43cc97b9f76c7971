"""Run a job on a Ray cluster: Ray Data hands batches to actors that each hold an engine with one thread.

The batches are those of a local run, so the same engine gives the same vectors. The model travels through Ray's object
store; the pictures are read where the actors run, so their paths must mean the same on every machine. An actor that
dies is started again, and its batch is done again. Nothing is reported to anybody, and a cluster that is started here
listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from proxemics.core.errors import ExportError
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.onnx_file import FLOAT32, INT8, find_onnx, in_bundle
from proxemics.export.jobs.batches import Batch, BatchResult
from proxemics.export.jobs.places import Place, PlaceReader
from proxemics.export.jobs.prepare import embed_batch
from proxemics.training.evaluate_run import open_model

LOOPBACK = ("127.", "localhost", "[::1]")
BUNDLE = ("model.safetensors", "model.json", "preprocess.json")


def run_on_ray(
    model: Path,
    facts: EngineFacts,
    batches: Iterable[Batch],
    *,
    address: str | None = None,
    max_pixels: int,
    actors: int | None = None,
) -> Iterator[BatchResult]:
    """Embed batches on a Ray cluster.

    Args:
        model: a run folder or a bundle folder on this machine.
        facts: of the engine to use everywhere.
        batches: none of them from a compressed tar, which can only be read from the front to the back.
        address: of a cluster, ``auto`` for the one that this machine belongs to; None starts one here for the job.
        max_pixels: larger pictures count as unreadable.
        actors: how many; None: one for each CPU of the cluster.

    Yields:
        The results, in the order in which they are finished.

    Raises:
        ExportError: ray is not installed, no cluster answers, or an actor fails with an error of its own.
    """
    ray = import_ray(address)
    rows = [_row(batch) for batch in batches]
    with _connected(ray, address):
        shipped = ray.put(_pack(model, facts))
        count = actors or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        done = data.map_batches(
            EmbedActor,
            fn_constructor_args=(shipped, facts.engine, facts.precision, max_pixels),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(count, len(rows))),
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=-1,
        )
        try:
            for row in done.iter_rows():
                yield _result(row)
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[-300:]
            raise ExportError(f"The job on Ray failed: {reason}. Parts that were finished are kept.") from error


class EmbedActor:
    """What runs on the machines of the cluster: an engine with one thread.

    Args:
        shipped: reference to the files of the model.
        engine: which engine.
        precision: float32, bf16 or int8.
        max_pixels: larger pictures count as unreadable.
    """

    def __init__(self, shipped: Any, engine: str, precision: str, max_pixels: int) -> None:
        import ray

        from proxemics.export.engines.open import open_engine

        files: Mapping[str, bytes] = ray.get(shipped) if isinstance(shipped, ray.ObjectRef) else shipped
        with tempfile.TemporaryDirectory(prefix="proxemics-") as folder:
            for name, content in files.items():
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            self.engine = open_engine(folder, engine=engine, precision=precision, threads=1, device="cpu")
        self.reader = PlaceReader()
        self.max_pixels = max_pixels

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Embed one batch, given and returned as columns of one row."""
        places = [Place(*one) for one in json.loads(str(rows["places"][0]))]
        batch = Batch(int(rows["part"][0]), int(rows["start"][0]), places)
        found = embed_batch(self.engine, self.reader, batch, max_pixels=self.max_pixels)
        return {
            "part": np.array([found.part]),
            "count": np.array([found.count]),
            "dim": np.array([self.engine.facts.dim]),
            "rows": [found.rows.tobytes()],
            "vectors": [found.vectors.tobytes()],
            "kappa": [found.kappa.tobytes()],
            "failures": [json.dumps(found.failures)],
        }


def _row(batch: Batch) -> dict[str, Any]:
    if any(place.kind == "stream" for place in batch.places):
        raise ExportError(
            f"{batch.places[0].container} is a compressed tar, which one machine has to read from front to back. Use "
            "the engine without Ray, or pack it as .tar or .zip."
        )
    return {"part": batch.part, "start": batch.start, "places": json.dumps(batch.places)}


def _result(row: Mapping[str, Any]) -> BatchResult:
    failures = [(int(number), str(reason)) for number, reason in json.loads(row["failures"])]
    vectors = np.frombuffer(row["vectors"], np.float32).reshape(-1, int(row["dim"]))
    return BatchResult(
        int(row["part"]),
        int(row["count"]),
        np.frombuffer(row["rows"], np.int64),
        vectors,
        np.frombuffer(row["kappa"], np.float32),
        failures,
    )


def _pack(model: Path, facts: EngineFacts) -> dict[str, bytes]:
    """Read the files of a model, with the ONNX file if the engine needs one."""
    bundle = model / "bundle" if (model / "bundle").is_dir() else model
    files = {name: (bundle / name).read_bytes() for name in BUNDLE}
    if facts.engine != "torch":
        low = facts.precision == "int8"
        found = in_bundle(model, INT8) if low else find_onnx(model, open_model(model))
        if found is not None:
            files[INT8 if low else FLOAT32] = found.read_bytes()
    return files


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join a cluster for the length of the block, or start one on 127.0.0.1."""
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    _check_reachable(address)
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(f"No Ray cluster at {address or 'this machine'}: {reason}. Check --ray-address.") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Knock at the address first; Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ExportError(
            f"No Ray cluster at {address}: {error.strerror or error}. Check --ray-address, or start one with "
            "`ray start`."
        ) from error


def import_ray(address: str | None = None) -> Any:
    """Import ray with its usage reports turned off.

    Args:
        address: of the cluster; for one on the loopback address Ray is told to stay there, because otherwise it looks
            for the cluster at the address that other machines see.

    Raises:
        ExportError: it is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None or address.startswith(LOOPBACK):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ExportError(f"--engine ray needs the package {error.name}: pip install 'proxemics[ray]'.") from error
    return ray
