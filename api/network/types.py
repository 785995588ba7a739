"""ClusterNetwork, HostSubnet, NetNamespace and PodAddress; the annotation that requests a change of VNID. Pure.

The master removes the annotation in the same write that sets the new VNID.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from api.core.pod import FINAL_PHASES
from api.meta.types import Object, Value


class ClusterNetworkEntry(Value, frozen=True):
    """A network from which nodes get subnets with `host_subnet_length` host bits."""

    cidr: str = msgspec.field(name="CIDR")
    host_subnet_length: int


class ClusterNetwork(Object, frozen=True):
    """The pod network of the whole cluster. Only the object with the name `default` is used.

    `network` is the network of the pods. `hostsubnetlength` is the number of host bits of a node's subnet (9 gives each
    node a /23). `service_network` is the network of cluster IPs. `plugin_name` is `redhat/openshift-ovs-subnet` or
    `redhat/openshift-ovs-multitenant`. `vxlan_port` is the UDP port of the tunnels. `mtu` is the MTU of pods.
    """

    API_VERSION = "network.openshift.io/v1"
    KIND = "ClusterNetwork"
    PLURAL = "clusternetworks"
    NAMESPACED = False

    network: str = ""
    hostsubnetlength: int = 0
    service_network: str = ""
    plugin_name: str = ""
    cluster_networks: tuple[ClusterNetworkEntry, ...] = ()
    vxlan_port: int | None = None
    mtu: int | None = None


class HostSubnet(Object, frozen=True):
    """The subnet of a node in the cluster network.

    `host` is the name of the node. `host_ip` is the address of the node to which other nodes send tunnelled packets.
    `subnet` is the network of the node's pods.
    """

    API_VERSION = "network.openshift.io/v1"
    KIND = "HostSubnet"
    PLURAL = "hostsubnets"
    NAMESPACED = False

    host: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    subnet: str = ""
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")
    egress_cidrs: tuple[str, ...] = msgspec.field(default=(), name="egressCIDRs")


class NetNamespace(Object, frozen=True):
    """The virtual network of a project.

    `netname` is the name of the project. `netid` is its VNID, 0 to 16777215. Projects with the same VNID reach each
    other; VNID 0 reaches all and is reached by all.
    """

    API_VERSION = "network.openshift.io/v1"
    KIND = "NetNamespace"
    PLURAL = "netnamespaces"
    NAMESPACED = False

    netname: str = ""
    netid: int = msgspec.field(default=-1)
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")


ASSIGN_SUBNET_ANNOTATION = "pod.network.openshift.io/assign-subnet"
"""Annotation of a HostSubnet that an administrator created: the master sets a subnet and removes the annotation."""

PLUGIN_SUBNET = "redhat/openshift-ovs-subnet"
PLUGIN_MULTITENANT = "redhat/openshift-ovs-multitenant"

CHANGE_NETWORK_ANNOTATION = "pod.network.openshift.io/multitenant.change-network"
"""Annotation of a NetNamespace that requests another VNID; see ChangeNetworkRequest."""

JOINED_ANNOTATION = "network.podlane.io/joined"
"""Annotation of a NetNamespace that was joined: the project whose VNID it has. Written with the VNID."""

ACCEPTED_CHANGES = '"global", "isolate" and "join:NAMESPACE" are accepted'


class BadChangeNetwork(Exception):
    """A value of the annotation that is not valid. The text says what is accepted."""


@dataclass(frozen=True, slots=True)
class ChangeNetworkRequest:
    """A request for another VNID.

    `action` is global (VNID 0), isolate (a VNID that no other project has) or join (the VNID of the project `target`).
    """

    action: str
    target: str = ""

    def __str__(self) -> str:
        """Return the value of the annotation."""
        return f"{self.action}:{self.target}" if self.target else self.action


def parse_change_network(text: str) -> ChangeNetworkRequest:
    """Parse the value of the annotation. Raises BadChangeNetwork."""
    action, colon, target = text.partition(":")
    if (action in {"global", "isolate"} and not colon) or (action == "join" and target):
        return ChangeNetworkRequest(action, target)
    raise BadChangeNetwork(ACCEPTED_CHANGES)


def vnid_owner(net_namespace: NetNamespace) -> str:
    """Return the project that owns the VNID: the project that it was joined to, otherwise its own name."""
    return net_namespace.metadata.annotations.get(JOINED_ANNOTATION, net_namespace.metadata.name)


class PodAddress(Object, frozen=True):
    """The part of a Pod that services depend on.

    `phase` and `ip` are those of the pod's status. `host_network` says whether the pod is in the network of its node.
    """

    API_VERSION = "podlane.io/v1"
    KIND = "PodAddress"
    PLURAL = "podaddresses"
    NAMESPACED = True

    phase: str = ""
    ip: str = ""
    host_network: bool = False


class _SlimSpec(Value, frozen=True):
    """The spec of a SlimPod."""

    host_network: bool = False


class _SlimStatus(Value, frozen=True):
    """The status of a SlimPod."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class SlimPod(Object, frozen=True):
    """The same part of a Pod, for API servers that have no PodAddresses."""

    API_VERSION = "v1"
    KIND = "Pod"
    PLURAL = "pods"
    NAMESPACED = True

    spec: _SlimSpec = _SlimSpec()
    status: _SlimStatus = _SlimStatus()


def pod_address(pod: SlimPod) -> PodAddress:
    """Return the PodAddress of a pod."""
    return PodAddress(
        metadata=pod.metadata, phase=pod.status.phase, ip=pod.status.pod_ip, host_network=pod.spec.host_network
    )


def own_ip(pod: PodAddress) -> str:
    """Return the address that belongs to the pod; empty if it has the node's address, or has finished."""
    return "" if pod.host_network or pod.phase in FINAL_PHASES else pod.ip


def node_ip(pod: PodAddress) -> str:
    """Return the address of the pod's node if the pod is in the network of its node and has not finished, else ""."""
    return pod.ip if pod.host_network and pod.phase not in FINAL_PHASES else ""
