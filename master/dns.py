"""The DNS server of the master: names of services, for clients outside the cluster."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv4Address, IPv4Network

import dns.name

from api.core.endpoints import EndpointSlice
from api.core.services import Service
from api.network.types import HostSubnet, NetNamespace
from master.config import MasterConfig
from master.resources.scheme import group_resource
from master.storage.interface import Record, Storage, WatchEvent
from nameserver.resolver import GLOBAL_VNID, UNKNOWN_CLIENT, ClusterZone, ZoneConfig
from nameserver.server import NameServer
from nameserver.service_store import ServiceStore
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0


class DNSServer:
    """The DNS server of the master. It resolves names of services only; queries for other domains are not forwarded.

    With ovs-multitenant, a client with the address of a node or a pod resolves only the names that all projects see,
    because a pod of any project can have its node's address. All other clients resolve every name.
    """

    def __init__(self, storage: Storage, settings: MasterConfig) -> None:
        networks = [settings.cluster_network, *(entry.cidr for entry in settings.more_cluster_networks)]
        self._address, self._port = settings.advertise_address, settings.dns_port
        self._pods = tuple(IPv4Network(network) for network in networks)
        self._is_flat = settings.plugin == "ovs-subnet"
        self._vnids: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._node_addresses: frozenset[str] = frozenset()
        self._service_store = ServiceStore()
        origin = dns.name.from_text(settings.cluster_domain)
        domain = ZoneConfig(origin, (*self._pods, IPv4Network(settings.service_network)), self._address)
        self._zone = ClusterZone(self._service_store, domain, None if self._is_flat else self._vnids)
        self._server = NameServer(self._zone, self._vnid_of)
        for kind in (Service, EndpointSlice, NetNamespace, HostSubnet):
            for record in storage.list(group_resource(kind)):
                self._take(record, is_there=True)
            storage.watch(group_resource(kind), self._follow)
        self._service_store.ready = True

    async def run(self) -> None:
        """Run until cancelled. If the address cannot be bound, log the error and retry."""
        last_error = ""
        try:
            while self._port:
                try:
                    await self._server.start(self._address, self._port)
                    break
                except NotReady as error:
                    if last_error != str(error):
                        last_error = str(error)
                        log.warning("DNS server cannot listen", extra={"error": last_error})
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.Event().wait()
        finally:
            await self._server.stop()

    def _follow(self, event: WatchEvent) -> None:
        self._take(event.record, is_there=event.type != "DELETED")

    def _take(self, record: Record, *, is_there: bool) -> None:
        key, obj = (record.key.namespace, record.key.name), record.object
        if isinstance(obj, Service):
            self._service_store.put_service(key, obj if is_there else None)
        elif isinstance(obj, EndpointSlice):
            self._service_store.put_slice(key, obj if is_there else None)
        elif isinstance(obj, NetNamespace):
            self._vnids.pop(obj.netname, None)
            self._vnids |= {obj.netname: obj.netid} if is_there else {}
            self._server.update(self._zone, self._vnid_of)
        elif isinstance(obj, HostSubnet):
            self._nodes.pop(key[1], None)
            self._nodes |= {key[1]: obj.host_ip} if is_there else {}
            self._node_addresses = frozenset(self._nodes.values())

    def _vnid_of(self, address: str) -> int:
        """Return the VNID whose names a client sees."""
        if self._is_flat:
            return GLOBAL_VNID
        is_pod = any(IPv4Address(address) in network for network in self._pods)
        return UNKNOWN_CLIENT if is_pod or address in self._node_addresses else GLOBAL_VNID
