"""The desired network of one node, from API objects and from the pods that are attached to br0. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from api.network.conflicts import CURSORS_ANNOTATION, conflicting_subnets, conflicting_vnids, split_valid
from api.network.types import PLUGIN_MULTITENANT, ClusterNetwork, HostSubnet, NetNamespace
from api.validation.network import check_cluster_network, check_host_subnet, check_net_namespace_fields

VXLAN0 = 1
TUN0 = 2
VOVSBR_SUBNET, VOVSBR_MULTITENANT = 9, 3
FIRST_POD_PORT = 16
LAST_POD_PORT = 0xFEFF

GLOBAL_VNID = 0
LAST_VNID = 0xFFFFFF

MAC_PREFIX = 0x0A58

NODE_PORTS = 30000, 32767
"""The first and the last, where nothing else is said."""

MULTICAST_ENABLED = "netnamespace.network.openshift.io/multicast-enabled"
"""Annotation of a NetNamespace; only the word `true` counts."""


def mac_of(address: IPv4Address) -> int:
    """The MAC that belongs to an address of the cluster network: 0a:58 and the four bytes of the address."""
    return MAC_PREFIX << 32 | int(address)


def gateway_of(subnet: IPv4Network) -> IPv4Address:
    """The first address of a node's subnet: its tun0, and the way out of its pods."""
    return subnet.network_address + 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all nodes share. `vxlan_port` is a UDP port; `mtu` is that of the pods, in bytes.

    `node_ports` are the first and the last port that services may have at every node.
    """

    networks: tuple[IPv4Network, ...]
    service_network: IPv4Network
    multitenant: bool
    vxlan_port: int
    mtu: int
    node_ports: tuple[int, int] = NODE_PORTS


@dataclass(frozen=True, slots=True)
class Node:
    """This node: its address under the tunnels and its subnet of the cluster network.

    `docker_subnet` is the part of the subnet that Docker gives to containers outside of any pod.
    """

    name: str
    address: IPv4Address
    subnet: IPv4Network
    docker_subnet: IPv4Network | None = None

    @property
    def gateway(self) -> IPv4Address:
        """The address of tun0."""
        return gateway_of(self.subnet)

    @property
    def first_pod(self) -> IPv4Address:
        """The first address that a pod may get."""
        return self.gateway + 1

    @property
    def last_pod(self) -> IPv4Address:
        """The last address that a pod may get."""
        end = self.subnet.broadcast_address if self.docker_subnet is None else self.docker_subnet.network_address
        return end - 1


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """Another node, or a host that is none: the subnet behind a tunnel address."""

    name: str
    address: IPv4Address
    subnet: IPv4Network

    def __hash__(self) -> int:
        """Thousands of peers are hashed in a pass; their names differ."""
        return hash(self.name)


@dataclass(frozen=True, slots=True, order=True)
class AttachedPod:
    """A sandbox that has its port on the bridge. `ofport` is its OpenFlow port number."""

    sandbox: str
    namespace: str
    ofport: int
    address: IPv4Address


@dataclass(frozen=True, slots=True, order=True)
class Pod:
    """An attached sandbox whose project has a lane."""

    ofport: int
    address: IPv4Address
    vnid: int

    def __hash__(self) -> int:
        """Pods are hashed in every pass; their ports differ."""
        return self.ofport

    @property
    def mac(self) -> int:
        """The MAC that follows from its address."""
        return mac_of(self.address)


@dataclass(frozen=True, slots=True)
class DockerNetwork:
    """The containers outside of any pod: Docker gives each an address of `subnet`, all have one VNID."""

    subnet: IPv4Network
    ofport: int
    vnid: int


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """`laneless` are sandboxes of a project without a VNID: they stay on the bridge and get no flow.

    `multicast` are the VNIDs whose pods may send to many. `docker` is None while Docker has no bridge of ours, its
    project has no VNID, or a pod has an address of its part of the subnet.
    """

    cluster: Cluster
    node: Node
    peers: frozenset[Peer]
    pods: frozenset[Pod]
    pods_without_vnid: tuple[AttachedPod, ...] = ()
    multicast: frozenset[int] = frozenset()
    docker: DockerNetwork | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the API says, as far as the network goes; `doubts` are what is not believed of it, and why, by object."""

    cluster_network: ClusterNetwork | None
    host_subnets: tuple[HostSubnet, ...]
    net_namespaces: tuple[NetNamespace, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """What the API says, for one node; `lanes` is the VNID of each project, None with the flat network.

    `multicast` are the VNIDs all of whose projects have it switched on; `docker_project` is the one in whose lane
    containers outside of any pod are.
    """

    cluster: Cluster
    node: Node
    peers: frozenset[Peer]
    vnids: Mapping[str, int] | None
    multicast: frozenset[int]
    docker_project: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no view; `reason` names the object, what was found and what is waited for."""

    reason: str


def cluster_of(wish: ClusterNetwork, default_mtu: int, node_ports: tuple[int, int] = NODE_PORTS) -> Cluster:
    """The shared facts of a ClusterNetwork that the master has validated.

    `default_mtu` (bytes) is used where the object names none. An empty `clusterNetworks` means that the two top-level
    fields are the only entry.
    """
    entries = tuple(IPv4Network(entry.cidr) for entry in wish.cluster_networks) or (IPv4Network(wish.network),)
    return Cluster(
        networks=entries,
        service_network=IPv4Network(wish.service_network),
        multitenant=wish.plugin_name == PLUGIN_MULTITENANT,
        vxlan_port=wish.vxlan_port or 4789,
        mtu=wish.mtu or default_mtu,
        node_ports=node_ports,
    )


def local_node(name: str, address: IPv4Address, host_subnets: Iterable[HostSubnet]) -> Node | Unavailable:
    """This node's own subnet, once the object with its name carries its address."""
    for wish in host_subnets:
        if wish.metadata.name != name:
            continue
        if wish.host_ip != str(address):
            return Unavailable(f"HostSubnet {name} has hostIP {wish.host_ip}; this node's address is {address}")
        return Node(name, address, IPv4Network(wish.subnet))
    return Unavailable(f"no HostSubnet {name} yet; the master makes it when the node has registered")


def peers_of(node: Node, host_subnets: Iterable[HostSubnet]) -> frozenset[Peer]:
    """Everybody else who has a subnet. Who claims this node's address or overlaps its subnet is nobody's peer."""
    peers = (_peer(wish.metadata.name, wish.host_ip, wish.subnet) for wish in host_subnets if wish.subnet)
    return frozenset(peer for peer in peers if _is_valid_peer(peer, node))


@lru_cache(maxsize=65536)
def _peer(name: str, host_ip: str, subnet: str) -> Peer:
    return Peer(name, IPv4Address(host_ip), IPv4Network(subnet))


@lru_cache(maxsize=65536)
def _is_valid_peer(peer: Peer, node: Node) -> bool:
    others = peer.name != node.name and peer.address != node.address
    return others and not peer.subnet.overlaps(node.subnet)


def vnids_by_project(cluster: Cluster, net_namespaces: Iterable[NetNamespace]) -> Mapping[str, int] | None:
    """The VNID of each project; None with the flat network, where every pod is global."""
    if not cluster.multitenant:
        return None
    return {wish.netname: wish.netid for wish in net_namespaces}


def multicast_vnids(lanes: Mapping[str, int] | None, net_namespaces: Iterable[NetNamespace]) -> frozenset[int]:
    """The VNIDs all of whose projects have the annotation; projects that share a lane hear each other."""
    if lanes is None:
        return frozenset()
    on = {wish.netname for wish in net_namespaces if wish.metadata.annotations.get(MULTICAST_ENABLED) == "true"}
    off = {vnid for name, vnid in lanes.items() if name not in on}
    return frozenset(lanes[name] for name in on) - off


def network_config(
    snapshot: Snapshot,
    name: str,
    address: IPv4Address,
    default_mtu: int,
    docker_project: str = "",
    node_ports: tuple[int, int] = NODE_PORTS,
) -> NetworkConfig | Unavailable:
    """What the API says, put together for this node, or what is missing; with a project for Docker's own containers."""
    for about in ("clusternetwork default", f"hostsubnet {name}"):
        if about in snapshot.ignored:
            return Unavailable(f"{about} is not believed: {snapshot.ignored[about]}")
    if snapshot.cluster_network is None:
        return Unavailable("no ClusterNetwork default yet; the master makes it at its first start")
    node = local_node(name, address, snapshot.host_subnets)
    if isinstance(node, Unavailable):
        return node
    if docker_project:
        node = replace(node, docker_subnet=docker_subnet(node.subnet))
    cluster = cluster_of(snapshot.cluster_network, default_mtu, node_ports)
    peers = peers_of(node, snapshot.host_subnets)
    lanes = vnids_by_project(cluster, snapshot.net_namespaces)
    multicast = multicast_vnids(lanes, snapshot.net_namespaces)
    return NetworkConfig(cluster, node, peers, lanes, multicast, docker_project)


def docker_subnet(subnet: IPv4Network) -> IPv4Network:
    """The last quarter of a node's subnet."""
    return list(subnet.subnets(prefixlen_diff=2))[-1]


def node_network(ground: NetworkConfig, attached: Iterable[AttachedPod]) -> NodeNetwork:
    """Put what the API says and what is attached here into one view."""
    node, lanes = ground.node, ground.vnids
    here = [one for one in attached if one.address in node.subnet and one.address != node.gateway]
    lane_of = {one: GLOBAL_VNID if lanes is None else lanes.get(one.namespace) for one in here}
    return NodeNetwork(
        cluster=ground.cluster,
        node=node,
        peers=ground.peers,
        pods=frozenset(Pod(one.ofport, one.address, vnid) for one, vnid in lane_of.items() if vnid is not None),
        pods_without_vnid=tuple(sorted(one for one, vnid in lane_of.items() if vnid is None)),
        multicast=ground.multicast,
        docker=_docker_network(ground, here),
    )


def _docker_network(ground: NetworkConfig, here: Iterable[AttachedPod]) -> DockerNetwork | None:
    subnet, lanes = ground.node.docker_subnet, ground.vnids
    vnid = GLOBAL_VNID if lanes is None else lanes.get(ground.docker_project)
    if subnet is None or vnid is None or any(one.address in subnet for one in here):
        return None
    return DockerNetwork(subnet, VOVSBR_MULTITENANT if ground.cluster.multitenant else VOVSBR_SUBNET, vnid)


def without_invalid_objects(shown: Snapshot) -> Snapshot:
    """The snapshot without what is not believed; its `doubts` say, by object, why not."""
    network = shown.cluster_network
    if network is None or CURSORS_ANNOTATION not in network.metadata.annotations:
        return shown
    networks, wrong = split_valid((network,), check_cluster_network)
    doubts = _reasons_by_object("clusternetwork", wrong)
    subnets, wrong = split_valid(shown.host_subnets, check_host_subnet)
    doubts |= _reasons_by_object("hostsubnet", wrong)
    strangers = conflicting_subnets(subnets)
    doubts |= _reasons_by_object(
        "hostsubnet", {name: f"its subnet or hostIP is that of {one}" for name, one in strangers.items()}
    )
    lanes, wrong = split_valid(shown.net_namespaces, check_net_namespace_fields)
    doubts |= _reasons_by_object("netnamespace", wrong)
    intruders = conflicting_vnids(lanes)
    doubts |= _reasons_by_object(
        "netnamespace", {name: f"its VNID is that of {one}" for name, one in intruders.items()}
    )
    return Snapshot(
        networks[0] if networks else None,
        tuple(one for one in subnets if one.metadata.name not in strangers),
        tuple(one for one in lanes if one.metadata.name not in intruders),
        doubts,
    )


def _reasons_by_object(kind: str, reasons: Mapping[str, str]) -> dict[str, str]:
    return {f"{kind} {name}": reason for name, reason in reasons.items()}
