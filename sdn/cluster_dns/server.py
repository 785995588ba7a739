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
from sdn.topology import NodeNetwork, NodeNetworkConfig

log = logging.getLogger(__name__)

PERSIST_INTERVAL_SECONDS = 30.0
"""Minimum time between two writes of the state file."""


class ClusterDns:
    """Name server for the pods of this node. Does nothing if no cluster domain is configured.

    The name server listens as soon as the node has a gateway, and does not depend on the master afterwards. A daemon
    that starts while the master is away serves the zone that an earlier daemon has written to the state file.
    """

    def __init__(
        self, service_store: ServiceStore, settings: Settings, *, state: NetworkState, trigger: asyncio.Event
    ) -> None:
        self._is_enabled = bool(settings.cluster_domain)
        self._service_store = service_store
        self._state = state
        self._origin = dns.name.from_text(settings.cluster_domain)
        self._state_file = Path(settings.state_dir, "names.json")
        self._resolv_conf = ResolvConf(Path(settings.resolv_conf))
        self._forwarder = Forwarder(self._resolv_conf)
        self._zone: ClusterZone | None = None
        empty_zone = ClusterZone(service_store, ZoneConfig(self._origin), {})
        self._server = NameServer(empty_zone, self._vnid_of, self._forwarder)
        self._listen_address = ""
        self._listen_error = "starting"
        self._served_config: NodeNetworkConfig | None = None
        self._network: NodeNetwork | None = None
        self._clients: ClientVnids | None = None
        self._persisted: tuple[int, NodeNetworkConfig | None, ClientVnids | None] = (0, None, None)
        self._persisted_at = float("-inf")
        self._exported_queries = 0
        self._exported_forwarded = 0
        self._exported_answered = 0
        self._loop = Loop(
            "names",
            self._reconcile,
            LoopTiming(resync=min(settings.resync_seconds, PERSIST_INTERVAL_SECONDS)),
            trigger,
        )

    @property
    def not_ready_reason(self) -> str:
        """Why names are not served; empty if they are, or if no cluster domain is configured."""
        if not self._is_enabled:
            return ""
        return self._listen_error or ("" if self._service_store.ready else "names wait for the master's first answer")

    async def run(self) -> None:
        """Serve names until cancelled."""
        try:
            await self._loop.run()
        finally:
            await self._server.stop()
            await self._forwarder.close()

    async def _reconcile(self) -> None:
        """Run one pass. Raises NotReady if the name server cannot listen."""
        if not self._is_enabled:
            return
        config = self._state.published_config
        if config is not None and self._service_store.ready:
            if self._served_config is not config:
                networks = (*config.cluster.networks, config.cluster.service_network)
                zone_config = ZoneConfig(self._origin, networks, str(config.node.gateway))
                self._serve(ClusterZone(self._service_store, zone_config, config.vnids))
                self._served_config = config
        elif self._zone is None:
            await self._load()
        if self._zone is not None and self._listen_address != self._zone.config.server:
            await self._listen(self._zone.config.server)
        self._export_metrics()
        await self._persist()

    def _export_metrics(self) -> None:
        """Add to the counters. A query that is still to be forwarded counts as answered until then, at most once."""
        queries, forwarded = self._server.query_count, self._server.forwarded_count
        answered = max(queries - forwarded, self._exported_answered)
        metrics.DNS_QUERIES.labels("answered").inc(answered - self._exported_answered)
        metrics.DNS_QUERIES.labels("forwarded").inc(forwarded - self._exported_forwarded)
        metrics.NAMES.labels("asked").inc(queries - self._exported_queries)
        metrics.NAMES.labels("forwarded").inc(forwarded - self._exported_forwarded)
        self._exported_answered = answered
        self._exported_queries = queries
        self._exported_forwarded = forwarded

    def _serve(self, zone: ClusterZone) -> None:
        self._zone = zone
        self._resolv_conf.own = (zone.config.server,)
        self._server.update(zone, self._vnid_of)

    async def _listen(self, gateway: str) -> None:
        await self._server.stop()
        self._listen_address = ""
        try:
            await self._server.start(gateway, DNS_PORT)
        except NotReady as error:
            self._listen_error = str(error)
            raise
        self._listen_address = gateway
        self._listen_error = ""

    def _vnid_of(self, address: str) -> int:
        """Return the VNID of a client. A pod is known as soon as its flows are installed."""
        clients = self._current_clients()
        return clients.vnid_of(address) if clients is not None else UNKNOWN_CLIENT

    def _current_clients(self) -> ClientVnids | None:
        network = self._state.network
        if network is not None and network is not self._network:
            self._network = network
            self._clients = client_vnids(network)
        return self._clients

    async def _load(self) -> None:
        """Serve the zone of the state file, if there is one."""
        try:
            zone, clients = load(await asyncio.to_thread(self._state_file.read_bytes), self._origin)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("invalid state of cluster DNS ignored", extra={"file": str(self._state_file), "error": error})
            return
        self._clients = self._clients or clients
        self._serve(zone)
        log.info("serving names from the state file", extra={"file": str(self._state_file)})

    async def _persist(self) -> None:
        """Write the zone to the state file if it has changed. An error is logged, and the write is repeated later."""
        zone, clients, now = self._zone, self._current_clients(), time.monotonic()
        if self._served_config is None or zone is None or clients is None:
            return
        current = (self._service_store.revision, self._served_config, clients)
        if current == self._persisted or now < self._persisted_at + PERSIST_INTERVAL_SECONDS:
            return
        self._persisted_at = now
        try:
            await asyncio.to_thread(self._write, dump(zone, clients))
        except OSError as error:
            log.warning("state of cluster DNS not written", extra={"file": str(self._state_file), "error": error})
        else:
            self._persisted = current

    def _write(self, data: bytes) -> None:
        self._state_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(self._state_file, data)
