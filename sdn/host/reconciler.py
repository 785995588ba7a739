"""Sets up and repairs what the node itself holds: bridge, gateway, conntrack timeouts, firewall, Docker's bridge."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from reconcile.atomic_file import AtomicFile
from reconcile.errors import NotReady, Refused
from sdn.config import NodeIdentity, Settings
from sdn.drivers import Drivers
from sdn.drivers.netlink import set_sysctl
from sdn.drivers.ovsdb import PutBridge, PutZone, RemovePort
from sdn.host.firewall import (
    FINGERPRINT,
    FORWARD,
    GUARD_TABLE,
    TABLE,
    dropping_chains,
    forward_problem,
    forward_rules,
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
from sdn.host.preflight import TUNNEL_OVERHEAD, conflicts, underlay_link
from sdn.metrics import Drift
from sdn.model.host import (
    ALIAS,
    BRIDGE,
    DOCKER_BRIDGE,
    DOCKER_PORT_NAME,
    GATEWAY_PORT_NAME,
    OWNER,
    VXLAN_PORT_NAME,
    Bridge,
    Link,
)
from sdn.topology import Cluster, Node, NodeNetwork

log = logging.getLogger(__name__)

SYSCTLS = "sysctls"
"""File in the state directory: sysctls and the values that they had before."""

OWN_PORTS = frozenset((DOCKER_PORT_NAME, GATEWAY_PORT_NAME, VXLAN_PORT_NAME))


class HostReconciler:
    """Reconciles the node's own part of the network.

    A full pass reads everything back: the first one, one per resync interval, and one after `invalidate()`. `links` are
    the links of the node as the last full pass read them.
    """

    def __init__(self, *, identity: NodeIdentity, drivers: Drivers, settings: Settings, drift: Drift) -> None:
        self.links: Mapping[str, Link] = {}
        self.firewall_problem = ""
        self._found_sysctls = Path(settings.state_dir) / SYSCTLS
        self.docker_bridge = DockerBridge(
            drivers, settings.docker_options_file, identity.datapath_type, self._found_sysctls
        )
        self._identity = identity
        self._drivers = drivers
        self._drift = drift
        self._resync_seconds = settings.resync_seconds
        self._mtu = 0
        self._verified_at = float("-inf")
        self._verified_for: tuple[Cluster, Node] | None = None
        self._is_installed = False
        self._conflicts: tuple[str, ...] = ()

    def invalidate(self) -> None:
        """Make the next pass a full one."""
        self._verified_at = float("-inf")

    def _resync_due(self) -> bool:
        return time.monotonic() >= self._verified_at + self._resync_seconds

    async def pod_mtu(self) -> int:
        """Return the MTU that the underlay leaves to pods, in bytes. Reads the links if a full pass is due.

        Raises NotReady if no link has the node's address.
        """
        if self._resync_due() or not self._mtu:
            self.links = await self._drivers.netlink.links()
            link = underlay_link(self._identity.address, self.links)
            if link is None:
                names = ", ".join(sorted(self.links))
                raise NotReady(
                    f"the node's address {self._identity.address} is on no local link; the links are {names}"
                )
            self._mtu = link.mtu - TUNNEL_OVERHEAD
        return self._mtu

    async def reconcile(self, network: NodeNetwork) -> bool:
        """Reconcile the node if a full pass is due or br0 is missing. Return whether it did. Raises DriverError."""
        desired_for = (network.cluster, network.node)
        is_due = self._resync_due()
        if self._verified_for is None or is_due:
            await self._preflight(network)
        if self._verified_for == desired_for and not is_due and self._bridge() is not None:
            return False
        self._is_installed = self._verified_for == desired_for
        if await self.docker_bridge.reconcile(network, self.links):
            self._record_write(f"bridge {DOCKER_BRIDGE}")
        await self._put_bridge(network)
        await self._put_ct_timeouts()
        await self._put_gateway(network)
        await self._put_firewall(network)
        self._put_sysctls(desired_gateway(network.cluster, network.node).guarded_sysctls)
        self.docker_bridge.publish_options(network)
        self._verified_for, self._verified_at = desired_for, time.monotonic()
        return True

    def _record_write(self, what: str) -> None:
        """Count a write as drift if the same state was installed before, because another program has changed it."""
        if self._is_installed:
            self._drift.record(what)
        else:
            log.info("host configuration written", extra={"what": what})

    def _bridge(self) -> Bridge | None:
        return self._drivers.ovsdb.observe().bridge(BRIDGE)

    async def _preflight(self, network: NodeNetwork) -> None:
        """Look for conflicts before anything is changed.

        Raises Refused on a node that is not set up yet. On a node in operation, conflicts are logged only.
        """
        routes = await self._drivers.netlink.routes()
        bridge = self._bridge()
        current = tuple(conflicts(network.cluster, self._identity.address, self.links, routes, bridge))
        is_ours = bridge is not None and OWNER in bridge.external_ids
        if current and self._verified_for is None and not is_ours:
            raise Refused(f"nothing is set up: {'; '.join(current)}")
        if current and current != self._conflicts:
            log.warning("the node's network conflicts with the cluster's", extra={"reason": "; ".join(current)})
        self._conflicts = current

    async def _put_bridge(self, network: NodeNetwork) -> None:
        bridge = self._bridge()
        if bridge is not None and OWNER not in bridge.external_ids:
            raise Refused(
                f"there is a bridge {BRIDGE} that Podlane did not make; it is left alone. "
                f"Remove it (ovs-vsctl del-br {BRIDGE}) if nothing needs it"
            )
        changes = bridge_changes(desired_bridge(network.cluster, network.node, self._identity.datapath_type), bridge)
        if changes is not None:
            await self._drivers.ovsdb.apply((PutBridge(changes),))
            self._record_write(f"bridge {BRIDGE}")

    async def _put_ct_timeouts(self) -> None:
        missing = desired_ct_timeouts(self._identity.datapath_type) - self._drivers.ovsdb.observe().zones
        if missing:
            await self._drivers.ovsdb.apply(tuple(map(PutZone, missing)))
            self._record_write("timeouts of connection tracking")

    async def _put_gateway(self, network: NodeNetwork) -> None:
        gateway = desired_gateway(network.cluster, network.node)
        link = (await self._drivers.netlink.links()).get(gateway.device)
        bridge = self._bridge()
        for port in bridge.ports if bridge is not None else ():
            if port.error and port.name in OWN_PORTS:
                raise NotReady(f"the switch cannot have the port {port.name}: {port.error}")
        if link is None:
            raise NotReady(f"{gateway.device} is not there yet")
        routes = await self._drivers.netlink.gateway_routes(gateway.device)
        if link.addresses != {gateway.address} or routes != gateway.routes:
            await self._drivers.netlink.set_gateway(gateway.device, gateway.address, gateway.routes)
            self._record_write(f"address or routes of {gateway.device}")
        self._put_sysctls(gateway.sysctls)

    def _put_sysctls(self, sysctls: Iterable[tuple[str, str]]) -> None:
        for name, value in sysctls:
            if set_sysctl(name, value, self._found_sysctls):
                self._record_write(f"sysctl {name}")

    async def _put_firewall(self, network: NodeNetwork) -> None:
        await self._put_masquerade_table(masquerade_table(network.cluster, network.node))
        await self._accept_forwarded_packets()
        desired = guarded_devices(self._drivers.ovsdb.observe(), network.node)
        present = await self._drivers.nftables.list_chains("netdev", GUARD_TABLE)
        if desired != present:
            await self._drivers.nftables.run(ingress_guard(added=desired - present, removed=present - desired))
            self._record_write(f"nft table {GUARD_TABLE}")

    async def _accept_forwarded_packets(self) -> None:
        """Make iptables' firewall pass packets of pods; log what other tables may drop."""
        nftables = self._drivers.nftables
        chains = await nftables.list_base_chains()
        if rules := forward_rules(chains, await nftables.list_chain(*FORWARD)):
            await nftables.run(rules)
            log.warning("the policy of iptables' FORWARD chain is DROP; rules for pods were added")
        problem = forward_problem({each: await nftables.list_chain(*each) for each in dropping_chains(chains)})
        if problem and problem != self.firewall_problem:
            log.warning("packets of pods may be dropped", extra={"reason": problem})
        self.firewall_problem = problem

    async def _put_masquerade_table(self, desired: str) -> None:
        """Write the table unless its fingerprint in br0's external_ids says that it is unchanged.

        The fingerprint outlives the daemon, so a restart does not rewrite an intact table.
        """
        nftables, bridge = self._drivers.nftables, self._bridge()
        if bridge is None:
            raise NotReady(f"{BRIDGE} is not there yet")
        listed = await nftables.list_table("ip", TABLE)
        if listed and bridge.ids.get(FINGERPRINT) == table_fingerprint(desired, listed):
            return
        await nftables.run(desired)
        external_id = (FINGERPRINT, table_fingerprint(desired, await nftables.list_table("ip", TABLE)))
        ids_only = replace(bridge, ports=(), table_names=(), external_ids=(external_id,))
        await self._drivers.ovsdb.apply((PutBridge(ids_only),))
        self._record_write(f"nft table {TABLE}")


