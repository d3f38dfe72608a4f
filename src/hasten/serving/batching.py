"""Group requests that arrive within a few milliseconds into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Overloaded(Exception):
    """More requests wait than the queue holds."""


class Batcher(Generic[Question, Answer]):
    """Collects questions for up to ``wait`` seconds and answers them in one call on a thread.

    answer: one answer for each question, in order. limit: most questions of a call. waiting: most
    questions that may wait. While a call runs, further questions collect for the next one.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer]],
        wait: float,
        limit: int,
        waiting: int,
    ) -> None:
        self.answer, self.wait, self.limit = answer, wait, limit
        self.questions = self.batches = 0
        self._queue: asyncio.Queue[tuple[Question, asyncio.Future[Answer]]] = asyncio.Queue(waiting)
        self._thread = ThreadPoolExecutor(1, "scoring")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher[Question, Answer]:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Stop; the server has answered all requests before."""
        assert self._task is not None
        self._task.cancel()
        self._thread.shutdown()

    async def ask(self, question: Question) -> Answer:
        """The answer to one question. Raises Overloaded, and what ``answer`` raises."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((question, future))
        except asyncio.QueueFull:
            raise Overloaded from None
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            deadline = loop.time() + self.wait
            while len(batch) < self.limit and (left := deadline - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self._queue.get(), left))
                except TimeoutError:
                    break
            while len(batch) < self.limit and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            questions = [question for question, _ in batch]
            self.questions, self.batches = self.questions + len(batch), self.batches + 1
            try:
                answers = await loop.run_in_executor(self._thread, self.answer, questions)
            except Exception as error:  # noqa: BLE001 - every request of the batch hears of it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), found in zip(batch, answers, strict=True):
                if not future.done():  # its client has gone
                    future.set_result(found)
