"""Micro-batching: requests that arrive together are worked on together, by one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from proxemics.serve.errors import Refusal

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Collects items from many requests and hands them to one function in one thread.

    While the function works, the next batch gathers by itself. When it is idle, an item goes at once, unless others
    were announced by :meth:`coming`: then it waits for them, ``wait_s`` at most.

    Args:
        run: maps a sequence of items to as many results; an error among them is raised where its item was submitted.
            It is never called twice at a time.
        size: of a batch at most.
        wait_s: how long an item waits for announced ones, in seconds.
        limit: items that may wait; more are refused with status 503.
        thread: where ``run`` is called; it must have one worker.
        name: what is overloaded, for the message.
        on_batch: is told the size of every batch.

    Example:
        >>> async def main():
        ...     with ThreadPoolExecutor(1) as thread:
        ...         batcher = Batcher(lambda items: [item * 2 for item in items], thread=thread)
        ...         batcher.start()
        ...         results = await asyncio.gather(*(batcher.submit(item) for item in range(3)))
        ...         await batcher.stop()
        ...         return results
        >>> asyncio.run(main())
        [0, 2, 4]
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Sequence[R | Exception]],
        *,
        thread: ThreadPoolExecutor,
        size: int = 16,
        wait_s: float = 0.0,
        limit: int = 128,
        name: str = "The service",
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._run, self._thread, self._name = run, thread, name
        self._size, self._wait_s, self._limit = size, wait_s, limit
        self._on_batch = on_batch or (lambda count: None)
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._announced = 0
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._batch: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items that no batch has taken yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin; call it inside the running event loop."""
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._loop())

    async def stop(self) -> None:
        """Finish the batch that is worked on and refuse what waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, *([self._batch] if self._batch else []), return_exceptions=True)
            self._task = None
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(Refusal(503, "stopping", "The service is stopping.", retry_after=10))
        self._waiting.clear()

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Announce an item, for as long as it is being prepared."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1

    def refuse_when_full(self) -> None:
        """Send a request away before work is put into it.

        Raises:
            Refusal: status 503, when as many items wait as may.
        """
        if len(self._waiting) >= self._limit:
            raise Refusal(503, "overloaded", f"{self._name} has too much to do; try again in a second.", retry_after=1)

    async def submit(self, item: T) -> R:
        """Wait for the result of one item.

        Raises:
            Refusal: as :meth:`refuse_when_full`, or the service stops.
        """
        if self._wake is None or self._task is None:
            raise RuntimeError("the batcher is not running; call start() first")
        self.refuse_when_full()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._wake.set()
        return await future

    async def _loop(self) -> None:
        while True:
            batch = await self._gather()
            if batch:
                self._batch = asyncio.get_running_loop().create_task(self._work(batch))
                await asyncio.shield(self._batch)

    async def _gather(self) -> list[tuple[T, asyncio.Future[R]]]:
        assert self._wake is not None
        await self._wake.wait()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while len(self._waiting) < self._size and self._announced and (left := deadline - loop.time()) > 0:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except (TimeoutError, asyncio.TimeoutError):
                break
        batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
        if self._waiting:
            self._wake.set()
        else:
            self._wake.clear()
        return [(item, future) for item, future in batch if not future.done()]

    async def _work(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        self._on_batch(len(batch))
        items = [item for item, _ in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, items)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        except Exception as error:  # whatever the model or the index raises belongs to the requests that asked
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
