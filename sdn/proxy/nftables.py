"""The nftables table of services, for the node's own processes and external clients, as text. Pure.

The rules do not depend on the services. Each frontend (address, protocol, port) is one element of a verdict map and
leads to a chain for its number of endpoints; each endpoint is one element of another map. A change of a service is a
change of its elements, which nft makes without reading anything back; a packet costs the same with 1 service and with
10,000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from zlib import crc32

from sdn.host.firewall import pods_to_nodes_rules
from sdn.model.host import GATEWAY_PORT_NAME
from sdn.model.ipv4 import ipv4_text
from sdn.model.match import mac_text
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.pipeline.tables import NODE_ACCESS_MAC
from sdn.proxy.service_ports import ProxyConfig

TABLE = "podlane-services"
TEMPORARY_TABLE = "podlane-services-upgrade"
"""Has the same rules while the table of another version is replaced."""

MASQUERADE = 0x4000
"""Bit of a packet's mark that requests masquerading, from one hook to the next; kube-proxy uses the same bit."""

EXTERNAL_SLOTS = 0x8000
"""First number of the endpoints of external clients whose source address is kept."""

MAX_AFFINITIES = 262144
"""Maximum number of clients in each of the two affinity maps. Further clients get another endpoint each time."""

MAX_QUERIES_PER_SECOND = 2000
"""Maximum rate of DNS queries of one pod: a tenth of what the node's name server answers. Queries beyond it are
dropped, so that other clients find room in the server's only queue.
"""

Elements = Mapping[tuple[str, str], str]
"""Values of elements by map or set and key; the value is empty in sets."""

_FRONTEND = "ip daddr . meta l4proto . th dport"
_CLIENT = f"ip saddr . {_FRONTEND}"
_REJECT, _DROP, _REDIRECT = "goto reject_connection", "drop", "goto redirect_to_proxy"

_FLUSHED_MAPS = ("host_frontends", "external_frontends", "node_port_frontends", "endpoints", "affinity_ids")
_FLUSHED_SETS = ("node_ips", "external_ips")
_AFFINITY_MAPS = ("affinity", "external_affinity")

SETS = frozenset({*_FLUSHED_MAPS, *_FLUSHED_SETS, *_AFFINITY_MAPS, "dns_clients"})
"""Names of the sets and maps of the table."""


@dataclass(frozen=True, slots=True, order=True)
class _EndpointChain:
    """A chain that selects one of `count` endpoints, which are numbered from `begin`.

    `affinity_seconds` is how long a client keeps its endpoint, 0 without session affinity. `begin` is 0, or
    EXTERNAL_SLOTS for external clients whose source address is kept.
    """

    begin: int
    count: int
    affinity_seconds: int

    @property
    def name(self) -> str:
        """The name, for example `endpoints-3`, `external-endpoints-2`, or `endpoints-3-10800` with affinity."""
        words = ["external-endpoints" if self.begin else "endpoints", str(self.count)]
        if self.affinity_seconds:
            words.append(str(self.affinity_seconds))
        return "-".join(words)


def services_table(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int = 0) -> str:
    """Return the commands that write the whole table, in one transaction. Session affinities stay.

    - External clients reach node ports of this node and external IPs. They keep their source address if the
      endpoint is a pod of this node, and get the gateway's otherwise, so that replies come back through this node.
    - Processes of the node reach cluster IPs and all other frontends, whatever the externalTrafficPolicy is. Endpoints
      see the gateway's address, as with kube-proxy. A connection to the service network that meets no frontend is
      rejected.
    - A connection to a frontend without endpoints is rejected (TCP reset, else ICMP port unreachable). With
      externalTrafficPolicy Local, packets of external clients are dropped instead if only other nodes have endpoints.
    - The switch translates connections of pods. If packets of pods to a frontend come here nevertheless, they get no
      endpoint and are rejected. All other packets of pods pass. So do those that the switch permits to go to a node: to
      health checks, and to the node port of another node (`service_port_flows`).
    - DNS queries of each pod to the node's name server are limited to MAX_QUERIES_PER_SECOND.
    - Pods reach only what `pods_to_nodes_rules` lists at the addresses of other nodes. Those nodes see the address of
      this one, so they cannot tell.

    With a `proxy_port`, connections of all clients, also pods, are redirected to the userspace proxy at that port.

    No two ports may have the same frontend.
    """
    ports = tuple(ports)
    elements = {("node_ips", str(ip)): "" for ip in config.node_ips}
    chains: set[_EndpointChain] = set()
    for port in ports:
        elements.update(port_elements(config, port, proxy_port))
        chains |= _chains_of_port(port, proxy_port)
    return f"{_declarations()}{_rules(config, proxy_port)}{_chains(chains)}{_element_commands('add', elements)}"


