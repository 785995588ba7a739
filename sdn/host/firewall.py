"""The masquerade and ingress guard tables, as text for `nft -f`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from api.network.forwarding import accepts_pods
from sdn.model.host import DOCKER_BRIDGE, GATEWAY_PORT_NAME, NETDEV, BaseChain, OvsState
from sdn.model.ipv4 import LOOPBACK
from sdn.model.match import mac_text
from sdn.pipeline.tables import NODE_ACCESS_MAC
from sdn.topology import Cluster, Node

TABLE = "podlane"
FINGERPRINT = "podlane-nft"
"""Key of the bridge's external_ids: the fingerprint of our table when it was last written."""

GUARD_TABLE = "podlane-guard"


def guarded_devices(state: OvsState, node: Node) -> frozenset[str]:
    """Return the devices whose frames the node's network stack must not receive.

    With the userspace datapath, the kernel gets a copy of every frame that Open vSwitch reads from a device. Docker's
    bridge is guarded as well, because its containers reach the node through br0, like pods.
    """
    docker = frozenset() if node.docker_subnet is None else frozenset({DOCKER_BRIDGE})
    return docker | frozenset(
        port.name
        for bridge in state.bridges
        if bridge.datapath_type == NETDEV
        for port in bridge.ports
        if port.type == "" and port.name != bridge.name
    )


def pods_to_nodes_rules(open_ports: frozenset[tuple[str, int]]) -> str:
    """Return the rules for a packet of a pod to an address of a node: what pods may reach; all else is rejected.

    - Replies of pods, ICMP echo and errors, and connections that the host itself has translated: to host ports, and to
      the userspace proxy.
    - Packets that the switch permits, which alone knows the VNID: to endpoints of services (`host_endpoint_flow`), and
      those of VNID 0 (`external_flows`).
    - DNS, and the ports that the operator names.
    """
    ports = ", ".join(f"{protocol} . {number}" for protocol, number in sorted(open_ports))
    rules = (
        "ct state established,related accept",
        "ct status dnat accept",
        "icmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem } accept",
        f"ether saddr {mac_text(NODE_ACCESS_MAC)} accept",
        f"meta l4proto . th dport {{ {ports} }} accept",
        "reject with icmp admin-prohibited",
    )
    return "".join(f"\t\t{rule}\n" for rule in rules)


def rejects_packet_of_pod(node: Node, protocol: str, port: int) -> bool:
    """Return whether `pods_to_nodes_rules` reject the first packet of a connection that the switch does not permit.

    A host port is translated before, so its packets do not come here.
    """
    return protocol != "icmp" and node.open_ports is not None and (protocol, port) not in node.open_ports


def masquerade_table(cluster: Cluster, node: Node) -> str:
    """Return the commands that replace our table as a whole.

    - Packets of pods to external addresses are masqueraded. So are those to a host port of this node: the switch would
      drop them with the source address of a pod, and the reply would not come back through the host.
    - Packets that enter this node with a loopback address are dropped, before any address is translated. The kernel
      does so by itself, but not at links with the sysctl route_localnet. tun0 has it, so that processes of the node
      reach host ports at loopback addresses (`desired_gateway`).
    - VXLAN packets of peers to this node are not tracked. Otherwise a pod that sends from the port of tunnels to a peer
      would get, as replies, the tunnel packets that the peer sends from the same port: those of all projects.
    - External packets reach pods only if they are replies, or if the host has applied DNAT, as it does for host ports.
    - A packet of a pod without a connection (such as a late FIN) is dropped, because it would not be masqueraded.
    - VXLAN packets of pods are dropped. The switch drops unfragmented ones (`external_flows`) but sees no ports in
      fragments; the kernel has reassembled them here.
    - Packets that bypass br0 from Docker's bridge are dropped, in case its ingress guard is missing.
    - Pods reach only what `pods_to_nodes_rules` lists at the addresses of this node. The table of services has the same
      rules for the addresses of other nodes.
    """
    drop_from_docker = f'\n\t\tiifname "{DOCKER_BRIDGE}" drop' if node.docker_subnet is not None else ""
    networks = ", ".join(str(network) for network in sorted(cluster.networks))
    pods_to_nodes = from_pods = ""
    if node.open_ports is not None:
        pods_to_nodes = f"\tchain pods_to_nodes {{\n{pods_to_nodes_rules(node.open_ports)}\t}}\n"
        from_pods = f'\n\t\tiifname "{GATEWAY_PORT_NAME}" goto pods_to_nodes'
    return f"""\
add table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
	set cluster {{
		type ipv4_addr; flags interval
		elements = {{ {networks} }}
	}}
	chain prerouting {{
		type filter hook prerouting priority raw; policy accept;
		iifname != "lo" ip saddr {LOOPBACK} drop
		iifname != "lo" ip daddr {LOOPBACK} drop
		iifname != "{GATEWAY_PORT_NAME}" udp dport {cluster.vxlan_port} fib daddr type local notrack
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @cluster ip daddr != @cluster oifname != "{GATEWAY_PORT_NAME}" masquerade
		ip saddr @cluster ip saddr != {node.gateway} oifname "{GATEWAY_PORT_NAME}" ct status dnat masquerade
	}}
{pods_to_nodes}	chain input {{
		type filter hook input priority filter; policy accept;{drop_from_docker}{from_pods}
	}}
	chain forward {{
		type filter hook forward priority filter; policy accept;{drop_from_docker}
		ip saddr @cluster udp dport {cluster.vxlan_port} drop
		iifname "{GATEWAY_PORT_NAME}" ip saddr @cluster ct state invalid drop
		oifname "{GATEWAY_PORT_NAME}" ct state established,related accept
		oifname "{GATEWAY_PORT_NAME}" ct status dnat accept
		oifname "{GATEWAY_PORT_NAME}" iifname != "{GATEWAY_PORT_NAME}" drop
	}}
}}
"""


