"""The client of the CEL worker: starts it with the first question, and replaces it when it exceeds its bounds. Driver.

Questions wait for one another, because the worker answers one at a time; the master itself waits for none of them. The
source that has taken the least time comes first (fair_queue.py), so no project keeps the others waiting. A question
that ends the worker gets `OutOfBudget` for an answer, and the next one a new worker.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec

from master.cel.fair_queue import FairQueue
from master.cel.messages import CPU_SECONDS, Answer, OutOfBudget, Question, Reply
from reconcile.exposition import MetricFamily, counter

log = logging.getLogger(__name__)

PROGRAM = "master.cel.worker"

WALL_SECONDS = 20 * CPU_SECONDS
"""Time after which a worker that does not answer is ended. On a busy machine its CPU time takes as long."""

MAX_QUESTION_BYTES = 24 << 20
"""Bytes of a question: an object of 4 MiB, the old one, and what is around them."""

MAX_REPLY_BYTES = 8 << 20
_LENGTH = struct.Struct(">I")


class CELEvaluator:
    """Answers questions about expressions. `close` ends the worker; without questions there is none."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_busy = False
        self._questions = self._ended = 0

    async def ask(self, question: Question, source: str = "") -> Answer:
        """Return the answer to a question: `OutOfBudget` if it takes too much, or if there is no worker.

        Sources, such as projects, take turns.
        """
        encoded = msgspec.msgpack.encode(question)
        if len(encoded) > MAX_QUESTION_BYTES:
            return OutOfBudget()
        async with self._turn(source):
            self._questions += 1
            try:
                process = await self._worker()
            except OSError as error:
                log.error("cannot start the CEL worker program=%s error=%s", PROGRAM, error)
                return OutOfBudget("the program that evaluates expressions cannot be started")
            try:
                reply = await self._exchange(process, encoded)
            except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
                self._ended += 1
                await self._end(process)
                log.warning(
                    "the CEL worker has exceeded its bounds question=%s exit_code=%s error=%s",
                    type(question).__name__,
                    process.returncode,
                    type(error).__name__,
                )
                return OutOfBudget()
            except asyncio.CancelledError:
                # Its answer would be taken for that to the next question.
                await self._end(process)
                raise
            if reply.retires:
                await self._end(process)
            return reply.answer

    async def close(self) -> None:
        """End the worker."""
        async with self._turn(""):
            if self._process is not None:
                await self._end(self._process)

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield how many questions were asked, and how many ended the worker."""
        yield counter("podlane_cel_questions_total", "Questions that the CEL worker was asked.", {"": self._questions})
        yield counter(
            "podlane_cel_worker_ended_total",
            "Questions that exceeded the time or memory of the CEL worker.",
            {"": self._ended},
        )

    @asynccontextmanager
    async def _turn(self, source: str) -> AsyncIterator[None]:
        """Wait until the worker is free for a source."""
        if self._is_busy:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.put(source, waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._pass_on()
                raise
        self._is_busy = True
        begin = time.monotonic()
        try:
            yield
        finally:
            self._waiting.charge(source, time.monotonic() - begin)
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the next question be asked. Those that were given up meanwhile are dropped."""
        while (waiter := self._waiting.take()) is not None:
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_busy = False

    async def _worker(self) -> asyncio.subprocess.Process:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                PROGRAM,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # Libraries write there what tenants cause.
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        return process

    async def _exchange(self, process: asyncio.subprocess.Process, encoded: bytes) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(WALL_SECONDS):
            process.stdin.write(_LENGTH.pack(len(encoded)))
            process.stdin.write(encoded)
            await process.stdin.drain()
            (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
            if length > MAX_REPLY_BYTES:
                raise EOFError(f"an answer of {length} bytes")
            reply = await process.stdout.readexactly(length)
        return msgspec.msgpack.decode(reply, type=Reply)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._process = None
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                pass
        await process.wait()