def recreated_table(config: ProxyConfig, ports: Iterable[ServicePortInfo], proxy_port: int = 0) -> tuple[str, str, str]:
    """Return the commands that replace another version's table of the same name, in three transactions.

    A packet may pass the rules of one ruleset and the sets of the next, which then have no element for it. Therefore
    a second table has the same rules in the meantime. Session affinities are lost; connections stay.
    """
    text = services_table(config, ports, proxy_port)
    temporary = re.sub(rf"\bip {TABLE}\b", f"ip {TEMPORARY_TABLE}", text)
    return temporary, f"add table ip {TABLE}\ndelete table ip {TABLE}\n{text}", f"delete table ip {TEMPORARY_TABLE}\n"


def table_update(config: ProxyConfig, change: ServicePortChange, proxy_port: int = 0) -> str:
    """Return the commands that apply a change to a table that has the removed ports; empty if there are none."""
    before: dict[tuple[str, str], str] = {}
    after: dict[tuple[str, str], str] = {}
    present: set[_EndpointChain] = set()
    needed: set[_EndpointChain] = set()
    for port in change.removed:
        before.update(port_elements(config, port, proxy_port))
        present |= _chains_of_port(port, proxy_port)
    for port in change.added:
        after.update(port_elements(config, port, proxy_port))
        needed |= _chains_of_port(port, proxy_port)
    to_delete = {key: "" for key, value in before.items() if after.get(key) != value}
    to_add = {key: value for key, value in after.items() if before.get(key) != value}
    return f"{_chains(needed - present)}{_element_commands('delete', to_delete)}{_element_commands('add', to_add)}"


def node_ip_update(removed: Iterable[IPv4Address], added: Iterable[IPv4Address]) -> str:
    """Return the commands that remove and add addresses of nodes; empty if there are none."""
    to_delete = {("node_ips", str(ip)): "" for ip in removed}
    to_add = {("node_ips", str(ip)): "" for ip in added}
    return _element_commands("delete", to_delete) + _element_commands("add", to_add)


def port_elements(config: ProxyConfig, port: ServicePortInfo, proxy_port: int = 0) -> Elements:
    """Return the elements of one port."""
    elements: dict[tuple[str, str], str] = {}
    if port.cluster_ip is not None:
        frontend = _frontend_key(port.cluster_ip, port.key.protocol, port.port)
        elements["host_frontends", frontend] = _verdict(port, port.internal_endpoints, 0, proxy_port)
        elements.update(_endpoint_elements(port, frontend, port.internal_endpoints, 0, proxy_port))
    frontends = [_frontend_key(ip, port.key.protocol, port.port) for ip in port.external_ips]
    elements.update({("external_ips", frontend): "" for frontend in frontends})
    if port.node_port:
        frontends.append(_frontend_key(config.node.address, port.key.protocol, port.node_port))
        if proxy_port:
            key = f"{port.key.protocol.name.lower()} . {port.node_port}"
            elements["node_port_frontends", key] = _verdict(port, port.cluster_endpoints, 0, proxy_port)
    for frontend in frontends:
        elements["host_frontends", frontend] = _verdict(port, port.cluster_endpoints, 0, proxy_port)
        elements.update(_endpoint_elements(port, frontend, port.cluster_endpoints, 0, proxy_port))
        if port.external_policy_local:
            endpoints = port.external_endpoints
            verdict = _verdict(port, endpoints, EXTERNAL_SLOTS, proxy_port, is_external_local=True)
            elements["external_frontends", frontend] = verdict
            elements.update(_endpoint_elements(port, frontend, endpoints, EXTERNAL_SLOTS, proxy_port))
        else:
            elements["external_frontends", frontend] = elements["host_frontends", frontend]
    return elements


def _frontend_key(ip: IPv4Address, protocol: Protocol, port: int) -> str:
    return f"{ip} . {protocol.name.lower()} . {port}"


def _verdict(
    port: ServicePortInfo,
    endpoints: tuple[EndpointInfo, ...],
    begin: int,
    proxy_port: int,
    is_external_local: bool = False,
) -> str:
    if not endpoints:
        # Another node may serve the external client. If no node has an endpoint, kube-proxy rejects as well.
        return _DROP if is_external_local and port.cluster_endpoints else _REJECT
    if proxy_port:
        return _REJECT if port.key.protocol is Protocol.SCTP else _REDIRECT
    return f"goto {_EndpointChain(begin, len(endpoints), port.affinity_timeout_seconds).name}"


