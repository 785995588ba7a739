"""Runs the name server of the node at the gateway address of its pods."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import dns.name

from nameserver.forwarder import Forwarder
from nameserver.resolv_conf import DNS_PORT, ResolvConf
from nameserver.resolver import UNKNOWN_CLIENT, ClusterZone, ZoneConfig
from nameserver.server import NameServer
from nameserver.service_store import ServiceStore
from reconcile import atomic_file
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming
from sdn import metrics
from sdn.cluster_dns.state import ClientVnids, client_vnids, dump, load
from sdn.config import Settings
from sdn.network_state import NetworkState
from sdn.topology import NetworkConfig, NodeNetwork

log = logging.getLogger(__name__)

PERSIST_INTERVAL_SECONDS = 30.0
"""How old what is kept may be, when names have changed."""


class ClusterDns:
    """Once there is a gateway it listens there, whether or not the master is near. Does nothing without a domain.

    A daemon that begins while the master is away tells what an earlier one has kept, until the master answers.
    """

    def __init__(
        self, directory: ServiceStore, settings: Settings, *, state: NetworkState, trigger: asyncio.Event
    ) -> None:
        self._is_wanted = bool(settings.cluster_domain)
        self._directory = directory
        self._state = state
        self._origin = dns.name.from_text(settings.cluster_domain)
        self._file = Path(settings.state_dir, "names.json")
        self._upstreams = ResolvConf(Path(settings.resolv_conf))
        self._forwarder = Forwarder(self._upstreams)
        self._names: ClusterZone | None = None
        self._server = NameServer(ClusterZone(directory, ZoneConfig(self._origin), {}), self._lane, self._forwarder)
        self._listening = ""
        self._trouble = "starting"
        self._shown: NetworkConfig | None = None
        self._view: NodeNetwork | None = None
        self._askers: ClientVnids | None = None
        self._kept: tuple[int, NetworkConfig | None, ClientVnids | None] = (0, None, None)
        self._kept_at = float("-inf")
        self._counted = (0, 0)
        self._loop = Loop(
            "names",
            self._one_pass,
            LoopTiming(resync=min(settings.resync_seconds, PERSIST_INTERVAL_SECONDS)),
            trigger,
        )

    @property
    def not_ready_reason(self) -> str:
        """Why names are not told; empty if they are, or shall not be."""
        if not self._is_wanted:
            return ""
        return self._trouble or ("" if self._directory.ready else "names wait for the master's first answer")

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._loop.run()
        finally:
            await self._server.stop()
            await self._forwarder.close()

    async def _one_pass(self) -> None:
        """Raises NotReady when the address cannot be had."""
        if not self._is_wanted:
            return
        ground = self._state.installed_config
        if ground is not None and self._directory.ready:
            if self._shown is not ground:
                networks = (*ground.cluster.networks, ground.cluster.service_network)
                domain = ZoneConfig(self._origin, networks, str(ground.node.gateway))
                self._show(ClusterZone(self._directory, domain, ground.vnids))
                self._shown = ground
        elif self._names is None:
            await self._recall()
        if self._names is not None and self._listening != self._names.domain.server:
            await self._listen(self._names.domain.server)
        self._count()
        await self._keep()

    def _count(self) -> None:
        asked, forwarded = self._server.asked, self._server.forwarded
        metrics.NAMES.labels("asked").inc(asked - self._counted[0])
        metrics.NAMES.labels("forwarded").inc(forwarded - self._counted[1])
        self._counted = asked, forwarded

    def _show(self, names: ClusterZone) -> None:
        self._names = names
        self._upstreams.own = (names.domain.server,)
        self._server.show(names, self._lane)

    async def _listen(self, gateway: str) -> None:
        await self._server.stop()
        self._listening = ""
        try:
            await self._server.start(gateway, DNS_PORT)
        except NotReady as error:
            self._trouble = str(error)
            raise
        self._listening, self._trouble = gateway, ""

    def _lane(self, address: str) -> int:
        """By the pods as the switch knows them now: a pod may ask as soon as its packets flow."""
        who = self._who()
        return who.lane(address) if who is not None else UNKNOWN_CLIENT

    def _who(self) -> ClientVnids | None:
        view = self._state.network
        if view is not None and view is not self._view:
            self._view, self._askers = view, client_vnids(view)
        return self._askers

    async def _recall(self) -> None:
        """Tell what an earlier daemon knew, if it has kept anything."""
        try:
            names, who = load(await asyncio.to_thread(self._file.read_bytes), self._origin)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("kept names are of no use", extra={"file": str(self._file), "error": str(error)})
            return
        self._askers = self._askers or who
        self._show(names)
        log.info("names are told as they were kept", extra={"file": str(self._file)})

    async def _keep(self) -> None:
        """Keep what is told, now and then. A disk that refuses is told of, and asked again."""
        names, who, now = self._names, self._who(), time.monotonic()
        state = (self._directory.revision, self._shown, who)
        if self._shown is None or names is None or who is None:
            return
        if state == self._kept or now < self._kept_at + PERSIST_INTERVAL_SECONDS:
            return
        self._kept_at = now
        try:
            await asyncio.to_thread(self._write, dump(names, who))
        except OSError as error:
            log.warning("names are not kept", extra={"file": str(self._file), "error": str(error)})
        else:
            self._kept = state

    def _write(self, data: bytes) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(self._file, data)
