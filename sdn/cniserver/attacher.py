"""Attaches pods to br0 and detaches them: veth pairs, ports, rate limits.

A request is a future that a pass completes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface

from reconcile.errors import DriverError, Gone, NotReady, Refused
from sdn.cniserver.pod_ports import (
    ExternalId,
    InterfaceConfig,
    PlannedInterface,
    PodIdentity,
    attached_pods,
    bridge_with_ports,
    host_veth_name,
    identities_of_pods,
    ingress_rate_limits,
    kernel_rate_limit,
    link_alias,
    mismatch,
    names_of_pods,
    plan_attach,
    pods_without_device,
    ports_by_sandbox,
    ports_of_pods,
    removed_ports,
    sandboxes_of_runtime,
)
from sdn.drivers import Drivers
from sdn.drivers.ovsdb import PutBridge, RemovePort
from sdn.host.firewall import ingress_guard
from sdn.metrics import Drift, timed
from sdn.model.host import BRIDGE, NETDEV, Bridge, Link, Port, VethPair
from sdn.model.match import mac_text
from sdn.network_state import NetworkState
from sdn.topology import AttachedPod, NodeNetwork, mac_of

log = logging.getLogger(__name__)


class PodAttacher:
    """The pods of this node as ports of br0.

    `attach` and `detach` register requests and wake the controller, whose pass calls the other methods in the order
    detach, restore, attach, limit, complete.
    """

    def __init__(
        self,
        *,
        drivers: Drivers,
        datapath_type: str,
        state: NetworkState,
        drift: Drift,
        wake: Callable[[], None],
    ) -> None:
        self._drivers = drivers
        self._datapath_type = datapath_type
        self._state = state
        self._drift = drift
        self._wake = wake
        self._attach_requests: dict[str, tuple[InterfaceConfig, asyncio.Future[None]]] = {}
        self._detach_requests: dict[str, asyncio.Future[None]] = {}
        self._ports: Mapping[str, Port] = {}
        self._rate_limits: Mapping[str, int] = {}
        self._addresses: dict[str, IPv4Address] = {}
        self._addresses_of: tuple[NodeNetwork, tuple[AttachedPod, ...]] | None = None

    def attach(self, config: InterfaceConfig) -> asyncio.Future[None]:
        """Request that a sandbox is attached. The future is done when packets flow, or raises DriverError."""
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(_discard_result)
        self._attach_requests[config.sandbox] = (config, future)
        self._wake()
        return future

    def detach(self, sandbox: str) -> asyncio.Future[None]:
        """Request that a sandbox is detached. The future is done when nothing of it is left."""
        pending = self._attach_requests.pop(sandbox, None)
        if pending is not None:
            _complete(pending[1], NotReady(f"sandbox {sandbox} is being detached"))
        future = self._detach_requests.get(sandbox)
        if future is None or future.done():
            future = self._detach_requests[sandbox] = asyncio.get_running_loop().create_future()
        self._wake()
        return future

    def address_of(self, sandbox: str) -> IPv4Interface | None:
        """Return the address of a sandbox that is attached and has its flows, or None."""
        address, network = self._addresses.get(sandbox), self._state.network
        if address is None or network is None:
            return None
        return IPv4Interface((address, network.node.subnet.prefixlen))

    def host_interface_of(self, address: IPv4Address) -> str:
        """Return the host's end of the veth pair of the pod with this address. Raises Gone if there is none."""
        for sandbox, pod_address in self._addresses.items():
            if pod_address == address:
                return host_veth_name(sandbox)
        raise Gone(f"no pod of this node has the address {address}")

    def is_attached(self, config: InterfaceConfig) -> bool:
        """Return True if the sandbox is attached with this configuration. Raises Refused if it has another one."""
        if self.address_of(config.sandbox) is None:
            return False
        port = ports_by_sandbox(self._bridge()).get(config.sandbox)
        difference = mismatch(port, config) if port is not None else ""
        if difference:
            raise Refused(f"sandbox {config.sandbox} is attached otherwise: {difference}; detach it first")
        return True

    def sandboxes(self, runtime: str) -> tuple[str, ...]:
        """Return the sandboxes that this runtime has attached. Raises NotReady until the database has answered."""
        return sandboxes_of_runtime(self._bridge(), runtime)

    def attached_pods(self) -> tuple[AttachedPod, ...]:
        """Return the pods that have a port on br0. Raises NotReady until the database has answered."""
        return attached_pods(self._bridge())

    def pod_names(self) -> Mapping[IPv4Address, str]:
        """Return `PROJECT/NAME` of the pods on br0, by address. Raises NotReady until the database has answered."""
        return names_of_pods(self._bridge())

    def pods_by_interface(self) -> Mapping[str, PodIdentity]:
        """Return the pods on br0, by interface. Raises NotReady until the database has answered."""
        return identities_of_pods(self._bridge())

    def pending_reason(self, project: str) -> str:
        """Return why a sandbox of this project is not attached yet, as far as it is known."""
        if self._state.not_ready_reason:
            return self._state.not_ready_reason
        vnids = self._state.config.vnids if self._state.config is not None else {}
        if vnids is not None and project not in vnids:
            return f"project {project} has no NetNamespace yet"
        return "the network takes longer than usual"

    async def check(self, config: InterfaceConfig) -> None:
        """Check that a sandbox is as ADD left it. Raises Gone, naming what is missing, or Refused."""
        address, network = self.address_of(config.sandbox), self._state.network
        if not self.is_attached(config) or address is None or network is None:
            raise Gone(f"sandbox {config.sandbox} has no port on {BRIDGE}")
        device = (await self._drivers.netlink.links()).get(host_veth_name(config.sandbox))
        if device is None or not device.up:
            raise Gone(f"sandbox {config.sandbox} has lost its link {host_veth_name(config.sandbox)}")
        missing = await self._drivers.netlink.check_pod_interface(
            config.netns, config.ifname, address, network.node.gateway
        )
        if missing:
            raise Gone(f"sandbox {config.sandbox}: {missing}")

    async def pods_to_detach(self) -> frozenset[str]:
        """Return the sandboxes that were requested to be detached, and those whose network namespace is gone."""
        bridge = self._bridge()
        if bridge is None:
            return frozenset()
        return frozenset(self._detach_requests) | await self._pods_without_device(bridge)

    async def _pods_without_device(self, bridge: Bridge) -> frozenset[str]:
        """Return the sandboxes without a device. The switch may report one late, so the kernel is asked as well."""
        suspects = pods_without_device(bridge)
        if not suspects:
            return suspects
        links = await self._drivers.netlink.links()
        return frozenset(sandbox for sandbox in suspects if host_veth_name(sandbox) not in links)

    def has_ports(self, sandboxes: frozenset[str]) -> bool:
        """Return True if any of these sandboxes has a port on br0."""
        bridge = self._bridge()
        return bridge is not None and bool(ports_of_pods(bridge, sandboxes))

    async def detach_pods(self, sandboxes: frozenset[str]) -> None:
        """Remove the ports, guard chains and veth pairs of these sandboxes, whose flows are gone already."""
        bridge = self._bridge()
        ports = ports_of_pods(bridge, sandboxes) if bridge is not None else ()
        if ports:
            await self._drivers.ovsdb.apply(tuple(RemovePort(BRIDGE, port.name) for port in ports))
        devices = frozenset(map(host_veth_name, sandboxes))
        await asyncio.gather(self._remove_guards(devices), self._drivers.netlink.delete_links(sorted(devices)))
        log.info("pods detached", extra={"sandboxes": " ".join(sorted(name[:12] for name in sandboxes))})
        self._ports = {sandbox: port for sandbox, port in self._ports.items() if sandbox not in sandboxes}
        for sandbox in sandboxes & self._detach_requests.keys():
            _complete(self._detach_requests.pop(sandbox))

    async def _remove_guards(self, devices: frozenset[str]) -> None:
        if self._datapath_type == NETDEV:
            await self._drivers.nftables.run(ingress_guard(removed=devices))

    async def restore_ports(self, links: Mapping[str, Link] | None) -> None:
        """Restore ports that another program has removed from br0, and links that it has set down.

        `links` are the links of the node, or None if they were not read in this pass; links are not restored then.
        """
        bridge = self._bridge()
        if bridge is None:
            return
        if links is not None:
            await self._restore_links(bridge, links)
        removed = removed_ports(bridge, self._ports)
        if removed:
            existing = await self._drivers.netlink.links()
            restorable = tuple(port for port in removed if port.name in existing)
            if restorable:
                ports_only = replace(bridge, ports=restorable, table_names=(), external_ids=())
                await self._drivers.ovsdb.apply((PutBridge(ports_only),))
                self._drift.record("ports", " ".join(port.name for port in restorable))
        self._ports = ports_by_sandbox(self._bridge())

    async def _restore_links(self, bridge: Bridge, links: Mapping[str, Link]) -> None:
        for port in ports_by_sandbox(bridge).values():
            link = links.get(port.name)
            if link is not None and not link.up:
                ids = port.ids
                alias = link_alias(ids[ExternalId.NAMESPACE], ids[ExternalId.POD], ids[ExternalId.UID])
                await self._set_up({port.name: alias})
                self._drift.record("links", port.name)

    async def attach_pods(self, network: NodeNetwork) -> None:
        """Create interfaces and ports for all pending requests in one transaction. Their flows come afterwards."""
        bridge = self._bridge()
        requested = [config for config, future in self._attach_requests.values() if not future.done()]
        if not requested or bridge is None:
            return
        plan = plan_attach(bridge, network.node, requested)
        for sandbox, reason in plan.no_address.items():
            self._fail(sandbox, NotReady(reason))
        for sandbox, reason in plan.wrong_subnet.items():
            self._fail(sandbox, Gone(f"sandbox {sandbox}: {reason}; a new sandbox gets a new one"))
        created = await timed("links", self._create_interfaces(network, plan.to_attach))
        if not created:
            return
        if self._datapath_type == NETDEV:
            devices = frozenset(interface.device for interface in created)
            await self._drivers.nftables.run(ingress_guard(added=devices))
        await self._set_up({interface.device: _alias(interface.config) for interface in created})
        await timed("ports", self._drivers.ovsdb.apply((PutBridge(bridge_with_ports(bridge, created)),)))
        for interface in created:
            pod = f"{interface.config.namespace}/{interface.config.name}"
            log.info("pod attached", extra={"pod": pod, "ip": interface.address, "device": interface.device})

    async def _set_up(self, aliases: Mapping[str, str]) -> None:
        """Set the host's ends of veth pairs up, as the switch would set them itself.

        In user space the switch makes devices promiscuous. Each change of a link makes it look at all ports again,
        before it answers the request for flows.
        """
        await self._drivers.netlink.set_up(aliases, promiscuous=self._datapath_type == NETDEV)

    async def _create_interfaces(
        self, network: NodeNetwork, planned: tuple[PlannedInterface, ...]
    ) -> tuple[PlannedInterface, ...]:
        """Create veth pairs concurrently and return those that exist now. Requests of the others have failed."""
        created = await asyncio.gather(*(self._create_interface(network, interface) for interface in planned))
        return tuple(interface for interface, exists in zip(planned, created, strict=True) if exists)

    async def _create_interface(self, network: NodeNetwork, interface: PlannedInterface) -> bool:
        config = interface.config
        veth = VethPair(
            device=interface.device,
            netns=config.netns,
            ifname=config.ifname,
            mac=mac_text(mac_of(interface.address)),
            address=IPv4Interface((interface.address, network.node.subnet.prefixlen)),
            gateway=network.node.gateway,
            mtu=network.cluster.mtu,
            tx_checksum_offload=self._datapath_type != NETDEV,
            egress_bandwidth=kernel_rate_limit(config.egress_bandwidth),
        )
        try:
            await self._drivers.netlink.create_veth_pair(veth)
        except DriverError as error:
            self._fail(config.sandbox, error)
            return False
        return True

    async def apply_rate_limits(self, *, is_full: bool) -> None:
        """Limit what pods receive.

        A switch that starts removes such limits, so a full pass compares them with the kernel's.
        """
        limits = ingress_rate_limits(self._bridge())
        if limits and (is_full or limits != self._rate_limits):
            present = await self._drivers.netlink.rate_limits()
            for device, bits in limits.items():
                if present.get(device) != bits:
                    await self._drivers.netlink.set_rate_limit(device, bits)
        self._rate_limits = limits

    def complete_requests(self, network: NodeNetwork) -> None:
        """Complete the requests of all pods that have flows in this network."""
        attached, known = self.attached_pods(), self._addresses_of
        if known is None or known[0] is not network or known[1] is not attached:
            addresses = {pod.address for pod in network.pods}
            self._addresses = {pod.sandbox: pod.address for pod in attached if pod.address in addresses}
            self._addresses_of = network, attached
        for sandbox in self._attach_requests.keys() & self._addresses.keys():
            _complete(self._attach_requests.pop(sandbox)[1])

    def _fail(self, sandbox: str, error: DriverError) -> None:
        _complete(self._attach_requests.pop(sandbox)[1], error)

    def _bridge(self) -> Bridge | None:
        return self._drivers.ovsdb.observe().bridge(BRIDGE)


def _alias(config: InterfaceConfig) -> str:
    return link_alias(config.namespace, config.name, config.uid)


def _discard_result(future: asyncio.Future[None]) -> None:
    """Retrieve the exception, because the client may have disconnected before it was delivered."""
    if not future.cancelled():
        future.exception()


def _complete(future: asyncio.Future[None], error: DriverError | None = None) -> None:
    """Set the result or the error, unless the future is done."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
