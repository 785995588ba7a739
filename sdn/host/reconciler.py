"""Sets up and repairs what the node itself holds: bridge, gateway, conntrack timeouts, firewall, Docker's bridge."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from reconcile.atomic_file import AtomicFile
from reconcile.errors import NotReady, Refused
from sdn import metrics
from sdn.config import NodeIdentity
from sdn.drivers.netlink import Netlink, set_sysctl
from sdn.drivers.nftables import Nftables
from sdn.drivers.ovsdb import Ovsdb, PutBridge, PutZone, RemovePort
from sdn.host.firewall import (
    FINGERPRINT,
    GUARD_TABLE,
    TABLE,
    guarded_devices,
    ingress_guard,
    masquerade_table,
    table_fingerprint,
)
from sdn.host.links import (
    bridge_changes,
    desired_bridge,
    desired_ct_timeouts,
    desired_docker_bridge,
    desired_gateway,
    docker_options,
    is_docker_bridge,
)
from sdn.host.preflight import conflicts
from sdn.model.host import ALIAS, BRIDGE, DOCKER_BRIDGE, DOCKER_PORT, GATEWAY_PORT, OWNER, TUNNEL_PORT, Link
from sdn.topology import NodeNetwork

log = logging.getLogger(__name__)

OWN_PORTS = frozenset((DOCKER_PORT, GATEWAY_PORT, TUNNEL_PORT))


class HostReconciler:
    """`drift` counts what somebody else had changed and was put right."""

    def __init__(
        self,
        identity: NodeIdentity,
        ovsdb: Ovsdb,
        netlink: Netlink,
        nft: Nftables,
        docker_bridge: DockerBridge,
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

    def invalidate(self) -> None:
        """Look at everything in the next pass."""
        self._verified_at = float("-inf")

    def note_drift(self, what: str, detail: str = "") -> None:
        """Somebody else had changed something of ours; `what` is one of few words."""
        self.drift += 1
        metrics.DRIFT.labels(what).inc()
        log.warning("drift: somebody else had changed it", extra={"what": f"{what} {detail}".strip()})

    def resync_due(self) -> bool:
        """Whether it is time to look at everything."""
        return time.monotonic() >= self._verified_at + self._resync_seconds

    async def reconcile(self, view: NodeNetwork, links: Mapping[str, Link]) -> bool:
        """When it is time, or when the bridge is away; whether it was. `links` as last seen. Raises DriverError."""
        base = (view.cluster, view.node)
        if self._verified_for is None or self.resync_due():
            await self._preflight(view, links)
        if self._verified_for != base or self.resync_due() or self._ovsdb.observe().bridge(BRIDGE) is None:
            self._is_known = self._verified_for == base
            await self._put_docker_bridge(view, links)
            await self._put_bridge(view)
            await self._put_zones()
            await self._put_gateway(view)
            await self._put_firewall(view)
            self._docker_bridge.publish_options(view)
            self._verified_for, self._verified_at = base, time.monotonic()
            return True
        return False

    def _record_write(self, what: str) -> None:
        if self._is_known:
            self.note_drift(what)
        else:
            log.info("written", extra={"what": what})

    async def _preflight(self, view: NodeNetwork, links: Mapping[str, Link]) -> None:
        """Before anything is touched. A node that is at work already is told, and goes on."""
        routes = await self._netlink.routes()
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        found = tuple(conflicts(view.cluster, self._identity.address, links, routes, bridge))
        is_ours = bridge is not None and OWNER in bridge.external_ids
        if found and self._verified_for is None and not is_ours:
            raise Refused(f"nothing is set up: {'; '.join(found)}")
        if found and found != self._conflicts:
            log.warning("the node's network conflicts with the cluster's", extra={"why": "; ".join(found)})
        self._conflicts = found

    async def _put_bridge(self, view: NodeNetwork) -> None:
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        if bridge is not None and OWNER not in bridge.external_ids:
            raise Refused(
                f"there is a bridge {BRIDGE} that Podlane did not make; it is left alone. "
                f"Remove it (ovs-vsctl del-br {BRIDGE}) if nothing needs it"
            )
        wish = bridge_changes(desired_bridge(view.cluster, view.node, self._identity.datapath_type), bridge)
        if wish is not None:
            await self._ovsdb.apply((PutBridge(wish),))
            self._record_write(f"bridge {BRIDGE}")

    async def _put_zones(self) -> None:
        absent = desired_ct_timeouts(self._identity.datapath_type) - self._ovsdb.observe().zones
        if absent:
            await self._ovsdb.apply(tuple(map(PutZone, absent)))
            self._record_write("timeouts of connection tracking")

    async def _put_docker_bridge(self, view: NodeNetwork, links: Mapping[str, Link]) -> None:
        if await self._docker_bridge.reconcile(view, links):
            self._record_write(f"bridge {DOCKER_BRIDGE}")

    async def _put_gateway(self, view: NodeNetwork) -> None:
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
            self._record_write(f"address or routes of {gateway.device}")
        for name, value in gateway.sysctls:
            if set_sysctl(name, value):
                self._record_write(f"sysctl {name}")

    async def _put_firewall(self, view: NodeNetwork) -> None:
        await self._put_nat_table(masquerade_table(view.cluster, view.node))
        desired = guarded_devices(self._ovsdb.observe(), view.node)
        present = await self._nft.list_chains("netdev", GUARD_TABLE)
        if desired != present:
            await self._nft.run(ingress_guard(desired - present, present - desired))
            self._record_write(f"nft table {GUARD_TABLE}")

    async def _put_nat_table(self, wish: str) -> None:
        """Untouched if it is as we once wrote it, also by an earlier life of this daemon."""
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        if bridge is None:
            raise NotReady(f"{BRIDGE} is not there yet")
        listed = await self._nft.list_table("ip", TABLE)
        if listed and bridge.ids.get(FINGERPRINT) == table_fingerprint(wish, listed):
            return
        await self._nft.run(wish)
        mark = (FINGERPRINT, table_fingerprint(wish, await self._nft.list_table("ip", TABLE)))
        await self._ovsdb.apply((PutBridge(replace(bridge, ports=(), table_names=(), external_ids=(mark,))),))
        self._record_write(f"nft table {TABLE}")


FIREWALL_ON_BRIDGES = "net.bridge.bridge-nf-call-iptables"
"""Switched on, the node's firewall would masquerade and filter frames on their way from a container to br0."""


