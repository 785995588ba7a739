"""The nftables table of services, for the node's own processes and external clients, as text. Pure.

The rules do not depend on the services. Each frontend (address, protocol, port) is one element of a verdict map and
leads to a chain for its number of endpoints; each endpoint is one element of another map. A change of a service is a
change of its elements, which nft makes without reading anything back; a packet costs the same with 1 service and with
10,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from zlib import crc32

from sdn.model.host import GATEWAY_PORT
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo

TABLE = "podlane-services"

MASQUERADE = 0x4000
"""The bit of a packet's mark that says "to be masqueraded", from one hook to the next; kube-proxy uses the same."""

OUTSIDE_SLOTS = 0x8000
"""Where the numbers of backends begin that callers from outside get with their source kept."""

AFFINITIES = 262144
"""Clients that are remembered at most, in each of two maps; further ones are served, each time by another backend."""

QUESTIONS_A_SECOND = 2000
"""Of one pod to the node's name server, a tenth of what that answers; what is more is dropped, so that others find room
in its one queue.
"""

Elements = Mapping[tuple[str, str], str]
"""By map or set and key; the value is empty in sets."""

_FRONT = "ip daddr . meta l4proto . th dport"
_CLIENT = f"ip saddr . {_FRONT}"
_REFUSE, _DROP, _PROXIED = "goto refuse", "drop", "goto proxied"
_EMPTIED = ("own", "outside", "node_ports", "outside_fronts", "nodes", "backends", "sticky_ids")


@dataclass(frozen=True, slots=True)
class Host:
    """What the table depends on but services: this node, its cluster, and the way of proxying.

    `nodes` are the addresses of all nodes under the tunnels, `node_ports` the first and the last port of that range.
    With a `proxy_port` the proxy at that port of this node serves all callers, also pods.
    """

    address: IPv4Address
    subnet: IPv4Network
    service_network: IPv4Network
    nodes: frozenset[IPv4Address]
    node_ports: tuple[int, int]
    proxy_port: int = 0


@dataclass(frozen=True, slots=True, order=True)
class _EndpointChain:
    """One of so many backends, beginning at a number; `seconds` is how long a client keeps what it got.

    Only callers from outside whose source is kept have a beginning other than 0.
    """

    begin: int
    count: int
    seconds: int

    @property
    def chain(self) -> str:
        """Its chain: `any-3`, `outside-2`, with the seconds of affinity behind."""
        words = "outside" if self.begin else "any", str(self.count), *([str(self.seconds)] if self.seconds else [])
        return "-".join(words)


def services_table(host: Host, ports: Iterable[ServicePortInfo]) -> str:
    """The table as a whole, for what it holds besides: all is replaced in one transaction, only affinities stay.

    From outside, packets to a node port of this node and to external addresses go to a backend; they keep their source
    where it is a pod of this node, and get the gateway's elsewhere, so that answers come back this way. Cluster IPs are
    for the node's own processes, which may use all other fronts, too. Without backends the caller is refused (TCP
    reset, else ICMP port unreachable), and so is a process of the node that calls what is no service; with
    externalTrafficPolicy Local callers from outside get no answer.

    Of what pods ask the node's name server, as much of each passes as leaves room for others.

    What pods send to services is translated in the switch. What comes from them to a front nevertheless has no backend
    and is refused; with `proxy_port` it is redirected to the proxy. Nothing else that comes from pods is touched.

    No two of the ports may have the same front.
    """
    served = tuple(ports)
    inhabitants = {("nodes", str(node)): "" for node in host.nodes}
    for port in served:
        inhabitants.update(port_elements(host, port))
    choices = frozenset().union(*(_choices(host, port) for port in served))
    return f"{_declarations()}{_rules(host)}{_chains(choices)}{_commands('add', inhabitants)}"


def recreated_table(host: Host, ports: Iterable[ServicePortInfo]) -> str:
    """The same where a table of this name stands in the way that is of another make; affinities go with it."""
    return f"add table ip {TABLE}\ndelete table ip {TABLE}\n{services_table(host, ports)}"


def table_update(host: Host, change: ServicePortChange) -> str:
    """What to do to a table that holds what has gone, so that it holds what has come; empty if nothing."""
    before: dict[tuple[str, str], str] = {}
    after: dict[tuple[str, str], str] = {}
    for port in change.removed:
        before.update(port_elements(host, port))
    for port in change.added:
        after.update(port_elements(host, port))
    here = frozenset().union(*(_choices(host, port) for port in change.removed))
    wanted = frozenset().union(*(_choices(host, port) for port in change.added))
    stale = {place: "" for place, value in before.items() if after.get(place) != value}
    new = {place: value for place, value in after.items() if before.get(place) != value}
    return f"{_chains(wanted - here)}{_commands('delete', stale)}{_commands('add', new)}"


