"""Reads pods from the external_ids of the bridge's ports, and plans which pods a pass attaches and detaches. Pure.

A pass first removes the flows of pods that are detached, then changes ports and links, then installs the flows of
attached pods. A pass that is interrupted leaves a pod without flows, never flows without their pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address
from types import MappingProxyType

from sdn.cniserver.ipam import Exhausted, next_address, next_ofport
from sdn.model.host import BRIDGE, Bridge, Port, StringMap, string_map
from sdn.topology import AttachedPod, Node


class ExternalId(StrEnum):
    """Keys of external_ids: of the ports of pods, and, for the last two, of the bridge."""

    SANDBOX = "podlane-sandbox"
    NAMESPACE = "podlane-namespace"
    POD = "podlane-pod"
    UID = "podlane-uid"
    IP = "podlane-ip"
    RUNTIME = "podlane-runtime"
    NETNS = "podlane-netns"
    IFNAME = "podlane-ifname"
    INGRESS_BANDWIDTH = "podlane-ingress-bandwidth"
    LAST_IP = "podlane-last-ip"
    LAST_OFPORT = "podlane-last-ofport"


MAX_BYTES_PER_SECOND = 0xFFFFFFFF
"""The kernel's field for a rate limit has 32 bits."""


@dataclass(frozen=True, slots=True, order=True)
class PodIdentity:
    """A pod of this node. `uid` is empty if the runtime did not give it."""

    namespace: str
    name: str
    uid: str
    address: IPv4Address


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceConfig:
    """A request to attach a sandbox, on behalf of `runtime`.

    `netns` is a path of its network namespace. `netns_id` identifies that namespace on this host. Bandwidths are bits
    per second; 0 means no limit.
    """

    sandbox: str
    namespace: str
    name: str
    uid: str
    netns: str
    netns_id: str
    ifname: str
    runtime: str
    ingress_bandwidth: int = 0
    egress_bandwidth: int = 0


@dataclass(frozen=True, slots=True)
class PlannedInterface:
    """A requested interface, with the address and port number that it gets."""

    config: InterfaceConfig
    device: str
    address: IPv4Address
    ofport: int


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """Interfaces to create, and why others cannot be (sandbox → reason).

    `no_address` may succeed later. `wrong_subnet` never will: such a sandbox has an address outside of this node's
    subnet.
    """

    to_attach: tuple[PlannedInterface, ...]
    no_address: Mapping[str, str]
    wrong_subnet: Mapping[str, str]


def host_veth_name(sandbox: str) -> str:
    """Return the name of the host's end of a sandbox's veth pair; device names have at most 15 characters."""
    return "veth" + sha256(sandbox.encode()).hexdigest()[:11]


@lru_cache(maxsize=2)
def attached_pods(bridge: Bridge | None) -> tuple[AttachedPod, ...]:
    """Return the sandboxes that have a port on the bridge, from the external_ids of the ports.

    For the same bridge it is the same tuple.
    """
    pods = map(_attached_pod, bridge.ports) if bridge is not None else ()
    return tuple(pod for pod in pods if pod is not None)


@lru_cache(maxsize=8192)
def _attached_pod(port: Port) -> AttachedPod | None:
    if ExternalId.SANDBOX not in port.ids or port.ofport is None or port.ofport <= 0:
        return None
    return AttachedPod(port.ids[ExternalId.SANDBOX], port.ids[ExternalId.NAMESPACE], port.ofport, _address(port))


@lru_cache(maxsize=8192)
def _address(port: Port) -> IPv4Address:
    return IPv4Address(port.ids[ExternalId.IP])


def link_alias(namespace: str, name: str, uid: str) -> str:
    """Return the alias of a pod's device, which `ip link` shows."""
    return f"podlane {namespace}/{name} {uid}"


@lru_cache(maxsize=2)
def pods_without_device(bridge: Bridge | None) -> frozenset[str]:
    """Return the sandboxes whose device the switch cannot find, because their network namespace is gone."""
    return frozenset(sandbox for sandbox, port in ports_by_sandbox(bridge).items() if port.ofport == -1)


def plan_attach(bridge: Bridge, node: Node, requested: Iterable[InterfaceConfig]) -> AttachPlan:
    """Plan an address and a port number, those that were freed longest ago, for each request without a port."""
    ports = ports_by_sandbox(bridge)
    addresses = {int(_address(port)) for port in ports.values()}
    ofports = {port.ofport_request for port in ports.values() if port.ofport_request is not None}
    last_ip = bridge.ids.get(ExternalId.LAST_IP)
    last_address = IPv4Address(last_ip) if last_ip is not None else None
    last_ofport = int(bridge.ids.get(ExternalId.LAST_OFPORT, "0"))
    to_attach, no_address, wrong_subnet = [], {}, {}
    for config in requested:
        present = ports.get(config.sandbox)
        if present is not None:
            address = _address(present)
            if address not in node.subnet:
                wrong_subnet[config.sandbox] = f"its address {address} is not of this node's subnet {node.subnet}"
            continue
        try:
            last_address = next_address(node.first_pod, node.last_pod, addresses, last_address)
            last_ofport = next_ofport(ofports, last_ofport)
        except Exhausted as error:
            no_address[config.sandbox] = str(error)
            continue
        addresses.add(int(last_address))
        ofports.add(last_ofport)
        to_attach.append(PlannedInterface(config, host_veth_name(config.sandbox), last_address, last_ofport))
    return AttachPlan(tuple(to_attach), no_address, wrong_subnet)


