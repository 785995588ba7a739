"""Host ports: which ones pods get, the nftables table, and the loop that applies it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

import psutil

from api.core.pod import ContainerPort, Pod
from api.core.resource_requests import ALL_ADDRESSES, host_ports
from node_agent import metrics
from node_agent.event_recorder import EventRecorder
from node_agent.network.plugin import PodNetwork
from reconcile.errors import NotReady, Refused
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

TABLE = "podlane-hostports"

DSTNAT_PRIORITY = -100
"""The priority `dstnat` as a number, because nft accepts the name only in the hook prerouting."""

LOOPBACK = IPv4Network("127.0.0.0/8")

RESYNC_SECONDS = 60.0

PROTOCOLS = ("tcp", "udp", "sctp")
CONFLICT = "HostPortConflict"
"""Reason of the event about host ports that are not opened."""

MAX_REPORTED = 5
"""Maximum number of host ports that one event names."""


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports from `first` to `last` of a protocol, in lower case."""

    protocol: str
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """Return the range that a text such as `53/udp` or `30000-32767/tcp` names."""
        ports, _, protocol = text.partition("/")
        first, _, last = ports.partition("-")
        return cls(protocol, int(first), int(last or first))

    def __contains__(self, port: tuple[str, int]) -> bool:
        protocol, number = port
        return protocol == self.protocol and self.first <= number <= self.last


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket of a process on the host. `address` is None if it is open on all addresses."""

    protocol: str
    address: IPv4Address | None
    port: int

    @property
    def is_at_loopback(self) -> bool:
        """True if only processes of the host reach the socket."""
        return self.address is not None and self.address.is_loopback


@dataclass(frozen=True, slots=True)
class NodePorts:
    """What the node itself needs: `reserved` ports, and the `listeners` of its processes.

    `addresses` are the addresses of the node, without those of the loopback network, which every node has.
    """

    addresses: frozenset[IPv4Address]
    reserved: frozenset[PortRange] = frozenset()
    listeners: frozenset[Listener] = frozenset()


@dataclass(frozen=True, slots=True)
class HostPorts:
    """The nft commands for the host ports of all pods, and those that are not opened: their descriptions, by pod."""

    ruleset: str
    skipped: tuple[tuple[Pod, tuple[str, ...]], ...] = ()


class HostPortManager:
    """The loop that applies the ruleset of the pods' host ports (kubelet: hostport manager).

    `active_pods` returns the pods of this node that have not ended. `sources_ready` returns whether every source of
    pods was read. Before that nothing is applied, so that the ports of running pods stay. `own_ports` are ports of this
    agent; those of the network come from its status.
    """

    def __init__(
        self,
        active_pods: Callable[[], Iterable[Pod]],
        sources_ready: Callable[[], bool],
        *,
        network: PodNetwork,
        own_ports: frozenset[PortRange],
        events: EventRecorder,
    ) -> None:
        self.loop = Loop("host ports", self._sync, LoopTiming(resync=RESYNC_SECONDS))
        self._active_pods = active_pods
        self._sources_ready = sources_ready
        self._network = network
        self._own_ports = own_ports
        self._network_ports: frozenset[PortRange] | None = None
        self._events = events
        self._applied = ""
        self._reported: dict[str, str] = {}

    async def _sync(self) -> None:
        """Apply the ruleset if it has changed or is not empty. Raises NotReady, Refused."""
        if not self._sources_ready():
            return
        pods = [pod for pod in self._active_pods() if host_ports(pod)]
        desired = compile_host_ports(pods, await self._node_ports()) if pods else HostPorts(NO_HOST_PORTS)
        self._report(desired)
        if desired.ruleset != self._applied or desired.ruleset != NO_HOST_PORTS:
            await apply_ruleset(desired.ruleset)
            self._applied = desired.ruleset

    async def _node_ports(self) -> NodePorts:
        """Return what the node needs now. Raises NotReady until the network has said once which ports it needs."""
        try:
            status = await self._network.status()
        except NotReady:
            if self._network_ports is None:
                raise
        else:
            self._network_ports = frozenset(map(PortRange.parse, status.reserved_ports))
        return await asyncio.to_thread(read_node_ports, self._own_ports | (self._network_ports or frozenset()))

    def _report(self, desired: HostPorts) -> None:
        """Write a log line and an event for each pod whose skipped host ports have changed."""
        metrics.SKIPPED_HOST_PORTS.set(sum(len(ports) for _, ports in desired.skipped))
        reported: dict[str, str] = {}
        for pod, ports in desired.skipped:
            more = f"; and {len(ports) - MAX_REPORTED} more" if len(ports) > MAX_REPORTED else ""
            message = f"not opened: {'; '.join(ports[:MAX_REPORTED])}{more}"
            reported[pod.metadata.uid] = message
            if self._reported.get(pod.metadata.uid) != message:
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                log.warning("host ports skipped", extra={"pod": name, "reason": message})
                self._events.pod_event(pod, CONFLICT, message)
        self._reported = reported


def compile_host_ports(pods: Iterable[Pod], node: NodePorts) -> HostPorts:
    """Return the nft commands that replace the table of host ports, and the host ports that are not opened.

    Without host ports, the commands remove the table. Packets to a host port, from other hosts or from this one, are
    redirected to the pod. Without a hostIP the port is open on all addresses of the host. If two pods have the same
    host port, the first one by namespace and name gets the packets.

    Loopback addresses are open to processes of the host only: packets that enter the host are not redirected there. A
    port without a hostIP is closed there if a program of the host listens at a loopback address.

    The pod sees the client's address. A client with a loopback address is masqueraded, because the pod could not reply.
    The kernel lets such packets out only at links with the sysctl route_localnet, which the network's gateway has.

    A pod gets no connection of the node itself: only packets to an address of this node are redirected, and none to a
    port that the node needs.
    """
    elements: dict[str, dict[str, str]] = {"bound_ports": {}, "loopback_ports": {}, "ports": {}}
    skipped: list[tuple[Pod, tuple[str, ...]]] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        if pod.spec.host_network or not pod.status.pod_ip:
            continue
        reasons: list[str] = []
        for port in host_ports(pod):
            reason = _skip_reason(port, pod.status.pod_ip, node)
            if reason:
                reasons.append(f"{port.host_port}/{port.protocol or 'TCP'}: {reason}")
                continue
            key = f"{_protocol(port)} . {port.host_port}"
            target = f"{pod.status.pod_ip} . {port.container_port}"
            if port.host_ip not in ALL_ADDRESSES:
                elements["bound_ports"].setdefault(f"{port.host_ip} . {key}", target)
                continue
            elements["ports"].setdefault(key, target)
            if not _is_listening_at_loopback(port, node):
                elements["loopback_ports"].setdefault(key, target)
        if reasons:
            skipped.append((pod, tuple(reasons)))
    reset = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
    if not any(elements.values()):
        return HostPorts(reset, tuple(skipped))
    maps = "".join(
        f"\tmap {name} {{\n\t\ttype {key_type} : ipv4_addr . inet_service\n{_elements(elements[name])}\t}}\n"
        for name, key_type in (
            ("bound_ports", "ipv4_addr . inet_proto . inet_service"),
            ("loopback_ports", "inet_proto . inet_service"),
            ("ports", "inet_proto . inet_service"),
        )
    )
    return HostPorts(f"{reset}table ip {TABLE} {{\n{maps}{_CHAINS}}}\n", tuple(skipped))


_CHAINS = f"""\
	chain prerouting {{
		type nat hook prerouting priority {DSTNAT_PRIORITY}; policy accept;
		ip daddr {LOOPBACK} return
		fib daddr type != local return
		dnat ip to ip daddr . meta l4proto . th dport map @bound_ports
		dnat ip to meta l4proto . th dport map @ports
	}}
	chain output {{
		type nat hook output priority {DSTNAT_PRIORITY}; policy accept;
		fib daddr type != local return
		dnat ip to ip daddr . meta l4proto . th dport map @bound_ports
		ip daddr {LOOPBACK} dnat ip to meta l4proto . th dport map @loopback_ports
		ip daddr {LOOPBACK} return
		dnat ip to meta l4proto . th dport map @ports
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr {LOOPBACK} ip daddr != {LOOPBACK} ct status dnat masquerade
	}}