def node_ip_update(gone: Iterable[IPv4Address], come: Iterable[IPv4Address]) -> str:
    """The same for the addresses of nodes."""
    stale = _commands("delete", {("nodes", str(node)): "" for node in gone})
    return stale + _commands("add", {("nodes", str(node)): "" for node in come})


def port_elements(host: Host, port: ServicePortInfo) -> Elements:
    """The elements of one port. Its fronts differ from those of all others."""
    found: dict[tuple[str, str], str] = {}
    if port.cluster_ip is not None:
        front = _front(port.cluster_ip, port.key.protocol, port.port)
        found["own", front] = _verdict(host, port, port.internal_endpoints)
        found.update(_backends(host, port, front, 0, port.internal_endpoints))
    fronts = [_front(address, port.key.protocol, port.port) for address in port.external_ips]
    found.update({("outside_fronts", front): "" for front in fronts})
    if port.node_port:
        fronts.append(_front(host.address, port.key.protocol, port.node_port))
        if host.proxy_port:
            key = f"{port.key.protocol.name.lower()} . {port.node_port}"
            found["node_ports", key] = _verdict(host, port, port.cluster_endpoints)
    for front in fronts:
        found["own", front] = _verdict(host, port, port.cluster_endpoints)
        found.update(_backends(host, port, front, 0, port.cluster_endpoints))
        if port.external_policy_local:
            found["outside", front] = _verdict(host, port, port.external_endpoints, OUTSIDE_SLOTS)
            found.update(_backends(host, port, front, OUTSIDE_SLOTS, port.external_endpoints))
        else:
            found["outside", front] = found["own", front]
    return found


def _front(address: IPv4Address, protocol: Protocol, port: int) -> str:
    return f"{address} . {protocol.name.lower()} . {port}"


def _verdict(host: Host, port: ServicePortInfo, backends: tuple[EndpointInfo, ...], begin: int = 0) -> str:
    if not backends:
        return _DROP if begin else _REFUSE
    if host.proxy_port:
        return _REFUSE if port.key.protocol is Protocol.SCTP else _PROXIED
    return f"goto {_EndpointChain(begin, len(backends), port.affinity_timeout_seconds).chain}"


def _choices(host: Host, port: ServicePortInfo) -> frozenset[_EndpointChain]:
    if host.proxy_port:
        return frozenset()
    lists = {(0, len(port.cluster_endpoints))}
    lists |= {(0, len(port.internal_endpoints))} if port.cluster_ip is not None else set()
    lists |= {(OUTSIDE_SLOTS, len(port.external_endpoints))} if port.external_policy_local else set()
    return frozenset(_EndpointChain(begin, count, port.affinity_timeout_seconds) for begin, count in lists if count)


def _backends(
    host: Host, port: ServicePortInfo, front: str, begin: int, backends: tuple[EndpointInfo, ...]
) -> Elements:
    if host.proxy_port:
        return {}
    if not port.affinity_timeout_seconds:
        return {("backends", f"{front} . {begin + slot}"): _target(backend) for slot, backend in enumerate(backends)}
    found: dict[tuple[str, str], str] = {}
    for slot, (number, backend) in enumerate(_numbers(begin, backends).items()):
        found["sticky_ids", f"{front} . {begin + slot}"] = hex(number)
        found["backends", f"{front} . {hex(number)}"] = _target(backend)
    return found


def _numbers(begin: int, backends: tuple[EndpointInfo, ...]) -> Mapping[int, EndpointInfo]:
    """A number for each that stays the same while others come and go."""
    found: dict[int, EndpointInfo] = {}
    for backend in backends:
        number = crc32(_target(backend).encode()) >> 1
        while number | begin << 16 in found:
            number = (number + 1) & 0x7FFFFFFF
        found[number | begin << 16] = backend
    return found


def _target(backend: EndpointInfo) -> str:
    return f"{backend.address} . {backend.port}"


def _commands(verb: str, inhabitants: Elements) -> str:
    by_map: dict[str, list[str]] = {}
    for (place, key), value in sorted(inhabitants.items()):
        by_map.setdefault(place, []).append(f"{key} : {value}" if value else key)
    return "".join(
        f"{verb} element ip {TABLE} {place} {{ {', '.join(entries)} }}\n" for place, entries in by_map.items()
    )