def ports_of_pods(bridge: Bridge, sandboxes: Collection[str]) -> tuple[Port, ...]:
    """Return the ports of these sandboxes."""
    ports = ports_by_sandbox(bridge)
    return tuple(ports[sandbox] for sandbox in sorted(sandboxes) if sandbox in ports)


@lru_cache(maxsize=2)
def ports_by_sandbox(bridge: Bridge | None) -> Mapping[str, Port]:
    """Return the ports of all pods. For the same bridge it is the same mapping."""
    ports = bridge.ports if bridge is not None else ()
    return MappingProxyType({port.ids[ExternalId.SANDBOX]: port for port in ports if ExternalId.SANDBOX in port.ids})


def names_of_pods(bridge: Bridge | None) -> Mapping[IPv4Address, str]:
    """Return `PROJECT/NAME` of the pods on the bridge, by IP address."""
    ports = ports_by_sandbox(bridge).values()
    return {_address(port): f"{port.ids[ExternalId.NAMESPACE]}/{port.ids[ExternalId.POD]}" for port in ports}


def identities_of_pods(bridge: Bridge | None) -> Mapping[str, PodIdentity]:
    """Return the pods on the bridge, by the name of their interface."""
    return {
        port.name: PodIdentity(
            port.ids[ExternalId.NAMESPACE],
            port.ids[ExternalId.POD],
            port.ids[ExternalId.UID],
            _address(port),
        )
        for port in ports_by_sandbox(bridge).values()
    }


def sandboxes_of_runtime(bridge: Bridge | None, runtime: str) -> tuple[str, ...]:
    """Return the sandboxes that have a port on behalf of this runtime, sorted."""
    ports = ports_by_sandbox(bridge)
    return tuple(sorted(sandbox for sandbox, port in ports.items() if port.ids.get(ExternalId.RUNTIME) == runtime))


def mismatch(port: Port, config: InterfaceConfig) -> str:
    """Return how the port of a sandbox differs from its requested configuration; empty if it does not."""
    requested = {
        ExternalId.NAMESPACE: ("project", config.namespace),
        ExternalId.NETNS: ("network namespace", config.netns_id),
        ExternalId.IFNAME: ("device", config.ifname),
    }
    return "; ".join(
        f"its {subject} is {port.ids.get(key)}, requested is {value}"
        for key, (subject, value) in requested.items()
        if port.ids.get(key) != value
    )


@lru_cache(maxsize=2)
def ingress_rate_limits(bridge: Bridge | None) -> Mapping[str, int]:
    """Return the rate limits of traffic into pods, in bits per second, by device."""
    ports = bridge.ports if bridge is not None else ()
    limited = [port for port in ports if ExternalId.INGRESS_BANDWIDTH in port.ids and (port.ofport or 0) > 0]
    return {port.name: kernel_rate_limit(int(port.ids[ExternalId.INGRESS_BANDWIDTH])) for port in limited}


def kernel_rate_limit(bits: int) -> int:
    """Return the highest limit up to `bits` that the kernel can hold: whole bytes per second, at most 34 Gbit/s."""
    return min(bits // 8, MAX_BYTES_PER_SECOND) * 8


def removed_ports(bridge: Bridge, known: Mapping[str, Port]) -> tuple[Port, ...]:
    """Return the ports that were known but are no longer on the bridge, as they have to be added again."""
    present = ports_by_sandbox(bridge)
    return tuple(replace(port, ofport=None, error="") for sandbox, port in known.items() if sandbox not in present)


def bridge_with_ports(bridge: Bridge, planned: tuple[PlannedInterface, ...]) -> Bridge:
    """Return the change of the database for new interfaces: their ports, and where the ranges continue."""
    ids = {}
    if planned:
        ids = {ExternalId.LAST_IP: str(planned[-1].address), ExternalId.LAST_OFPORT: str(planned[-1].ofport)}
    ports = tuple(map(_port, planned))
    return replace(bridge, name=BRIDGE, ports=ports, external_ids=_string_map(ids), table_names=())


def _port(interface: PlannedInterface) -> Port:
    config = interface.config
    ids = {
        ExternalId.SANDBOX: config.sandbox,
        ExternalId.NAMESPACE: config.namespace,
        ExternalId.POD: config.name,
        ExternalId.UID: config.uid,
        ExternalId.IP: str(interface.address),
        ExternalId.RUNTIME: config.runtime,
        ExternalId.NETNS: config.netns_id,
        ExternalId.IFNAME: config.ifname,
    }
    if config.ingress_bandwidth:
        ids[ExternalId.INGRESS_BANDWIDTH] = str(config.ingress_bandwidth)
    return Port(interface.device, ofport_request=interface.ofport, external_ids=_string_map(ids))


def _string_map(ids: Mapping[ExternalId, str]) -> StringMap:
    return string_map({str(key): value for key, value in ids.items()})
