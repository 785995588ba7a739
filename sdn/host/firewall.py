"""The masquerade and ingress guard tables, as text for `nft -f`. Pure."""

from __future__ import annotations

from hashlib import sha256

from sdn.model.host import DOCKER_BRIDGE, GATEWAY_PORT_NAME, NETDEV, OvsState
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


def masquerade_table(cluster: Cluster, node: Node) -> str:
    """Return the commands that replace our table as a whole.

    - Packets of pods to external addresses are masqueraded.
    - VXLAN packets of peers to this node are not tracked. Otherwise a pod that sends from the port of tunnels to a peer
      would get, as replies, the tunnel packets that the peer sends from the same port: those of all projects.
    - External packets reach pods only if they are replies, or if the host has applied DNAT, as it does for host ports.
    - A packet of a pod without a connection (such as a late FIN) is dropped, because it would not be masqueraded.
    - VXLAN packets of pods are dropped. The switch drops unfragmented ones (`external_flows`) but sees no ports in
      fragments; the kernel has reassembled them here.
    - Packets that bypass br0 from Docker's bridge are dropped, in case its ingress guard is missing.
    """
    drop_from_docker = f'\n\t\tiifname "{DOCKER_BRIDGE}" drop' if node.docker_subnet is not None else ""
    networks = ", ".join(str(network) for network in sorted(cluster.networks))
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
		iifname != "{GATEWAY_PORT_NAME}" udp dport {cluster.vxlan_port} fib daddr type local notrack
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @cluster ip daddr != @cluster oifname != "{GATEWAY_PORT_NAME}" masquerade
	}}
	chain input {{
		type filter hook input priority filter; policy accept;{drop_from_docker}
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


def table_fingerprint(commands: str, listed: str) -> str:
    """Return a hash of our commands and of the table as nft lists it, which another program's change would alter."""
    return sha256(f"{commands}\0{listed}".encode()).hexdigest()[:32]


def ingress_guard(*, added: frozenset[str] = frozenset(), removed: frozenset[str] = frozenset()) -> str:
    """Return the commands that guard the added devices, and no longer the removed ones.

    The guard drops the kernel's copy of every frame of a device.
    """
    lines = [f"add table netdev {GUARD_TABLE}"]
    lines += [f"delete chain netdev {GUARD_TABLE} {device}" for device in sorted(removed)]
    lines += [
        f'add chain netdev {GUARD_TABLE} {device} {{ type filter hook ingress device "{device}" priority 0; '
        f"policy drop; }}"
        for device in sorted(added)
    ]
    return "\n".join(lines) + "\n"
