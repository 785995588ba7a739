"""Reconciles the pod network of one node: watches the network objects and runs passes that close, move and open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import TypeVar

from api.client.client import Client
from api.client.informer import Informer
from api.network.queries import NetworkReport
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from reconcile.errors import DriverError, Gone, NotReady, Refused
from sdn import metrics
from sdn.cniserver.attacher import complete, discard_result
from sdn.cniserver.pod_ports import (
    NAMESPACE,
    POD,
    UID,
    InterfaceConfig,
    PlannedInterface,
    attached_pods,
    bridge_with_ports,
    host_veth_name,
    ingress_rate_limits,
    kernel_rate_limit,
    link_alias,
    mismatch,
    plan_attach,
    pods_without_device,
    ports_by_sandbox,
    ports_of_pods,
    removed_ports,
    sandboxes_of_runtime,
)
from sdn.config import NodeIdentity
from sdn.drivers.netlink import Netlink
from sdn.drivers.nftables import Nftables
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.ovsdb import Ovsdb, PutBridge, RemovePort
from sdn.host.firewall import GUARD_TABLE, ingress_guard
from sdn.host.preflight import VXLAN_OVERHEAD, underlay_link
from sdn.host.reconciler import DockerBridge, HostReconciler
from sdn.model.flow import Flow
from sdn.model.host import BRIDGE, NETDEV, Bridge, Link, Port, VethPair
from sdn.model.match import mac_text
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.cookies import DROP_BIT
from sdn.pipeline.drops import drop_counters
from sdn.topology import (
    NetworkConfig,
    NodeNetwork,
    Snapshot,
    Unavailable,
    mac_of,
    network_config,
    node_network,
    without_invalid_objects,
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class NetworkController:
    """`snapshot` returns what the API says, or None while the mirrors are not in sync; `wake` asks for a pass."""

    def __init__(
        self,
        identity: NodeIdentity,
        ovs_rundir: Path,
        netlink: Netlink,
        snapshot: Callable[[], Snapshot | None],
        docker_options_file: str,
        resync_seconds: float,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.unready = "starting"
        self.view: NodeNetwork | None = None
        self._identity = identity
        self._snapshot = snapshot
        self._netlink = netlink
        self.nft = Nftables()
        self._ovsdb = Ovsdb(ovs_rundir / "db.sock", lambda: self.wake())
        self.openflow = OpenFlowClient(ovs_rundir / f"{BRIDGE}.mgmt", self.look_at_everything)
        self._adds: dict[str, tuple[InterfaceConfig, asyncio.Future[None]]] = {}
        self._deletes: dict[str, asyncio.Future[None]] = {}
        self._mtu = 0
        self._links: Mapping[str, Link] = {}
        self._surveyed: Snapshot | None = None
        self._ground: NetworkConfig | Unavailable = Unavailable("starting")
        self._docker_bridge = DockerBridge(self._ovsdb, netlink, docker_options_file, identity.datapath_type)
        self._base = HostReconciler(identity, self._ovsdb, netlink, self.nft, self._docker_bridge, resync_seconds)
        self._ports: Mapping[str, Port] = {}
        self._shaped: Mapping[str, int] = {}
        self._flows: frozenset[Flow] = frozenset()
        self._addresses: dict[str, IPv4Address] = {}
        self._pass_milliseconds = 0.0

    def look_at_everything(self) -> None:
        """Ask for a pass that trusts nothing it saw before."""
        self._base.invalidate()
        self.wake()

    @property
    def ground(self) -> NetworkConfig | None:
        """What the API says, once the switch has its rows."""
        return self._ground if self.view is not None and isinstance(self._ground, NetworkConfig) else None

    def note_drift(self, what: str) -> None:
        """Somebody else had changed something of ours, and it was put right."""
        self._base.note_drift(what)

    async def close(self) -> None:
        """Let go of switch and firewall; everything stays as it is."""
        await self._ovsdb.close()
        self.nft.close()

    def attach(self, wish: InterfaceConfig) -> asyncio.Future[None]:
        """Ask for a sandbox to be attached; done when packets flow. Raises DriverError through the future."""
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(discard_result)
        self._adds[wish.sandbox] = (wish, future)
        self.wake()
        return future

    def detach(self, sandbox: str) -> asyncio.Future[None]:
        """Ask for a sandbox to be detached; done when nothing of it is left."""
        earlier = self._adds.pop(sandbox, None)
        if earlier is not None and not earlier[1].done():
            earlier[1].set_exception(NotReady(f"sandbox {sandbox} is being detached"))
        future = self._deletes.get(sandbox)
        if future is None or future.done():
            future = self._deletes[sandbox] = asyncio.get_running_loop().create_future()
        self.wake()
        return future

    def address_of(self, sandbox: str) -> IPv4Interface | None:
        """The address of a sandbox that is attached and has its flows."""
        address = self._addresses.get(sandbox)
        if address is None or self.view is None:
            return None
        return IPv4Interface((address, self.view.node.subnet.prefixlen))

    def is_attached(self, wish: InterfaceConfig) -> bool:
        """Whether it is, just as it is wished. Raises Refused when it is in another way."""
        if self.address_of(wish.sandbox) is None:
            return False
        port = ports_by_sandbox(self._ovsdb.observe().bridge(BRIDGE)).get(wish.sandbox)
        why = mismatch(port, wish) if port is not None else ""
        if why:
            raise Refused(f"sandbox {wish.sandbox} is attached otherwise: {why}; detach it first")
        return True

    def sandboxes(self, runtime: str) -> tuple[str, ...]:
        """What has a port on behalf of this runtime. Raises NotReady until the switch's database has answered."""
        return sandboxes_of_runtime(self._ovsdb.observe().bridge(BRIDGE), runtime)

    def why_not(self, project: str) -> str:
        """Why a sandbox of this project cannot be attached, as far as that is known."""
        if self.unready:
            return self.unready
        lanes = self._ground.vnids if isinstance(self._ground, NetworkConfig) else {}
        if lanes is not None and project not in lanes:
            return f"project {project} has no NetNamespace yet"
        return "the network takes longer than usual"

    def report(self) -> NetworkReport:
        """How it is, for people."""
        if self.view is None:
            return NetworkReport(error=self.unready)
        node = self.view.node
        here = len(attached_pods(self._ovsdb.observe().bridge(BRIDGE)))
        return NetworkReport(
            subnet=str(node.subnet),
            pods=here,
            free_addresses=int(node.last_pod) - int(node.first_pod) + 1 - here,
            flows=len(self._flows),
            drift=self._base.drift,
            pass_milliseconds=round(self._pass_milliseconds, 2),
            error=self.unready or self._docker_bridge.not_ready_reason,
        )

    def device_of_address(self, address: IPv4Address) -> str:
        """The host's end of the pod with this address. Raises Gone."""
        for sandbox, known in self._addresses.items():
            if known == address:
                return host_veth_name(sandbox)
        raise Gone(f"no pod of this node has the address {address}")

    async def check(self, wish: InterfaceConfig) -> None:
        """Raises Gone, with what is missing, when a sandbox is not as ADD left it, Refused when it is another's."""
        address, view = self.address_of(wish.sandbox), self.view
        if not self.is_attached(wish) or address is None or view is None:
            raise Gone(f"sandbox {wish.sandbox} has no port on {BRIDGE}")
        device = (await self._netlink.links()).get(host_veth_name(wish.sandbox))
        if device is None or not device.up:
            raise Gone(f"sandbox {wish.sandbox} has lost its link {host_veth_name(wish.sandbox)}")
        lost = await self._netlink.check_pod_interface(wish.netns, wish.ifname, address, view.node.gateway)
        if lost:
            raise Gone(f"sandbox {wish.sandbox}: {lost}")

    async def one_pass(self) -> None:
        """Look at everything, close, move, open. Raises DriverError; the next pass begins anew."""
        begin = time.perf_counter()
        try:
            seen = await _timed("look", self._see(is_due=self._base.resync_due()))
            if isinstance(seen, Unavailable):
                self.unready = seen.reason
                return
            is_verified = await _timed("verify", self._base.reconcile(seen, self._links))
            await _timed("leave", self._leave())
            await self._restore(is_verified)
            await self._arrive(seen)
            await self._shape(is_verified)
            await _timed("flows", self._open())
            if is_verified:
                await self._count_drops()
        except DriverError as error:
            self.unready = str(error)
            raise
        finally:
            self._pass_milliseconds = (time.perf_counter() - begin) * 1000

    async def _see(self, without: frozenset[str] = frozenset(), is_due: bool = False) -> NodeNetwork | Unavailable:
        snapshot = self._snapshot()
        if snapshot is None:
            return Unavailable("waiting for the master's first answer")
        if is_due or not self._mtu:
            await self._look_at_underlay()
        if snapshot is not self._surveyed:
            us = self._identity
            self._ground = network_config(snapshot, us.name, us.address, self._mtu, us.docker_project, us.node_ports)
            self._surveyed = snapshot
        if isinstance(self._ground, Unavailable):
            return self._ground
        here = (one for one in attached_pods(self._ovsdb.observe().bridge(BRIDGE)) if one.sandbox not in without)
        return node_network(self._ground, here)

    async def _look_at_underlay(self) -> None:
        self._links = await self._netlink.links()
        link = underlay_link(self._identity.address, self._links)
        if link is None:
            found = ", ".join(sorted(self._links))
            raise NotReady(f"the node's address {self._identity.address} is on no local link; the links are {found}")
        if self._mtu != link.mtu - VXLAN_OVERHEAD:
            self._mtu, self._surveyed = link.mtu - VXLAN_OVERHEAD, None

    async def _restore(self, is_verified: bool) -> None:
        """Ports that somebody else has taken off the bridge, or whose links were set down, come back."""
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        if bridge is None:
            return
        if is_verified:
            await self._restore_links(bridge)
        gone = removed_ports(bridge, self._ports)
        if gone:
            links = await self._netlink.links()
            there = tuple(port for port in gone if port.name in links)
            if there:
                await self._ovsdb.apply((PutBridge(replace(bridge, ports=there, table_names=(), external_ids=())),))
                self._base.note_drift("ports", " ".join(port.name for port in there))
        self._ports = ports_by_sandbox(self._ovsdb.observe().bridge(BRIDGE))

    async def _restore_links(self, bridge: Bridge) -> None:
        here = {port.name: port.ids for port in ports_by_sandbox(bridge).values()}
        for name, link in self._links.items():
            if name in here and not link.up:
                marks = here[name]
                await self._netlink.set_up(name, link_alias(marks[NAMESPACE], marks[POD], marks[UID]))
                self._base.note_drift("links", name)

    async def _leave(self) -> None:
        """Close first, so that no flow speaks for a port that may get another owner."""
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        leaving = frozenset(self._deletes) | await self._lost(bridge)
        if not leaving or bridge is None:
            return
        ports = ports_of_pods(bridge, leaving)
        if ports:
            closed = await self._see(without=leaving)
            if isinstance(closed, NodeNetwork):
                await self._replace(closed)
            await self._ovsdb.apply(tuple(RemovePort(BRIDGE, port.name) for port in ports))
        devices = {host_veth_name(sandbox) for sandbox in leaving}
        guarded = frozenset(devices) & await self.nft.list_chains("netdev", GUARD_TABLE)
        if guarded:
            await self.nft.run(ingress_guard(frozenset(), guarded))
        await self._netlink.delete_links(sorted(devices))
        log.info("pods detached", extra={"sandboxes": " ".join(sorted(name[:12] for name in leaving))})
        self._ports = {sandbox: port for sandbox, port in self._ports.items() if sandbox not in leaving}
        for sandbox in leaving & self._deletes.keys():
            complete(self._deletes.pop(sandbox))

    async def _lost(self, bridge: Bridge | None) -> frozenset[str]:
        suspects = pods_without_device(bridge)
        if not suspects:
            return suspects
        links = await self._netlink.links()
        return frozenset(sandbox for sandbox in suspects if host_veth_name(sandbox) not in links)

    async def _arrive(self, view: NodeNetwork) -> None:
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        wishes = [wish for wish, future in self._adds.values() if not future.done()]
        if not wishes or bridge is None:
            return
        plan = plan_attach(bridge, view.node, wishes)
        for sandbox, reason in plan.no_address.items():
            complete(self._adds.pop(sandbox)[1], NotReady(reason))
        for sandbox, reason in plan.wrong_subnet.items():
            complete(self._adds.pop(sandbox)[1], Gone(f"sandbox {sandbox}: {reason}; a new sandbox gets a new one"))
        made = await _timed("links", self._make_links(view, plan.to_attach))
        coming = tuple(arrival for arrival, good in zip(plan.to_attach, made, strict=True) if good)
        if not coming:
            return
        if self._identity.datapath_type == NETDEV:
            await self.nft.run(ingress_guard(frozenset(arrival.device for arrival in coming), frozenset()))
        for arrival in coming:
            wish = arrival.config
            await self._netlink.set_up(arrival.device, link_alias(wish.namespace, wish.name, wish.uid))
        await _timed("ports", self._ovsdb.apply((PutBridge(bridge_with_ports(bridge, coming)),)))
        for arrival in coming:
            pod = f"{arrival.config.namespace}/{arrival.config.name}"
            log.info("pod attached", extra={"pod": pod, "ip": arrival.address, "device": arrival.device})

    async def _shape(self, is_due: bool) -> None:
        """Limit what pods receive. A switch that starts takes such limits away, so they are verified with all else."""
        wishes = ingress_rate_limits(self._ovsdb.observe().bridge(BRIDGE))
        if wishes and (is_due or wishes != self._shaped):
            present = await self._netlink.rate_limits()
            for device, bits in wishes.items():
                if present.get(device) != bits:
                    await self._netlink.set_rate_limit(device, bits)
        self._shaped = wishes

    async def _make_links(self, view: NodeNetwork, coming: tuple[PlannedInterface, ...]) -> list[bool]:
        return await asyncio.gather(*(self._make_link(view, arrival) for arrival in coming))

    async def _make_link(self, view: NodeNetwork, arrival: PlannedInterface) -> bool:
        link = VethPair(
            device=arrival.device,
            netns=arrival.config.netns,
            ifname=arrival.config.ifname,
            mac=mac_text(mac_of(arrival.address)),
            address=IPv4Interface((arrival.address, view.node.subnet.prefixlen)),
            gateway=view.node.gateway,
            networks=view.cluster.networks,
            mtu=view.cluster.mtu,
            tx_checksum_offload=self._identity.datapath_type != NETDEV,
            egress_bandwidth=kernel_rate_limit(arrival.config.egress_bandwidth),
        )
        try:
            await self._netlink.create_veth_pair(link)
        except DriverError as error:
            complete(self._adds.pop(arrival.config.sandbox)[1], error)
            return False
        return True

    async def _open(self) -> None:
        view = await self._see()
        if isinstance(view, Unavailable):
            self.unready = view.reason
            return
        await self._replace(view)
        self.view, self.unready = view, ""
        live = {pod.address for pod in view.pods}
        self._addresses = {
            one.sandbox: one.address
            for one in attached_pods(self._ovsdb.observe().bridge(BRIDGE))
            if one.address in live
        }
        metrics.PODS.set(len(view.pods))
        metrics.ADDRESSES.labels("used").set(len(live))
        metrics.ADDRESSES.labels("free").set(int(view.node.last_pod) - int(view.node.first_pod) + 1 - len(live))
        metrics.PEERS.set(len(view.peers))
        for sandbox in self._adds.keys() & self._addresses.keys():
            complete(self._adds.pop(sandbox)[1])

    async def _count_drops(self) -> None:
        rows = {
            row: count for row, count in (await self.openflow.packet_counts(DROP_BIT)).items() if isinstance(row, Flow)
        }
        bridge = self._ovsdb.observe().bridge(BRIDGE)
        metrics.DROPPED.clear()
        for reason, owner, packets in drop_counters(rows, await self.openflow.table_misses(), bridge):
            metrics.DROPPED.labels(reason, owner).set(packets)

    async def _replace(self, view: NodeNetwork) -> None:
        flows = compile_flows(view)
        change = await self.openflow.replace(flows)
        if change and flows == self._flows:
            self._base.note_drift("flows", f"({change.added} were away, {change.removed} were foreign)")
        elif change:
            log.info("flows changed", extra={"added": change.added, "removed": change.removed, "total": len(flows)})
        self._flows = flows
        metrics.FLOWS.set(len(flows))
        metrics.FLOW_CHANGES.labels("added").inc(change.added)
        metrics.FLOW_CHANGES.labels("removed").inc(change.removed)


