"""Pods as ports of the bridge: external_ids to values, and which pods a pass attaches and detaches. Pure.

A pass closes, moves and opens: flows of pods that are detached go first, then ports and links change, then flows of
attached pods are installed. A pass that dies half-way leaves a pod without flows, never flows without their pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address

from sdn.cniserver.ipam import Exhausted, next_address, next_ofport
from sdn.model.host import BRIDGE, Bridge, Port, StringMap, string_map
from sdn.topology import AttachedPod, Node

SANDBOX, NAMESPACE, POD, UID, ADDRESS, RUNTIME, NETNS, IFNAME = (
    f"podlane-{key}" for key in ("sandbox", "namespace", "pod", "uid", "ip", "runtime", "netns", "ifname")
)
INGRESS = "podlane-ingress-bandwidth"
MAX_BYTES_PER_SECOND = 0xFFFFFFFF
"""A second: the kernel's field of a limit has 32 bits."""

LAST_ADDRESS, LAST_OFPORT = "podlane-last-ip", "podlane-last-ofport"


@dataclass(frozen=True, slots=True)
class InterfaceConfig:
    """A sandbox that asks to be attached, on behalf of `runtime`.

    `netns` is a path of its network namespace, `netns_id` tells it from all others of this host; bandwidths are bits a
    second.
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
    """A wish with the address and port number that it gets."""

    config: InterfaceConfig
    device: str
    address: IPv4Address
    ofport: int


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """Who comes, and why others do not (sandbox → reason): `refused` may ask again, `stranded` never will be heard.

    A sandbox is stranded that has an address of a subnet which is no longer this node's.
    """

    to_attach: tuple[PlannedInterface, ...]
    no_address: Mapping[str, str]
    wrong_subnet: Mapping[str, str]


def host_veth_name(sandbox: str) -> str:
    """The host's end of a sandbox's veth pair; names of devices have at most 15 characters."""
    return "veth" + sha256(sandbox.encode()).hexdigest()[:11]


def attached_pods(bridge: Bridge | None) -> tuple[AttachedPod, ...]:
    """The sandboxes that have their port on the bridge, as the marks on the ports tell."""
    if bridge is None:
        return ()
    found = (_attached_pod(port.external_ids, port.ofport) for port in bridge.ports if port.ofport is not None)
    return tuple(one for one in found if one is not None)


@lru_cache(maxsize=8192)
def _attached_pod(external_ids: StringMap, ofport: int) -> AttachedPod | None:
    marks = dict(external_ids)
    if SANDBOX not in marks or ofport <= 0:
        return None
    return AttachedPod(marks[SANDBOX], marks[NAMESPACE], ofport, IPv4Address(marks[ADDRESS]))


def link_alias(namespace: str, name: str, uid: str) -> str:
    """What people see at the device of a pod, in `ip link`."""
    return f"podlane {namespace}/{name} {uid}"


def pods_without_device(bridge: Bridge | None) -> frozenset[str]:
    """Sandboxes whose device the switch cannot find any more: their network namespace is gone."""
    ports = bridge.ports if bridge is not None else ()
    return frozenset(port.ids[SANDBOX] for port in ports if SANDBOX in port.ids and port.ofport == -1)


def plan_attach(bridge: Bridge, node: Node, wishes: Iterable[InterfaceConfig]) -> AttachPlan:
    """Give every wish that has no port yet an address and a port number that have rested longest."""
    ports = [port for port in bridge.ports if SANDBOX in port.ids]
    addresses = {IPv4Address(port.ids[ADDRESS]) for port in ports}
    ofports = {port.ofport_request for port in ports if port.ofport_request is not None}
    last_address = IPv4Address(bridge.ids[LAST_ADDRESS]) if LAST_ADDRESS in bridge.ids else None
    last_ofport = int(bridge.ids.get(LAST_OFPORT, "0"))
    here = {port.ids[SANDBOX]: IPv4Address(port.ids[ADDRESS]) for port in ports}
    coming, refused, stranded = [], {}, {}
    for wish in wishes:
        if wish.sandbox in here:
            if here[wish.sandbox] not in node.subnet:
                stranded[wish.sandbox] = f"its address {here[wish.sandbox]} is not of this node's subnet {node.subnet}"
            continue
        try:
            last_address = next_address(node.first_pod, node.last_pod, addresses, last_address)
            last_ofport = next_ofport(ofports, last_ofport)
        except Exhausted as error:
            refused[wish.sandbox] = str(error)
            continue
        addresses.add(last_address)
        ofports.add(last_ofport)
        coming.append(PlannedInterface(wish, host_veth_name(wish.sandbox), last_address, last_ofport))
    return AttachPlan(tuple(coming), refused, stranded)


def ports_of_pods(bridge: Bridge, sandboxes: Collection[str]) -> tuple[Port, ...]:
    """The ports of these sandboxes, as far as they have one."""
    return tuple(port for port in bridge.ports if port.ids.get(SANDBOX) in sandboxes)


def ports_by_sandbox(bridge: Bridge | None) -> Mapping[str, Port]:
    """Every port of a pod."""
    ports = bridge.ports if bridge is not None else ()
    return {port.ids[SANDBOX]: port for port in ports if SANDBOX in port.ids}


def names_of_pods(bridge: Bridge | None) -> Mapping[IPv4Address, str]:
    """Return `PROJECT/NAME` of the pods on the bridge, by IP address."""
    ids = [port.ids for port in ports_by_sandbox(bridge).values()]
    return {IPv4Address(one[ADDRESS]): f"{one[NAMESPACE]}/{one[POD]}" for one in ids}


def sandboxes_of_runtime(bridge: Bridge | None, runtime: str) -> tuple[str, ...]:
    """The sandboxes that have a port on behalf of this runtime."""
    ports = bridge.ports if bridge is not None else ()
    return tuple(sorted(port.ids[SANDBOX] for port in ports if port.ids.get(RUNTIME) == runtime))


def mismatch(port: Port, wish: InterfaceConfig) -> str:
    """Why a sandbox that has this port is not attached as it is wished now; empty if it is."""
    asked = {NAMESPACE: wish.namespace, NETNS: wish.netns_id, IFNAME: wish.ifname}
    words = {NAMESPACE: "project", NETNS: "network namespace", IFNAME: "device"}
    return "; ".join(
        f"its {words[mark]} is {port.ids.get(mark)}, asked for is {value}"
        for mark, value in asked.items()
        if port.ids.get(mark) != value
    )


def ingress_rate_limits(bridge: Bridge | None) -> Mapping[str, int]:
    """What the devices of pods may send into their pods, in bits a second, as far as they are limited."""
    ports = bridge.ports if bridge is not None else ()
    limited = [port for port in ports if INGRESS in port.ids and (port.ofport or 0) > 0]
    return {port.name: kernel_rate_limit(int(port.ids[INGRESS])) for port in limited}


def kernel_rate_limit(bits: int) -> int:
    """The limit that the kernel can hold nearest to this one: whole bytes a second, at most 34 Gbit/s."""
    return min(bits // 8, MAX_BYTES_PER_SECOND) * 8


def removed_ports(bridge: Bridge, known: Mapping[str, Port]) -> tuple[Port, ...]:
    """Ports that were there before and are not now, as they are to be asked for."""
    here = ports_by_sandbox(bridge)
    return tuple(replace(port, ofport=None, error="") for sandbox, port in known.items() if sandbox not in here)


def bridge_with_ports(bridge: Bridge, coming: tuple[PlannedInterface, ...]) -> Bridge:
    """What to write into the database: the new ports with their marks, and where the ranges go on."""
    ports = tuple(
        Port(
            arrival.device,
            ofport_request=arrival.ofport,
            external_ids=string_map(
                {
                    SANDBOX: arrival.config.sandbox,
                    NAMESPACE: arrival.config.namespace,
                    POD: arrival.config.name,
                    UID: arrival.config.uid,
                    ADDRESS: str(arrival.address),
                    RUNTIME: arrival.config.runtime,
                    NETNS: arrival.config.netns_id,
                    IFNAME: arrival.config.ifname,
                }
                | ({INGRESS: str(arrival.config.ingress_bandwidth)} if arrival.config.ingress_bandwidth else {})
            ),
        )
        for arrival in coming
    )
    marks = {LAST_ADDRESS: str(coming[-1].address), LAST_OFPORT: str(coming[-1].ofport)} if coming else {}
    return replace(bridge, name=BRIDGE, ports=ports, external_ids=string_map(marks), table_names=())
