"""The masquerade and ingress guard tables, as text for `nft -f`. Pure."""

from __future__ import annotations

from hashlib import sha256

from sdn.model.host import DOCKER_BRIDGE, GATEWAY_PORT, NETDEV, OvsState
from sdn.topology import Cluster, Node


def guarded_devices(switch: OvsState, node: Node) -> frozenset[str]:
    """Devices from which the node's network stack may take nothing.

    Those that Open vSwitch reads in user space, where the kernel sees a copy of every frame; and Docker's bridge:
    its containers reach the node through br0, like pods.
    """
    docker = frozenset() if node.docker_subnet is None else frozenset({DOCKER_BRIDGE})
    return docker | frozenset(
        port.name
        for bridge in switch.bridges
        if bridge.datapath_type == NETDEV
        for port in bridge.ports
        if port.type == "" and port.name != bridge.name
    )


TABLE = "podlane"
FINGERPRINT = "podlane-nft"
"""Mark on the bridge: what `fingerprint` said when our table was last written."""

GUARD_TABLE = "podlane-guard"


def masquerade_table(cluster: Cluster, node: Node) -> str:
    """Replace our table as a whole.

    What pods send to the outside leaves with the node's address; answers come back, but nothing new comes in from the
    outside, except what the host itself has directed to a pod, as it does for host ports. A packet of a pod that
    belongs to no connection (a late FIN) is dropped rather than let out unmasked. A pod's VXLAN in fragments is dropped
    here, where they have been put together: the switch, which drops it whole (`outside_flows`), sees no ports in them.
    What comes from Docker's bridge past br0 is dropped too, should its guard be away.
    """
    past_the_switch = f'\n\t\tiifname "{DOCKER_BRIDGE}" drop' if node.docker_subnet is not None else ""
    networks = ", ".join(str(network) for network in sorted(cluster.networks))
    return f"""\
add table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
	set cluster {{
		type ipv4_addr; flags interval
		elements = {{ {networks} }}
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @cluster ip daddr != @cluster oifname != "{GATEWAY_PORT}" masquerade
	}}
	chain input {{
		type filter hook input priority filter; policy accept;{past_the_switch}
	}}
	chain forward {{
		type filter hook forward priority filter; policy accept;{past_the_switch}
		ip saddr @cluster udp dport {cluster.vxlan_port} drop
		iifname "{GATEWAY_PORT}" ip saddr @cluster ct state invalid drop
		oifname "{GATEWAY_PORT}" ct state established,related accept
		oifname "{GATEWAY_PORT}" ct status dnat accept
		oifname "{GATEWAY_PORT}" iifname != "{GATEWAY_PORT}" drop
	}}
}}
"""


def table_fingerprint(wish: str, listed: str) -> str:
    """Of the table that was wished and of what nft then made of it: while both are the same, nobody has touched it."""
    return sha256(f"{wish}\0{listed}".encode()).hexdigest()[:32]


def ingress_guard(arriving: frozenset[str], leaving: frozenset[str]) -> str:
    """Drop the kernel's copy of every frame of these devices, and stop doing so for others."""
    lines = [f"add table netdev {GUARD_TABLE}"]
    lines += [f"delete chain netdev {GUARD_TABLE} {device}" for device in sorted(leaving)]
    lines += [
        f'add chain netdev {GUARD_TABLE} {device} {{ type filter hook ingress device "{device}" priority 0; '
        f"policy drop; }}"
        for device in sorted(arriving)
    ]
    return "\n".join(lines) + "\n"
