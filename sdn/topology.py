"""The desired network of one node, from API objects and from the pods that are attached to br0. Pure.

`network_config` reads the API objects; `node_network` adds the pods. The flows of the bridge, the links and the
firewall of the node follow from a `NodeNetwork`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from api.network.conflicts import CURSORS_ANNOTATION, conflicting_subnets, conflicting_vnids, split_valid
from api.network.types import PLUGIN_MULTITENANT, ClusterNetwork, HostSubnet, NetNamespace
from api.validation.network import check_cluster_network, check_host_subnet, check_net_namespace_fields
from sdn.config import DEFAULT_NODE_PORTS, DNS_PORTS, NodeIdentity

VXLAN_OFPORT = 1
GATEWAY_OFPORT = 2
"""OpenFlow port numbers of vxlan0 and tun0, as in OpenShift SDN."""

DOCKER_OFPORT, DOCKER_OFPORT_FLAT = 3, 9
"""OpenFlow port numbers of vovsbr with ovs-multitenant and with ovs-subnet, as in OpenShift SDN of autumn 2015."""

FIRST_POD_OFPORT, LAST_POD_OFPORT = 16, 0xFEFF
"""OpenFlow port numbers of pods. 65279 is the highest that can be requested (ovs-vswitchd.conf.db(5))."""

GLOBAL_VNID = 0
LAST_VNID = 0xFFFFFF

VXLAN_PORT = 4789
"""The UDP port that IANA assigns to VXLAN, used where the ClusterNetwork names none."""

MAC_PREFIX = 0x0A58

MULTICAST_ENABLED = "netnamespace.network.openshift.io/multicast-enabled"
"""Annotation of a NetNamespace; only the value `true` enables multicast."""


def mac_of(address: IPv4Address) -> int:
    """Return the MAC of an address of the cluster network: 0a:58 and the four bytes of the address."""
    return MAC_PREFIX << 32 | int(address)


def gateway_of(subnet: IPv4Network) -> IPv4Address:
    """Return the gateway of a node's subnet: the first address, which tun0 has."""
    return subnet.network_address + 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """Facts that all nodes share.

    `vxlan_port` is a UDP port; `mtu` is the MTU of pods, in bytes. `node_ports` are the first and the last port that
    services may have on every node.
    """

    networks: tuple[IPv4Network, ...]
    service_network: IPv4Network
    multitenant: bool
    vxlan_port: int
    mtu: int
    node_ports: tuple[int, int] = DEFAULT_NODE_PORTS


@dataclass(frozen=True, slots=True)
class Node:
    """This node: its underlay address and its subnet of the cluster network.

    `docker_subnet` is the part of the subnet from which Docker gives addresses to containers outside of any pod.
    `open_ports` are the ports of nodes that pods may reach, None if they may reach all.
    """

    name: str
    address: IPv4Address
    subnet: IPv4Network
    docker_subnet: IPv4Network | None = None
    open_ports: frozenset[tuple[str, int]] | None = DNS_PORTS

    @property
    def gateway(self) -> IPv4Address:
        """The address of tun0."""
        return gateway_of(self.subnet)

    @property
    def first_pod(self) -> IPv4Address:
        """The first address for pods."""
        return self.gateway + 1

    @property
    def last_pod(self) -> IPv4Address:
        """The last address for pods."""
        end = self.subnet.broadcast_address if self.docker_subnet is None else self.docker_subnet.network_address
        return end - 1


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """Another node, or another host with a HostSubnet: its subnet and the underlay address of its tunnel."""

    name: str
    address: IPv4Address
    subnet: IPv4Network

    def __hash__(self) -> int:
        """Hash the name only, because a pass hashes thousands of peers, and their names differ."""
        return hash(self.name)


@dataclass(frozen=True, slots=True, order=True)
class AttachedPod:
    """A sandbox with a port on the bridge. `ofport` is its OpenFlow port number."""

    sandbox: str
    namespace: str
    ofport: int
    address: IPv4Address


@dataclass(frozen=True, slots=True, order=True)
class Pod:
    """An attached sandbox of a project that has a VNID."""

    ofport: int
    address: IPv4Address
    vnid: int

    def __hash__(self) -> int:
        """Hash the port only, because every pass hashes all pods, and their ports differ."""
        return self.ofport

    @property
    def mac(self) -> int:
        """The MAC that follows from the address."""
        return mac_of(self.address)