async def _timed(step: str, work: Awaitable[T]) -> T:
    with metrics.STEP_SECONDS.labels(step).time():
        return await work


class TopologyWatcher:
    """The three collections that the network follows."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._snapshot: Snapshot | None = None
        self._doubts: Mapping[str, str] = {}
        self.cluster_networks = Informer(client, ClusterNetwork, on_change=self._changed)
        self.host_subnets = Informer(client, HostSubnet, on_change=self._changed)
        self.net_namespaces = Informer(client, NetNamespace, on_change=self._changed)

    def _changed(self) -> None:
        self._snapshot = None
        self._on_change()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (self.cluster_networks, self.host_subnets, self.net_namespaces):
                tasks.create_task(mirror.run())

    def snapshot(self) -> Snapshot | None:
        """What they hold, the same value until it changes; None until all are in sync."""
        mirrors = (self.cluster_networks, self.host_subnets, self.net_namespaces)
        if self._snapshot is None and all(mirror.synced for mirror in mirrors):
            self._snapshot = without_invalid_objects(
                Snapshot(
                    self.cluster_networks.items.get(("", "default")),
                    tuple(self.host_subnets.items.values()),
                    tuple(self.net_namespaces.items.values()),
                )
            )
            self._say(self._snapshot.ignored)
        return self._snapshot

    def _say(self, doubts: Mapping[str, str]) -> None:
        """Log a doubt once, not at every change."""
        for about, reason in doubts.items():
            if self._doubts.get(about) != reason:
                log.warning("not believed", extra={"about": about, "why": reason})
        self._doubts = doubts
