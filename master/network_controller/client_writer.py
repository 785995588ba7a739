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
"""Writes in progress at a time."""

INFORMER_TIMEOUT_SECONDS = 5.0
"""How long a pass waits until the informers show its writes."""


class NetworkController:
    """Runs the network controllers. `may_write` is called before each write and raises NotReady when this process is
    not the leader.
    """

    def __init__(
        self,
        client: Client,
        config: NetworkConfig,
        may_write: Callable[[], None],
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._client = client
        self._config = config
        self._may_write = may_write
        self._clock = clock
        self._loop = Loop("network", self._reconcile, LoopTiming())
        self._changed = asyncio.Event()
        self._warnings: Mapping[str, str] = {}
        kinds: tuple[type[Object], ...] = (Namespace, Node, ClusterNetwork, HostSubnet, NetNamespace)
        self._informers: dict[type[Object], Informer[Any]] = {
            kind: Informer(client, kind, on_change=self._wake) for kind in kinds
        }
        self._informers[NodeQuery] = Informer(client, NodeQuery, on_change=self._wake, optional=True)

    @property
    def not_ready_reason(self) -> str:
        """Return which informers are not synced; empty if all are."""
        pending = [f"{kind.KIND}: {informer.last_error or 'is being listed'}" for kind, informer in self._unsynced()]
        return f"waiting for {'; '.join(pending)}" if pending else ""

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())
            tasks.create_task(self._loop.run())

    def _unsynced(self) -> list[tuple[type[Object], Informer[Any]]]:
        return [(kind, informer) for kind, informer in self._informers.items() if not informer.synced]

    def _wake(self) -> None:
        self._changed.set()
        self._loop.wake()

    async def _reconcile(self) -> None:
        if self._unsynced():
            return
        pending = plan(self._config, self._cluster_state(), self._clock())
        self._log_warnings(pending.warnings)
        if pending.network is None and not pending.other_writes:
            return
        await self._write_all(pending)
        writes = (*((pending.network,) if pending.network else ()), *pending.other_writes)
        log.info("objects written", extra={"writes": len(writes), "objects": _describe_writes(writes)})
        await self._wait_until_visible(writes)

    def _cluster_state(self) -> ClusterState:
        return ClusterState(
            namespaces=self._list(Namespace),
            nodes=self._list(Node),
            network=self._informers[ClusterNetwork].items.get(("", "default")),
            host_subnets=self._list(HostSubnet),
            net_namespaces=self._list(NetNamespace),
            queries=self._list(NodeQuery),
        )

    def _list(self, kind: type[Object]) -> tuple[Any, ...]:
        return tuple(self._informers[kind].items.values())

    async def _write_all(self, pending: Plan) -> None:
        """Write the allocated numbers first, then everything else. Raises NotReady when a write failed; the next pass
        repeats it.
        """
        if pending.network is not None:
            await self._write(pending.network)
        semaphore = asyncio.Semaphore(MAX_PARALLEL_WRITES)

        async def write_object(write: Write) -> None:
            async with semaphore:
                await self._write(write)

        results = await asyncio.gather(*map(write_object, pending.other_writes), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, NotReady):
                raise error
        if errors:
            raise NotReady(f"{len(errors)} of {len(pending.other_writes)} writes failed, the first: {errors[0]}")

    async def _write(self, write: Write) -> None:
        self._may_write()
        obj = write.object
        meta = obj.metadata
        try:
            if isinstance(write, Create):
                await self._client.create(obj)
            elif isinstance(write, Update):
                await self._client.update(obj)
            else:
                await self._client.delete(type(obj), meta.name, uid=meta.uid, resource_version=meta.resource_version)
        except NotFound as error:
            if not isinstance(write, ForceDelete):
                raise NotReady(f"{obj.KIND} {meta.name}: {error}") from None
        except (AlreadyExists, Conflict) as error:
            raise NotReady(f"{obj.KIND} {meta.name} has changed meanwhile: {error}") from None
        except ClientError as error:
            raise NotReady(f"{obj.KIND} {meta.name} is not written: {error}") from None

    async def _wait_until_visible(self, writes: tuple[Write, ...]) -> None:
        """Wait until the informers show the writes; otherwise the next pass would allocate other numbers for the same
        objects.
        """
        try:
            async with asyncio.timeout(INFORMER_TIMEOUT_SECONDS):
                while not all(map(self._is_visible, writes)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise NotReady(
                f"the API server has not shown within {INFORMER_TIMEOUT_SECONDS:.0f} s what was written"
            ) from None

    def _is_visible(self, write: Write) -> bool:
        stored = self._informers[type(write.object)].items.get(("", write.object.metadata.name))
        if isinstance(write, Create):
            return stored is not None
        before = write.before if isinstance(write, Update) else write.object
        return stored is None or stored.metadata.resource_version != before.metadata.resource_version

    def _log_warnings(self, warnings: Mapping[str, str]) -> None:
        """Log each warning once, not at every pass."""
        for subject, text in warnings.items():
            if self._warnings.get(subject) != text:
                log.warning("controller warns", extra={"subject": subject, "reason": text})
        self._warnings = warnings


def _describe_writes(writes: tuple[Write, ...]) -> str:
    """Return the first few written objects, for the log."""
    names = [
        f"{'-' if isinstance(write, ForceDelete) else '+'}{write.object.KIND}/{write.object.metadata.name}"
        for write in writes
    ]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