@dataclass(frozen=True, slots=True)
class DockerNetwork:
    """Containers outside of any pod: Docker gives each an address of `subnet`, and all have one VNID."""

    subnet: IPv4Network
    ofport: int
    vnid: int


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The desired network of this node, attached pods included.

    `pods_without_vnid` belong to projects without a VNID: they stay on the bridge, and their packets are dropped.
    `multicast` are the VNIDs whose pods may send multicast. `docker` is None while Docker has no bridge of ours, its
    project has no VNID, or a pod has an address of Docker's part of the subnet.
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
    """The network objects of the API; `ignored` are the reasons for which objects were left out, by object."""

    cluster_network: ClusterNetwork | None
    host_subnets: tuple[HostSubnet, ...]
    net_namespaces: tuple[NetNamespace, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeNetworkConfig:
    """The network objects of the API, read for one node.

    `vnids` has the VNID of each project, and is None with the flat network. `multicast` are the VNIDs all of whose
    projects have multicast enabled. `docker_project` is the project of containers outside of any pod.
    """

    cluster: Cluster
    node: Node
    peers: frozenset[Peer]
    vnids: Mapping[str, int] | None
    multicast: frozenset[int]
    docker_project: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No network configuration; `reason` names the object, what was found, and what is awaited."""

    reason: str


def cluster_of(network: ClusterNetwork, default_mtu: int, node_ports: tuple[int, int] = DEFAULT_NODE_PORTS) -> Cluster:
    """Return the shared facts of a valid ClusterNetwork.

    `default_mtu` (bytes) is used if the object names no MTU. If `clusterNetworks` is empty, the two top-level fields
    are the only entry.
    """
    entries = tuple(IPv4Network(entry.cidr) for entry in network.cluster_networks) or (IPv4Network(network.network),)
    return Cluster(
        networks=entries,
        service_network=IPv4Network(network.service_network),
        multitenant=network.plugin_name == PLUGIN_MULTITENANT,
        vxlan_port=network.vxlan_port or VXLAN_PORT,
        mtu=network.mtu or default_mtu,
        node_ports=node_ports,
    )


def local_node(name: str, address: IPv4Address, host_subnets: Iterable[HostSubnet]) -> Node | Unavailable:
    """Return this node with its subnet, if there is a HostSubnet with its name and its address."""
    for host_subnet in host_subnets:
        if host_subnet.metadata.name != name:
            continue
        if host_subnet.host_ip != str(address):
            return Unavailable(f"HostSubnet {name} has hostIP {host_subnet.host_ip}; this node's address is {address}")
        return Node(name, address, IPv4Network(host_subnet.subnet))
    return Unavailable(f"no HostSubnet {name} yet; the master creates it when the node has registered")


def peers_of(node: Node, host_subnets: Iterable[HostSubnet]) -> frozenset[Peer]:
    """Return all other hosts with a subnet.

    A host that claims this node's address, or whose subnet overlaps this node's, is no peer.
    """
    peers = (
        _peer(host_subnet.metadata.name, host_subnet.host_ip, host_subnet.subnet)
        for host_subnet in host_subnets
        if host_subnet.subnet
    )
    return frozenset(peer for peer in peers if _is_valid_peer(peer, node))


@lru_cache(maxsize=65536)
def _peer(name: str, host_ip: str, subnet: str) -> Peer:
    return Peer(name, IPv4Address(host_ip), IPv4Network(subnet))


@lru_cache(maxsize=65536)
def _is_valid_peer(peer: Peer, node: Node) -> bool:
    is_other_host = peer.name != node.name and peer.address != node.address
    return is_other_host and not peer.subnet.overlaps(node.subnet)


def vnids_by_project(cluster: Cluster, net_namespaces: Iterable[NetNamespace]) -> Mapping[str, int] | None:
    """Return the VNID of each project; None with the flat network, where every pod has VNID 0."""
    if not cluster.multitenant:
        return None
    return {net_namespace.netname: net_namespace.netid for net_namespace in net_namespaces}


def multicast_vnids(vnids: Mapping[str, int] | None, net_namespaces: Iterable[NetNamespace]) -> frozenset[int]:
    """Return the VNIDs all of whose projects have the annotation.

    Projects that share a VNID receive each other's multicast, so all of them must have enabled it.
    """
    if vnids is None:
        return frozenset()
    enabled = {
        net_namespace.netname
        for net_namespace in net_namespaces
        if net_namespace.metadata.annotations.get(MULTICAST_ENABLED) == "true"
    }
    disabled_vnids = {vnid for name, vnid in vnids.items() if name not in enabled}
    return frozenset(vnids[name] for name in enabled) - disabled_vnids


def network_config(snapshot: Snapshot, identity: NodeIdentity, default_mtu: int) -> NodeNetworkConfig | Unavailable:
    """Read the network objects for this node, or return the reason why that is not possible yet.

    `default_mtu` (bytes) is used if the ClusterNetwork names no MTU.
    """
    for name in ("ClusterNetwork default", f"HostSubnet {identity.name}"):
        if name in snapshot.ignored:
            return Unavailable(f"{name} is invalid: {snapshot.ignored[name]}")
    if snapshot.cluster_network is None:
        return Unavailable("no ClusterNetwork default yet; the master creates it at its first start")
    node = local_node(identity.name, identity.address, snapshot.host_subnets)
    if isinstance(node, Unavailable):
        return node
    node = replace(node, open_ports=identity.open_ports)
    if identity.docker_project:
        node = replace(node, docker_subnet=docker_subnet(node.subnet))
    cluster = cluster_of(snapshot.cluster_network, default_mtu, identity.node_ports)
    peers = peers_of(node, snapshot.host_subnets)
    vnids = vnids_by_project(cluster, snapshot.net_namespaces)
    multicast = multicast_vnids(vnids, snapshot.net_namespaces)
    return NodeNetworkConfig(cluster, node, peers, vnids, multicast, identity.docker_project)


def docker_subnet(subnet: IPv4Network) -> IPv4Network:
    """Return the part of a node's subnet that is Docker's: the last quarter."""
    return list(subnet.subnets(prefixlen_diff=2))[-1]


def node_network(config: NodeNetworkConfig, attached: Iterable[AttachedPod]) -> NodeNetwork:
    """Build the desired network of this node from its configuration and the pods that are attached to br0.

    A pod with an address outside of the node's subnet, or with the gateway's address, is ignored.
    """
    node = config.node
    first, last, gateway = int(node.subnet[0]), int(node.subnet[-1]), int(node.gateway)
    attached = [pod for pod in attached if first <= int(pod.address) <= last and int(pod.address) != gateway]
    pods, without_vnid = set(), []
    for pod in attached:
        vnid = _vnid_of(config, pod.namespace)
        if vnid is None:
            without_vnid.append(pod)
        else:
            pods.add(Pod(pod.ofport, pod.address, vnid))
    return NodeNetwork(
        cluster=config.cluster,
        node=node,
        peers=config.peers,
        pods=frozenset(pods),
        pods_without_vnid=tuple(sorted(without_vnid)),
        multicast=config.multicast,
        docker=_docker_network(config, attached),
    )


def _vnid_of(config: NodeNetworkConfig, project: str) -> int | None:
    return GLOBAL_VNID if config.vnids is None else config.vnids.get(project)


def _docker_network(config: NodeNetworkConfig, pods: Iterable[AttachedPod]) -> DockerNetwork | None:
    subnet, vnid = config.node.docker_subnet, _vnid_of(config, config.docker_project)
    if subnet is None or vnid is None or any(pod.address in subnet for pod in pods):
        return None
    return DockerNetwork(subnet, DOCKER_OFPORT if config.cluster.multitenant else DOCKER_OFPORT_FLAT, vnid)


def without_invalid_objects(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without invalid and conflicting objects; `ignored` gives the reasons by object.

    The Podlane master validates HostSubnets and NetNamespaces; other API servers do not, and have an annotation of ours
    on the ClusterNetwork. An object that is invalid, or that uses the subnet, IP or VNID of an older object, is treated
    as absent, so its traffic is dropped.
    """
    network = snapshot.cluster_network
    if network is None or CURSORS_ANNOTATION not in network.metadata.annotations:
        return snapshot
    networks, invalid = split_valid((network,), check_cluster_network)
    ignored = _reasons_by_object("ClusterNetwork", invalid)
    subnets, invalid = split_valid(snapshot.host_subnets, check_host_subnet)
    ignored |= _reasons_by_object("HostSubnet", invalid)
    subnet_owners = conflicting_subnets(subnets)
    ignored |= _reasons_by_object(
        "HostSubnet", {name: f"its subnet or hostIP is that of {owner}" for name, owner in subnet_owners.items()}
    )
    net_namespaces, invalid = split_valid(snapshot.net_namespaces, check_net_namespace_fields)
    ignored |= _reasons_by_object("NetNamespace", invalid)
    vnid_owners = conflicting_vnids(net_namespaces)
    ignored |= _reasons_by_object(
        "NetNamespace", {name: f"its VNID is that of {owner}" for name, owner in vnid_owners.items()}
    )
    return Snapshot(
        networks[0] if networks else None,
        tuple(subnet for subnet in subnets if subnet.metadata.name not in subnet_owners),
        tuple(net_namespace for net_namespace in net_namespaces if net_namespace.metadata.name not in vnid_owners),
        ignored,
    )


def _reasons_by_object(kind: str, reasons: Mapping[str, str]) -> dict[str, str]:
    return {f"{kind} {name}": reason for name, reason in reasons.items()}