FORWARD = ("ip", "filter", "FORWARD")
"""iptables' chain for forwarded packets. Docker gives it the policy DROP, and every firewall may."""


def forward_rules(chains: tuple[BaseChain, ...], listed: str) -> str:
    """Return the commands with which iptables' FORWARD chain, `listed` by nft, accepts packets of pods.

    They are needed if the policy is DROP: what one table accepts, another may still drop. The rules stand last, so that
    an operator's own rules decide before them. Our own table drops what must not pass, whatever this chain accepts.
    """
    if not any((chain.family, chain.table, chain.name) == FORWARD and chain.policy == "drop" for chain in chains):
        return ""
    matches = [f'{key} "{GATEWAY_PORT_NAME}"' for key in ("iifname", "oifname")]
    present = [line for line in listed.splitlines() if 'comment "podlane"' in line]
    return "".join(
        f'add rule {" ".join(FORWARD)} {match} counter accept comment "podlane"\n'
        for match in matches
        if not any(match in line for line in present)
    )


def dropping_chains(chains: tuple[BaseChain, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return family, table and name of the chains of others that drop forwarded packets by default."""
    return tuple(
        (chain.family, chain.table, chain.name)
        for chain in chains
        if chain.hook == "forward"
        and chain.policy == "drop"
        and chain.family in {"ip", "inet"}
        and (chain.family, chain.table, chain.name) != FORWARD
    )


def forward_problem(listed: Mapping[tuple[str, str, str], str]) -> str:
    """Return a sentence about chains of others that may drop packets of pods; empty if there are none.

    `listed` are the dropping chains as nft lists them.
    """
    found = [" ".join(chain) for chain, rules in listed.items() if not accepts_pods(rules)]
    if not found:
        return ""
    return (
        f"the firewall's policy for forwarded packets is drop in {', '.join(found)}; packets of pods pass to other "
        f"networks only if that table accepts those of {GATEWAY_PORT_NAME}"
    )


def table_fingerprint(commands: str, listed: str) -> str:
    """Return a hash of our commands and of the table as nft lists it, which another program's change would alter."""
    return sha256(f"{commands}\0{listed}".encode()).hexdigest()[:32]


def ingress_guard(*, added: frozenset[str] = frozenset(), removed: frozenset[str] = frozenset()) -> str:
    """Return the commands that guard the added devices, and no longer the removed ones, which may have no guard.

    The guard drops the kernel's copy of every frame of a device. A chain that does not exist cannot be deleted, so a
    chain to delete is added before; to one that exists, that does nothing.
    """
    lines = [f"add table netdev {GUARD_TABLE}"]
    lines += [f"{verb} chain netdev {GUARD_TABLE} {device}" for device in sorted(removed) for verb in ("add", "delete")]
    lines += [
        f'add chain netdev {GUARD_TABLE} {device} {{ type filter hook ingress device "{device}" priority 0; '
        f"policy drop; }}"
        for device in sorted(added)
    ]
    return "\n".join(lines) + "\n"