def _declarations() -> str:
    verdicts = "".join(
        f"\tmap {name} {{ type ipv4_addr . inet_proto . inet_service : verdict; }}\n" for name in ("own", "outside")
    )
    affinities = "".join(
        f"\tmap {name} {{\n\t\ttype ipv4_addr . ipv4_addr . inet_proto . inet_service : classid\n"
        f"\t\tflags dynamic,timeout; size {AFFINITIES}\n\t}}\n"
        for name in ("affinity", "outside_affinity")
    )
    flushes = "".join(f"flush map ip {TABLE} {name}\n" for name in _EMPTIED if name not in {"nodes", "outside_fronts"})
    flushes += "".join(f"flush set ip {TABLE} {name}\n" for name in ("nodes", "outside_fronts"))
    return f"""\
table ip {TABLE} {{
{verdicts}\tmap node_ports {{ type inet_proto . inet_service : verdict; }}
	set outside_fronts {{ type ipv4_addr . inet_proto . inet_service; }}
	set nodes {{ type ipv4_addr; }}
	map backends {{ type ipv4_addr . inet_proto . inet_service . classid : ipv4_addr . inet_service; }}
	map sticky_ids {{ type ipv4_addr . inet_proto . inet_service . classid : classid; }}
	set askers {{ type ipv4_addr; flags dynamic,timeout; timeout 10s; size 65536; }}
{affinities}}}
flush table ip {TABLE}
{flushes}"""


def _rules(host: Host) -> str:
    first, last = host.node_ports
    to_node_port = f"ip daddr @nodes meta l4proto {{ tcp, udp, sctp }} th dport {first}-{last}"
    too_many = f"limit rate over {QUESTIONS_A_SECOND}/second burst {QUESTIONS_A_SECOND} packets"
    proxied, of_pods = "", ""
    if host.proxy_port:
        proxied = f"\tchain proxied {{\n\t\tmeta l4proto {{ tcp, udp }} redirect to :{host.proxy_port}\n\t}}\n"
        of_pods = f"\t\t{_FRONT} vmap @own\n\t\tip daddr @nodes meta l4proto . th dport vmap @node_ports\n"
    return f"""\
table ip {TABLE} {{
	chain refuse {{
		meta l4proto tcp reject with tcp reset
		reject with icmp port-unreachable
	}}
{proxied}\tchain pods {{
{of_pods}\t\tip daddr {host.service_network} goto refuse
		{to_node_port} goto refuse
		{_FRONT} @outside_fronts goto refuse
	}}
	chain prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		iifname "{GATEWAY_PORT}" goto pods
		{_FRONT} vmap @outside
	}}
	chain output {{
		type nat hook output priority -100; policy accept;
		{_FRONT} vmap @own
		ip daddr {host.service_network} goto refuse
	}}
	chain names {{
		type filter hook input priority filter; policy accept;
		iifname != "{GATEWAY_PORT}" return
		udp dport 53 update @askers {{ ip saddr {too_many} }} drop
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & {MASQUERADE:#x} == 0 return
		meta mark set meta mark & {0xFFFFFFFF ^ MASQUERADE:#x}
		ip daddr != {host.subnet} masquerade fully-random
	}}
}}
"""


def _chains(choices: Iterable[_EndpointChain]) -> str:
    """What sends a packet to one of so many backends, each as often as the others.

    With affinity a client gets the backend it had while that is among them, and every new connection prolongs it. The
    number of a backend is written into the packet's priority: nft has no other place to keep it from rule to rule, and
    nobody looks at it before the kernel writes it anew.
    """
    text = ""
    for choice in sorted(choices):
        name = f"ip {TABLE} {choice.chain}"
        text += f"add chain {name}\nflush chain {name}\n"
        text += "".join(f"add rule {name} {rule}\n" for rule in _rules_of(choice))
    return text


def _rules_of(choice: _EndpointChain) -> tuple[str, ...]:
    pick = f"numgen random mod {choice.count} offset {choice.begin}"
    masked = () if choice.begin else (f"meta mark set meta mark | {MASQUERADE:#x}",)
    target = f"dnat ip to {_FRONT} . meta priority map @backends"
    if not choice.seconds:
        return (*masked, f"meta priority set {pick} {target}")
    affinity = "outside_affinity" if choice.begin else "affinity"
    again = f"{_CLIENT} timeout {choice.seconds}s : meta priority"
    return (
        *masked,
        f"meta priority set {_CLIENT} map @{affinity} update @{affinity} {{ {again} }} {target}",
        f"meta priority set {pick}",
        f"meta priority set {_FRONT} . meta priority map @sticky_ids",
        f"delete @{affinity} {{ {_CLIENT} : meta priority }}",
        f"add @{affinity} {{ {again} }}",
        target,
    )
