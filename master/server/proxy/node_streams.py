"""Limits of the logs and streams that the master forwards from one node.

The node knows one client, the master, so it cannot tell the users apart that use up its connections.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

from master import errors
from reconcile.connection_limiter import REFUSED, FairPool

MAX_STREAMS, MAX_STREAMS_PER_PROJECT = 1_200, 500
"""Streams of one node, and those of one project. A node accepts 1,600 connections."""


class NodeStreams:
    """The streams in progress, by node. A project takes a place of the one with the most streams of the node."""

    def __init__(self, limit: int = MAX_STREAMS, per_project: int = MAX_STREAMS_PER_PROJECT) -> None:
        self._limit = limit
        self._per_project = per_project
        self._pools: dict[str, FairPool] = {}
        self._tasks: dict[int, asyncio.Task[object]] = {}
        self._numbers = itertools.count()

    @contextmanager
    def open(self, node: str, project: str) -> Iterator[None]:
        """Count the stream that this task forwards during the block. Raises TooManyRequests.

        The task is cancelled when another project needs the place.
        """
        task = asyncio.current_task()
        assert task is not None
        pool = self._pools.setdefault(node, FairPool(self._limit, self._per_project, ripe_seconds=math.inf))
        victim, _ = pool.make_room(project, 0.0)
        if victim == REFUSED:
            raise errors.too_many_requests()
        if victim is not None:
            pool.remove(victim)
            self._tasks.pop(victim).cancel()
        number = next(self._numbers)
        pool.add(number, project, 0.0)
        self._tasks[number] = task
        try:
            yield
        finally:
            if self._tasks.pop(number, None) is not None:
                pool.remove(number)
            if not pool and self._pools.get(node) is pool:
                del self._pools[node]
