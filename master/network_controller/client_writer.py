"""The network controllers with an API client: informers in, planned writes out."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any

from api.client.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from api.client.informer import Informer
from api.core.node import Namespace, Node
from api.meta.types import Object
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from master.config import NetworkConfig
from master.controllers.actions import Create, ForceDelete, Update
from master.network_controller.reconcile import ClusterState, Plan, Write, plan
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

MAX_PARALLEL_WRITES = 16
"""Writes that are on their way at a time."""

INFORMER_TIMEOUT_SECONDS = 5.0
"""A pass waits for so long until the mirrors show what it wrote."""


class NetworkController:
    """Run with `await run()`. `may_write`, asked before each write, raises NotReady when somebody else is in charge."""

    def __init__(
        self,
        client: Client,
        wish: NetworkConfig,
        may_write: Callable[[], None],
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._client = client
        self._wish = wish
        self._may_write = may_write
        self._clock = clock
        self._loop = Loop("network", self._pass, LoopTiming())
        self._changed = asyncio.Event()
        self._notices: Mapping[str, str] = {}
        kinds: tuple[type[Object], ...] = (Namespace, Node, ClusterNetwork, HostSubnet, NetNamespace)
        self._mirrors: dict[type[Object], Informer[Any]] = {
            kind: Informer(client, kind, on_change=self._wake) for kind in kinds
        }
        self._mirrors[NodeQuery] = Informer(client, NodeQuery, on_change=self._wake, optional=True)

    @property
    def unready(self) -> str:
        """Why nothing is done; empty if it is."""
        waits = [f"{kind.KIND}: {mirror.last_error or 'is being listed'}" for kind, mirror in self._unsynced()]
        return f"waiting for {'; '.join(waits)}" if waits else ""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors.values():
                tasks.create_task(mirror.run())
            tasks.create_task(self._loop.run())

    def _unsynced(self) -> list[tuple[type[Object], Informer[Any]]]:
        return [(kind, mirror) for kind, mirror in self._mirrors.items() if not mirror.synced]

    def _wake(self) -> None:
        self._changed.set()
        self._loop.wake()

    async def _pass(self) -> None:
        if self._unsynced():
            return
        todo = plan(self._wish, self._seen(), self._clock())
        self._say(todo.notices)
        if todo.network is None and not todo.rest:
            return
        await self._carry_out(todo)
        writes = (*((todo.network,) if todo.network else ()), *todo.rest)
        log.info("network wrote", extra={"writes": len(writes), "what": _named(writes)})
        await self._until_seen(writes)

    def _seen(self) -> ClusterState:
        return ClusterState(
            namespaces=self._all(Namespace),
            nodes=self._all(Node),
            network=self._mirrors[ClusterNetwork].items.get(("", "default")),
            subnets=self._all(HostSubnet),
            lanes=self._all(NetNamespace),
            queries=self._all(NodeQuery),
        )

    def _all(self, kind: type[Object]) -> tuple[Any, ...]:
        return tuple(self._mirrors[kind].items.values())

    async def _carry_out(self, todo: Plan) -> None:
        """The numbers first. Raises NotReady when anything was not written: the next pass sees what is left."""
        if todo.network is not None:
            await self._write(todo.network)
        room = asyncio.Semaphore(MAX_PARALLEL_WRITES)

        async def one(write: Write) -> None:
            async with room:
                await self._write(write)

        done = await asyncio.gather(*map(one, todo.rest), return_exceptions=True)
        failures = [result for result in done if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, NotReady):
                raise failure
        if failures:
            raise NotReady(f"{len(failures)} of {len(todo.rest)} writes failed, the first: {failures[0]}")

    async def _write(self, write: Write) -> None:
        self._may_write()
        item = write.item
        meta = item.metadata
        try:
            if isinstance(write, Create):
                await self._client.create(item)
            elif isinstance(write, Update):
                await self._client.update(item)
            else:
                await self._client.delete(type(item), meta.name, uid=meta.uid, resource_version=meta.resource_version)
        except NotFound as error:
            if not isinstance(write, ForceDelete):
                raise NotReady(f"{item.KIND} {meta.name}: {error}") from None
        except (AlreadyExists, Conflict) as error:
            raise NotReady(f"{item.KIND} {meta.name} has changed meanwhile: {error}") from None
        except ClientError as error:
            raise NotReady(f"{item.KIND} {meta.name} is not written: {error}") from None

    async def _until_seen(self, writes: tuple[Write, ...]) -> None:
        """The next pass is to know what this one has written, or it would take other numbers for the same."""
        try:
            async with asyncio.timeout(INFORMER_TIMEOUT_SECONDS):
                while not all(map(self._shows, writes)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise NotReady(
                f"the API server has not shown within {INFORMER_TIMEOUT_SECONDS:.0f} s what was written"
            ) from None

    def _shows(self, write: Write) -> bool:
        known = self._mirrors[type(write.item)].items.get(("", write.item.metadata.name))
        if isinstance(write, Create):
            return known is not None
        before = write.before if isinstance(write, Update) else write.item
        return known is None or known.metadata.resource_version != before.metadata.resource_version

    def _say(self, notices: Mapping[str, str]) -> None:
        """Log a notice once, not at every pass."""
        for about, text in notices.items():
            if self._notices.get(about) != text:
                log.warning("needs attention", extra={"about": about, "why": text})
        self._notices = notices


def _named(writes: tuple[Write, ...]) -> str:
    """The first few of what was written, for the log."""
    names = [
        f"{'-' if isinstance(one, ForceDelete) else '+'}{one.item.KIND}/{one.item.metadata.name}" for one in writes
    ]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