def _chains_of_port(port: ServicePortInfo, proxy_port: int) -> set[_EndpointChain]:
    """Return the chains to which the verdicts of a port go."""
    if proxy_port:
        return set()
    counts = {(0, len(port.cluster_endpoints))}
    if port.cluster_ip is not None:
        counts.add((0, len(port.internal_endpoints)))
    if port.external_policy_local:
        counts.add((EXTERNAL_SLOTS, len(port.external_endpoints)))
    return {_EndpointChain(begin, count, port.affinity_timeout_seconds) for begin, count in counts if count}


def _endpoint_elements(
    port: ServicePortInfo, frontend: str, endpoints: tuple[EndpointInfo, ...], begin: int, proxy_port: int
) -> Elements:
    if proxy_port:
        return {}
    if not port.affinity_timeout_seconds:
        return {
            ("endpoints", f"{frontend} . {begin + slot}"): _target(endpoint) for slot, endpoint in enumerate(endpoints)
        }
    elements: dict[tuple[str, str], str] = {}
    for slot, (affinity_id, endpoint) in enumerate(_affinity_ids(endpoints, begin).items()):
        elements["affinity_ids", f"{frontend} . {begin + slot}"] = hex(affinity_id)
        elements["endpoints", f"{frontend} . {hex(affinity_id)}"] = _target(endpoint)
    return elements


def _affinity_ids(endpoints: tuple[EndpointInfo, ...], begin: int) -> Mapping[int, EndpointInfo]:
    """Return endpoints by a number that follows from the endpoint, so that it survives changes of the others."""
    endpoint_of: dict[int, EndpointInfo] = {}
    for endpoint in endpoints:
        number = crc32(_target(endpoint).encode()) >> 1
        while number | begin << 16 in endpoint_of:
            number = (number + 1) & 0x7FFFFFFF
        endpoint_of[number | begin << 16] = endpoint
    return endpoint_of


def _target(endpoint: EndpointInfo) -> str:
    return f"{ipv4_text(endpoint.address)} . {endpoint.port}"


def _element_commands(verb: str, elements: Elements) -> str:
    """Return one command per map or set, with its elements sorted by their text."""
    entries: dict[str, list[str]] = {}
    for (name, key), value in elements.items():
        entries.setdefault(name, []).append(f"{key} : {value}" if value else key)
    return "".join(
        f"{verb} element ip {TABLE} {name} {{ {', '.join(sorted(texts))} }}\n"
        for name, texts in sorted(entries.items())
    )


def _declarations() -> str:
    verdicts = "".join(
        f"\tmap {name} {{ type ipv4_addr . inet_proto . inet_service : verdict; }}\n"
        for name in ("host_frontends", "external_frontends")
    )
    affinities = "".join(
        f"\tmap {name} {{\n\t\ttype ipv4_addr . ipv4_addr . inet_proto . inet_service : classid\n"
        f"\t\tflags dynamic,timeout; size {MAX_AFFINITIES}\n\t}}\n"
        for name in _AFFINITY_MAPS
    )
    flushes = "".join(f"flush map ip {TABLE} {name}\n" for name in _FLUSHED_MAPS)
    flushes += "".join(f"flush set ip {TABLE} {name}\n" for name in _FLUSHED_SETS)
    return f"""\
table ip {TABLE} {{
{verdicts}\tmap node_port_frontends {{ type inet_proto . inet_service : verdict; }}
	set external_ips {{ type ipv4_addr . inet_proto . inet_service; }}
	set node_ips {{ type ipv4_addr; }}
	map endpoints {{ type ipv4_addr . inet_proto . inet_service . classid : ipv4_addr . inet_service; }}
	map affinity_ids {{ type ipv4_addr . inet_proto . inet_service . classid : classid; }}
	set dns_clients {{ type ipv4_addr; flags dynamic,timeout; timeout 10s; size 65536; }}
{affinities}}}
flush table ip {TABLE}
{flushes}"""


