"""Run a job on this machine: every thread reads, prepares and embeds whole batches of its own.

Reading and embedding overlap because threads are at different points of their batches; both let go of Python's lock
while they work. No stage waits for another, so that no core idles whichever of them is slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Semaphore

import torch

from proxemics.core.errors import DataError
from proxemics.export.engines.calls import ConcurrentEngine
from proxemics.export.jobs.batches import Batch, BatchResult
from proxemics.export.jobs.places import PlaceReader, stream_bytes
from proxemics.export.jobs.prepare import prepare_batch


def run_local(
    engine: ConcurrentEngine, batches: Iterable[Batch], *, workers: int, max_pixels: int
) -> Iterator[BatchResult]:
    """Embed batches with threads.

    Args:
        engine: as many of its calls run at once as it allows; on a GPU that is one, while the other threads read.
        batches: in any order.
        workers: threads.
        max_pixels: larger pictures count as unreadable.

    Yields:
        The results in the order of ``batches``.
    """
    reader = PlaceReader()
    seats = Semaphore(engine.calls)

    def work(batch: Batch) -> BatchResult:
        pixels, rows, failures = prepare_batch(engine.preprocess, reader, batch, max_pixels=max_pixels)
        with seats:
            vectors, kappa = engine.encode(pixels)
        return BatchResult(batch.part, len(batch.places), rows, vectors, kappa, failures)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="embed", initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[BatchResult]] = deque()
    try:
        for batch in with_stream(batches):
            waiting.append(pool.submit(work, batch))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        reader.close()
        torch.set_num_threads(before)


def with_stream(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Fill in the bytes of pictures that can only be read one behind the other, from a compressed tar."""
    listed = iter(batches)
    first = next(listed, None)
    if first is None:
        return
    if first.places[0].kind != "stream":
        yield first
        yield from listed
        return
    known = [first, *listed]
    numbers = [place.offset for batch in known for place in batch.places]
    stream = stream_bytes(first.places[0].container, numbers)
    for batch in known:
        data = list(islice(stream, len(batch.places)))
        if len(data) < len(batch.places):
            raise DataError(f"{batch.places[0].container} became shorter while it was read. Give the command again.")
        yield batch._replace(data=data)