"""


def _elements(elements: dict[str, str]) -> str:
    """Return the line with the elements of a map; nft accepts no empty one."""
    entries = ", ".join(f"{key} : {target}" for key, target in elements.items())
    return f"\t\telements = {{ {entries} }}\n" if entries else ""


def _protocol(port: ContainerPort) -> str:
    return port.protocol.lower() or PROTOCOLS[0]


def _skip_reason(port: ContainerPort, pod_ip: str, node: NodePorts) -> str:
    """Return why a host port is not opened; empty if it is opened."""
    reason = _invalid_reason(port, pod_ip)
    if reason:
        return reason
    address = None if port.host_ip in ALL_ADDRESSES else _parse_address(port.host_ip)
    if address is not None and address not in LOOPBACK and address not in node.addresses:
        return f"hostIP is {port.host_ip}; an IPv4 address of this node is accepted"
    if any((_protocol(port), port.host_port) in ports for ports in node.reserved):
        return "the node itself needs this port"
    for listener in _listeners(port, node):
        if listener.is_at_loopback and address is None:
            continue
        if address is None or listener.address in {None, address}:
            return "a program of the node listens on this port"
    return ""


def _is_listening_at_loopback(port: ContainerPort, node: NodePorts) -> bool:
    """Return whether a program of the node listens on this port at a loopback address, where it stays reachable."""
    return any(listener.is_at_loopback for listener in _listeners(port, node))


def _listeners(port: ContainerPort, node: NodePorts) -> list[Listener]:
    """Return the programs of the node that listen on this port, at any address."""
    key = (_protocol(port), port.host_port)
    return [listener for listener in node.listeners if (listener.protocol, listener.port) == key]


def _invalid_reason(port: ContainerPort, pod_ip: str) -> str:
    """Return which value is invalid. Other API servers may have admitted what ours rejects."""
    if _protocol(port) not in PROTOCOLS:
        return f"protocol is {port.protocol[:20]!r}; TCP, UDP or SCTP is accepted"
    if not (0 < port.host_port < 1 << 16 and 0 < port.container_port < 1 << 16):
        return f"containerPort is {port.container_port}; ports from 1 to 65535 are accepted"
    if _parse_address(pod_ip) is None:
        return f"the pod's address is {pod_ip[:50]!r}; an IPv4 address is accepted"
    if port.host_ip not in ALL_ADDRESSES and _parse_address(port.host_ip) is None:
        return f"hostIP is {port.host_ip[:50]!r}; an IPv4 address of this node is accepted"
    return ""


def _parse_address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None


NO_HOST_PORTS = compile_host_ports((), NodePorts(frozenset())).ruleset


# --- the state of the host --------------------------------------------------------------------------------------------

_TCP_LISTEN, _UDP_UNCONNECTED = "0A", "07"
_V4_MAPPED = bytes(10) + b"\xff\xff"


def read_node_ports(reserved: frozenset[PortRange]) -> NodePorts:
    """Return the addresses and listeners of the network namespace of this process, with these reserved ports."""
    addresses = (
        IPv4Address(interface.address)
        for interfaces in psutil.net_if_addrs().values()
        for interface in interfaces
        if interface.family == socket.AF_INET
    )
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    listeners: set[Listener] = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        table = Path("/proc/self/net", name)
        if table.exists():
            listeners.update(parse_listeners(name.removesuffix("6"), table.read_text(), PortRange("udp", first, last)))
    return NodePorts(
        frozenset(address for address in addresses if not address.is_loopback), reserved, frozenset(listeners)
    )


def parse_listeners(protocol: str, table: str, transient: PortRange) -> Iterator[Listener]:
    """Yield the listeners of a table of sockets (`/proc/net/tcp`) that IPv4 clients reach.

    A UDP socket at a `transient` port is that of a client.
    """
    state = _TCP_LISTEN if protocol == "tcp" else _UDP_UNCONNECTED
    for line in table.splitlines()[1:]:
        _, local, _, socket_state, *_ = line.split()
        digits, _, port = local.partition(":")
        number = int(port, 16)
        if socket_state != state or (protocol, number) in transient:
            continue
        words = bytes.fromhex(digits)
        packed = b"".join(words[index : index + 4][::-1] for index in range(0, len(words), 4))
        address = ip_address(packed.removeprefix(_V4_MAPPED))
        if isinstance(address, IPv4Address) or address.is_unspecified:
            yield Listener(protocol, address if isinstance(address, IPv4Address) and int(address) else None, number)


async def apply_ruleset(text: str) -> None:
    """Apply nft commands, all of them or none. Raises Refused with nft's message, NotReady if nft cannot be run."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nft",
            "-f",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotReady(f"nft cannot be run: {error}") from None
    _, stderr = await process.communicate(text.encode())
    if process.returncode:
        message = " ".join(stderr.decode(errors="replace").split())
        raise Refused(f"nft -f - (exit {process.returncode}): {message}; the table is unchanged")