FIREWALL_ON_BRIDGES = "net.bridge.bridge-nf-call-iptables"
"""If it is 1, the node's firewall masquerades and filters frames between a container and br0."""


class DockerBridge:
    """The bridge lbr0 for containers outside of pods, and dockerd's options for it.

    dockerd's service reads `options_file`. `not_ready_reason` says why the options are withheld; empty if they are not.
    """

    def __init__(self, drivers: Drivers, options_file: str, datapath_type: str, found_sysctls: Path) -> None:
        self._drivers = drivers
        self._options = AtomicFile(options_file)
        self._datapath_type = datapath_type
        self._found_sysctls = found_sysctls
        self.not_ready_reason = ""

    async def reconcile(self, network: NodeNetwork, links: Mapping[str, Link]) -> bool:
        """Create, repair or remove the bridge. Return whether it was created or repaired. Raises DriverError."""
        desired = desired_docker_bridge(network.cluster, network.node, self._datapath_type)
        present = links.get(DOCKER_BRIDGE)
        if desired is None:
            if present is not None and present.alias == ALIAS:
                await self._remove()
            return False
        if present is not None and present.alias != ALIAS:
            raise Refused(
                f"there is a link {DOCKER_BRIDGE} that Podlane did not make; it is left alone. Remove it "
                f"(ip link del {DOCKER_BRIDGE}) if nothing needs it, or leave dockerProject empty"
            )
        is_sysctl_changed = set_sysctl(FIREWALL_ON_BRIDGES, "0", self._found_sysctls, required=False)
        if is_docker_bridge(desired, links):
            return is_sysctl_changed
        if DOCKER_PORT_NAME not in links:
            # The switch keeps a port whose link is gone, and would not take a new link of the same name.
            await self._drivers.ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT_NAME),))
        await self._drivers.netlink.put_docker_bridge(desired)
        return True

    async def _remove(self) -> None:
        self._options.remove()
        await self._drivers.ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT_NAME),))
        await self._drivers.netlink.delete_links((DOCKER_PORT_NAME, DOCKER_BRIDGE))
        log.info("bridge removed", extra={"bridge": DOCKER_BRIDGE})

    def publish_options(self, network: NodeNetwork) -> None:
        """Write dockerd's options for the bridge. Withhold them while a pod has an address of Docker's subnet."""
        subnet = network.node.docker_subnet
        if subnet is None:
            return
        conflicting = sorted(pod.address for pod in network.pods if pod.address in subnet)
        self.not_ready_reason = ""
        if conflicting:
            addresses = " ".join(map(str, conflicting))
            self.not_ready_reason = f"Docker's bridge waits: pods have addresses of its {subnet}: {addresses}"
            log.warning(self.not_ready_reason)
            if self._options.remove():
                log.info("dockerd's options removed", extra={"subnet": subnet})
        elif self._options.write(docker_options(network.cluster, network.node)):
            log.info("dockerd's options written", extra={"subnet": subnet})