class DockerBridge:
    """`options_file` is where dockerd's service looks for its options; `trouble` says why it is not to have any."""

    def __init__(self, ovsdb: Ovsdb, netlink: Netlink, options_file: str, datapath_type: str) -> None:
        self._ovsdb = ovsdb
        self._netlink = netlink
        self._options = AtomicFile(options_file)
        self._datapath_type = datapath_type
        self.not_ready_reason = ""

    async def reconcile(self, view: NodeNetwork, links: Mapping[str, Link]) -> bool:
        """Make the bridge as it is wished, or take it away; whether something had to be written. Raises DriverError."""
        wish = desired_docker_bridge(view.cluster, view.node, self._datapath_type)
        here = links.get(DOCKER_BRIDGE)
        if wish is None:
            if here is not None and here.alias == ALIAS:
                await self._remove()
            return False
        if here is not None and here.alias != ALIAS:
            raise Refused(
                f"there is a link {DOCKER_BRIDGE} that Podlane did not make; it is left alone. Remove it "
                f"(ip link del {DOCKER_BRIDGE}) if nothing needs it, or leave dockerProject empty"
            )
        is_rewritten = set_sysctl(FIREWALL_ON_BRIDGES, "0", required=False)
        if is_docker_bridge(wish, links):
            return is_rewritten
        if DOCKER_PORT not in links:
            await self._ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT),))  # the switch holds on to the link that is gone
        await self._netlink.put_docker_bridge(wish)
        return True

    async def _remove(self) -> None:
        self._options.show(None)
        await self._ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT),))
        await self._netlink.delete_links((DOCKER_PORT, DOCKER_BRIDGE))
        log.info("removed", extra={"what": f"bridge {DOCKER_BRIDGE}"})

    def publish_options(self, view: NodeNetwork) -> None:
        """Tell dockerd of the bridge, as long as no pod has an address of Docker's part of the subnet."""
        subnet = view.node.docker_subnet
        if subnet is None:
            return
        self.not_ready_reason = ""
        holders = sorted(pod.address for pod in view.pods if pod.address in subnet)
        if holders:
            self.not_ready_reason = (
                f"Docker's bridge waits: pods have addresses of its {subnet}: {' '.join(map(str, holders))}"
            )
            log.warning(self.not_ready_reason)
        if self._options.show(None if holders else docker_options(view.cluster, view.node)):
            log.info("dockerd's options written", extra={"subnet": subnet})
