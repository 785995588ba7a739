"""What a node has whatever pods there are: bridge, gateway, firewall. Put there, verified each resync, put right."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from reconcile.errors import NotReady, Refused
from sdn import metrics
from sdn.docker_bridge import DockersBridge
from sdn.drivers.netlink import Netlink, set_sysctl
from sdn.drivers.nft import Nft
from sdn.drivers.ovsdb import Ovsdb, PutBridge, PutZone
from sdn.links import DOCKER_BRIDGE, OWNER, desired_bridge, desired_gateway, desired_zones, guarded_devices, missing
from sdn.nat import FINGERPRINT, GUARD_TABLE, TABLE, fingerprint, guard_devices, nat_table
from sdn.objections import objections
from sdn.observed import Link
from sdn.pipeline import BRIDGE, DOCKER_PORT, GATEWAY_PORT, TUNNEL_PORT
from sdn.view import NODE_PORTS, View

log = logging.getLogger(__name__)

OWN_PORTS = frozenset((DOCKER_PORT, GATEWAY_PORT, TUNNEL_PORT))


@dataclass(frozen=True, slots=True)
class Identity:
    """Which node this is. `datapath_type` is "system" or "netdev".

    `docker_project` is the project of containers outside of any pod; empty: Docker gets no bridge of ours.
    `node_ports` are the first and the last port that services may have on every node.
    """

    name: str
    address: IPv4Address
    datapath_type: str
    docker_project: str = ""
    node_ports: tuple[int, int] = NODE_PORTS


class Base:
    """`drift` counts what somebody else had changed and was put right."""

    def __init__(
        self,
        identity: Identity,
        ovsdb: Ovsdb,
        netlink: Netlink,
        nft: Nft,
        docker_bridge: DockersBridge,
        resync_seconds: float,
    ) -> None:
        self.drift = 0
        self._identity = identity
        self._ovsdb = ovsdb
        self._netlink = netlink
        self._nft = nft
        self._docker_bridge = docker_bridge
        self._resync_seconds = resync_seconds
        self._verified_at = float("-inf")
        self._verified_for: object = None
        self._is_known = False
        self._conflicts: tuple[str, ...] = ()

    def distrust(self) -> None:
        """Look at everything in the next pass."""
        self._verified_at = float("-inf")

    def note_drift(self, what: str, detail: str = "") -> None:
        """Somebody else had changed something of ours; `what` is one of few words."""
        self.drift += 1
        metrics.DRIFT.labels(what).inc()
        log.warning("drift: somebody else had changed it", extra={"what": f"{what} {detail}".strip()})

    def is_due(self) -> bool:
        """Whether it is time to look at everything."""
        return time.monotonic() >= self._verified_at + self._resync_seconds

    async def verify(self, view: View, links: Mapping[str, Link]) -> bool:
        """When it is time, or when the bridge is away; whether it was. `links` as last seen. Raises DriverError."""
        base = (view.cluster, view.node)
        if self._verified_for is None or self.is_due():
            await self._object(view, links)
        if self._verified_for != base or self.is_due() or self._ovsdb.observe().bridge(BRIDGE) is None:
            self._is_known = self._verified_for == base
            await self._put_docker_bridge(view, links)
            await self._put_bridge(view)
            await self._put_zones()
            await self._put_gateway(view)
            await self._put_firewall(view)
            self._docker_bridge.hand_over(view)
            self._verified_for, self._verified_at = base, time.monotonic()
            return True
        return False

    def _wrote(self, what: str) -> None:
        if self._is_known:
            self.note_drift(what)
        else:
            log.info("written", extra={"what": what})

    async def _object(self, view: View, links: Mapping[str, Link]) -> None:
        """Before anything is touched. A node that is at work already is told, and goes on."""
        routes = await self._netlink.routes()
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        found = tuple(objections(view.cluster, self._identity.address, links, routes, bridge))
        is_ours = bridge is not None and OWNER in bridge.external_ids
        if found and self._verified_for is None and not is_ours:
            raise Refused(f"nothing is set up: {'; '.join(found)}")
        if found and found != self._conflicts:
            log.warning("the node's network conflicts with the cluster's", extra={"why": "; ".join(found)})
        self._conflicts = found

    async def _put_bridge(self, view: View) -> None:
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        if bridge is not None and OWNER not in bridge.external_ids:
            raise Refused(
                f"there is a bridge {BRIDGE} that Podlane did not make; it is left alone. "
                f"Remove it (ovs-vsctl del-br {BRIDGE}) if nothing needs it"
            )
        wish = missing(desired_bridge(view.cluster, view.node, self._identity.datapath_type), bridge)
        if wish is not None:
            await self._ovsdb.apply((PutBridge(wish),))
            self._wrote(f"bridge {BRIDGE}")

    async def _put_zones(self) -> None:
        absent = desired_zones(self._identity.datapath_type) - self._ovsdb.observe().zones
        if absent:
            await self._ovsdb.apply(tuple(map(PutZone, absent)))
            self._wrote("timeouts of connection tracking")

    async def _put_docker_bridge(self, view: View, links: Mapping[str, Link]) -> None:
        if await self._docker_bridge.put(view, links):
            self._wrote(f"bridge {DOCKER_BRIDGE}")

    async def _put_gateway(self, view: View) -> None:
        gateway = desired_gateway(view.cluster, view.node)
        link = (await self._netlink.links()).get(gateway.device)
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        for port in bridge.ports if bridge is not None else ():
            if port.error and port.name in OWN_PORTS:
                raise NotReady(f"the switch cannot have the port {port.name}: {port.error}")
        if link is None:
            raise NotReady(f"{gateway.device} is not there yet")
        routes = await self._netlink.gateway_routes(gateway.device)
        if link.addresses != {gateway.address} or routes != gateway.routes:
            await self._netlink.set_gateway(gateway.device, gateway.address, gateway.routes)
            self._wrote(f"address or routes of {gateway.device}")
        for name, value in gateway.sysctls:
            if set_sysctl(name, value):
                self._wrote(f"sysctl {name}")

    async def _put_firewall(self, view: View) -> None:
        await self._put_nat_table(nat_table(view.cluster, view.node))
        desired = guarded_devices(self._ovsdb.observe(), view.node)
        present = await self._nft.chains("netdev", GUARD_TABLE)
        if desired != present:
            await self._nft.apply(guard_devices(desired - present, present - desired))
            self._wrote(f"nft table {GUARD_TABLE}")

    async def _put_nat_table(self, wish: str) -> None:
        """Untouched if it is as we once wrote it, also by an earlier life of this daemon."""
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        if bridge is None:
            raise NotReady(f"{BRIDGE} is not there yet")
        listed = await self._nft.read("ip", TABLE)
        if listed and bridge.marks.get(FINGERPRINT) == fingerprint(wish, listed):
            return
        await self._nft.apply(wish)
        mark = (FINGERPRINT, fingerprint(wish, await self._nft.read("ip", TABLE)))
        await self._ovsdb.apply((PutBridge(replace(bridge, ports=(), table_names=(), external_ids=(mark,))),))
        self._wrote(f"nft table {TABLE}")
