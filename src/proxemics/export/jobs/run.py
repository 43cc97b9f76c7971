"""One job from a source to a file: resumable, on this machine or on a Ray cluster."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from proxemics.__about__ import __version__
from proxemics.core.errors import ConfigError, DataError, ImageError
from proxemics.core.files import atomic_path
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine
from proxemics.export.engines.onnx_file import package_version
from proxemics.export.engines.open import open_engine
from proxemics.export.engines.torch_engine import usable_cores
from proxemics.export.jobs.batches import BATCH, PART_ROWS, BatchResult, cut_batches, part_bounds
from proxemics.export.jobs.journal import Journal
from proxemics.export.jobs.local import run_local
from proxemics.export.jobs.output import (
    SUFFIXES,
    check_room,
    facts_text,
    unreadable_list,
    vector_table,
    write_embeddings,
)
from proxemics.export.jobs.pictures import OnError, Pictures
from proxemics.runtime.pictures import MAX_PIXELS
from proxemics.training.log import Reporter, Silent

TASK = "embed"


@dataclass(frozen=True)
class JobOptions:
    """How a job runs.

    Attributes:
        engine: see :func:`proxemics.export.engines.open.open_engine`.
        precision: float32, bf16 or int8.
        threads: of this machine; None: all cores that may be used.
        device: auto, cpu, cuda or mps.
        batch: pictures a forward pass.
        part_rows: pictures a part; what a killed job may lose.
        kappa: also write the length of each embedding before it was normalised.
        on_error: ``stop`` at the first picture that cannot be read, or ``skip`` such pictures and list them.
        restart: throw away an unfinished job of other options.
        max_pixels: larger pictures count as unreadable.
        ray: run on a Ray cluster.
        ray_address: of the cluster; None starts one on this machine.
    """

    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = None
    device: str = "auto"
    batch: int = BATCH
    part_rows: int = PART_ROWS
    kappa: bool = False
    on_error: OnError = "stop"
    restart: bool = False
    max_pixels: int = MAX_PIXELS
    ray: bool = False
    ray_address: str | None = None


@dataclass(frozen=True)
class JobReport:
    """What a job did.

    Attributes:
        out: the file.
        count: rows in it.
        dim: length of the vectors.
        facts: of the engine.
        embedded: pictures that this call embedded.
        taken_over: pictures that an earlier call had done.
        seconds: of embedding, on the wall.
        unreadable: the list of pictures that were left out; None when there are none.
        skipped: how many they are.
    """

    out: Path
    count: int
    dim: int
    facts: EngineFacts
    embedded: int
    taken_over: int
    seconds: float
    unreadable: Path | None = None
    skipped: int = 0

    @property
    def pictures_per_s(self) -> float:
        """Pictures a second, reading and embedding together."""
        return self.embedded / self.seconds if self.seconds else 0.0


def embed_pictures(
    model: str | Path,
    pictures: Pictures,
    out: str | Path,
    options: JobOptions | None = None,
    *,
    reporter: Reporter | None = None,
) -> JobReport:
    """Embed pictures into a file.

    Finished parts are kept in ``<out>.part``. The same call goes on after a kill and leaves the file that it would
    have left without one. A changed picture is embedded again; a changed model or option is refused.

    Args:
        model: a run folder or a bundle folder.
        pictures: from :func:`proxemics.export.jobs.pictures.open_pictures`.
        out: a ``.parquet`` or ``.npy`` file; see :mod:`proxemics.export.jobs.output`.
        options: how.
        reporter: hears of progress and notices.

    Raises:
        ConfigError: the name of the file ends in something else, or a file of the user would be written over.
        ImageError: a picture cannot be read, with ``on_error="stop"``.
        DataError: the unfinished job in ``<out>.part`` is another one, or another process works on it.
        ProxemicsError: no model, no engine, or the disk is full.
    """
    how = options or JobOptions()
    target = Path(out)
    if target.suffix not in SUFFIXES:
        raise ConfigError(f"--out {target}: the name must end in .parquet or .npy.")
    check_room(target, pictures.title)
    journal = Journal(target.with_name(f"{target.name}.part"))
    try:
        job = _Job(journal, pictures, target, how, reporter or Silent())
        report = job.run(Path(model))
        journal.remove()
        return report
    finally:
        if journal.is_empty():
            journal.remove()
        journal.close()


@dataclass
class _Job:
    journal: Journal
    pictures: Pictures
    out: Path
    how: JobOptions
    reporter: Reporter
    buffers: dict[int, list[BatchResult]] = field(default_factory=dict)

    def run(self, model: Path) -> JobReport:
        engine = self._open(model)
        facts = engine.facts
        self.reporter.say(f"Engine: {_engine_words(facts)}")
        self.journal.begin(self._identity(facts, engine.preprocess.fingerprint()), restart=self.how.restart)
        hashes = self._hashes()
        todo = self._todo(hashes)
        bounds = part_bounds(len(self.pictures), self.how.part_rows)
        left = sum(end - start for start, end in (bounds[number] for number in todo))
        over = len(self.pictures) - left
        if over:
            self.reporter.say(f"Going on: {over} of {len(self.pictures)} pictures are done.")
        start = time.perf_counter()
        if todo:
            self._embed(model, engine, todo, hashes, over)
        seconds = time.perf_counter() - start
        count = self._finish(facts, engine.preprocess.fingerprint())
        failures = self._failures()
        listing = self._list(failures)
        return JobReport(self.out, count, facts.dim, facts, left, over, seconds, listing, len(failures))

    def _open(self, model: Path) -> ConcurrentEngine:
        """Open the engine; an unfinished job keeps the one that it was started with."""
        how = self.how
        engine = how.engine
        earlier = None if how.restart else self.journal.recorded()
        if engine == "auto" and earlier is not None and earlier.get("precision") == how.precision:
            engine = str(earlier.get("engine", engine))
        cores = how.threads or usable_cores()
        return open_engine(
            model,
            engine=engine,
            precision=how.precision,
            threads=cores,
            calls=cores,
            device="cpu" if how.ray else how.device,
            pictures=len(self.pictures),
            notify=self.reporter.say,
        )

    def _identity(self, facts: EngineFacts, preprocess: str) -> dict[str, Any]:
        return {
            "model": facts.fingerprint,
            "preprocess": preprocess,
            "engine": facts.engine,
            "precision": facts.precision,
            "basis": facts.basis,
            "runtime": f"{facts.engine} {package_version(facts.engine)}",
            "version": __version__,
            "batch": self.how.batch,
            "part_rows": self.how.part_rows,
            "max_pixels": self.how.max_pixels,
            "columns": list(self.pictures.frame.columns),
        }

    def _hashes(self) -> list[str]:
        """Hash the rows of each part: what their pictures are, and what is written beside the vectors."""
        texts = [json.dumps(row, default=str) for row in self.pictures.frame.itertuples(index=False, name=None)]
        lines = [f"{text} {stamp}" for text, stamp in zip(texts, self.pictures.stamps, strict=True)]
        bounds = part_bounds(len(lines), self.how.part_rows)
        return [hashlib.sha256("\n".join(lines[start:end]).encode()).hexdigest() for start, end in bounds]

    def _todo(self, hashes: Sequence[str]) -> list[int]:
        """Return the parts to do; one that left pictures out is done again if that is no longer allowed."""
        allowed = self.how.on_error == "skip"
        kept = {
            number: part
            for number, part in self.journal.done.items()
            if number < len(hashes) and part.rows == hashes[number] and (allowed or not part.failures)
        }
        self.journal.done = kept
        return [number for number in range(len(hashes)) if number not in kept]

    def _embed(self, model: Path, engine: ConcurrentEngine, todo: list[int], hashes: Sequence[str], over: int) -> None:
        self.reporter.start(TASK, len(self.pictures), over)
        try:
            for result in self._results(model, engine, todo):
                self._take(result, hashes)
                self.reporter.advance(TASK, result.count)
        finally:
            self.reporter.finish(TASK)

    def _results(self, model: Path, engine: ConcurrentEngine, todo: list[int]) -> Iterator[BatchResult]:
        batches = cut_batches(self.pictures.places, todo, part_rows=self.how.part_rows, batch=self.how.batch)
        if not self.how.ray:
            workers = self.how.threads or usable_cores()
            return run_local(engine, batches, workers=workers, max_pixels=self.how.max_pixels)
        from proxemics.export.jobs.ray_job import run_on_ray

        return run_on_ray(model, engine.facts, batches, address=self.how.ray_address, max_pixels=self.how.max_pixels)

    def _take(self, result: BatchResult, hashes: Sequence[str]) -> None:
        """Collect the batches of a part in any order; write the part when all are there."""
        if result.failures and self.how.on_error == "stop":
            raise ImageError(result.failures[0][1] + " --on-error skip leaves such pictures out.")
        waiting = self.buffers.setdefault(result.part, [])
        waiting.append(result)
        start, end = part_bounds(len(self.pictures), self.how.part_rows)[result.part]
        if sum(one.count for one in waiting) < end - start:
            return
        self._write(self.buffers.pop(result.part), result.part, hashes[result.part])

    def _write(self, results: list[BatchResult], part: int, rows_hash: str) -> None:
        rows = np.concatenate([one.rows for one in results])
        order = np.argsort(rows, kind="stable")
        vectors = np.concatenate([one.vectors for one in results])[order]
        kappa = np.concatenate([one.kappa for one in results])[order]
        frame = self.pictures.frame
        chosen = frame.iloc[rows[order]]
        columns: dict[str, Any] = {name: _values(chosen[name]) for name in ("id", "path", "label", "domain")}
        columns["kappa"] = kappa
        columns.update({name: _values(chosen[name]) for name in frame.columns if name not in columns})
        failures = sorted((row, reason) for one in results for row, reason in one.failures)
        told = [(str(frame["id"].iloc[row]), str(frame["path"].iloc[row]), reason) for row, reason in failures]
        self._check_finite(vectors, chosen["path"].to_list())
        self.journal.write(part, vector_table(columns, vectors), rows=rows_hash, failures=told)

    def _check_finite(self, vectors: np.ndarray, paths: Sequence[str]) -> None:
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if bad.size:
            raise DataError(
                f"The vector of {paths[bad[0]]} is not finite; look at the model with `proxemics evaluate`."
            )

    def _finish(self, facts: EngineFacts, preprocess: str) -> int:
        numbers = sorted(self.journal.done)
        count = sum(self.journal.done[number].count for number in numbers)
        noted = {
            "schema": "1",
            "model": facts.fingerprint,
            "preprocess": preprocess,
            "dim": facts.dim,
            "engine": facts.engine,
            "precision": facts.precision,
            "version": __version__,
        }
        tables = (self._columns(self.journal.read(number)) for number in numbers)
        write_embeddings(self.out, tables, count=count, facts=facts_text(noted))
        return count

    def _columns(self, table: pa.Table) -> pa.Table:
        return table if self.how.kappa else table.drop_columns("kappa")

    def _failures(self) -> list[tuple[str, str, str]]:
        return [one for number in sorted(self.journal.done) for one in self.journal.done[number].failures]

    def _list(self, failures: Sequence[tuple[str, str, str]]) -> Path | None:
        """Write the pictures that were left out beside the output; an older list goes."""
        listing = unreadable_list(self.out)
        if not failures:
            listing.unlink(missing_ok=True)
            return None
        with atomic_path(listing) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows([("id", "path", "reason"), *failures])
        return listing


def _values(values: Any) -> Any:
    return values.to_numpy() if values.dtype.kind in "iufb" else values.astype(str).to_list()


def _engine_words(facts: EngineFacts) -> str:
    threads = f"{facts.threads} thread" + ("s" if facts.threads != 1 else "")
    return f"{facts.engine} {facts.precision}, {threads} ({facts.why})"