def _rules(config: ProxyConfig, proxy_port: int) -> str:
    first, last = config.node_port_range
    to_node_port = f"ip daddr @node_ips meta l4proto {{ tcp, udp, sctp }} th dport {first}-{last}"
    over_limit = f"limit rate over {MAX_QUERIES_PER_SECOND}/second burst {MAX_QUERIES_PER_SECOND} packets"
    redirect = ""
    from_pods = ""
    to_nodes = ""
    if config.node.open_ports is not None:
        to_nodes = f"\tchain pods_to_nodes {{\n{pods_to_nodes_rules(config.node.open_ports)}\t}}\n"
        to_nodes += "\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n"
        to_nodes += f'\t\tiifname "{GATEWAY_PORT_NAME}" ip daddr @node_ips goto pods_to_nodes\n\t}}\n'
    if proxy_port:
        redirect = f"\tchain redirect_to_proxy {{\n\t\tmeta l4proto {{ tcp, udp }} redirect to :{proxy_port}\n\t}}\n"
        from_pods = f"\t\t{_FRONTEND} vmap @host_frontends\n"
        from_pods += "\t\tip daddr @node_ips meta l4proto . th dport vmap @node_port_frontends\n"
    return f"""\
table ip {TABLE} {{
	chain reject_connection {{
		meta l4proto tcp reject with tcp reset
		reject with icmp port-unreachable
	}}
{redirect}\tchain from_pods {{
		ether saddr {mac_text(NODE_ACCESS_MAC)} ip daddr @node_ips return
{from_pods}\t\tip daddr {config.service_network} goto reject_connection
		{to_node_port} goto reject_connection
		{_FRONTEND} @external_ips goto reject_connection
	}}
	chain prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		iifname "{GATEWAY_PORT_NAME}" goto from_pods
		{_FRONTEND} vmap @external_frontends
	}}
	chain output {{
		type nat hook output priority -100; policy accept;
		{_FRONTEND} vmap @host_frontends
		ip daddr {config.service_network} goto reject_connection
	}}
{to_nodes}	chain dns_rate_limit {{
		type filter hook input priority filter; policy accept;
		iifname != "{GATEWAY_PORT_NAME}" return
		udp dport 53 update @dns_clients {{ ip saddr {over_limit} }} drop
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & {MASQUERADE:#x} == 0 return
		meta mark set meta mark & {0xFFFFFFFF ^ MASQUERADE:#x}
		ip daddr != {config.node.subnet} meta l4proto udp masquerade to :{_masquerade_ports(config)} fully-random
		ip daddr != {config.node.subnet} masquerade fully-random
		fib saddr type local masquerade
	}}
}}
"""


def _masquerade_ports(config: ProxyConfig) -> str:
    """Return the source ports that masqueraded UDP packets get: a range without the port of tunnels.

    The userspace datapath takes every UDP packet to that port of a local address for a tunnel packet, replies included.
    """
    return (
        f"{max(config.vxlan_port + 1, 1024)}-65535" if config.vxlan_port < 1 << 15 else f"1024-{config.vxlan_port - 1}"
    )


def _chains(chains: Iterable[_EndpointChain]) -> str:
    """Return the commands that create chains, each of which sends packets evenly to its endpoints.

    With session affinity, a client gets the endpoint that it had, if that still exists; every new connection prolongs
    the affinity. The number of the endpoint is kept in the packet's priority between rules: nft offers no other place,
    and the kernel overwrites the priority before anything reads it.
    """
    text = ""
    for chain in sorted(chains):
        name = f"ip {TABLE} {chain.name}"
        text += f"add chain {name}\nflush chain {name}\n"
        text += "".join(f"add rule {name} {rule}\n" for rule in _rules_of_chain(chain))
    return text


def _rules_of_chain(chain: _EndpointChain) -> tuple[str, ...]:
    select = f"numgen random mod {chain.count} offset {chain.begin}"
    masquerade = () if chain.begin else (f"meta mark set meta mark | {MASQUERADE:#x}",)
    dnat = f"dnat ip to {_FRONTEND} . meta priority map @endpoints"
    if not chain.affinity_seconds:
        return (*masquerade, f"meta priority set {select} {dnat}")
    affinity = "external_affinity" if chain.begin else "affinity"
    remembered = f"{_CLIENT} timeout {chain.affinity_seconds}s : meta priority"
    return (
        *masquerade,
        f"meta priority set {_CLIENT} map @{affinity} update @{affinity} {{ {remembered} }} {dnat}",
        f"meta priority set {select}",
        f"meta priority set {_FRONTEND} . meta priority map @affinity_ids",
        f"delete @{affinity} {{ {_CLIENT} : meta priority }}",
        f"add @{affinity} {{ {remembered} }}",
        dnat,
    )
